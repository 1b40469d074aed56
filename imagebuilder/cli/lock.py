"""`imagebuilder lock`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb
from imagebuilder.errors import LockUnusable

if TYPE_CHECKING:
    from imagebuilder.lock.model import Lock
    from imagebuilder.stack.model import Stack

ALL = "*"


class _Lock(click.Command):
    """`--upgrade` and `--upgrade=NAME` are one option; a bare one never takes the next word for its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"{a}={ALL}" if a == "--upgrade" else a for a in args])


def _previous(context: Context, stack: Stack) -> Lock | None:
    """The lock that is there; one that cannot be read, as after a merge, keeps nothing."""
    from imagebuilder.cli.prepare import previous_lock

    try:
        return previous_lock(context, stack)
    except LockUnusable as error:
        context.reporter.warn(f"{error.what} ({error.seen}): everything is resolved anew")
        return None


@verb(offline=True, cls=_Lock)
@stack_argument
@click.option(
    "--upgrade",
    metavar="[=NAME]",
    multiple=True,
    help="Take the newest of everything, or of this package (may be repeated).",
)
@click.option("--dry-run", is_flag=True, help="Say what would change, write nothing.")
@json_option
def command(context: Context, *, stack: str, upgrade: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Resolve everything a stack needs to file and sha256, into pylock.NAME.toml.

    Prints what changed against the previous lock, and which newer versions were passed over and why. What the
    previous lock has is kept unless the stack rules it out or it is upgraded.
    """
    from dataclasses import asdict

    from packaging.utils import canonicalize_name

    from imagebuilder.cli.prepare import lock_now, own_lock_file, stack_of
    from imagebuilder.lock.changes import describe
    from imagebuilder.lock.pylock import check_lock_place, write_lock

    loaded = stack_of(context, stack)
    path = own_lock_file(context, loaded)
    if not dry_run:
        check_lock_place(path)
    previous = _previous(context, loaded)
    names = {canonicalize_name(name) for name in upgrade if name != ALL}
    new = lock_now(context, loaded, previous, upgrade=True if ALL in upgrade else names or None)
    changes = describe(previous, new)
    if not dry_run:
        write_lock(path, new)
    if as_json:
        changed = [{**asdict(c), "text": str(c)} for c in changes]
        passed = [asdict(p) for p in new.passed_over]
        say_json(
            "lock", {"path": str(path), "written": not dry_run, "changes": changed, "passed-over": passed}
        )
        return
    for change in changes:
        say(str(change))
    for newer in new.passed_over:
        say(f"passed over {newer.name} {newer.version} (chosen: {newer.chosen}): {newer.why}")
    count = f"{len(new.wheels)} wheels" + (f", {len(new.debs)} Debian packages" if new.debs else "")
    context.reporter.note(f"{path}: {count}" + (" (not written: --dry-run)" if dry_run else ""))
