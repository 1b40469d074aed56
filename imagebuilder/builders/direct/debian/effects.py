"""The few effects of maintainer scripts that matter, done explicitly, as no script is run.

What is made is read from the locked packages where that is possible: lists in base-files' own postinst,
masters, templates, examples. So an effect follows its package from one Debian release to the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from imagebuilder.builders.direct.debian.accounts import group_id, make_accounts, make_shells
from imagebuilder.builders.direct.debian.alternatives import make_alternatives
from imagebuilder.builders.direct.debian.certificates import make_certificates
from imagebuilder.builders.direct.debian.pam import make_pam
from imagebuilder.builders.direct.debian.tree import Tree
from imagebuilder.builders.direct.debian.unpack import Unpacked

Packages = Mapping[str, Unpacked]

# `install_from_default FROM TO`: copy unless it is there. Functions of that name are in several packages.
_DEFAULT = re.compile(r"^\s*install_from_default\s+(\S+)\s+(\S+)\s*$", re.MULTILINE)
_FOLDER = re.compile(r"^\s*install_directory\s+(\S+)\s+([0-7]+)\s+(\S+)\s*$", re.MULTILINE)
_LOCAL = re.compile(r"^\s*install_local_dir\s+(\S+)\s*$", re.MULTILINE)
_MOVED = re.compile(r"^\s*migrate_directory\s+(\S+)\s+(\S+)\s*$", re.MULTILINE)
_LINK = re.compile(r'^\s*ln -sf? (\S+) "\$DPKG_ROOT(/\S+)"\s*$', re.MULTILINE)

_EMPTY_FILES: Mapping[str, Sequence[tuple[str, int]]] = {
    "libpam-modules": (("etc/environment", 0o644), ("etc/security/opasswd", 0o600)),
}


def apply_effects(tree: Tree, packages: Packages) -> None:
    """All of them, for the packages of this layer; the order is that of what needs what."""
    effects: tuple[Callable[[Tree, Packages], None], ...] = (
        make_accounts,
        _defaults,
        _base_files,
        _empty_files,
        make_shells,
        _timezone,
        _python_folders,
        make_pam,
        make_certificates,
        make_alternatives,
        _apt_sources,
    )
    for effect in effects:
        effect(tree, packages)


def _plain(word: str) -> str:
    return word.strip("\"'").removeprefix("$DPKG_ROOT").lstrip("/")


def _defaults(tree: Tree, packages: Packages) -> None:
    for package in packages.values():
        for source, target in _DEFAULT.findall(package.script("postinst")):
            if "$1" in source or "$2" in target:
                continue
            at = tree.follow(_plain(source) if "/" in source else f"usr/share/{package.name}/{source}")
            entry = tree.entries.get(at) if at is not None else None
            if entry and entry.content and not tree.exists(target):
                tree.put_file(_plain(target), entry.content.read(), entry.mode)


def _base_files(tree: Tree, packages: Packages) -> None:
    if "base-files" not in packages:
        return
    script = packages["base-files"].script("postinst").partition('[ "$2" != "" ]')[0]
    for path, mode, group in _FOLDER.findall(script):
        tree.put_folder(path, int(mode, 8), gid=group_id(tree, group))
    for path in _LOCAL.findall(script):
        if "$" not in path:
            tree.put_folder(path)
    for path, target in _MOVED.findall(script):
        tree.drop_folder(path)
        if tree.kind(tree.place(path)) is None:
            tree.put_link(path, target)
    for target, path in _LINK.findall(script):
        if "$" not in target + path and tree.kind(tree.place(path)) is None:
            tree.put_link(path, target)
    if tree.exists("etc/dpkg/origins/debian") and not tree.exists("etc/dpkg/origins/default"):
        tree.put_link("etc/dpkg/origins/default", "debian")


def _empty_files(tree: Tree, packages: Packages) -> None:
    for name, files in _EMPTY_FILES.items():
        if name in packages:
            for path, mode in files:
                if not tree.exists(path):
                    tree.put_file(path, b"", mode)


def _timezone(tree: Tree, packages: Packages) -> None:
    """UTC, which is what tzdata takes when nobody is asked."""
    zone = "Etc/UTC"
    if "tzdata" not in packages or not tree.exists(f"usr/share/zoneinfo/{zone}"):
        return
    if not tree.exists("etc/localtime"):
        tree.put_link("etc/localtime", f"/usr/share/zoneinfo/{zone}")
    if 'test -f "$DPKG_ROOT/etc/timezone"' not in packages["tzdata"].script("postinst"):
        tree.put_file("etc/timezone", f"{zone}\n".encode())


def _python_folders(tree: Tree, packages: Packages) -> None:
    """Where the system's Python looks for what is installed below /usr/local."""
    for name in packages:
        if match := re.fullmatch(r"(python3\.\d+)-minimal", name):
            tree.put_folder(f"usr/local/lib/{match[1]}/dist-packages")


def _apt_sources(tree: Tree, packages: Packages) -> None:
    """Where apt finds packages later: the example that the locked apt carries for its own release.

    It is cut to the components that the layer's packages come from.
    """
    if "apt" not in packages or tree.exists("etc/apt/sources.list"):
        return
    components = {package.deb.path.split("/")[1] for package in packages.values()} | {"main"}
    examples = "usr/share/doc/apt/examples"
    if (data := tree.read(f"{examples}/debian.sources")) is not None:
        lines = [
            "Components: " + " ".join(w for w in line.split()[1:] if w in components)
            if line.startswith("Components:")
            else line
            for line in data.decode().splitlines()
        ]
        tree.put_file("etc/apt/sources.list.d/debian.sources", ("\n".join(lines) + "\n").encode())
    elif (data := tree.read(f"{examples}/sources.list")) is not None:
        lines = [
            " ".join([*line.split()[:3], *(w for w in line.split()[3:] if w in components)])
            if line.startswith("deb ")
            else line
            for line in data.decode().splitlines()
        ]
        tree.put_file("etc/apt/sources.list", ("\n".join(lines) + "\n").encode())
