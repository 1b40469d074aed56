"""How findings look: for people, as JSON, and as SARIF so that a CI shows them in place. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from imagebuilder.checks.model import SEVERITIES, Code, Finding
from imagebuilder.checks.places import line_of

_MANY = 3  # findings of one code that are shown in full; `--verbose` shows all
_LEVEL = {"error": "error", "warning": "warning", "note": "note"}
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(findings: Sequence[Finding], *, verbose: bool = False) -> str:
    """Grouped by severity and code, worst first; what is waived for one reason is one line at the end."""
    lines: list[str] = []
    open_, waived = [f for f in findings if f.waived is None], [f for f in findings if f.waived is not None]
    for severity in SEVERITIES:
        group = [f for f in open_ if f.severity == severity]
        for code in dict.fromkeys(f.code for f in group):
            lines.extend(_code(severity, code, [f for f in group if f.code == code], verbose))
    reasons = Counter((f.code, f.package, f.waived) for f in waived)
    for (code, package, reason), count in reasons.items():
        places = [f.place for f in waived if (f.code, f.package, f.waived) == (code, package, reason)]
        lines.append(
            f"waived   {code}  {places[0] if count == 1 else f'{package or code} ({count})'}: {reason}"
        )
    return "\n".join([*lines, summary(findings)])


def summary(findings: Iterable[Finding]) -> str:
    """`1 error, 3 warnings, 2 notes, 4 waived`, or that nothing was found."""
    counts = Counter("waived" if f.waived is not None else f.severity for f in findings)
    parts = [f"{counts[s]} {s}{'s' * (counts[s] != 1)}" for s in SEVERITIES if counts[s]]
    parts += [f"{counts['waived']} waived"] if counts["waived"] else []
    return ", ".join(parts) or "nothing found"


def origins(findings: Sequence[Finding], codes: Iterable[Code]) -> str:
    """How many of these rest on the artefacts alone, and how many on a table of the field as well."""
    with_table = {code.code for code in codes if code.tables}
    tables = sum(finding.code in with_table for finding in findings)
    return f"{len(findings) - tables} from the artefacts alone, {tables} with a table of the field"


def _code(severity: str, code: str, findings: list[Finding], verbose: bool) -> Iterator[str]:
    shown = findings if verbose or len(findings) <= _MANY + 1 else findings[:_MANY]
    for finding in shown:
        yield f"{severity:<8} {code}  {finding.place}"
        yield f"  {finding.what}"
        evidence = finding.evidence if verbose else finding.evidence[:3]
        yield from (f"    {line}" for line in evidence)
        if len(evidence) < len(finding.evidence):
            yield f"    … and {len(finding.evidence) - len(evidence)} more lines"
        if finding.fix:
            yield f"  → {finding.fix}"
    if len(shown) < len(findings):
        rest = ", ".join(f.place for f in findings[len(shown) :][:6])
        yield f"{severity:<8} {code}  {len(findings) - len(shown)} more: {rest}"


def as_sarif(
    findings: Sequence[Finding], codes: Iterable[Code], *, stack_file: str, text: str, version: str
) -> str:
    """A SARIF 2.1.0 log; a finding is placed in the stack file (path and text), which a change would edit."""
    used = {f.code for f in findings}
    rules = [
        {
            "id": code.code,
            "shortDescription": {"text": code.meaning},
            "fullDescription": {"text": code.consequence},
            "help": {"text": code.remedy},
            "defaultConfiguration": {"level": _LEVEL[code.severity]},
        }
        for code in codes
        if code.code in used
    ]
    number = {rule["id"]: i for i, rule in enumerate(rules)}
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "imagebuilder", "version": version, "rules": rules}},
                "results": [
                    _result(finding, number[finding.code], quote(stack_file), line_of(finding, text))
                    for finding in findings
                ],
            }
        ],
    }
    return json.dumps(log, indent=2)


def _result(finding: Finding, rule: int, uri: str, line: int) -> dict[str, Any]:
    text = "\n".join([finding.what, *finding.evidence, *([f"Fix: {finding.fix}"] if finding.fix else [])])
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVEL[finding.severity],
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": line}},
                "logicalLocations": [{"fullyQualifiedName": finding.place or finding.code}],
            }
        ],
        "partialFingerprints": {"finding/v1": f"{finding.code}:{finding.place}"},
    }
    if finding.waived is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.waived}]
    return result


def explain(code: Code) -> str:
    """One code for `check --explain CODE`."""
    decided = f"the artefacts and data/{', data/'.join(f'{t}.toml' for t in code.tables)}"
    return "\n".join(
        [
            f"{code.code} ({code.severity})",
            f"  means:       {code.meaning}",
            f"  consequence: {code.consequence}",
            f"  remedy:      {code.remedy}",
            f"  decided by:  {decided if code.tables else 'the artefacts alone'}",
        ]
    )


def catalogue(codes: Iterable[Code]) -> str:
    """The catalogue of docs/71-check-catalogue.md (written by scripts/write-check-catalogue)."""
    lines = [
        "# Catalogue of checks",
        "",
        "Generated from the code by `scripts/write-check-catalogue`. A finding is waived in the stack file:",
        "",
        "    [[waive]]",
        '    code = "path.collision-of-text"',
        '    package = "NAME"',
        '    reason = "why it does no harm here"',
    ]
    kind = ""
    for code in codes:
        if code.code.partition(".")[0] != kind:
            kind = code.code.partition(".")[0]
            lines += ["", f"## {kind}"]
        tables = ", ".join(f"`{table}.toml`" for table in code.tables)
        lines += [
            "",
            f"### {code.code}",
            "",
            f"*{code.severity}* · decided by "
            + (f"the artefacts and {tables}" if tables else "the artefacts alone"),
            "",
            f"{code.meaning[0].upper()}{code.meaning[1:]}.",
            f"**Consequence:** {code.consequence}. **Remedy:** {code.remedy}.",
        ]
    return "\n".join(lines) + "\n"
