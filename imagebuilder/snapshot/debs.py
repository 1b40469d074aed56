"""Which Debian packages to ask for, so that all that are installed come along."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.debian_packages import DebFile
from imagebuilder.lock.debian import Offers
from imagebuilder.progress import Reporter
from imagebuilder.stack.model import Base, DebianBase

_IMPORTANT = 1  # rank of Priority important: what a base has in any case


def find_debs(
    base: Base,
    there: Sequence[DebFile],
    auto: Collection[str],
    offers_of: Callable[[DebianBase], Offers],
    reporter: Reporter,
) -> tuple[Base, Roots, tuple[DebFile, ...]]:
    """(the base, the packages to ask for, those that the archive does not know).

    A Debian base takes the security pocket where more of the installed versions are then right. For an image
    base, which is not looked into, the packages of Priority important and above are taken for its own.
    """
    if not isinstance(base, DebianBase):
        ranks = {deb.name: deb.rank for deb in there}
        roots = find_roots(there, auto)
        manual = tuple(name for name in roots.manual if ranks[name] > _IMPORTANT)
        return base, Roots(manual=manual, recommended=()), ()
    newest, wrong = _newest(offers_of(base), there)
    if wrong:
        secure = replace(base, security=True)
        try:
            other, still_wrong = _newest(offers_of(secure), there)
        except ArtefactUnusable as error:
            reporter.note(f"the security pocket was not looked into: {error.what}")
        else:
            if still_wrong < wrong:
                base, newest = secure, other
    unknown = tuple(deb for deb in there if deb.name not in newest)
    return base, find_roots([deb for deb in there if deb.name in newest], auto), unknown


def _newest(offers: Offers, there: Sequence[DebFile]) -> tuple[dict[str, DebFile], int]:
    """(what the archive has of them, how many of these are in another version than installed)."""
    found = {deb.name: files[0] for deb in there if (files := offers.named(deb.name))}
    return found, sum(deb.name in found and found[deb.name].version != deb.version for deb in there)


@dataclass(frozen=True, kw_only=True)
class Roots:
    """Debian packages that nothing else needs: by hand, and those that others only recommended."""

    manual: tuple[str, ...]
    recommended: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Together, sorted."""
        return tuple(sorted({*self.manual, *self.recommended}))


def find_roots(installed: Sequence[DebFile], automatic: Collection[str]) -> Roots:
    """The fewest names whose closure is what is installed. automatic: what apt marked as not asked for.

    Essential packages come with every base. In a circle of packages the first by name stands for all.
    """
    by_name = {deb.name: deb for deb in installed}
    providers: dict[str, list[str]] = {}
    for deb in installed:
        for virtual in (relation.name for group in deb.provides_groups for relation in group):
            providers.setdefault(virtual, []).append(deb.name)
    needs = {deb.name: _needs(deb, by_name, providers) for deb in installed}
    needed = {name for own, others in needs.items() for name in others if name != own}
    base = [deb.name for deb in installed if deb.essential or deb.rank == 0]
    covered = _closure(base, needs)
    leaves = sorted(name for name in by_name if name not in needed and name not in covered)
    roots = list(leaves)
    covered |= _closure(leaves, needs)
    for name in sorted(by_name):
        if name not in covered:
            roots.append(name)
            covered |= _closure([name], needs)
    for name in tuple(roots):  # one of a circle may have been taken before another that leads to it
        others = [root for root in roots if root != name]
        if name in _closure(others, needs):
            roots = others
    return Roots(
        manual=tuple(sorted(n for n in roots if n not in automatic)),
        recommended=tuple(sorted(n for n in roots if n in automatic)),
    )


def _needs(deb: DebFile, by_name: Mapping[str, DebFile], providers: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    for group in (*deb.pre_depends_groups, *deb.depends_groups):
        for relation in group:
            if relation.name in by_name:
                found.add(relation.name)
                break
            if relation.name in providers:
                found.add(sorted(providers[relation.name])[0])
                break
    return found


def _closure(names: Iterable[str], needs: Mapping[str, set[str]]) -> set[str]:
    done: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in done:
            done.add(name)
            pending += needs.get(name, ())
    return done


def automatic(extended_states: bytes) -> frozenset[str]:
    """What apt installed because something else wanted it. Source: apt's extended_states."""
    found: set[str] = set()
    for stanza in extended_states.decode("utf-8", "replace").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if fields.get("Auto-Installed", "").strip() == "1" and "Package" in fields:
            found.add(fields["Package"].strip())
    return frozenset(found)
