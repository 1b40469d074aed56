"""The command line's entry point: finds the verb, runs it, and turns errors into exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib import import_module
from typing import NoReturn

import click

from imagebuilder import __version__
from imagebuilder.cli.streams import standard_streams
from imagebuilder.errors import MORE_FILES, ImagebuilderError, MachineLacks, UsageProblem

INTERRUPTED = 130
BUG = 1
_WORLDS_FAULTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO), ""),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), MORE_FILES),
}
"""What the machine refuses, and what helps."""

# verb → what `--help` says of it. The verb's module is only imported when it runs: start-up stays fast.
VERBS = {
    "init": "copy a shipped stack here, to make it yours",
    "recon": "which wheels exist, on which index, how old, for my Python and GPU",
    "lock": "resolve everything to file and sha256",
    "fetch": "bring every locked file here, for an offline build",
    "show": "print a stack, its lock and its layers with sizes",
    "render": "the Dockerfile and its context, buildable with plain `docker build`",
    "check": "will it work? findings with evidence and a fix",
    "matrix": "which releases of one package another can load with",
    "build": "make the image",
    "bake": "a docker-bake.json for a BuildKit fleet",
    "verify": "build again from nothing, compare digests, explain any difference",
    "accept": "run it with --gpus all: smoke, baseline, EAGLE-3, verdict, report",
    "results": "list acceptances, or lay some beside each other",
    "push": "bring a built image into a registry, with the evidence of what it is",
    "pull": "bring an image of a registry here, as a layout",
    "evidence": "what is attached to an image in a registry, verified",
    "diff": "what changes between two stacks, locks or images",
    "snapshot": "an existing environment, image or container → a stack and lock that rebuild it",
    "deploy": "an accepted image → a running service, with Docker or in Kubernetes",
    "list": "images, results and the cache, with sizes",
    "clean": "free space, without what is in use",
    "doctor": "what this machine can and cannot do, and how to fix it",
}


class _Verbs(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"imagebuilder.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"There is no verb '{args[0]}'.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="STACK is the name of a stack (./stacks/NAME.toml, then the shipped ones) or a path.",
)
@click.version_option(__version__, prog_name="imagebuilder")
def cli() -> None:
    """Turn a TOML stack (CUDA, torch, SGLang) into a container image that is known to work."""


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with the code that docs/90-exit-codes.md lists."""
    sys.stdout, sys.stderr = standard_streams()
    signal.signal(signal.SIGTERM, _interrupt)  # what was begun ends as with Ctrl-C
    code = run(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # what threads still do ends soon: who insists may leave
        signal.signal(number, _leave)
    sys.exit(code)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _leave(*_: object) -> NoReturn:
    os._exit(INTERRUPTED)


def run(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    try:
        result = cli.main(args=argv, prog_name="imagebuilder", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (Exception, KeyboardInterrupt) as error:
        return _explain(error)
    return result if isinstance(result, int) else 0


def _explain(error: BaseException) -> int:
    """Say what went wrong; returns the exit code."""
    if isinstance(error, click.exceptions.Abort | KeyboardInterrupt):
        return _say("interrupted; what was finished is kept", INTERRUPTED)
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        error = UsageProblem(f"{error.filename}: {error.strerror}", hint="name another file or folder")
    if isinstance(error, OSError) and error.errno in _WORLDS_FAULTS:
        hint = _WORLDS_FAULTS[error.errno]
        error = MachineLacks(f"{error.filename or 'a file'}: {error.strerror}", hint=hint)
    if isinstance(error, ImagebuilderError):
        return _say(str(error), error.exit_code)
    import traceback

    traceback.print_exception(error)
    return _say(f"this is a bug in imagebuilder {__version__}: please report it with the lines above", BUG)


def _say(text: str, code: int) -> int:
    click.echo(f"imagebuilder: {text}", err=True)
    return code
