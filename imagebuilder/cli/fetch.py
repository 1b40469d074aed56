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
    from imagebuilder.lock.fetch import fetch

    prepared = prepare(context, stack)
    files = fetch(
        prepared.stack,
        prepared.lock,
        prepared.lock_file,
        settings=context.settings,
        cache=context.cache,
        reporter=context.reporter,
    )
    if as_json:
        say_json("fetch", {"files": {digest.text: str(path) for digest, path in sorted(files.items())}})
    else:
        say(f"{len(files)} files of {prepared.stack.name} are here")
