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
from imagebuilder.builders.docker.canonical import Canonical, Hollow, canonical
from imagebuilder.builders.docker.context import Means, read_template, read_tools, write_context
from imagebuilder.builders.docker.engine import OLDEST_WITH_BUILDKIT, Engine
from imagebuilder.builders.docker.kept import image_key, place_hollow, read_image, write_image, write_sources
from imagebuilder.builders.docker.progress import BuildProgress
from imagebuilder.builders.docker.saved import RawImage, read_exported, read_saved
from imagebuilder.builders.docker.secrets import build_secrets
from imagebuilder.dockerfile import render
from imagebuilder.dockerfile.steps import wheel_steps
from imagebuilder.errors import MachineLacks, UsageProblem
from imagebuilder.oci.model import timestamp
from imagebuilder.plan import Plan
from imagebuilder.settings import Settings
from imagebuilder.stack import Stack
from imagebuilder.values import Digest

_TEMPORARY = "imagebuilder-build"
_COMPRESSION = "compression=zstd,compression-level=1,oci-mediatypes=true"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to build. builder: a buildx builder other than the engine's own. no_cache: use no earlier build."""

    builder: str | None = None
    vendored: bool = False
    no_cache: bool = False
    template: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BuiltWithDocker:
    """An image built by BuildKit, in the form of the direct builder's. tools: for the build record.

    instructions: of the Dockerfile, one for each layer on the base; none where no build was needed.
    """

    built: Built
    tools: Mapping[str, str]
    instructions: tuple[str, ...] = ()


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
    template, name = read_template(options.template)
    dockerfile = render(plan, stack, template, vendored=options.vendored, template_name=name)
    key = image_key(plan, dockerfile, read_tools())
    if not options.no_cache and (kept := read_image(key, means.cache)):
        made, tools = kept
        return BuiltWithDocker(built=_built(plan, made), tools=tools)
    buildx = find_buildx(environment)
    driver = buildx.driver(options.builder)
    _check(plan, engine, driver)
    tools = {
        "name": "docker",
        "engine": engine.facts.version,
        "store": engine.facts.store,
        "buildx": buildx.version,
        "driver": driver,
        "buildkit": ", ".join(buildx.buildkit_versions(options.builder)),
    }
    with means.cache.temporary() as scratch:
        context = scratch / "context"
        write_context(context, plan, stack, means, dockerfile=dockerfile, vendored=options.vendored)
        with build_secrets(stack, settings, scratch) as files:
            request = BuildRequest(
                context=context,
                platform=str(plan.platform),
                epoch=int(plan.created.timestamp()),
                builder=options.builder,
                no_cache=options.no_cache,
                secrets=files,
            )
            run = _Run(
                plan=plan,
                stack=stack,
                engine=engine,
                buildx=buildx,
                driver=driver,
                means=means,
                scratch=scratch,
            )
            made = run.carry_out(request)
    write_image(key, made, tools, means.cache)
    return BuiltWithDocker(built=_built(plan, made), tools=tools, instructions=made.instructions)


def _built(plan: Plan, made: Canonical) -> Built:
    """As the direct builder gives its own; a template of the user's may have made other layers."""
    planned = (layer for layer in plan.layers if layer.image is None)
    layers = tuple(
        BuiltLayer(planned=layer, ref=own.ref, unpacked=own.unpacked, cached=own.cached)
        for layer, own in zip(planned, made.own, strict=False)
    )
    return Built(plan=plan, image=made.image, layers=layers)


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
    stack: Stack
    engine: Engine
    buildx: Buildx
    driver: str
    means: Means
    scratch: Path

    def carry_out(self, request: BuildRequest) -> Canonical:
        """Run it, get the image out of wherever this kind of builder puts it, and bring it into its form."""
        if self.driver != "docker" or self.engine.facts.has_containerd_store:
            try:
                made = self._exported(request, "exported", known=not request.no_cache)
            except Hollow:  # the engine's layers are others than those of the last build
                made = self._exported(replace(request, no_cache=False), "exported-whole", known=False)
        else:
            made = self._saved(request)
        write_sources(self.plan.stack_name, made.sources, self.means.cache)
        return made

    def _exported(self, request: BuildRequest, folder: str, *, known: bool) -> Canonical:
        """By BuildKit's exporter of OCI layouts. known: leave out layers whose final form is here."""
        target = self.scratch / folder
        hollow = place_hollow(self.plan.stack_name, target, self.means.cache) if known else frozenset()
        # The fastest that is not as large as plain tars: the layers are written anew anyway.
        self._build(replace(request, output=f"type=oci,dest={target},tar=false,{_COMPRESSION}"))
        return self._canonical(read_exported(target), hollow)

    def _saved(self, request: BuildRequest) -> Canonical:
        """By `docker save`, where the store has no exporter.

        A label makes it another image than that of a build of the same that goes on beside this one: an
        engine that takes an image away takes it from whoever names it at that moment, too.
        """
        own = secrets.token_hex(8)
        tag = f"{_TEMPORARY}:{own}"
        try:
            self._build(replace(request, tag=tag, label=f"{_TEMPORARY}={own}"))
            raw = self.engine.saved(tag, self.scratch / "saved", read_saved)
        finally:
            with suppress(MachineLacks):  # the engine is gone: so is what could be removed
                self.engine.remove(tag)
        labels = tuple(label for label in raw.config.labels if label[0] != _TEMPORARY)
        return self._canonical(replace(raw, config=replace(raw.config, labels=labels)), frozenset())

    def _canonical(self, raw: RawImage, hollow: frozenset[Digest]) -> Canonical:
        return canonical(
            raw,
            titles=[layer.title for layer in self.plan.layers if layer.image is None],
            created=timestamp(self.plan.created),
            cache=self.means.cache,
            reporter=self.means.reporter,
            workers=self.means.workers,
            hollow=hollow,
        )

    def _build(self, request: BuildRequest) -> None:
        progress = BuildProgress(self.means.reporter, _titles(self.plan, self.stack))
        try:
            status = self.buildx.run(request.words(self.buildx.progress_form), progress.feed)
        finally:
            progress.close()
        if status:
            where = f" at '{progress.failed}'" if progress.failed else ""
            raise explain(
                progress.text,
                f"the Docker build of {self.plan.stack_name} failed{where}",
                lines=progress.explanation,
                otherwise="`imagebuilder render` writes the Dockerfile and its context, to look at and try",
            )


def _titles(plan: Plan, stack: Stack) -> dict[str, str]:
    return {step.folder: step.heading for step in wheel_steps(plan, stack, vendored=False)}
