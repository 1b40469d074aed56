"""`imagebuilder matrix`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from imagebuilder.lock.target import TargetFacts
    from imagebuilder.recon.matrix import Row
    from imagebuilder.stack.model import Stack


@verb(offline=True)
@click.argument("package", metavar="A")
@click.option("--against", metavar="B", required=True, help="The package whose releases are tried.")
@click.option("--stack", help="Take indexes and target from this stack.")
@click.option("--python", default="3.12", show_default=True, help="CPython of the target, without --stack.")
@click.option("--glibc", default="2.39", show_default=True, help="glibc of the target, without --stack.")
@click.option("--releases", type=click.IntRange(min=1), default=10, show_default=True,
              help="How many of the newest releases are tried.")  # fmt: skip
@click.option("--full", is_flag=True, help="Read every library whole; leaves nothing unchecked.")
@json_option
def command(
    context: Context,
    *,
    package: str,
    against: str,
    stack: str | None,
    python: str,
    glibc: str,
    releases: int,
    full: bool,
    as_json: bool,
) -> None:
    """Which releases of one package another can load with: A is the other, B the one package.

    A and B are requirements such as sgl-kernel==0.3.21 or torch>=2.8. Only what the answer needs is read, by
    ranges: the fronts of A's libraries and B's small libraries. A "fails" is proven; a "loads" says how many
    symbols it took for granted.
    """
    from imagebuilder.facts.store import FactStore
    from imagebuilder.index.http import session
    from imagebuilder.index.simple import Indexes
    from imagebuilder.recon.releases import ask, wheels_of

    own, other = requirement_of(package), requirement_of(against)
    found = _stack(context, stack)
    target = target_of(found, python, glibc)
    with session(context.settings) as http:
        indexes = Indexes(found.indexes if found else (), context.settings, context.cache, http)
        mine = wheels_of(indexes, own, _index_of(found, own), target, 1)[0]
        theirs = wheels_of(indexes, other, _index_of(found, other), target, releases)
        store = FactStore(context.cache, None if context.settings.offline else http)
        answers = ask(
            mine,
            theirs,
            target,
            store,
            context.reporter,
            full=full,
            workers=context.settings.connections,
        )
    context.reporter.note(f"read {store.received / 1e6:.1f} MB")
    if as_json:
        say_json(
            "matrix",
            {
                "package": f"{own.name}=={mine.version}",
                "against": other.name,
                "rows": [row.as_json() for row in answers],
            },
        )
        return
    _table(f"{own.name} {mine.version}", other.name, answers)


def _table(package: str, against: str, answers: list[Row]) -> None:
    say(f"{package} beside {against}:")
    width = max(len(row.version) for row in answers)
    for row in answers:
        say(f"  {row.version:<{width}}  {row.verdict:<7}  {_reason(row)}".rstrip())
    good = [row.version for row in answers if row.verdict == "loads"]
    say(f"loads with: {', '.join(good) or 'none of these'}")


def _reason(row: Row) -> str:
    from imagebuilder.cli.symbols import cxx_name

    if row.missing:
        more = f" and {len(row.missing) - 1} more" if len(row.missing) > 1 else ""
        near = dict(row.instead).get(row.missing[0])
        return f"missing {cxx_name(row.missing[0])}{more}" + (f"; it has {cxx_name(near)}" if near else "")
    if row.because:
        return row.because
    return f"{len(row.unchecked)} symbols not checked (--full does)" if row.unchecked else ""


def requirement_of(text: str) -> Requirement:
    """A requirement of the command line."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise click.BadParameter(f"{text!r} is not a requirement such as torch>=2.8: {error}") from None


def _stack(context: Context, argument: str | None) -> Stack | None:
    from imagebuilder.cli.prepare import stack_of

    return stack_of(context, argument) if argument else None


def target_of(stack: Stack | None, python: str, glibc: str) -> TargetFacts:
    """The stack's target, else that of the options."""
    from imagebuilder.lock.target import TargetFacts, target_facts
    from imagebuilder.values import Platform, Release

    if stack is not None:
        return target_facts(stack)
    try:
        return TargetFacts(
            python=Release(python), platform=Platform.parse("linux/amd64"), glibc=Release(glibc)
        )
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _index_of(stack: Stack | None, requirement: Requirement) -> str:
    from imagebuilder.settings import DEFAULT

    layer = stack.layer_of(requirement.name) if stack else None
    return (layer.index if layer else None) or DEFAULT
