"""Where the files of a wheel lie once it is installed, and which of them say nothing about it. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from imagebuilder.snapshot.model import Installed, Listing
from imagebuilder.values import Release

MADE_BY_INSTALLERS = frozenset(
    {
        "RECORD",
        "RECORD.jws",
        "RECORD.p7s",
        "INSTALLER",
        "REQUESTED",
        "direct_url.json",
        "uv_cache.json",
        "uv_build.json",
    }
)
_OF_ENVIRONMENTS = frozenset({"_virtualenv.py", "_virtualenv.pth", "README.txt", "easy-install.pth"})
"""Files that tools put beside packages and that belong to none."""


def places_of(listing: Listing, installed: Installed, prefix: str, python: Release) -> Mapping[str, str]:
    """Path in the wheel → path in the environment, without what installers make themselves.

    prefix: of the environment that it is installed in.
    """
    site = installed.site
    prefix = _prefix_of(site, prefix)
    schemes = {
        "purelib": site,
        "platlib": site,
        "scripts": f"{prefix}/bin",
        "data": prefix,
        "headers": f"{prefix}/include/site/python{python}/{installed.name}",
    }
    found: dict[str, str] = {}
    data = f"{listing.dist_info.removesuffix('.dist-info')}.data"
    for path in listing.members:
        top, _, rest = path.partition("/")
        if top == listing.dist_info:
            if rest not in MADE_BY_INSTALLERS:
                found[path] = f"{installed.folder}/{rest}"
        elif top == data:
            scheme, _, inner = rest.partition("/")
            if scheme in schemes and inner and not (scheme == "scripts" and inner in listing.scripts):
                found[path] = posixpath.normpath(f"{schemes[scheme]}/{inner}")
                plain = (
                    f"{prefix}/include/python{python}/{installed.name}/{inner}"  # where it is no virtual one
                )
                if scheme == "headers" and plain in (installed.record or ()):
                    found[path] = plain
        elif not compiled(path):
            found[path] = f"{site}/{path}"
    return found


def _prefix_of(site: str, prefix: str) -> str:
    """Of an environment and of the Python below it: what a site's own scripts and data lie in."""
    parts = site.rsplit("/", 3)
    return parts[0] if len(parts) == 4 and parts[1] in ("lib", "lib64") else prefix


def compiled(path: str) -> bool:
    """Whether it is bytecode, which Python makes anew."""
    return path.endswith((".pyc", ".pyo")) or "__pycache__/" in path


def of_no_package(path: str, site: str) -> bool:
    """Whether a file beside packages is no part of what was installed."""
    return compiled(path) or path.removeprefix(f"{site}/") in _OF_ENVIRONMENTS


def is_script(member: str) -> bool:
    """Whether a wheel's file is a ready-made script, whose first line an installer may have changed."""
    top, _, rest = member.partition("/")
    return top.endswith(".data") and rest.startswith("scripts/")
