"""Libraries that will not load, by symbols, versions, needed libraries and layouts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from imagebuilder.checks.model import Check, Code, Finding, Severity, some
from imagebuilder.checks.subject import Loading, Subject
from imagebuilder.facts.exports import symbol_hash
from imagebuilder.facts.layouts import LayoutRisk
from imagebuilder.facts.loader import MissingLibrary, MissingSymbol, MissingVersion, Outcome
from imagebuilder.facts.verdict import Verdict

_MODULE = re.compile(r"(?:^_|\.abi3\.so$|\.cpython-\w+-[\w-]+\.so$)")
_MOST = 6  # lines of evidence of one kind

UNDEFINED = Code(
    code="abi.undefined-symbol",
    severity="error",
    meaning="a library wants a symbol that nothing in its search scope defines",
    consequence="importing it fails with `undefined symbol`: it was built for another release",
    remedy="take releases that go together: `imagebuilder matrix PACKAGE --against NEIGHBOUR` lists them",
)
VERSION = Code(
    code="abi.missing-version",
    severity="error",
    meaning="a library wants a version of a symbol that its provider does not have",
    consequence="loading fails with `version X not found`: the system's libraries are too old for this wheel",
    remedy="a base with a newer C or C++ library, or a wheel that was built on an older one",
)
MISSING = Code(
    code="lib.missing",
    severity="error",
    meaning="a library needs another that the loader finds nowhere",
    consequence="importing it fails with `cannot open shared object file`",
    remedy="install what has it, or put its folder on the search path",
    tables=("systems",),
)
PLUGIN = Code(
    code="lib.missing-for-plugin",
    severity="note",
    meaning="a library that is only loaded when it is asked for needs another that the loader finds nowhere",
    consequence="that optional part (a transport, a plug-in, a backend) is not available",
    remedy="install what it needs, if the part is wanted",
    tables=("systems", "optional"),
)
SCOPE = Code(
    code="abi.not-in-scope",
    severity="note",
    meaning="a library wants symbols that are loaded, but not where the loader looks for it",
    consequence="importing it fails, unless its package made the other library global before (RTLD_GLOBAL)",
    remedy="try the import; if the package sees to it itself, nothing",
)
RPATH = Code(
    code="lib.foreign-rpath",
    severity="note",
    meaning="libraries of a wheel have search paths that lead to folders of the machine they were built on",
    consequence="none, unless such a folder exists in the image: then it is searched first",
    remedy="nothing; tell whoever published the wheel",
)
CRASH = Code(
    code="abi.layout-changed",
    severity="error",
    meaning="all symbols resolve, but a type that the library passes has another layout here",
    consequence="the process crashes while the library registers itself",
    remedy="a build for this release: `imagebuilder matrix` lists which go together",
    tables=("layouts",),
)
DOUBT = Code(
    code="abi.layout-unknown",
    severity="warning",
    meaning="a library passes a type whose layout changed, and nothing says for which release it was built",
    consequence="it may crash while it registers itself",
    remedy="try it before trusting it, or take a build that pins its release",
    tables=("layouts",),
)


def run(subject: Subject) -> Iterator[Finding]:
    """One finding for each library (or each set of alternatives) that does not load by its own fault.

    Those that fail because they need such a library are named with it.
    """
    needed = {n for facts in subject.facts.values() for elf in facts.elf.values() for n in elf.needed}
    own: dict[str, _Fault] = {}
    for loading in subject.loadings:
        if loading.best.kind != "loads":
            feature = _feature(subject, loading)
            plugin = bool(feature) or _is_plugin(subject, loading, needed)
            path = subject.environment.absolute(loading.best.path)
            own[path] = _Fault(loading=loading, plugin=plugin, feature=feature)
    for fault in _at_their_origin(subject, own):
        yield from _findings(subject, fault)
    yield from _rpaths(subject)


@dataclass(frozen=True, kw_only=True)
class _Fault:
    """A library that does not load. plugin: nobody needs it. feature: what for. with_it: who fails too."""

    loading: Loading
    plugin: bool
    feature: str = ""
    with_it: tuple[str, ...] = ()


def _at_their_origin(subject: Subject, own: Mapping[str, _Fault]) -> Iterator[_Fault]:
    """The same faults (by path), each told of the library that wants what is missing, whoever needs that."""
    victims: dict[str, list[_Fault]] = {}
    for fault in own.values():
        wanting = {m.wanted_by: None for m in _missing(fault.loading.best.outcome)}
        if not wanting or any(w not in subject.environment.owner for w in wanting):
            yield fault  # a layout, or a library of the system that lacks something itself
        else:
            for origin in wanting:
                victims.setdefault(origin, []).append(fault)
    for path, theirs in victims.items():
        mine = own.get(path)
        whole = theirs[0].loading.best.outcome
        if mine:
            verdict = replace(mine.loading.best, outcome=_of(path, whole))
            loading = replace(mine.loading, verdicts=(verdict, *mine.loading.verdicts[1:]))
        else:
            verdict = Verdict(path=subject.environment.relative(path), outcome=_of(path, whole))
            loading = Loading(wheel=subject.environment.owner[path], verdicts=(verdict,))
        yield _Fault(
            loading=loading,
            plugin=all(victim.plugin for victim in theirs),
            feature=mine.feature if mine else "",
            with_it=tuple(v.loading.best.path for v in theirs if v is not mine),
        )


def _missing(outcome: Outcome) -> Iterator[MissingLibrary | MissingVersion | MissingSymbol]:
    """Symbols count only where every library is there: else they may be in what is missing."""
    yield from outcome.libraries
    yield from outcome.versions
    if not outcome.libraries:
        yield from outcome.symbols


def _of(path: str, outcome: Outcome) -> Outcome:
    """What this library itself wants, of all that was missing when another one, or it, was loaded."""
    return Outcome(
        path=path,
        libraries=tuple(m for m in outcome.libraries if m.wanted_by == path),
        versions=tuple(m for m in outcome.versions if m.wanted_by == path),
        symbols=tuple(m for m in outcome.symbols if m.wanted_by == path),
    )


def _rpaths(subject: Subject) -> Iterator[Finding]:
    known = (*subject.environment.files.default_dirs, *subject.environment.files.ld_library_path)
    ours = (subject.environment.site, *known, subject.tables.toolchain["home"]["default"])
    for name, facts in sorted(subject.facts.items()):
        foreign: dict[str, str] = {}
        for path, elf in facts.elf.items():
            for folder in (*elf.rpath, *elf.runpath):
                if folder.startswith("/") and not folder.startswith(ours):
                    foreign.setdefault(folder, path)
        if foreign:
            yield Finding(
                code=RPATH.code,
                severity=RPATH.severity,
                what=f"{name} looks for libraries in {', '.join(list(foreign)[:3])}",
                evidence=tuple(f"{path}: {folder}" for folder, path in list(foreign.items())[:_MOST]),
                fix=RPATH.remedy,
                package=name,
                path=next(iter(foreign.values())),
            )


def _findings(subject: Subject, fault: _Fault) -> Iterator[Finding]:
    loading, plugin, feature = fault.loading, fault.plugin, fault.feature
    verdict = loading.best
    outcome, name = verdict.outcome, posixpath.basename(verdict.path)
    unread = sorted({*subject.unread, *subject.gone})  # any of them may have what is missing
    at = _At(loading, verdict.path, "note" if plugin else "warning" if unread else None)
    others = tuple(f"also: {v.path}" for v in loading.verdicts if v is not verdict)[:3]
    others += (f"and with it: {some(fault.with_it)}",) if fault.with_it else ()
    others += (f"not read, and may have it: {', '.join(unread[:3])}",) if unread else ()
    if outcome.libraries:
        missing = sorted({m.name for m in outcome.libraries})
        evidence = [
            f"{subject.environment.relative(m.wanted_by)} needs {m.name}" for m in outcome.libraries[:_MOST]
        ]
        yield at.finding(
            PLUGIN if plugin else MISSING,
            f"{name} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} nowhere",
            (*evidence, *others, *([f"it is for {feature}"] if feature else [])),
            _where(subject, missing),
        )
    if outcome.versions:
        wanted = sorted({f"{v.version} of {v.library}" for v in outcome.versions})
        what = f"{name} wants {', '.join(wanted[:3])}"
        yield at.finding(VERSION, what, (*wanted[:_MOST], *others), VERSION.remedy)
    symbols = list(dict.fromkeys(str(s.symbol) for s in outcome.symbols))
    if symbols and not outcome.libraries:
        shown = [f"undefined: {s}" for s in symbols[:_MOST]]
        more = [f"and {len(symbols) - _MOST} more"] if len(symbols) > _MOST else []
        owners = {_defined_in(subject, s.symbol.name) for s in outcome.symbols}
        if "" not in owners:
            yield at.finding(
                SCOPE,
                f"{name} wants {symbols[0]} of {min(owners)}, which it does not name as needed",
                (*shown, *more, *others),
                SCOPE.remedy,
            )
            return
        near = _instead(subject, symbols[0])
        yield at.finding(
            UNDEFINED,
            f"{name} wants {symbols[0]}, which nothing defines",
            (*shown, *more, *near, *others),
            _releases_hint(subject, verdict, loading.wheel, near),
        )
    for risk in verdict.risks:
        yield _layout(subject, at, name, risk, others)


def _layout(subject: Subject, at: _At, name: str, risk: LayoutRisk, others: Sequence[str]) -> Finding:
    layout, runs = risk.layout, subject.version_of[risk.layout.package]
    changed = f"{layout.package} {layout.changed_in}"
    matrix = f"imagebuilder matrix {at.loading.wheel} --against {layout.package}"
    if risk.crash:
        what = f"{name} was built {risk.built} {changed} changed {layout.type}, and meets {runs}"
        return at.finding(CRASH, what, others, matrix)
    said = f"{layout.package} {runs} is installed; nothing tells for which one it was built"
    return at.finding(
        DOUBT, f"{name} passes {layout.type}, which changed in {changed}", (said, *others), DOUBT.remedy
    )


@dataclass(frozen=True)
class _At:
    """Where findings about one verdict lie, and how much they weigh."""

    loading: Loading
    path: str
    severity: Severity | None

    def finding(self, code: Code, what: str, evidence: Sequence[str], fix: str) -> Finding:
        return Finding(
            code=code.code,
            severity=self.severity or code.severity,
            what=what,
            evidence=tuple(evidence),
            fix=fix,
            package=self.loading.wheel,
            path=self.path,
        )


def _feature(subject: Subject, loading: Loading) -> str:
    """What an extension module serves that its package does without, by the table; empty: it is needed."""
    rows = [r for r in subject.tables.optional if r["package"] == loading.wheel]
    path = loading.best.path
    return next((str(row["feature"]) for row in rows if fnmatchcase(path, row["library"])), "")


def _is_plugin(subject: Subject, loading: Loading, needed: set[str]) -> bool:
    """Nothing needs it, and it is no extension module: its package opens it only when asked to."""
    for verdict in loading.verdicts:
        elf = subject.facts[loading.wheel].elf[verdict.path]
        name = posixpath.basename(verdict.path)
        module = name.partition(".")[0]
        if _MODULE.search(name) or elf.soname in needed or name in needed:
            return False
        if elf.exports.has_plain(symbol_hash(f"PyInit_{module}".encode())):
            return False
    return True


def _where(subject: Subject, missing: Sequence[str]) -> str:
    """What has the missing libraries: a system package, or another major of it that is here."""
    parts = []
    packages = sorted({p for n in missing if (p := subject.tables.sonames.get(n))})
    if packages:
        parts.append(f"[system] packages += {', '.join(packages)}")
    off_path: dict[str, list[str]] = {}  # by folder
    builds: dict[str, None] = {}
    unknown = []
    for name in missing:
        if name in subject.tables.sonames:
            continue
        stem = name.partition(".so")[0] + ".so"
        known = {*subject.environment.by_file_name, *subject.in_base}
        if name in known:
            off_path.setdefault(subject.in_base.get(name, "its folder"), []).append(name)
        else:
            others = sorted(n for n in known if n.startswith(stem))[:3]
            builds.update(dict.fromkeys(others))
            unknown += [] if others else [name]
    for folder, names in off_path.items():
        are = "is" if len(names) == 1 else "are"
        said = f"{', '.join(names)} {are} in the image but not on the path"
        parts.append(f"{said}: add {folder} to LD_LIBRARY_PATH")
    if builds:
        parts.append(f"the set has {', '.join(builds)}: take a build for that")
    if unknown:
        parts.append(f"install what has {', '.join(unknown)}, or put its folder on the search path")
    return "; ".join(parts)


def _defined_in(subject: Subject, symbol: str) -> str:
    """The library, of those that importing the runtimes loads, that defines this name; empty: none."""
    hashed = symbol_hash(symbol.encode())
    for path in _neighbours(subject):
        if subject.environment.files.libraries[path].exports.has_plain(hashed):
            return posixpath.basename(path)
    return ""


def _instead(subject: Subject, symbol: str) -> tuple[str, ...]:
    """Names that the set does export and that begin as the missing one: the same function, changed."""
    match = re.match(r"_ZN[KVRO]*(?:\d+[A-Za-z_]\w*?)+E", symbol)
    name = symbol.partition("@")[0]
    stem = (match.group() if match else name[: max(len(name) - 2, 12)]).encode()
    for path in _neighbours(subject):
        found = [n for n in subject.environment.files.libraries[path].names() if n.startswith(stem)]
        if found:
            owner = subject.environment.relative(path)
            return tuple(f"{owner} defines {n.decode('utf-8', 'replace')}" for n in found[:2])
    return ()


def _neighbours(subject: Subject) -> Iterator[str]:
    """Libraries of packages whose import loads libraries: small ones first."""
    for runtime in subject.tables.runtimes:
        if runtime.package in subject.facts:
            files = subject.facts[runtime.package].files
            for path in sorted(
                subject.facts[runtime.package].elf, key=lambda p: files[p].size if p in files else 0
            ):
                yield subject.environment.absolute(path)


def _releases_hint(subject: Subject, verdict: Verdict, wheel: str, near: Sequence[str]) -> str:
    """Which question to ask: of the package that defines something near, else of one that it needs."""
    needed = subject.environment.files.libraries[verdict.outcome.path].needed
    owners = {subject.environment.owner[p] for n in needed for p in subject.environment.siblings(n)}
    others = [near[0].split("/")[0]] if near else sorted(owners - {wheel})
    if not others:
        return f"another release of {wheel}, or of what it was built against: imagebuilder recon {wheel}"
    return f"imagebuilder matrix {wheel} --against {others[0]} lists the releases that go together"


CHECK = Check(run=run, codes=(UNDEFINED, SCOPE, RPATH, VERSION, MISSING, PLUGIN, CRASH, DOUBT))
