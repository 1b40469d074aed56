"""Files beside packages that no wheel brought, made by hand or by what ran: they become extra files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from imagebuilder.snapshot.installed import is_debians
from imagebuilder.snapshot.model import LARGEST_FILE, Change, Environment, Package, inside
from imagebuilder.snapshot.places import of_no_package

MOST_FILES = 200
MOST_BYTES = LARGEST_FILE


def find_added(environment: Environment, packages: Sequence[Package]) -> list[Change]:
    """What is in the environment's own sites and of no package, as files to take over.

    What belongs to a package that cannot be locked is left out: it is named with that. Of a folder with too
    much in it there is one line, and nothing is taken over.
    """
    files, own = environment.files, {p.installed.site for p in packages}
    interpreter = environment.interpreter
    sites = [
        site
        for site in interpreter.sites
        if not is_debians(site) and (site in own or inside(site, [interpreter.prefix]))
    ]
    owned = _owned(packages)
    found = [path for site in sites for path in _unowned(environment, site, owned, packages)]
    groups: dict[str, list[str]] = {}
    for path in found:
        site = next(s for s in sites if path.startswith(f"{s}/"))
        groups.setdefault(f"{site}/{path[len(site) + 1 :].partition('/')[0]}", []).append(path)
    changes: list[Change] = []
    wanted: list[str] = []
    room, left = MOST_BYTES, MOST_FILES
    for top, paths in sorted(groups.items(), key=lambda group: len(group[1])):
        size = sum(files.size(path) for path in paths)
        if len(paths) > left or size > room:
            why = f"{len(paths)} files of no package, {size} bytes, are in it: too much for a stack"
            changes.append(Change(path=top, member=top, what="added", how="nothing", why=why))
            continue
        room, left = room - size, left - len(paths)
        wanted += paths
    data = files.read(wanted, LARGEST_FILE)
    for path in wanted:
        site = next(s for s in sites if path.startswith(f"{s}/"))
        member = path[len(site) + 1 :]
        if path in data:
            executable = files.executable(path)
            changes.append(
                Change(
                    path=path, member=member, what="added", how="file", data=data[path], executable=executable
                )
            )
        else:
            changes.append(
                Change(path=path, member=member, what="added", how="nothing", why="it cannot be read")
            )
    return sorted(changes, key=lambda change: change.path)


def _owned(packages: Sequence[Package]) -> set[str]:
    owned: set[str] = set()
    for package in packages:
        owned.update(package.installed.record or ())
        if package.candidate:
            owned.update(package.candidate.places.values())
    return owned


def _unowned(
    environment: Environment, site: str, owned: set[str], packages: Sequence[Package]
) -> Iterator[str]:
    """Paths that no package has, without bytecode and what installers keep for themselves."""
    strange: set[str] = set()
    for package in packages:
        item = package.installed
        if package.state == "unlockable" and item.site == site:
            strange |= {item.folder.rpartition("/")[2], item.name.replace("-", "_"), *item.top_level}
            strange |= {f"{name}.py" for name in strange}
    for path in environment.files.walk(site):
        inner = path[len(site) + 1 :]
        top = inner.partition("/")[0]
        leftover = top.startswith("~") or top.endswith((".dist-info", ".egg-info"))
        if path not in owned and top not in strange and not leftover and not of_no_package(path, site):
            yield path
