"""Which libraries of a wheel are alternatives, of which its Python code chooses one when it runs. Pure.

Files are alternatives when their paths differ only in numbers and in names of backends:
`sm90/ops.so` and `sm100/ops.so`, `lib_cuda128.so` and `lib_rocm71.so`, `core4.so` to `core8.so`; or when one
has a backend with its number behind the other's name: `hook.so` and `hook_cu13.so`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_EXTENSION_OF = re.compile(r"\.(?:cpython-(\d+)t?|pypy\d+-pp\d+)-[\w-]+\.so$")


def groups(paths: Iterable[str], words: Sequence[str]) -> list[tuple[str, ...]]:
    """The paths, alternatives together; each group and the whole sorted."""
    found: dict[str, list[str]] = {}
    alternatives = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![A-Za-z])(?:{alternatives})(?![A-Za-z])\d*|\d+")
    suffix = re.compile(rf"[_-](?:{alternatives})\d+(?![A-Za-z0-9])")
    for path in paths:
        found.setdefault(pattern.sub("#", path), []).append(path)
    for key, group in list(found.items()):
        bare = {pattern.sub("#", suffix.sub("", path)) for path in group} - {key}
        if len(bare) == 1 and (other := bare.pop()) in found:
            found[other].extend(found.pop(key))
    return sorted(tuple(sorted(group)) for group in found.values())


def importable(path: str, python: tuple[int, ...]) -> bool:
    """Could this Python import the file, going by the suffix of an extension module?"""
    match = _EXTENSION_OF.search(path)
    return match is None or match[1] == "".join(map(str, python[:2]))
