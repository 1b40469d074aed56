"""/etc/passwd, group, shadow, gshadow and shells, as base-passwd, passwd and debianutils make them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from imagebuilder.builders.direct.debian.tree import Tree
from imagebuilder.builders.direct.debian.unpack import Unpacked
from imagebuilder.errors import BuildFailed

_DAY = 24 * 3600
_SHADOW_GID = 42  # static in Debian (base-passwd)
_CREATES = re.compile(
    r"^\s*(?:\w+ && )*(?:adduser|useradd|addgroup|groupadd|systemd-sysusers)\s", re.MULTILINE
)
_DONE = {"apt", "passwd", "base-passwd"}  # theirs are in base-passwd's masters


def make_accounts(tree: Tree, packages: Mapping[str, Unpacked]) -> None:
    """The accounts every Debian has, from base-passwd's masters; their passwords locked, in shadow files."""
    if "base-passwd" not in packages or tree.read("etc/passwd") is not None:
        return
    passwd, group = (_master(tree, name) for name in ("passwd", "group"))
    if "passwd" in packages:  # its `shadowconfig on`
        day = tree.mtime // _DAY
        tree.put_file(
            "etc/shadow",
            _lines(f"{line[0]}:{line[1]}:{day}:0:99999:7:::" for line in passwd),
            0o640,
            gid=_SHADOW_GID,
        )
        tree.put_file(
            "etc/gshadow",
            _lines(f"{line[0]}:{line[1]}::{':'.join(line[3:])}" for line in group),
            0o640,
            gid=_SHADOW_GID,
        )
        passwd, group = ([[line[0], "x", *line[2:]] for line in table] for table in (passwd, group))
        for name in ("etc/subuid", "etc/subgid"):
            tree.put_file(name, b"")
    tree.put_file("etc/passwd", _lines(":".join(line) for line in passwd))
    tree.put_file("etc/group", _lines(":".join(line) for line in group))


def _master(tree: Tree, name: str) -> list[list[str]]:
    data = tree.read(f"usr/share/base-passwd/{name}.master")
    if data is None:
        raise BuildFailed(f"the package base-passwd has no {name}.master, so no accounts can be made")
    return [line.split(":") for line in data.decode().splitlines() if line.count(":") >= 3]


def _lines(lines: object) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()  # type: ignore[attr-defined]


def group_id(tree: Tree, name: str) -> int:
    """The number of a group; 0 for one that is not known."""
    for line in (tree.read("etc/group") or b"").decode().splitlines():
        fields = line.split(":")
        if fields[0] == name:
            return int(fields[2])
    return 0


def missing_accounts(packages: Iterable[Unpacked]) -> Iterator[str]:
    """What to tell about packages whose postinst would create accounts of their own (a service's user)."""
    for package in packages:
        if package.name not in _DONE and _CREATES.search(package.script("postinst")):
            yield (
                f"the Debian package {package.name} creates accounts when configured, which is not done: "
                f"`apt-get install --reinstall {package.name}` in the image does it"
            )


def make_shells(tree: Tree, packages: Mapping[str, Unpacked]) -> None:
    """/etc/shells and its state, as debianutils' `update-shells` makes them from the packages' lists."""
    folder = "usr/share/debianutils"
    template = tree.read(f"{folder}/shells")
    if template is None or not any(p.name == "debianutils" or _has_shells(p) for p in packages.values()):
        return
    before = tree.read("etc/shells")
    state = _shells(tree.read("var/lib/shells.state") or b"")
    known: dict[str, None] = {}
    for data in (
        template,
        *(tree.read(f"{folder}/shells.d/{n}") or b"" for n in tree.below(f"{folder}/shells.d")),
    ):
        for shell in _shells(data):
            real = tree.place(shell)
            known.update({shell: None, f"/{real}": None})
    lines = (before if before is not None else template).decode().splitlines()
    there = {line.partition("#")[0] for line in lines}
    lines += [shell for shell in known if shell not in there and shell not in state]
    tree.put_file("etc/shells", _lines(lines))
    tree.put_file("var/lib/shells.state", _lines(known))


def _has_shells(package: Unpacked) -> bool:
    return any(entry.name.startswith("usr/share/debianutils/shells.d/") for entry in package.entries)


def _shells(data: bytes) -> list[str]:
    return [shell for line in data.decode().splitlines() if (shell := line.partition("#")[0].strip())]
