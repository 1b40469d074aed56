"""`imagebuilder recon`."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, verb

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from imagebuilder.lock.model import Lock
    from imagebuilder.recon.survey import Offer, Row
    from imagebuilder.stack.model import Stack


@verb(offline=True)
@click.argument("what", metavar="STACK | REQUIREMENT...", nargs=-1, required=True)
@click.option("--stack", "other", metavar="STACK", help="For requirements: its indexes, target and lock.")
@click.option("--against", metavar="STACK", help="Another stack's lock: what would be a downgrade from it?")
@click.option("--python", default="3.12", show_default=True, help="CPython of the target, without a stack.")
@click.option("--glibc", default="2.39", show_default=True, help="glibc of the target, without a stack.")
@json_option
def command(
    context: Context,
    *,
    what: tuple[str, ...],
    other: str | None,
    against: str | None,
    python: str,
    glibc: str,
    as_json: bool,
) -> None:
    """Which wheels exist, on which index, how old, for this target.

    For a stack: every package that it names, on every index that it has. For requirements: those packages.
    An index that does not answer is a line, not an error.
    """
    from datetime import datetime, timezone

    from imagebuilder.cli.matrix import target_of
    from imagebuilder.cli.prepare import previous_lock
    from imagebuilder.index.http import session
    from imagebuilder.index.simple import Indexes
    from imagebuilder.recon.ask import ask, places_of, places_of_stack

    stack, requirements = _meant(context, what, other)
    lock = previous_lock(context, stack) if stack else None
    production = _lock_of(context, against) if against else None
    target = target_of(stack, python, glibc)
    with session(context.settings) as http:
        indexes = Indexes(stack.indexes if stack else (), context.settings, context.cache, http)
        if requirements:
            places = list(places_of(requirements, indexes, lock, production))
        else:
            assert stack is not None, "there is a stack, or there are requirements"
            places = list(places_of_stack(stack, indexes, lock, production))
        rows = ask(
            places,
            indexes,
            target,
            context.reporter,
            now=datetime.now(timezone.utc),
            workers=context.settings.connections,
        )
    if as_json:
        say_json("recon", {"rows": [row.as_json() for row in rows]})
    else:
        _table(rows)


def _meant(
    context: Context, what: tuple[str, ...], other: str | None
) -> tuple[Stack | None, list[Requirement]]:
    """(stack, requirements): one word that names a stack is the stack, all else are requirements."""
    from imagebuilder.cli.matrix import requirement_of
    from imagebuilder.cli.prepare import stack_of
    from imagebuilder.errors import UsageProblem

    if other is None and len(what) == 1:
        try:
            return stack_of(context, what[0]), []
        except UsageProblem:
            if "/" in what[0] or what[0].endswith(".toml"):
                raise
    return (stack_of(context, other) if other else None), [requirement_of(text) for text in what]


def _lock_of(context: Context, argument: str) -> Lock:
    from imagebuilder.cli.prepare import previous_lock, stack_of
    from imagebuilder.errors import LockUnusable

    stack = stack_of(context, argument)
    lock = previous_lock(context, stack)
    if lock is None:
        raise LockUnusable(f"stack {stack.name} has no lock", hint=f"imagebuilder lock {argument}")
    return lock


def _table(rows: list[Row]) -> None:
    width = max((len(row.index) for row in rows), default=0)
    for package, group in groupby(rows, key=lambda row: row.package):
        say(package)
        for row in group:
            offers = [(o, kind) for o, kind in ((row.stable, "newest"), (row.pre, "pre-release")) if o]
            place = f"  {row.index:<{width}}  "
            if row.down:
                text = "does not answer" if row.bound else ""
            else:
                text = row.problem if row.bound or row.versions else ""
            for line in [f"{kind} {_offer(offer)}" for offer, kind in offers] or [text][: bool(text)]:
                say(place + line + ("" if row.bound else "  (the stack does not take it from here)"))
            for mark in row.marks:
                say(f"    {mark}")
            for odd in row.odd[:3]:
                say(f"    no wheel: {odd}")
            if len(row.odd) > 3:
                say(f"    and {len(row.odd) - 3} more that are none")
    for index in dict.fromkeys(row.index for row in rows if row.down):
        say(f"{index}: {next(row.problem for row in rows if row.index == index and row.down)}")


def _offer(offer: Offer) -> str:
    from imagebuilder.cli.report import human

    parts = [
        str(offer.version),
        offer.made.date().isoformat() if offer.made else "no date",
        human(offer.size) if offer.size is not None else "size unknown",
        offer.cuda,
        "" if offer.hashed else "no hash",
    ]
    return "  ".join(part for part in parts if part)
