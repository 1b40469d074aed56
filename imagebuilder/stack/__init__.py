"""What the user wants: TOML → Stack.

`find_stack` gives the file an argument means, `load_stack` the Stack in it, `resolution_hash` what a lock is
bound to; `plan_copy` and `perform_copy` make a shipped stack one's own.
"""

from imagebuilder.stack.copying import Copy, perform_copy, plan_copy
from imagebuilder.stack.find import find_stack, lock_path, shipped_folder, shipped_stacks
from imagebuilder.stack.hashing import resolution_hash, resolution_parts
from imagebuilder.stack.loader import load_stack, parse_stack
from imagebuilder.stack.model import (
    Acceptance,
    DebianBase,
    DeployDocker,
    DeployKubernetes,
    File,
    ImageBase,
    ImageSettings,
    Index,
    Layer,
    OciBase,
    Override,
    Patch,
    Resolve,
    Stack,
    System,
    Target,
    Waiver,
)

__all__ = [
    "Acceptance",
    "Copy",
    "DebianBase",
    "DeployDocker",
    "DeployKubernetes",
    "File",
    "ImageBase",
    "ImageSettings",
    "Index",
    "Layer",
    "OciBase",
    "Override",
    "Patch",
    "Resolve",
    "Stack",
    "System",
    "Target",
    "Waiver",
    "find_stack",
    "load_stack",
    "lock_path",
    "parse_stack",
    "perform_copy",
    "plan_copy",
    "resolution_hash",
    "resolution_parts",
    "shipped_folder",
    "shipped_stacks",
]
