"""`imagebuilder init`."""

from __future__ import annotations

import click

from imagebuilder.cli.context import Context, say, stack_argument, verb


@verb()
@stack_argument
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option("--dry-run", is_flag=True, help="Only say what would be copied.")
def command(context: Context, stack: str, force: bool, dry_run: bool) -> None:
    """Copy a shipped stack to ./stacks, with its patches and its lock, to make it yours.

    Prints the files written; those that are there already with the same bytes are kept.
    """
    from imagebuilder.stack import find_stack, load_stack, perform_copy, plan_copy, shipped_folder

    # Looked up from the folder of the shipped stacks: a copy that is here already is not what is copied.
    copies = plan_copy(load_stack(find_stack(stack, shipped_folder().parent)), context.cwd)
    written = perform_copy(copies, force=force, dry_run=dry_run)
    for path in written:
        say(str(path.relative_to(context.cwd)))
    same = [copy.target for copy in copies if copy.source.is_file() and copy.target not in written]
    if same:
        names = ", ".join(str(path.relative_to(context.cwd)) for path in same)
        context.reporter.note(f"there already, the same, and kept: {names}")
