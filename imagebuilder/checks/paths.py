"""Files that two wheels want to install, with different bytes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from imagebuilder.checks.model import Check, Code, Finding
from imagebuilder.checks.subject import Subject

COLLISION = Code(
    code="path.collision",
    severity="error",
    meaning="two wheels own the same paths with different bytes, libraries or programs among them",
    consequence="whichever is installed last wins; the other package runs with files that are not its own",
    remedy="keep one of the two packages, or releases of both that have stopped sharing paths",
)
HARMLESS = Code(
    code="path.collision-of-text",
    severity="warning",
    meaning="two wheels own the same paths with different bytes, none of them a library",
    consequence="whichever is installed last wins; often nobody reads the file, but then it was shown",
    remedy="look at the paths; if nobody needs the loser's file, waive it with that reason",
)
SCRIPT = Code(
    code="path.same-script",
    severity="warning",
    meaning="two wheels bring a command of the same name",
    consequence="the one that is installed last is what the command runs",
    remedy="keep one of the two packages, or call the module instead of the command",
)


def run(subject: Subject) -> Iterator[Finding]:
    """One finding for each pair of wheels."""
    first_of: dict[str, str] = {}
    owners: dict[str, list[str]] = {}  # of the few paths that several have
    for name, facts in sorted(subject.facts.items()):
        for path in facts.files:
            if (first := first_of.setdefault(path, name)) != name:
                owners.setdefault(path, [first]).append(name)
    pairs: dict[tuple[str, str], list[str]] = {}
    for path, names in owners.items():
        for first, second in combinations(names, 2):
            if subject.facts[first].files[path] != subject.facts[second].files[path]:
                pairs.setdefault((first, second), []).append(path)
    for (first, second), paths in sorted(pairs.items()):
        binary = [p for p in paths if p in subject.facts[first].elf or p in subject.facts[second].elf]
        code = COLLISION if binary else HARMLESS
        shown = [*sorted(binary), *sorted(set(paths) - set(binary))]
        more = [f"and {len(paths) - 6} more"] if len(paths) > 6 else []
        yield Finding(
            code=code.code,
            severity=code.severity,
            what=f"{first} and {second} own {len(paths)} path{'s' * (len(paths) > 1)} with different bytes",
            evidence=(*shown[:6], *more, *_names(subject, first, second, binary)),
            fix=code.remedy,
            package=first,
            other=second,
            path=shown[0],
        )
    yield from _scripts(subject)


def _names(subject: Subject, first: str, second: str, paths: list[str]) -> Iterator[str]:
    """Which exported names only one of the two has: what the loser's users will miss."""
    for path in sorted(paths):
        one, two = subject.facts[first].elf.get(path), subject.facts[second].elf.get(path)
        if one is None or two is None or one.exports.plain == two.exports.plain:
            continue
        for owner, names in (
            (first, {*one.names()} - {*two.names()}),
            (second, {*two.names()} - {*one.names()}),
        ):
            if names:
                some = ", ".join(sorted(n.decode("utf-8", "replace") for n in names)[:4])
                yield f"only in {owner}'s {path.rsplit('/', 1)[-1]}: {some}" + (
                    ", …" if len(names) > 4 else ""
                )
        return


def _scripts(subject: Subject) -> Iterator[Finding]:
    owners: dict[str, list[str]] = {}
    for name, facts in sorted(subject.facts.items()):
        for script in facts.scripts:
            owners.setdefault(script, []).append(name)
    for script, names in sorted(owners.items()):
        if len(names) > 1:
            yield Finding(
                code=SCRIPT.code,
                severity=SCRIPT.severity,
                what=f"{' and '.join(names)} both bring the command {script}",
                evidence=tuple(f"{name} {subject.version_of.get(name, '')}" for name in names),
                fix=SCRIPT.remedy,
                package=names[0],
                other=names[1],
                path=f"../../../bin/{script}",
            )


CHECK = Check(run=run, codes=(COLLISION, HARMLESS, SCRIPT))
