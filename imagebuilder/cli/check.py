"""`imagebuilder check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder import __version__
from imagebuilder.cli.context import Context, json_option, say, say_json, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuilder.checks.model import Finding
    from imagebuilder.cli.prepare import Prepared
    from imagebuilder.lock.model import Lock


@verb(offline=True)
@click.argument("stack", metavar="STACK", required=False)
@json_option
@click.option(
    "--sarif",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the findings as SARIF 2.1.0 too, for a CI.",
)
@click.option("--all", "everything", is_flag=True, help="Every finding with all of its evidence.")
@click.option("--read-base", is_flag=True, help="Read the base image from its registry, however large it is.")
@click.option("--online", is_flag=True, help="Ask the indexes: is every locked file still there, not yanked?")
@click.option("--against", metavar="STACK", help="Another stack's lock to find downgrades against.")
@click.option(
    "--explain", "code", is_flag=False, flag_value="", metavar="[CODE]", help="Explain one code, or list all."
)
def command(
    context: Context,
    *,
    stack: str | None,
    as_json: bool,
    sarif: Path | None,
    everything: bool,
    read_base: bool,
    online: bool,
    against: str | None,
    code: str | None,
) -> None:
    """Will it work? Findings with evidence and a fix, from the artefacts, before anything is built.

    Reads every locked wheel once: from the cache, from the wheel folder, or by ranges from its index. Exit
    code 5 if an error is not waived.
    """
    from imagebuilder.checks.registry import codes

    if code is not None:
        _explain(code)
        return
    if stack is None:
        raise click.UsageError("Missing argument 'STACK'.")
    from imagebuilder.checks.report import as_sarif, as_text, origins
    from imagebuilder.cli.symbols import with_cxx_names

    findings, path = run_checks(context, stack, against, read_base=read_base, online=online)
    if sarif is not None:
        _write_sarif(
            context.cwd / sarif,
            as_sarif(
                findings,
                codes(),
                stack_file=_relative(path, context.cwd),
                text=path.read_text(encoding="utf-8"),
                version=__version__,
            ),
        )
    if as_json:
        say_json("check", {"findings": [f.as_json() for f in findings]})
    else:
        say(with_cxx_names(as_text(findings, verbose=everything)))
        if findings:
            say(origins(findings, codes()))
    refuse_errors(stack, findings)


def run_checks(
    context: Context, stack: str, against: str | None = None, *, read_base: bool = False, online: bool = False
) -> tuple[list[Finding], Path]:
    """(findings, path of the stack file) of a stack with a fresh lock."""
    from imagebuilder.cli.prepare import prepare, previous_lock, stack_of

    prepared = prepare(context, stack, lock_if_missing=True)
    previous = previous_lock(context, stack_of(context, against)) if against else None
    assert prepared.stack.path is not None
    found = findings_of(context, prepared, previous=previous, read_base=read_base, online=online)
    return found, prepared.stack.path


def findings_of(
    context: Context,
    prepared: Prepared,
    *,
    previous: Lock | None = None,
    download: bool = False,
    read_base: bool = False,
    online: bool = False,
) -> list[Finding]:
    """What the checks find, waivers applied. download, read_base, online: see `checks.gather.check`."""
    from imagebuilder.checks.gather import check

    return check(
        prepared.stack,
        prepared.lock,
        prepared.plan,
        settings=context.settings,
        cache=context.cache,
        reporter=context.reporter,
        previous=previous,
        folder=prepared.folder,
        download=download,
        read_base=read_base,
        online=online,
    )


def refuse_errors(stack: str, findings: Sequence[Finding]) -> None:
    """ChecksFailed where an error is not waived."""
    from imagebuilder.checks.registry import failing
    from imagebuilder.checks.report import summary
    from imagebuilder.errors import ChecksFailed

    bad = failing(findings)
    if bad:
        raise ChecksFailed(
            f"{stack}: {summary(findings)}",
            seen=f"{bad[0].code} {bad[0].place}: {bad[0].what}",
            hint=bad[0].fix or f"imagebuilder check --explain {bad[0].code}",
        )


def _write_sarif(path: Path, text: str) -> None:
    from imagebuilder.files import new_file

    with new_file(path, hint="choose another file with --sarif") as out:
        out.write(text.encode() + b"\n")


def _explain(code: str) -> None:
    from difflib import get_close_matches

    from imagebuilder.checks.registry import codes
    from imagebuilder.checks.report import explain
    from imagebuilder.errors import UsageProblem

    known = {c.code: c for c in codes()}
    if not code:
        for each in known.values():
            say(f"{each.code:<34} {each.severity:<8} {each.meaning}")
    elif code in known:
        say(explain(known[code]))
    else:
        near = get_close_matches(code, known, 1)
        raise UsageProblem(
            f"there is no check with the code {code!r}",
            hint=f"imagebuilder check --explain {near[0]}" if near else "imagebuilder check --explain",
        )


def _relative(path: Path, cwd: Path) -> str:
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else path.name
