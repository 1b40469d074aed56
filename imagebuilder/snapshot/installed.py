"""Which distributions are installed, by the .dist-info folders of the sites: read by us, whatever the tool
that made them.

Source: "Recording installed projects" and "Recording the direct URL origin" (packaging.python.org).
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from email.parser import BytesHeaderParser
from typing import Any

from packaging.tags import Tag, parse_tag
from packaging.utils import canonicalize_name, is_normalized_name
from packaging.version import InvalidVersion, Version

from imagebuilder.settings import redact
from imagebuilder.snapshot.model import SHORT, Environment, Files, Installed, Origin, inside, joined

_READ = ("METADATA", "WHEEL", "RECORD", "direct_url.json", "top_level.txt", "PKG-INFO")
_LIMIT = 32 << 20
_FOLDER = re.compile(r"(?P<name>[^~-][^-]*)-(?P<version>[^-]+)\.dist-info")
_OLD = re.compile(
    r"(?P<name>[^~-][^-]*?)(?:-(?P<version>[^-]+?))?(?:-py3\.\d+)?(?:-[a-z]\w+)?\.(?:egg-info|egg-link|egg)"
)
_MACHINE_MADE = re.compile(r"sha256=([A-Za-z0-9_-]{43})=?")

WHEEL_OF_IT = (
    "make a wheel of it (pip wheel --no-deps), put it on an index that pip can use, install that, and "
    "take the snapshot again with --index NAME=URL"
)
_FIXES: Mapping[str, str] = {
    "editable": WHEEL_OF_IT,
    "folder": WHEEL_OF_IT,
    "vcs": WHEEL_OF_IT,
    "archive": WHEEL_OF_IT,
}


def find_installed(environment: Environment) -> tuple[list[Installed], list[Installed]]:
    """(the distributions that Python finds, sorted; those of Debian packages).

    Of two with one name the first on sys.path counts, as for Python. Debian's own folders are dpkg's, where
    pip installs nothing.
    """
    interpreter = environment.interpreter
    prefixes = {interpreter.prefix, interpreter.base, *({"usr/local"} if interpreter.base == "usr" else ())}
    found: dict[str, Installed] = {}
    debian: dict[str, Installed] = {}
    for site in interpreter.sites:
        own = debian if is_debians(site) else found
        for item in _in_site(environment.files, site, prefixes):
            if item.name not in found and item.name not in debian:
                own[item.name] = item
    return [found[n] for n in sorted(found)], [debian[n] for n in sorted(debian)]


def is_debians(site: str) -> bool:
    """Whether only Debian packages put something there."""
    return bool(re.fullmatch(r"usr/lib/python3(?:\.\d+)?/dist-packages", site))


def _in_site(files: Files, site: str, prefixes: set[str]) -> Iterator[Installed]:
    """What is installed in one site; a name that is there twice is one with a problem."""
    names = files.names(site)
    folders = [n for n in names if _FOLDER.fullmatch(n) and files.kind(f"{site}/{n}") == "directory"]
    old = [n for n in names if not n.endswith(".dist-info") and _OLD.fullmatch(n)]
    data = files.read(
        [f"{site}/{n}/{f}" for n in folders for f in _READ]
        + [p for n in old for p in (f"{site}/{n}/PKG-INFO", f"{site}/{n}/top_level.txt", f"{site}/{n}")],
        _LIMIT,
    )
    seen: dict[str, Installed] = {}
    for item in (
        *(_distribution(site, n, data, prefixes) for n in folders),
        *(_without_wheel(site, n, data) for n in old),
    ):
        if item.name in seen:
            first = seen[item.name]
            seen[item.name] = _bad(
                first,
                f"it is there twice: {_base(first.folder)} and {_base(item.folder)}",
                f"pip install --force-reinstall {item.name}=={first.version}, after removing both folders",
            )
        else:
            seen[item.name] = item
    yield from seen.values()


def _plain(text: str) -> str:
    """Of a name or version: what can be printed, in usual length."""
    return "".join(c for c in text if c.isprintable())[:200]


def _base(path: str) -> str:
    return posixpath.basename(path)


def _bad(item: Installed, problem: str, fix: str) -> Installed:
    from dataclasses import replace

    return replace(item, problem=problem, fix=fix)


def _distribution(site: str, folder: str, data: Mapping[str, bytes], prefixes: set[str]) -> Installed:
    match = _FOLDER.fullmatch(folder)
    assert match is not None, "folders were chosen by it"
    name, version = match["name"], match["version"]
    place = f"{site}/{folder}"
    metadata = _headers(data.get(f"{place}/METADATA"))
    name, version = _plain(metadata.get("name", name)), _plain(metadata.get("version", version))
    record, outside = _record(site, data.get(f"{place}/RECORD"), prefixes)
    wheel = _headers(data.get(f"{place}/WHEEL"), many=("tag",))
    top = data.get(f"{place}/top_level.txt", b"").decode("utf-8", "replace").split()
    item = Installed(
        name=canonicalize_name(name),
        version=version,
        site=site,
        folder=place,
        record=record,
        outside=outside,
        tags=frozenset(map(str, _tags(wheel.get("tag", "")))),
        origin=_origin(data.get(f"{place}/direct_url.json")),
        top_level=tuple(top),
    )
    return _judged(item)


def _judged(item: Installed) -> Installed:
    """With the problem that rules out that it is an index's wheel."""
    if not is_normalized_name(item.name):
        return _bad(item, "its name is none that indexes know", WHEEL_OF_IT)
    try:
        Version(item.version)
    except InvalidVersion:
        return _bad(
            item, f"its version {item.version[:60]!r} is none that indexes know (PEP 440)", WHEEL_OF_IT
        )
    origin = item.origin
    if origin is None or origin.kind == "wheel":
        return item
    words = {
        "editable": f"it is installed in editable form from {origin.url}",
        "folder": f"it was built from the folder {origin.url}",
        "vcs": f"it was built from {origin.url}" + (f" at {origin.revision}" if origin.revision else ""),
        "archive": f"it was built from the source archive {origin.url}",
    }[origin.kind]
    return _bad(item, words, _FIXES[origin.kind])


def _without_wheel(site: str, entry: str, data: Mapping[str, bytes]) -> Installed:
    """An egg, or what distutils and `setup.py develop` leave: no wheel's, and no index has such."""
    match = _OLD.fullmatch(entry)
    assert match is not None, "entries were chosen by it"
    place = f"{site}/{entry}"
    said = _headers(
        data.get(f"{place}/PKG-INFO") or (data.get(place) if entry.endswith(".egg-info") else None)
    )
    name = _plain(said.get("name", match["name"]))
    version = _plain(said.get("version", match["version"] or ""))
    top = data.get(f"{place}/top_level.txt", b"").decode("utf-8", "replace").split()
    how = {
        "egg-link": f"it is installed in editable form from {_first_line(data.get(place))}",
        "egg": "it is an egg",
        "egg-info": "it was installed without a wheel (setup.py install)",
    }[entry.rpartition(".")[2]]
    return Installed(
        name=canonicalize_name(name),
        version=version,
        site=site,
        folder=place,
        top_level=(*top, match["name"]),
        problem=how,
        fix=WHEEL_OF_IT,
    )


def _headers(data: bytes | None, many: tuple[str, ...] = ()) -> dict[str, str]:
    """Header fields in small letters; those of `many` joined by blanks."""
    if not data:
        return {}
    message = BytesHeaderParser().parsebytes(data)
    found: dict[str, str] = {}
    for key, value in message.items():
        text = str(value).strip()
        name = key.lower()
        if name in many and name in found:
            found[name] += f" {text}"
        else:
            found.setdefault(name, text)
    return {key: value for key, value in found.items() if value}


def _first_line(data: bytes | None) -> str:
    return _plain(((data or b"").decode("utf-8", "replace").splitlines() or ["?"])[0])


def _tags(text: str) -> frozenset[Tag]:
    found: set[Tag] = set()
    for tag in text.split():
        try:
            found |= parse_tag(tag)
        except ValueError:
            continue
    return frozenset(found)


def _record(
    site: str, data: bytes | None, prefixes: set[str]
) -> tuple[dict[str, str] | None, tuple[str, ...]]:
    """(path → digest, paths that lead out of the environment); None where there is no RECORD that can be
    read.
    """
    if data is None:
        return None, ()
    record: dict[str, str] = {}
    outside: list[str] = []
    try:
        for row in csv.reader(data.decode("utf-8", "surrogateescape").splitlines()):
            if not row or not row[0] or "\0" in row[0]:
                continue
            path = joined(site, row[0])
            if not inside(path, prefixes):
                outside.append(_plain(row[0]))
            else:
                record[path] = _digest(row[1]) if len(row) > 1 else ""
    except csv.Error:
        return None, ()
    return record, tuple(outside)


def _digest(text: str) -> str:
    """Of a RECORD row; nothing where it is none that is known here (sha256 is what wheels have)."""
    match = _MACHINE_MADE.fullmatch(text)
    try:
        return base64.urlsafe_b64decode(f"{match[1]}=").hex()[:SHORT] if match else ""
    except (ValueError, binascii.Error):
        return ""


def digest_of_row(row: list[str]) -> str:
    """The digest that a row of a wheel's RECORD gives; nothing where it gives none."""
    return _digest(row[1]) if len(row) > 1 else ""


def _origin(data: bytes | None) -> Origin | None:
    if data is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(data)
        url = _plain(redact(str(fields["url"])[:2000]))
        if isinstance(info := fields.get("dir_info"), dict):
            return Origin(kind="editable" if info.get("editable") is True else "folder", url=url)
        if isinstance(info := fields.get("vcs_info"), dict):
            revision = _plain(str(info.get("commit_id") or info.get("requested_revision") or ""))[:64]
            return Origin(kind="vcs", url=f"{_plain(str(info.get('vcs', '')))[:10]}+{url}", revision=revision)
        info = fields.get("archive_info") or {}
        hashes = info.get("hashes") or {}
        sha256 = str(hashes.get("sha256") or str(info.get("hash") or "").partition("sha256=")[2])
        wheel = url.partition("#")[0].partition("?")[0].endswith(".whl")
        return Origin(
            kind="wheel" if wheel else "archive", url=url, sha256=sha256 if len(sha256) == 64 else ""
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Origin(kind="archive", url="a place that its direct_url.json does not tell")
