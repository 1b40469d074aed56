"""What lies below the packages: the base to rebuild on, and which Debian packages make the rest come along.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from imagebuilder.errors import UsageProblem
from imagebuilder.index.debian_packages import DebFile
from imagebuilder.snapshot.model import Environment
from imagebuilder.stack.model import Base, DebianBase, ImageBase
from imagebuilder.values import ImageRef, Release

SUITES = {"3.11": "bookworm", "3.13": "trixie"}
"""Python → the Debian release that has it."""
PLAIN_PACKAGES = ("ca-certificates", "libgomp1", "libstdc++6", "python3")
"""What an environment of this machine gets: its Python, and what manylinux wheels expect of every system."""
_BASE_NAME, _BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"


def os_release(data: bytes) -> dict[str, str]:
    """The fields of an os-release file. Source: os-release(5)."""
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines() if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in lines}


def choose_base(environment: Environment, system: Mapping[str, str], wanted: str | None) -> Base:
    """The base that has the environment's Python: as wanted, as the image's labels say, or Debian's.

    UsageProblem says what base is needed where none of them is one.
    """
    python = environment.interpreter.python.text
    if wanted:
        return _named(wanted, python)
    labels = dict(environment.run.labels)
    if labels.get(_BASE_NAME):
        digest = labels.get(_BASE_DIGEST, "")
        try:
            return ImageBase(ref=ImageRef.parse(labels[_BASE_NAME] + (f"@{digest}" if digest else "")))
        except ValueError:
            pass
    suite = SUITES.get(python)
    if suite and (not environment.whole or system.get("ID") == "debian"):
        return DebianBase(suite=suite)
    here = " ".join(
        filter(None, (system.get("ID"), system.get("VERSION_CODENAME") or system.get("VERSION_ID")))
    )
    debians = ", ".join(f"{p} ({s})" for p, s in SUITES.items())
    raise UsageProblem(
        f"{environment.label} has Python {python}"
        + (f" on {here}" if environment.whole and here else "")
        + ", and no base with it is known",
        seen=f"Python {python}; Debian has {debians}",
        wanted=f"an image that has /usr/bin/python{python}, by name and digest",
        hint=f"--base {_example(system)}@sha256:… (the image that it was built on, if it has that Python)",
    )


def _example(system: Mapping[str, str]) -> str:
    name, version = system.get("ID", "ubuntu"), system.get("VERSION_ID", "24.04")
    return f"{name}:{version}" if re.fullmatch(r"[a-z]+", name) else "ubuntu:24.04"


def _named(wanted: str, python: str) -> Base:
    if wanted in SUITES.values():
        if SUITES.get(python) != wanted:
            theirs = next(p for p, suite in SUITES.items() if suite == wanted)
            raise UsageProblem(
                f"--base {wanted}: its Python is another one",
                seen=f"Python {theirs}",
                wanted=f"Python {python}",
                hint="an image that has it: --base NAME@sha256:…",
            )  # fmt: skip
        return DebianBase(suite=wanted)
    try:
        return ImageBase(ref=ImageRef.parse(wanted))
    except ValueError as error:
        raise UsageProblem(f"--base {error}", wanted=f"{' or '.join(SUITES.values())}, or an image") from None


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


def choose_glibc(base: Base, environment: Environment, wanted: Release | None) -> Release | None:
    """The glibc to choose wheels for, as wanted; None: that of the Debian base.

    For an image, which is not looked into, it is the environment's. UsageProblem where nobody knows it.
    """
    found = wanted or (None if isinstance(base, DebianBase) else environment.interpreter.glibc)
    if found is None and not isinstance(base, DebianBase):
        raise UsageProblem(
            f"which glibc {environment.label} has is not known",
            wanted="the base's release of it, as `ldd --version` says",
            hint="--glibc 2.39",
        )
    return found


def with_security(base: DebianBase) -> DebianBase:
    """The same suite with its security pocket."""
    return replace(base, security=True)
