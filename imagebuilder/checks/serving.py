"""Server arguments that do not go together, or not with the target; and known issues of exact releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from imagebuilder.checks.arguments import commands, keys_with, value_of
from imagebuilder.checks.model import Check, Code, Finding, Severity
from imagebuilder.checks.subject import Subject

TRIPLE = Code(
    code="acceptance.speculative-numbers",
    severity="error",
    meaning="the three numbers of speculative decoding are not all given, or do not fit each other",
    consequence="the server refuses to start, or chooses others silently",
    remedy="give all three or none; with a top-k of 1 the draft tokens are the steps plus one",
    tables=("serving",),
)
FAIR = Code(
    code="acceptance.request-limit",
    severity="warning",
    meaning="speculation limits the running requests by itself, and the baseline does not get the same limit",
    consequence="above that many streams the two servers are not compared under the same conditions",
    remedy="give both the same --max-running-requests",
    tables=("serving",),
)
UNSUPPORTED = Code(
    code="acceptance.argument-unsupported",
    severity="error",
    meaning="a server argument is not supported on a GPU of the target in this release",
    consequence="the server fails at its start",
    remedy="remove the argument, or patch the package",
    tables=("serving",),
)
KNOWN = Code(
    code="stack.known-issue",
    severity="warning",
    meaning="these exact releases are known to fail together, although no artefact shows it",
    consequence="as the finding says",
    remedy="as the finding says",
    tables=("issues",),
)
EXPIRED = Code(
    code="stack.known-issue-expired",
    severity="note",
    meaning="a known issue matches, but its row has expired and accuses nobody any more",
    consequence="it may or may not still be true",
    remedy="look at its source, and renew or remove the row",
    tables=("issues",),
)


def run(subject: Subject) -> Iterator[Finding]:
    """Every server that the stack starts."""
    table = subject.tables.serving
    for key, arguments in commands(subject.stack):
        if table:
            yield from _numbers(key, arguments, table)
    yield from _unsupported(subject, table)
    if table and subject.stack.acceptance:
        yield from _fair(subject, table)
    for row in subject.tables.issues:
        yield from _issue(subject, row)


def _numbers(key: str, arguments: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[Finding]:
    given = {option: value_of(arguments, option) for option in table["speculative"]}
    values = [v for v in given.values() if v is not None]
    if not values:
        return
    what = ""
    if len(values) < len(given):
        what = f"{key} lacks {', '.join(o for o, v in given.items() if v is None)}"
    elif all(v.isdigit() for v in values):
        steps, top_k, tokens = map(int, values)
        if top_k == 1 and tokens != steps + 1:
            what = f"{key}: {steps} steps with a top-k of 1 give {steps + 1} draft tokens, not {tokens}"
    if what:
        yield Finding(
            code=TRIPLE.code,
            severity=TRIPLE.severity,
            what=what,
            evidence=tuple(f"{option} {value}" for option, value in given.items() if value is not None),
            fix=TRIPLE.remedy,
            key=key,
        )


def _unsupported(subject: Subject, table: Mapping[str, Any]) -> Iterator[Finding]:
    for row in table.get("unsupported", ()):
        version = subject.version_of.get(row["package"])
        hit = [g for g in subject.stack.target.gpus if g.capability[0] in row["capability-majors"]]
        keys = keys_with(subject.stack, row["argument"])
        if not (version and hit and keys):
            continue
        if version not in SpecifierSet(row["versions"], prereleases=True):
            continue
        if any(
            row["patched-by"] in p.content.decode("utf-8", "replace")
            for x in subject.stack.layers
            for p in x.patches
        ):
            continue
        yield Finding(
            code=UNSUPPORTED.code,
            severity=UNSUPPORTED.severity,
            what=f"{row['argument']} does not work on {hit[0]} with {row['package']} {version}: {row['why']}",
            evidence=(row["source"], *(f"{key} has it" for key in keys)),
            fix=f"remove it from {', '.join(keys)}, or patch the package",
            package=row["package"],
            key=keys[0],
        )


def _fair(subject: Subject, table: Mapping[str, Any]) -> Iterator[Finding]:
    acceptance = subject.stack.acceptance
    assert acceptance is not None
    arms = dict(commands(subject.stack))
    limits = {
        key: value_of(arms[key], table["request-limit"])
        for key in ("acceptance.baseline.arguments", "acceptance.eagle3.arguments")
    }
    speculates = any(value_of(arms["acceptance.eagle3.arguments"], o) for o in table["speculative"])
    most = max(acceptance.load.concurrency, default=0)
    if (speculates and len(set(limits.values())) > 1) or (
        speculates and None in limits.values() and most > table["speculative-cap"]
    ):
        yield Finding(
            code=FAIR.code,
            severity=FAIR.severity,
            what="the two servers do not take the same number of requests at once",
            evidence=tuple(
                f"{key}: {table['request-limit']} {value or '–'}" for key, value in limits.items()
            ),
            fix=FAIR.remedy,
            key="acceptance",
        )


def _issue(subject: Subject, row: Mapping[str, Any]) -> Iterator[Finding]:
    version = subject.version_of.get(row["package"])
    if version is None or version not in SpecifierSet(row["versions"], prereleases=True):
        return
    if "with" in row:
        other = Requirement(row["with"])
        if not other.specifier.contains(subject.version_of.get(other.name, "0"), prereleases=True):
            return
    if "beside" in row and row["beside"] not in subject.version_of:
        return
    as_of = subject.lock.as_of
    expired = as_of is not None and as_of.date() > row["expires"]
    yield Finding(
        code=EXPIRED.code if expired else KNOWN.code,
        severity=EXPIRED.severity if expired else cast(Severity, row["severity"]),
        what=row["what"],
        evidence=(f"{row['package']} {version}", row["source"]),
        fix=row["fix"],
        package=row["package"],
    )


CHECK = Check(run=run, codes=(TRIPLE, FAIR, UNSUPPORTED, KNOWN, EXPIRED))
