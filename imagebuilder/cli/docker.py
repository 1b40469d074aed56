"""Building with a Docker Engine: what `build`, `verify` and `render` share."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context
from imagebuilder.cli.prepare import Prepared, obtain
from imagebuilder.errors import UsageProblem

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagebuilder.builders.docker.build import BuiltWithDocker, Options
    from imagebuilder.builders.docker.context import Means
    from imagebuilder.builders.docker.engine import Engine
    from imagebuilder.cache import Cache

builder_option = click.option(
    "--builder",
    type=click.Choice(["auto", "docker", "direct"]),
    default="auto",
    help="auto: docker where an engine with BuildKit answers, else direct.",
)


def docker_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that only the Docker builder has."""
    for option in (
        click.option("--builder-name", metavar="NAME", help="Build with this buildx builder (docker only)."),
        template_option,
        vendored_option,
    ):
        function = option(function)
    return function


vendored_option = click.option(
    "--vendored", is_flag=True, help="Give the build all wheels, so that it needs no network (docker only)."
)
template_option = click.option(
    "--template",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A Jinja2 template of your own for the Dockerfile (docker only).",
)


def chosen_builder(context: Context, builder: str, builder_name: str | None) -> str:
    """docker or direct; what `auto` chose is told with its reason."""
    if builder != "auto":
        return builder
    if builder_name:
        return "docker"
    from imagebuilder.builders.docker.choose import choose

    choice = choose(os.environ)
    context.reporter.note(f"builder: {choice.builder} ({choice.reason})")
    return choice.builder


def only_docker(builder: str, **given: object) -> None:
    """UsageProblem where the direct builder is given options, by parameter name, that only Docker's has."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if builder == "direct" and names:
        raise UsageProblem(f"{', '.join(names)}: only the Docker builder has this", hint="--builder docker")


def connect(*, to_build: bool = False) -> Engine:
    """The engine that this environment leads to. to_build: the direct builder would do. MachineLacks."""
    from imagebuilder.builders.docker.advice import NO_ENGINE_NEEDED
    from imagebuilder.builders.docker.engine import Engine
    from imagebuilder.errors import MachineLacks

    try:
        return Engine.connect(os.environ)
    except MachineLacks as error:
        if to_build:
            error.hint += f"; {NO_ENGINE_NEEDED}"
        raise


def means(context: Context, prepared: Prepared, layer_cache: Cache | None = None) -> Means:
    """What building with Docker needs of this run. layer_cache: for layers, instead of this user's cache."""
    from imagebuilder.builders.docker.context import Means

    return Means(
        cache=layer_cache or context.cache,
        obtain=partial(obtain, context, prepared),
        reporter=context.reporter,
        workers=context.settings.workers,
    )


def build_docker(
    context: Context,
    prepared: Prepared,
    engine: Engine,
    options: Options,
    *,
    layer_cache: Cache | None = None,
) -> BuiltWithDocker:
    """Build with the engine. Offline, all wheels come from the cache, as with `--vendored`."""
    from dataclasses import replace

    from imagebuilder.builders.docker.build import build

    return build(
        prepared.plan,
        prepared.stack,
        context.settings,
        engine,
        means(context, prepared, layer_cache),
        options=replace(options, vendored=options.vendored or context.offline),
        environment=os.environ,
    )
