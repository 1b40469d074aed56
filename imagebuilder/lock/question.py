"""What uv is asked for a stack: requirements, bindings, dates, and the traps gone round.

Dates: an index that publishes no upload times would lose all its files to uv's `--exclude-newer`, so its
packages are exempt. Overrides: uv forgets which index an overridden package is bound to and would take it
from the default one, so such an override is given as the address of the file that the bound index has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from imagebuilder.errors import Unresolvable
from imagebuilder.index.http import NotFound, Session
from imagebuilder.index.simple import Indexes, IndexFile
from imagebuilder.lock.choose import best_wheel, uploaded_by
from imagebuilder.lock.model import DEFAULT_INDEX
from imagebuilder.lock.target import TargetFacts
from imagebuilder.lock.uv import AskedIndex, Question
from imagebuilder.progress import Reporter
from imagebuilder.stack.model import Index, Stack


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The question, and the files that stand in it for overrides of bound packages."""

    question: Question
    addressed: Mapping[NormalizedName, IndexFile]


def bindings_of(stack: Stack) -> dict[NormalizedName, str]:
    """Package → the index that its layer names."""
    return {
        canonicalize_name(requirement.name): layer.index
        for layer in stack.layers
        if layer.index is not None
        for requirement in layer.requirements
        if requirement.url is None
    }


def make_question(
    stack: Stack,
    target: TargetFacts,
    indexes: Indexes,
    http: Session,
    reporter: Reporter,
    *,
    kept: Mapping[NormalizedName, str],
) -> Asked:
    """The question for this stack. kept: versions to prefer. Reads the listings of bound packages."""
    bindings = bindings_of(stack)
    _ask_each_index(stack, bindings, indexes)
    cutoffs, bounded = _cutoffs(stack, bindings, indexes, reporter)
    as_of = stack.resolve.as_of
    addressed = {
        canonicalize_name(o.requirement.name): _addressed(o.requirement, index, indexes, target, as_of)
        for o in stack.overrides
        if o.requirement.url is None
        and (index := bindings.get(canonicalize_name(o.requirement.name))) is not None
    }
    question = Question(
        stack_name=stack.name,
        target=target,
        requirements=tuple(r for layer in stack.layers for r in layer.requirements),
        overrides=tuple(_override_text(o.requirement, addressed) for o in stack.overrides),
        indexes=(
            *(_asked_index(index, indexes, http) for index in stack.indexes),
            _asked_index(Index(name=DEFAULT_INDEX, url=""), indexes, http),
        ),
        bindings=bindings,
        kept={name: version for name, version in kept.items() if name not in addressed},
        as_of=as_of if bounded else None,
        cutoffs=cutoffs,
    )
    return Asked(question=question, addressed=addressed)


def _ask_each_index(stack: Stack, bindings: Mapping[NormalizedName, str], indexes: Indexes) -> None:
    """Read one page of each index: one that refuses or fails is told by us, better than by uv, and a login
    that only keyring knows is known before uv is started.
    """
    for index in (*(i.name for i in stack.indexes), DEFAULT_INDEX):
        name = next((n for n, bound in bindings.items() if bound == index), None)
        if name is None and not any(i.name == index and i.explicit for i in stack.indexes):
            name = next(_unbound(stack, bindings), None)
        if name is not None:
            _listed(indexes, name, index)


def _unbound(stack: Stack, bindings: Mapping[NormalizedName, str]) -> Iterator[NormalizedName]:
    """What the stack names and no layer binds to an index."""
    for layer in stack.layers:
        for requirement in layer.requirements:
            name = canonicalize_name(requirement.name)
            if name not in bindings and requirement.url is None:
                yield name


def _cutoffs(
    stack: Stack, bindings: Mapping[NormalizedName, str], indexes: Indexes, reporter: Reporter
) -> tuple[dict[NormalizedName, datetime | None], bool]:
    """(date for each bound package, None where its index says no upload times; whether others have one)."""
    as_of = stack.resolve.as_of
    if as_of is None:
        return {}, False
    cutoffs: dict[NormalizedName, datetime | None] = {}
    for name, index in bindings.items():
        dated = says_upload_times(_listed(indexes, name, index))
        cutoffs[name] = as_of if dated else None
    without = sorted({bindings[name] for name, cutoff in cutoffs.items() if cutoff is None})
    bounded = _default_is_dated(stack, bindings, indexes)
    if not bounded:
        without.append(DEFAULT_INDEX)
    if without:
        reporter.warn(
            f"no upload times on {', '.join(without)}: [resolve] as-of cannot hold for what comes from there"
        )
    return cutoffs, bounded


def _default_is_dated(stack: Stack, bindings: Mapping[NormalizedName, str], indexes: Indexes) -> bool:
    """Judged by the first package that is asked of the default index and is there."""
    for name in _unbound(stack, bindings):
        if files := _listed(indexes, name, DEFAULT_INDEX):
            return says_upload_times(files)
    return True


def _listed(indexes: Indexes, name: str, index: str) -> list[IndexFile]:
    """The files of a project; none where the index does not know it, which uv will explain."""
    try:
        return indexes.project(name, index)
    except NotFound:
        return []


def says_upload_times(files: Iterable[IndexFile]) -> bool:
    """Whether any of the files has one; no files at all: nothing speaks against it."""
    present = list(files)
    return not present or any(file.upload_time is not None for file in present)


def _addressed(
    requirement: Requirement, index: str, indexes: Indexes, target: TargetFacts, as_of: datetime | None
) -> IndexFile:
    """The file for an override of a bound package: the newest version that the override admits."""
    files = uploaded_by(_listed(indexes, canonicalize_name(requirement.name), index), as_of)
    versions = {f.version for f in files if f.is_wheel and f.yanked is None}
    admitted: list[Version] = list(requirement.specifier.filter(versions))
    for version in sorted(admitted, reverse=True):
        if file := best_wheel(files, version, target):
            return file
    raise Unresolvable(
        f"the override {requirement} has no wheel for the target on index {index}",
        seen=", ".join(str(v) for v in sorted(versions)[-5:]) or "no wheel of it at all",
        hint="ask for another version, or for another index in the layer that names it",
    )


def _override_text(requirement: Requirement, addressed: Mapping[NormalizedName, IndexFile]) -> str:
    file = addressed.get(canonicalize_name(requirement.name))
    if file is None:
        return str(requirement)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras} @ {file.url}{marker}"


def _asked_index(index: Index, indexes: Indexes, http: Session) -> AskedIndex:
    url = indexes.url_of(index.name)
    login = http.credentials.login_for(url) if http.credentials else None
    return AskedIndex(name=index.name, url=url, explicit=index.explicit, login=login)
