"""Where a built image goes: an OCI layout, a tar file, and the record of how it was built beside it."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from imagebuilder import __version__
from imagebuilder.builders.direct.build import Built
from imagebuilder.files import new_file
from imagebuilder.lock.model import Lock
from imagebuilder.oci import encode, inflate
from imagebuilder.values import Digest, ImageRef

RECORD_SCHEMA = 1
DEFAULT_REPOSITORY = "imagebuilder"


def image_names(
    stack_name: str, repository: str | None, lock: Lock, lock_digest: Digest
) -> tuple[ImageRef, ...]:
    """What the image is called on disk and in an engine.

    `REPOSITORY:STACK`, which moves with each build, and `REPOSITORY:STACK-VERSION-LOCK`, which does not: the
    version of SGLang, where the stack has it, and the first digits of the lock file's sha256.
    """
    sglang = lock.by_name.get("sglang")
    parts = [stack_name, *([sglang.version.replace("+", "_")] if sglang else []), lock_digest.hex[:8]]
    where = repository or DEFAULT_REPOSITORY
    return ImageRef.parse(f"{where}:{stack_name}"), ImageRef.parse(f"{where}:{'-'.join(parts)}")


def write_record(target: Path, record: dict[str, Any]) -> Path:
    """Write the build record beside the image: `TARGET.build.json`."""
    path = target.with_name(f"{target.name}.build.json")
    with new_file(path) as out:
        out.write(json.dumps(record, indent=2).encode() + b"\n")
    return path


def record_of(
    built: Built,
    *,
    lock: Digest,
    names: Sequence[ImageRef],
    builder: Mapping[str, str],
    findings: Sequence[dict[str, Any]] = (),
    checked: Mapping[str, Any] | None = None,
    source: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """How this image was built, and by what: all that must not be in the image itself.

    lock: the digest of the lock file. builder: its `name` and what decides how it works (versions of engine,
    BuildKit, …). findings: of the checks, as `check --json` has them. checked: what judged
    (`checks.kept.account_of`); None where nothing did. source: the stack's commit
    (`revision.source_revision`).
    """
    return {
        "schema": RECORD_SCHEMA,
        "stack": built.plan.stack_name,
        "lock": lock.text,
        "names": [str(name) for name in names],
        "manifest": built.image.digest.text,
        "config": built.image.config_digest.text,
        "platform": str(built.plan.platform),
        "builder": {
            **builder,
            "imagebuilder": __version__,
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "machine": f"{sys.platform} {platform.machine()}",
            "encoder": encode.IDENTITY,
            "inflater": inflate.library_name(),
            "pysequoia": version("pysequoia"),
        },
        "layers": [
            {
                "name": layer.planned.name,
                "title": layer.planned.title,
                "key": layer.planned.key.text,
                "digest": layer.ref.descriptor.digest.text,
                "diff-id": layer.ref.diff_id.text,
                "size": layer.ref.descriptor.size,
                "unpacked": layer.unpacked,
            }
            for layer in built.layers
        ],
        "findings": list(findings),
        **({"checked": dict(checked)} if checked is not None else {}),
        **({"source": dict(source)} if source else {}),
    }
