"""What `accept --on kubernetes` adds to `accept`: which image, which Job, which cluster."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from imagebuilder.cli.context import Context, say_json

if TYPE_CHECKING:
    from imagebuilder.accept.model import Scenario
    from imagebuilder.accept.server import Runtime
    from imagebuilder.publish.built import BuiltImage
    from imagebuilder.stack.model import Acceptance, Stack
    from imagebuilder.values import ImageRef


@dataclass(frozen=True, kw_only=True)
class ClusterJob:
    """A Job to be run. documents: what is applied. agent_port: where its agent listens."""

    stack: Stack
    image: ImageRef
    documents: tuple[dict[str, Any], ...]
    agent_port: int

    def config_digest(self, context: Context) -> str:
        """Of the image: what a result is bound to."""
        from imagebuilder.cli.deploy import config_of

        return config_of(context, self.stack, self.image).text

    def tell(self, as_json: bool) -> None:
        """The manifests, to standard output."""
        from imagebuilder.deploy.text import yaml_documents

        if as_json:
            say_json("accept-job", {"documents": list(self.documents), "image": str(self.image)})
        else:
            click.echo(yaml_documents(self.documents), nl=False)

    @contextmanager
    def runtime(self, context: Context, cluster: str | None) -> Iterator[Runtime]:
        """Where servers run; the Job is gone afterwards. cluster: kubectl's context."""
        from imagebuilder.deploy.acceptance import KubernetesRuntime
        from imagebuilder.deploy.kubectl import Cluster, subprocess_runner

        target = Cluster(run=subprocess_runner(os.environ), context=cluster)
        with KubernetesRuntime(
            target, os.environ, self.documents, self.agent_port, context.reporter
        ) as runtime:
            yield runtime


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The image: as it was built here, or as a cluster's Job names it; neither in a rehearsal."""

    built: BuiltImage | None = None
    job: ClusterJob | None = None
    config: str | None = None
    manifest: str | None = None

    def resolved(self, context: Context) -> Subject:
        """With the digest that a result is bound to, which may have to be asked of a registry."""
        if self.job is None or self.config is not None:
            return self
        return replace(self, config=self.job.config_digest(context))


def cluster_job(
    context: Context, stack: Stack, acceptance: Acceptance, scenario: Scenario, image: str | None
) -> ClusterJob:
    """The Job for this image; without one: for the built image, in the stack's repository."""
    from imagebuilder.accept.container import owner_now
    from imagebuilder.cli.deploy import pushed_reference, reference
    from imagebuilder.deploy.acceptance import program
    from imagebuilder.deploy.job import acceptance_manifests, agent_port

    ref = reference(image) if image else pushed_reference(context, stack)
    documents = acceptance_manifests(
        stack, acceptance, scenario, ref,
        program=program(), suffix=secrets.token_hex(4), owner=owner_now(),
    )  # fmt: skip
    return ClusterJob(stack=stack, image=ref, documents=documents, agent_port=agent_port(scenario))
