"""A stack's [deploy.kubernetes], completed and checked: what manifests are made from. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from imagebuilder.deploy.server import across_nodes, ranks, refuse, serving_command
from imagebuilder.errors import Problem, SectionMissing, UsageProblem
from imagebuilder.stack.model import DeployKubernetes, Stack
from imagebuilder.values import Digest, ImageRef

TABLE = "deploy.kubernetes"
SHM_VOLUME = "shm"
_LABEL = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LONGEST_OF_GROUPS = 52
"""A LeaderWorkerSet's pods are called NAME-GROUP-WORKER, and that is a host name: at most 63 characters."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is deployed. image: repository and digest, without a tag. words: of the server, in the end.

    rank_words: the options for several nodes, which name variables of the pod. Empty words: the image's own.
    """

    stack: Stack
    settings: DeployKubernetes
    image: ImageRef
    name: str
    words: tuple[str, ...]
    rank_words: tuple[str, ...] = ()

    @property
    def labels(self) -> Mapping[str, str]:
        """Of every object."""
        return {**self.selector, "app.kubernetes.io/managed-by": "imagebuilder"}

    @property
    def selector(self) -> Mapping[str, str]:
        """What selects the pods. It can never be changed in a cluster."""
        return {"app.kubernetes.io/name": self.name}

    @property
    def service_name(self) -> str:
        """Not a LeaderWorkerSet's own name: it makes a headless Service of that name where there is none."""
        return self.name if self.settings.nodes == 1 else f"{self.name}-leader"

    @property
    def user(self) -> int | None:
        """The uid to run as, where it is known not to be root; None: the image decides."""
        if self.settings.run_as_user is not None:
            return self.settings.run_as_user
        uid = self.stack.image.user.partition(":")[0]
        return int(uid) if uid.isdecimal() and int(uid) else None

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """The variables of the ConfigMap: the stack's, and what it does not say itself."""
        known = dict(self.stack.env) | dict(self.settings.env)
        extra = {"IMAGEBUILDER_STACK": self.stack.name}
        if self.settings.gpus == 0 and self.stack.target.gpus:
            # CUDA images say `all`: where NVIDIA's runtime is the default one, they would get every GPU.
            extra["NVIDIA_VISIBLE_DEVICES"] = "void"
        if self.user is not None:
            # A uid without an entry in /etc/passwd: caches go below HOME, and torch asks for the user's name.
            extra |= {"HOME": "/tmp", "USER": "imagebuilder"}
        own = {name: value for name, value in extra.items() if name not in known}
        return dict(sorted((own | dict(self.settings.env)).items()))

    @property
    def config_name(self) -> str:
        """The ConfigMap's name, with its content's hash: other content is another map, and a new rollout."""
        content = json.dumps(self.environment, sort_keys=True).encode()
        return f"{self.name}-env-{Digest.of(content).hex[:10]}"


def workload_of(stack: Stack, image: ImageRef) -> Workload:
    """Complete and check. Raises UsageProblem without [deploy.kubernetes] or a digest, StackInvalid."""
    settings = stack.deploy_kubernetes
    if settings is None:
        raise SectionMissing(stack.name, "deploy.kubernetes", "how it is deployed to Kubernetes")
    if image.digest is None:
        raise UsageProblem(
            f"{image} names no digest, and what a tag names can change between two pods",
            wanted=f"{image.name}@sha256:…",
            hint="imagebuilder push prints it; so does the registry: skopeo inspect --format '{{.Digest}}'",
        )
    refuse(stack, _problems(stack, settings))
    words = serving_command(stack, TABLE, settings.command, port=settings.port, metrics=settings.metrics)
    across: tuple[str, ...] = ()
    if settings.nodes > 1:
        words = words or stack.image.command
        across = across_nodes(stack, words, TABLE)
    _enough_gpus(stack, settings, words or stack.image.command)
    return Workload(
        stack=stack,
        settings=settings,
        image=ImageRef(image.registry, image.repository, digest=image.digest),
        name=settings.name or stack.name,
        words=words,
        rank_words=across,
    )


def _problems(stack: Stack, settings: DeployKubernetes) -> Iterator[Problem]:
    name = settings.name or stack.name
    longest = 63 if settings.nodes == 1 else _LONGEST_OF_GROUPS
    if not _LABEL.fullmatch(name) or len(name) > longest:
        yield Problem(
            key=f"{TABLE}.name",
            message=f"{name!r} is no name: a letter, then a-z, 0-9 and -, {longest} characters at most",
            hint="" if settings.name else "the stack's name is taken where there is no other: give one here",
        )
    if settings.memory is not None and settings.memory <= settings.shm:
        yield Problem(
            key=f"{TABLE}.memory",
            message=f"{settings.memory >> 20} MiB, of which /dev/shm may take {settings.shm >> 20} MiB",
            hint="memory in /dev/shm counts against the pod's limit: raise memory, or lower shm",
        )
    both = {variable for variable, _ in settings.env} & {secret.env for secret in settings.secrets}
    for variable in sorted(both):
        yield Problem(key=f"{TABLE}.secrets", message=f"{variable} is in {TABLE}.env too")
    for number, toleration in enumerate(settings.tolerations):
        if toleration.operator == "Exists" and toleration.value:
            yield Problem(
                key=f"{TABLE}.tolerations[{number}].value",
                message="a value is only compared by the operator Equal",
                hint='operator = "Equal"',
            )
    yield from _volume_problems(settings)


def _volume_problems(settings: DeployKubernetes) -> Iterator[Problem]:
    targets = Counter(volume.target for volume in settings.volumes)
    sizes: dict[str, int] = {}
    for number, volume in enumerate(settings.volumes):
        key = f"{TABLE}.volumes[{number}]"
        if volume.name == SHM_VOLUME:
            yield Problem(key=f"{key}.name", message=f"{SHM_VOLUME!r} is the name of /dev/shm's own volume")
        if volume.target in ("/dev/shm", "/"):
            hint = f"{TABLE}.shm is its size" if volume.target != "/" else ""
            yield Problem(key=f"{key}.target", message=f"nothing can lie at {volume.target}", hint=hint)
        elif targets[volume.target] > 1:
            yield Problem(key=f"{key}.target", message=f"{volume.target} is the target of another volume too")
        if volume.claim and volume.size and sizes.setdefault(volume.claim, volume.size) != volume.size:
            yield Problem(key=f"{key}.size", message=f"{volume.claim} has another size further up")


def _enough_gpus(stack: Stack, settings: DeployKubernetes, words: tuple[str, ...]) -> None:
    there = settings.gpus * settings.nodes
    if there and (wanted := ranks(words)) > there:
        problem = Problem(
            key=f"{TABLE}.gpus",
            message=f"the command wants {wanted} GPUs, {settings.nodes} nodes have {settings.gpus} each",
        )
        refuse(stack, (problem,))
