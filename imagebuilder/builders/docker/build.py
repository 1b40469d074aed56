"""Plan → image with a Docker Engine: render, build with BuildKit, bring the result into one form."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from imagebuilder.builders.direct.build import Built, BuiltLayer
from imagebuilder.builders.docker.advice import explain
from imagebuilder.builders.docker.buildx import BuildRequest, Buildx, find_buildx
from imagebuilder.builders.docker.canonical import Canonical, canonical
from imagebuilder.builders.docker.context import Means, write_context
from imagebuilder.builders.docker.engine import OLDEST_WITH_BUILDKIT, Engine
from imagebuilder.builders.docker.progress import BuildProgress
from imagebuilder.builders.docker.saved import RawImage, read_exported, read_saved
from imagebuilder.builders.docker.secrets import build_secrets
from imagebuilder.dockerfile.steps import wheel_steps
from imagebuilder.errors import MachineLacks, UsageProblem
from imagebuilder.oci.model import timestamp
from imagebuilder.plan import Plan
from imagebuilder.settings import Settings
from imagebuilder.stack import Stack

_TEMPORARY = "imagebuilder-build"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to build. builder: a buildx builder other than the engine's own. no_cache: use no earlier build."""

    builder: str | None = None
    vendored: bool = False
    no_cache: bool = False
    template: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BuiltWithDocker:
    """An image built by BuildKit, in the form of the direct builder's. tools: for the build record."""

    built: Built
    tools: Mapping[str, str]


def build(
    plan: Plan,
    stack: Stack,
    settings: Settings,
    engine: Engine,
    means: Means,
    *,
    options: Options | None = None,
    environment: Mapping[str, str],
) -> BuiltWithDocker:
    """Build the image of this plan with the engine, or with the builder that `options` names.

    environment: of the docker command. The engine keeps what BuildKit keeps, and no image: `Engine.load`
    brings it there. Raises BuildFailed, MachineLacks, ArtefactUnusable, UsageProblem, StackInvalid.
    """
    options = options or Options()
    buildx = find_buildx(environment)
    driver = buildx.driver(options.builder)
    _check(plan, engine, driver)
    with means.cache.temporary() as scratch:
        context = scratch / "context"
        write_context(context, plan, stack, means, template=options.template, vendored=options.vendored)
        with build_secrets(stack, settings, scratch) as files:
            progress = BuildProgress(means.reporter, _titles(plan, stack))
            request = BuildRequest(
                context=context,
                platform=str(plan.platform),
                epoch=int(plan.created.timestamp()),
                builder=options.builder,
                no_cache=options.no_cache,
                secrets=files,
            )
            run = _Run(
                plan=plan, engine=engine, buildx=buildx, driver=driver, progress=progress, scratch=scratch
            )
            raw = run.carry_out(request)
        made = canonical(
            raw,
            titles=[layer.title for layer in plan.layers if layer.image is None],
            created=timestamp(plan.created),
            cache=means.cache,
            reporter=means.reporter,
            workers=means.workers,
        )
    return BuiltWithDocker(
        built=Built(plan=plan, image=made.image, layers=_built_layers(plan, made)),
        tools={
            "name": "docker",
            "engine": engine.facts.version,
            "store": engine.facts.store,
            "buildx": buildx.version,
            "driver": driver,
            "buildkit": ", ".join(buildx.buildkit_versions(options.builder)),
        },
    )


def _built_layers(plan: Plan, made: Canonical) -> tuple[BuiltLayer, ...]:
    """The plan's layers as built; one that only WORKDIR made is not among them."""
    planned = (layer for layer in plan.layers if layer.image is None)
    return tuple(
        BuiltLayer(planned=layer, ref=own.ref, unpacked=own.unpacked, cached=own.cached)
        for layer, own in zip(planned, made.own, strict=False)
    )


def _check(plan: Plan, engine: Engine, driver: str) -> None:
    if driver == "docker" and not engine.facts.builds:
        raise MachineLacks(
            "this Docker Engine is too old to build",
            seen=engine.facts.version,
            wanted=f"{OLDEST_WITH_BUILDKIT} or newer",
            hint="update it, name a newer BuildKit with --builder-name, or use --builder direct",
        )
    if any(layer.image and layer.image.path for layer in plan.layers):
        raise UsageProblem(
            "a base that is an OCI layout on disk cannot be named in a Dockerfile",
            hint="use --builder direct, or push it to a registry and use [base] image",
        )


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One build on its way."""

    plan: Plan
    engine: Engine
    buildx: Buildx
    driver: str
    progress: BuildProgress
    scratch: Path

    def carry_out(self, request: BuildRequest) -> RawImage:
        """Run it, and get the image out of wherever this kind of builder puts it."""
        if self.driver != "docker" or self.engine.facts.has_containerd_store:
            exported = self.scratch / "exported"
            # Plain tars: the layers are written anew anyway, and unpacking is the cheaper half that is saved.
            output = f"type=oci,dest={exported},tar=false,compression=uncompressed"
            self._build(replace(request, output=output))
            return read_exported(exported)
        tag = f"{_TEMPORARY}:{secrets.token_hex(8)}"
        try:
            self._build(replace(request, tag=tag))
            return self.engine.saved(tag, self.scratch / "saved", read_saved)
        finally:
            with suppress(MachineLacks):  # the engine is gone: so is what could be removed
                self.engine.remove(tag)

    def _build(self, request: BuildRequest) -> None:
        try:
            status = self.buildx.run(request.words(self.buildx.progress_form), self.progress.feed)
        finally:
            self.progress.close()
        if status:
            where = f" at '{self.progress.failed}'" if self.progress.failed else ""
            raise explain(
                self.progress.text,
                f"the Docker build of {self.plan.stack_name} failed{where}",
                lines=self.progress.explanation,
                otherwise="`imagebuilder render` writes the Dockerfile and its context, to look at and try",
            )


def _titles(plan: Plan, stack: Stack) -> dict[str, str]:
    return {step.folder: step.heading for step in wheel_steps(plan, stack, vendored=False)}
