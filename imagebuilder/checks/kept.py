"""Findings of a whole set, kept under the hash of all that decides them: a second check costs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache as once
from importlib.resources import files

from imagebuilder.cache import Cache
from imagebuilder.checks.model import Finding
from imagebuilder.lock.model import Lock
from imagebuilder.stack.model import Stack

_KIND = "findings-1"
_JUDGES = ("facts", "checks", "data", "data/layouts", "plan")  # folders whose files decide a verdict


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
        code_of(_JUDGES),
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


@once
def code_of(folders: tuple[str, ...]) -> str:
    """The hash of the code and tables in these folders: what other code has judged is judged again."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((files("imagebuilder") / folder).iterdir(), key=lambda f: f.name):
            if file.is_file() and not file.name.endswith(".json"):
                digest.update(f"{folder}/{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()
