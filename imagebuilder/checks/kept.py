"""What judged a set: its findings are kept under the hash of all that decides them; a build tells of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache as once
from importlib.resources import files
from typing import Any

from imagebuilder import __version__
from imagebuilder.cache import Cache
from imagebuilder.checks import image, registry, versions
from imagebuilder.checks.model import Finding
from imagebuilder.lock.model import Lock
from imagebuilder.stack.model import Stack

_KIND = "findings-1"
_CODE, _TABLES = ("facts", "checks", "plan"), ("data", "data/layouts")  # folders whose files decide a verdict
_NOT_SEEN = (registry.UNREAD.code, image.UNSEEN.code, versions.GONE.code)


def key_of(
    stack: Stack, lock: Lock, previous: Lock | None, base_env: Mapping[str, str], base: str = ""
) -> str:
    """The hash of a stack without its waivers, its lock and base, the lock compared with, tables and code.

    base: what identifies what was seen of it.
    """
    said = [
        repr(replace(stack, waivers=(), path=None)),
        repr(lock),
        repr(previous),
        repr(sorted(base_env.items())),
        base,
        code_of((*_CODE, *_TABLES)),
    ]
    return hashlib.sha256("\0".join(said).encode()).hexdigest()


def read(cache: Cache, key: str) -> list[Finding] | None:
    """The findings under this key, if they were kept."""
    record = cache.read_record(_KIND, key)
    if record is None:
        return None
    try:
        return [Finding(**{**row, "evidence": tuple(row["evidence"])}) for row in json.loads(record)]
    except (ValueError, TypeError, KeyError):
        return None  # a damaged record: found again


def write(cache: Cache, key: str, found: Iterable[Finding]) -> None:
    """Keep them. Only findings of a set that was read completely may be."""
    cache.write_record(_KIND, key, json.dumps([asdict(finding) for finding in found]).encode())


def account_of(stack: Stack, found: Iterable[Finding]) -> dict[str, Any]:
    """That checks ran, for the build record: how many, of which code and tables; what they did not see."""
    unseen = [finding.what for finding in found if finding.code in _NOT_SEEN]
    if stack.system.resolve == "build" and stack.system.packages:
        unseen.append(f"what apt installs while building: {', '.join(stack.system.packages)}")
    return {
        "imagebuilder": __version__,
        "codes": len(registry.codes()),
        "code": f"sha256:{code_of(_CODE)}",
        "tables": f"sha256:{code_of(_TABLES)}",
        "unseen": unseen,
    }


@once
def code_of(folders: tuple[str, ...]) -> str:
    """The hash of the code and tables in these folders: what other code has judged is judged again."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((files("imagebuilder") / folder).iterdir(), key=lambda f: f.name):
            if file.is_file() and not file.name.endswith(".json"):
                digest.update(f"{folder}/{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()
