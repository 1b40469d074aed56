"""`imagebuilder doctor`."""

from __future__ import annotations

from imagebuilder.cli.context import Context, json_option, say, say_json, verb


@verb(offline=True)
@json_option
def command(context: Context, as_json: bool) -> int:
    """What this machine can and cannot do, and how to fix it.

    Exit code 6 when something is missing that building needs.
    """
    import os
    from dataclasses import asdict

    from imagebuilder.doctor import examine
    from imagebuilder.errors import MachineLacks

    lines = examine(context.settings, context.cache, os.environ)
    if as_json:
        say_json("doctor", {"lines": [asdict(line) for line in lines]})
    else:
        width = max(len(line.subject) for line in lines)
        for line in lines:
            say(f"{line.state:8} {line.subject:{width}}  {line.seen}")
            if line.fix:
                say(f"{'':8} {'':{width}}  → {line.fix}")
    return MachineLacks.exit_code if any(line.state == "missing" for line in lines) else 0
