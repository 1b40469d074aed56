"""Building with the direct builder: what `build` and `verify` share."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from imagebuilder.cli.context import Context
from imagebuilder.cli.prepare import Prepared, argument_of, obtain
from imagebuilder.errors import MachineLacks

if TYPE_CHECKING:
    from imagebuilder.builders.direct.build import Built
    from imagebuilder.cache import Cache
    from imagebuilder.oci.image import Image


def build_direct(context: Context, prepared: Prepared, *, layer_cache: Cache | None = None) -> Built:
    """Build with the direct builder; `layer_cache` keeps the layers elsewhere than in this user's cache.

    Raises MachineLacks for a plan that only a Docker build can carry out.
    """
    from imagebuilder.builders.direct.build import build, needs_engine
    from imagebuilder.builders.direct.layers import Inputs

    if blocking := needs_engine(prepared.plan):
        name = argument_of(context, prepared.stack)
        raise MachineLacks(
            f"the layer '{blocking.title}' is made by apt inside a Docker build",
            seen="no Docker Engine in use",
            wanted='an engine, or a stack whose system packages are in the lock ([system] resolve = "lock")',
            hint=f"imagebuilder build {name} --builder docker, or `imagebuilder render {name}` for elsewhere",
        )
    base = _base_image(context, prepared)
    built = build(
        prepared.plan,
        Inputs(
            stack=prepared.stack,
            plan=prepared.plan,
            base=base,
            workers=context.settings.workers,
            remark=context.reporter.warn,
        ),
        obtain=partial(obtain, context, prepared),
        cache=layer_cache or context.cache,
        reporter=context.reporter,
        workers=context.settings.workers,
    )
    context.cache.prune(time.time())  # what killed commands left
    return built


def _base_image(context: Context, prepared: Prepared) -> Image | None:
    """The base image with its layers in the cache, where the plan stands on one."""
    if prepared.lock.base is None:
        return None
    from imagebuilder.lock.system import base_image

    return base_image(prepared.stack, prepared.lock.base, context.settings, context.cache, context.reporter)
