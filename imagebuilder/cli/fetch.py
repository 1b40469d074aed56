"""`imagebuilder fetch`."""

from __future__ import annotations

from imagebuilder.cli.context import Context, json_option, say, say_json, stack_argument, verb


@verb()
@stack_argument
@json_option
def command(context: Context, stack: str, as_json: bool) -> None:
    """Bring every locked file here, so that `build --offline` needs no network.

    Wheels are also linked to the folder that the lock names, where pip and uv find them.
    """
    from imagebuilder.cli.prepare import prepare
    from imagebuilder.lock.fetch import check_wheels_place, fetch, link_wheels

    prepared = prepare(context, stack, lock_if_missing=True)
    folder = prepared.folder
    check_wheels_place(prepared.lock, folder)
    files = fetch(
        prepared.lock,
        prepared.stack,
        context.settings,
        context.cache,
        context.reporter,
        folder=folder,
        base=True,
    )
    wheels = link_wheels(prepared.lock, context.cache, folder)
    if as_json:
        say_json(
            "fetch",
            {
                "wheels": str(wheels) if wheels else None,
                "files": {digest.text: str(path) for digest, path in sorted(files.items())},
            },
        )
    else:
        context.reporter.note(f"{len(files)} files of {prepared.stack.name} are here")
        if wheels:
            say(str(wheels))
