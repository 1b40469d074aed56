"""`imagebuilder diff`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagebuilder.cli.context import Context, verb
from imagebuilder.errors import DifferencesFound, UsageProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagebuilder.checks.model import Finding
    from imagebuilder.diff.model import Diff
    from imagebuilder.diff.read import Listed, Reading
    from imagebuilder.lock.model import Lock
    from imagebuilder.oci.image import Image
    from imagebuilder.stack.model import Stack
    from imagebuilder.values import ImageRef

FORMS = ("table", "json", "markdown", "html")


@verb(offline=True)
@click.argument("old", metavar="A")
@click.argument("new", metavar="B")
@click.option("--format", "form", type=click.Choice(FORMS), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--abi", is_flag=True, help="Dynamic symbols of libraries too; reads wheels that are not known."
)
@click.option("--findings", is_flag=True, help="Run check on stacks that were not checked yet.")
@click.option(
    "--files/--no-files", default=None, help="Read images' layers too. Default: of images that lie here."
)
@click.option("--platform", default="linux/amd64", show_default=True, help="Of images in registries.")
@click.option("--most", type=click.IntRange(min=1), help="Rows of one table. Default: 60, in HTML 1000.")
@click.option(
    "--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write it there."
)
@click.option("--exit-code", is_flag=True, help="Exit with 11 where there are differences.")
def command(
    context: Context, *, old: str, new: str, form: str, as_json: bool, abi: bool, findings: bool,
    files: bool | None, platform: str, most: int | None, output: Path | None, exit_code: bool,
) -> None:  # fmt: skip
    """What changes from A to B: packages, CUDA, driver, GPU code, findings, settings, layers to pull, files.

    A and B are stacks, locks (pylock.NAME.toml), layouts, archives (.tar) or image references, in any mix.
    """
    from imagebuilder.diff.compare import compare
    from imagebuilder.diff.read import elf_from, gpu_code_from, load_tables
    from imagebuilder.files import new_file

    reading = _reading(context, files, platform, wheels=abi, check=findings)
    sides = reading.side(old), reading.side(new)
    elf = elf_from(context.cache) if abi else None
    found = compare(*sides, load_tables(), gpu_code_from(context.cache), elf)
    text = _text(found, "json" if as_json else form, most)
    if output:
        with new_file(context.cwd / output) as out:
            out.write(text.encode())
    else:
        click.echo(text, nl=False)
    if exit_code and not found.empty:
        raise DifferencesFound(f"{old} and {new} differ")


def _text(found: Diff, form: str, most: int | None) -> str:
    if form == "json":
        import json

        from imagebuilder.cli.context import SCHEMA
        from imagebuilder.diff.data import as_json

        return json.dumps({"schema": SCHEMA, "kind": "diff", **as_json(found)}, indent=2) + "\n"
    if form == "html":
        from imagebuilder.diff.page import as_html

        return as_html(found, most=most or 1000)
    from imagebuilder.diff.text import as_markdown, as_text

    return (as_markdown if form == "markdown" else as_text)(found, most=most or 60)


def _attachments(context: Context, ref: ImageRef, image: Image) -> Listed:
    """What SBOM and provenance say of an image in a registry, where they are about this very image."""
    from imagebuilder.diff.read import Listed
    from imagebuilder.diff.sides import listed_packages
    from imagebuilder.oci.registry import Registry
    from imagebuilder.publish.inspect import layers_of, read_evidence

    registry = Registry(ref.registry, context.settings)
    attached = read_evidence(registry, ref.repository, image, context.cache)
    data = {item.kind: item.data for item in attached if item.verified}
    return Listed(
        packages=tuple(listed_packages(data["sbom"])) if "sbom" in data else None,
        layers=layers_of(data["provenance"]) if "provenance" in data else (),
    )


def _findings(context: Context, check: bool, stack: Stack, lock: Lock) -> Sequence[Finding] | None:
    """What `check` found; where it has not looked yet, what it finds now, if that is wanted."""
    from imagebuilder.checks import gather
    from imagebuilder.plan import make_plan

    settings, cache = context.settings, context.cache
    found = gather.known_findings(stack, lock, settings=settings, cache=cache)
    if found is None and check:
        plan = make_plan(stack, lock)
        found = gather.check(stack, lock, plan, settings=settings, cache=cache, reporter=context.reporter)
    return found


def _lock_of(context: Context, stack: Stack) -> Lock | None:
    """The lock as far as there is one. LockUnusable: it is of another stack file than the present one."""
    from imagebuilder.cli.prepare import previous_lock
    from imagebuilder.lock.fresh import check_fresh

    lock = previous_lock(context, stack)
    if lock is not None:
        check_fresh(stack, lock)
    return lock


def _reading(context: Context, files: bool | None, platform: str, *, wheels: bool, check: bool) -> Reading:
    from functools import partial

    from imagebuilder.cli.acceptance import newest_acceptance
    from imagebuilder.diff.read import Reading
    from imagebuilder.values import Platform

    try:
        wanted = Platform.parse(platform)
    except ValueError as error:
        raise UsageProblem(f"--platform: {error}") from None
    return Reading(
        cwd=context.cwd,
        settings=context.settings,
        cache=context.cache,
        reporter=context.reporter,
        lock_of=partial(_lock_of, context),
        acceptance=partial(newest_acceptance, context.cwd),
        attachments=partial(_attachments, context),
        findings=partial(_findings, context, check),
        platform=wanted,
        files=files,
        wheels=wheels,
    )
