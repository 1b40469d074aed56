"""dpkg's database: status, what each package holds, its scripts, triggers; for dpkg, apt and scanners.

Source: dpkg 1.21 and 1.22 (lib/dpkg/dump.c, parse.c, fields.c; deb-triggers(5)).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from imagebuilder.builders.direct.debian.tree import DIRECTORY, FILE, Tree
from imagebuilder.builders.direct.debian.unpack import Unpacked

_ROOT = "var/lib/dpkg"
_EXECUTABLE = {"preinst", "postinst", "prerm", "postrm", "config"}

# The order in which dpkg writes a stanza's fields; others follow in their own order.
_ORDER = (
    "Package",
    "Essential",
    "Protected",
    "Status",
    "Priority",
    "Section",
    "Installed-Size",
    "Origin",
    "Maintainer",
    "Bugs",
    "Architecture",
    "Multi-Arch",
    "Source",
    "Version",
    "Replaces",
    "Provides",
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Breaks",
    "Conflicts",
    "Enhances",
    "Conffiles",
    "Description",
)
_RELATIONS = {
    "Replaces",
    "Provides",
    "Depends",
    "Pre-Depends",
    "Recommends",
    "Suggests",
    "Breaks",
    "Conflicts",
    "Enhances",
}
_PACKAGE = re.compile(r"^Package: *(\S+)$", re.MULTILINE)


def write_database(tree: Tree, packages: Sequence[Unpacked]) -> None:
    """Everything below /var/lib/dpkg, for these packages and those of a lower layer together."""
    stanzas: dict[str, str] = {}
    for stanza in (tree.read(f"{_ROOT}/status") or b"").decode("utf-8", "surrogateescape").split("\n\n"):
        if match := _PACKAGE.search(stanza):
            stanzas[match[1]] = stanza.strip("\n")
    for package in packages:
        stanzas[package.name] = _stanza(package, _write_info(tree, package)).rstrip("\n")
    status = "".join(f"{stanzas[name]}\n\n" for name in sorted(stanzas))
    tree.put_file(f"{_ROOT}/status", status.encode("utf-8", "surrogateescape"))
    for name in ("alternatives", "info", "parts", "triggers", "updates"):
        tree.put_folder(f"{_ROOT}/{name}")
    if tree.read(f"{_ROOT}/info/format") is None:
        tree.put_file(f"{_ROOT}/info/format", b"1\n")
    for name in ("diversions", "statoverride", "available"):
        if not tree.exists(f"{_ROOT}/{name}"):
            tree.put_file(f"{_ROOT}/{name}", b"")
    _write_triggers(tree, packages)


def _write_info(tree: Tree, package: Unpacked) -> list[tuple[str, str]]:
    """The package's files in `info`; returns its conffiles with their MD5."""
    info = f"{_ROOT}/info/{package.info_name}"
    paths = [f"/{path}" if path else "/." for path in package.kept]
    if paths[:1] != ["/."]:
        paths.insert(0, "/.")
    tree.put_file(f"{info}.list", "".join(f"{p}\n" for p in paths).encode("utf-8", "surrogateescape"))
    control = dict(package.control)
    conffiles = [line.split()[-1] for line in package.lines("conffiles") if not line.startswith("remove-on")]
    if "md5sums" not in control:  # dpkg makes it then
        sums = _sums(package, {path.lstrip("/") for path in conffiles})
        if sums:
            control["md5sums"] = (sums, 0o644)
    for name, (data, _) in control.items():
        tree.put_file(f"{info}.{name}", data, 0o755 if name in _EXECUTABLE else 0o644)
    by_name = {entry.name: entry for entry in package.entries}
    found: list[tuple[str, str]] = []
    for path in conffiles:
        entry = by_name.get(path.lstrip("/"))
        found.append((path, _md5(entry.content.read()) if entry and entry.content else "newconffile"))
    return found


def _sums(package: Unpacked, conffiles: set[str]) -> bytes:
    lines = [
        f"{_md5(entry.content.read())}  {entry.name}\n"
        for entry in package.entries
        if entry.kind == FILE and entry.content and entry.name not in conffiles
    ]
    return "".join(lines).encode("utf-8", "surrogateescape")


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _stanza(package: Unpacked, conffiles: Sequence[tuple[str, str]]) -> str:
    fields = {name: value for name, value in package.fields.items() if name != "Conffiles"}
    fields["Status"] = "install ok installed"
    if conffiles:
        fields["Conffiles"] = "".join(f"\n {path} {digest}" for path, digest in conffiles)
    known = {name.lower(): name for name in fields}
    order = [known.pop(name.lower()) for name in _ORDER if name.lower() in known]
    lines = []
    for name in (*order, *(n for n in fields if n in known.values())):
        value = relation_text(fields[name]) if name in _RELATIONS else fields[name].rstrip()
        lines.append(f"{name}:{value if value.startswith(chr(10)) else ' ' + value}")
    return "\n".join(lines)


def relation_text(value: str) -> str:
    """A relation field as dpkg writes it: one line, one space, `(op version)`."""
    groups = [" ".join(group.split()) for group in " ".join(value.split()).split(",")]
    text = ", ".join(group for group in groups if group)
    text = re.sub(r"\s*\|\s*", " | ", text)
    return re.sub(
        r"\s*\(\s*(<<|<=|>=|>>|=|<|>)?\s*([^)\s]+)\s*\)",
        lambda m: f" ({ {'<': '<=', '>': '>='}.get(m[1] or '=', m[1] or '=') } {m[2]})",
        text,
    )


def _write_triggers(tree: Tree, packages: Sequence[Unpacked]) -> None:
    """Who is interested in which trigger: `File` for paths, a file each for names."""
    files: list[str] = (tree.read(f"{_ROOT}/triggers/File") or b"").decode().splitlines()
    named: dict[str, list[str]] = {}
    for package in packages:
        for line in package.lines("triggers"):
            words = line.partition("#")[0].split()
            if len(words) != 2 or not words[0].startswith("interest"):
                continue
            who = package.info_name + ("/noawait" if words[0] == "interest-noawait" else "")
            if words[1].startswith("/"):
                files.append(f"{words[1]} {who}")
            else:
                named.setdefault(words[1], []).append(who)
    for name, interested in named.items():
        before = (tree.read(f"{_ROOT}/triggers/{name}") or b"").decode().splitlines()
        lines = list(dict.fromkeys([*before, *interested]))
        tree.put_file(f"{_ROOT}/triggers/{name}", "".join(f"{line}\n" for line in lines).encode())
    lines = list(dict.fromkeys(files))
    tree.put_file(f"{_ROOT}/triggers/File", "".join(f"{line}\n" for line in lines).encode())
    if not tree.exists(f"{_ROOT}/triggers/Unincorp"):
        tree.put_file(f"{_ROOT}/triggers/Unincorp", b"")


def kept_paths(package: Unpacked, left_out: set[str], lost: Mapping[str, set[str]]) -> list[str]:
    """What dpkg lists for the package: all it unpacked, less what another package has replaced since."""
    gone = lost.get(package.name, set()) | left_out
    return [e.name for e in package.entries if e.kind == DIRECTORY or e.name not in gone]
