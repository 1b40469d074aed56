"""`imagebuilder clean`."""

from __future__ import annotations

import time
from collections import defaultdict

import click

from imagebuilder.cli.context import Context, Finite, json_option, say, say_json, verb


@verb()
@click.option("--older-than", "days", metavar="DAYS", type=Finite(min=1), default=30.0,
              show_default=True, help="What was used within so many days stays.")  # fmt: skip
@click.option("--images", is_flag=True, help="Images too that no lock here is of, unless they are accepted.")
@click.option(
    "--results", is_flag=True, help="Results too of images that are not here, except what accepts one."
)
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@json_option
def command(
    context: Context, *, days: float, images: bool, results: bool, dry_run: bool, as_json: bool
) -> None:
    """Free space: leftovers of killed runs, and what was not used for long and no lock or image here needs.

    Never what is in use: it stops where another imagebuilder works in the cache.
    """
    from imagebuilder.cli.list import surveyed
    from imagebuilder.cli.report import human
    from imagebuilder.doctor.storage import DAY, remove

    found = surveyed(context, older_than=days * DAY)
    kinds = ("artefact", "record", *(("image",) if images else ()), *(("result",) if results else ()))
    going = [item for item in found.of(*kinds) if not item.keep]
    freed = sum(item.size for item in going) if dry_run else remove(going, context.cache, now=time.time)
    grouped: dict[str, list[int]] = defaultdict(list)
    for item in going:
        grouped[item.kind].append(item.size)
    if as_json:
        say_json("clean", {
            "dry-run": dry_run,
            "freed": freed,
            "removed": [
                {"kind": item.kind, "name": item.name, "size": item.size} for item in going
            ],
        })  # fmt: skip
        return
    for kind, sizes in grouped.items():
        say(f"  {human(sum(sizes)):>8}  {len(sizes)} {kind}s")
    for item in going:
        if item.kind in ("image", "result"):
            say(f"            {item.name}  {item.detail}")
    say(f"{human(freed)} {'would be' if dry_run else 'are'} free")
