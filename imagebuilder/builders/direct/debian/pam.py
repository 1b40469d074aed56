"""/etc/pam.d/common-*: what libpam-runtime's `pam-auth-update` makes of the profiles that are on by default.

Without them su, login, chfn (which adduser calls) and passwd fail. Source: pam-auth-update(8).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from imagebuilder.builders.direct.debian.tree import Tree
from imagebuilder.builders.direct.debian.unpack import Unpacked

_PROFILES, _TEMPLATES = "usr/share/pam-configs", "usr/share/pam"
_TYPES = ("auth", "account", "password", "session", "session-noninteractive")
_PERMIT = "[default=1]\t\t\tpam_permit.so"

Profile = Mapping[str, str]


def make_pam(tree: Tree, packages: Mapping[str, Unpacked]) -> None:
    """The five files and pam-auth-update's memory of them. A base that has them keeps them."""
    if "libpam-runtime" not in packages or tree.exists("etc/pam.d/common-auth"):
        return
    found = {name: _profile(tree.read(f"{_PROFILES}/{name}") or b"") for name in tree.below(_PROFILES)}
    order = sorted(found, key=lambda name: (-int(found[name].get("Priority", "0") or 0), name))
    enabled = [(name, found[name]) for name in order if found[name].get("Default") == "yes"]
    for kind in _TYPES:
        template = tree.read(f"{_TEMPLATES}/common-{kind}")
        if template is None:
            return
        tree.put_file(f"etc/pam.d/common-{kind}", _filled(template.decode(), kind, enabled).encode())
        tree.put_file(f"var/lib/pam/{kind}", _saved(kind, enabled).encode())
    tree.put_file("var/lib/pam/seen", "".join(f"{name}\n" for name in order).encode())


def _profile(data: bytes) -> Profile:
    """A profile's fields; a value may go on in indented lines."""
    fields: dict[str, str] = {}
    for name, value in re.findall(r"^(\S+):[ \t]*((?:.*)(?:\n[ \t].*)*)", data.decode(), re.MULTILINE):
        fields[name] = "\n".join(line.strip() for line in value.splitlines() if line.strip())
    return fields


def _modules(
    kind: str, block: str, enabled: Sequence[tuple[str, Profile]]
) -> Iterator[tuple[str, Sequence[str]]]:
    """(profile, its lines) for one block; the first profile has lines of its own for being first."""
    name = kind.partition("-")[0].capitalize()
    first = True
    for profile, fields in enabled:
        if fields.get(f"{name}-Type") != block:
            continue
        if kind == "session-noninteractive" and fields.get("Session-Interactive-Only") == "yes":
            continue
        lines = (fields.get(f"{name}-Initial") if first else None) or fields.get(name, "")
        first = False
        yield profile, lines.splitlines()


def _filled(template: str, kind: str, enabled: Sequence[tuple[str, Profile]]) -> str:
    out: list[str] = []
    module = "session" if kind.startswith("session") else kind
    for line in template.splitlines():
        match = re.fullmatch(r"\$\w+_(primary|additional)", line.strip())
        if not match:
            out.append(line)
            continue
        block = match[1].capitalize()
        lines = [one for _, some in _modules(kind, block, enabled) for one in some]
        if not lines and block == "Primary":
            lines = [_PERMIT]
            out.append(f"{module}\t{_PERMIT}")
            continue
        left = len(lines) - (block == "Additional")
        for one in lines:
            out.append(f"{module}\t{_jumps(one, left)}")
            left -= 1
    return "".join(f"{line}\n" for line in out)


def _jumps(line: str, left: int) -> str:
    """`end` in a control becomes the number of modules to skip."""
    match = re.match(r"((?:\[[^\]]+\]|\w+)\s+\S+)\s*(.*)", line)
    if not match:
        return line
    return f"{match[1].replace('end', str(left))} {' '.join(match[2].split())}"


def _saved(kind: str, enabled: Sequence[tuple[str, Profile]]) -> str:
    out: list[str] = []
    primary = list(_modules(kind, "Primary", enabled))
    for profile, lines in primary or [("null", [_PERMIT])]:
        out += [f"Module: {profile}", *lines]
    for profile, lines in _modules(kind, "Additional", enabled):
        out += [f"Module: {profile}", *lines]
    return "".join(f"{line}\n" for line in out)
