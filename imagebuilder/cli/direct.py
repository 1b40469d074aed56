"""Building with the direct builder: what `build` and `verify` share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from imagebuilder.cli.context import Context
from imagebuilder.cli.prepare import Prepared, argument_of, obtain
from imagebuilder.errors import ArtefactUnusable, MachineLacks

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
    return build(
        prepared.plan,
        Inputs(stack=prepared.stack, plan=prepared.plan, workers=context.settings.workers),
        base=_base_image(context, prepared),
        obtain=partial(obtain, context, prepared),
        cache=layer_cache or context.cache,
        reporter=context.reporter,
        workers=context.settings.workers,
    )


def _base_image(context: Context, prepared: Prepared) -> Image | None:
    """The base image with its layers in the cache, where the plan stands on one."""
    if prepared.lock.base is None:
        return None
    from dataclasses import replace

    from imagebuilder.oci.base import fetch_layers, read_base, resolve_base
    from imagebuilder.stack import OciBase

    locked, stack = prepared.lock.base, prepared.stack
    if isinstance(stack.base, OciBase):
        assert stack.path is not None
        base = read_base(stack.path.parent / stack.base.path, prepared.lock.platform, context.cache)
        if base.index_digest != locked.index:
            raise ArtefactUnusable(
                f"the base at {stack.base.path} is not the locked one",
                seen=base.index_digest.text,
                wanted=locked.index.text,
                hint=f"imagebuilder lock {argument_of(context, stack)}",
            )
        return base.image
    assert locked.ref is not None, "only a base on disk has no reference"
    ref = replace(locked.ref, digest=locked.index)
    found = resolve_base(ref, prepared.lock.platform, settings=context.settings, cache=context.cache)
    return fetch_layers(
        found, settings=context.settings, cache=context.cache, reporter=context.reporter
    ).image
