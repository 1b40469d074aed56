"""What the verbs share: options, this user's settings, and the way from a STACK argument to a plan."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from imagebuilder.cli.report import STYLES, reporter_for
from imagebuilder.errors import MachineLacks, UsageProblem
from imagebuilder.progress import Reporter

if TYPE_CHECKING:
    from imagebuilder.cache import Cache
    from imagebuilder.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

SCHEMA = 1
"""The version of every `--json` output; a field is never renamed under one version, only added."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One run of the command line. The only place that reads the environment and the current directory."""

    reporter: Reporter
    offline: bool = False

    @cached_property
    def cwd(self) -> Path:
        """Where locks, layouts and results are written. MachineLacks where it was removed."""
        try:
            return Path.cwd()
        except OSError as error:
            raise MachineLacks(
                "the current folder is not there",
                seen=error.strerror or "",
                hint="cd to one that is",
            ) from None

    @cached_property
    def settings(self) -> Settings:
        """Of this user, from the environment and configuration files."""
        from dataclasses import replace

        from imagebuilder.settings import load

        settings = load(os.environ)
        return replace(settings, offline=True) if self.offline else settings

    @cached_property
    def cache(self) -> Cache:
        """This user's cache, or the one given to `with_cache`."""
        from imagebuilder.cache import Cache

        return Cache(self.settings.cache_dir)

    def with_cache(self, cache: Cache) -> Context:
        """The same run with another cache."""
        from dataclasses import replace

        other = replace(self)
        other.__dict__.update(settings=replace(self.settings, cache_dir=cache.root), cache=cache)
        return other


def verb(*, offline: bool = False, cls: type[click.Command] = click.Command) -> Callable[[F], click.Command]:
    """Make a function a verb: adds --quiet, --verbose and --progress, and passes a Context first.

    offline: the verb has `--offline` too. cls: click's class for it. The function's docstring is its help.
    """

    def decorate(function: F) -> click.Command:
        @click.option("--progress", type=click.Choice(STYLES), default="auto", help="How progress looks.")
        @click.option("--verbose", is_flag=True, help="Tell every step.")
        @click.option("--quiet", is_flag=True, help="Only results, warnings and errors.")
        @functools.wraps(function)
        def run(*, quiet: bool, verbose: bool, progress: str, **options: Any) -> Any:
            reporter = reporter_for(progress, sys.stderr, quiet=quiet, verbose=verbose)
            context = Context(reporter=reporter, offline=options.pop("offline", False))
            _ = context.cwd  # before any work: without one, most of it fails in ways of its own
            try:
                return function(context, **options)
            except UsageProblem as error:
                if error.hint == UsageProblem.default_hint:  # the verb's own help says more
                    error.hint = f"{click.get_current_context().command_path} --help"
                raise

        if offline:
            run = click.option("--offline", is_flag=True, help="Use only what is here already.")(run)
        return click.command(cls=cls)(run)

    return decorate


class Finite(click.FloatRange):
    """A number in a range. Click's own takes NaN into every range: it is neither below nor above it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error for what is none, NaN, infinite or outside the range."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return found


stack_argument = click.argument("stack", metavar="STACK")
json_option = click.option("--json", "as_json", is_flag=True, help="The result as JSON on standard output.")


def say(text: str) -> None:
    """A line of the result, to standard output."""
    click.echo(text)


def say_json(kind: str, data: dict[str, Any]) -> None:
    """The result as one JSON object with its schema."""
    click.echo(json.dumps({"schema": SCHEMA, "kind": kind, **data}, indent=2))
