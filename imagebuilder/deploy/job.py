"""Stack + image → the Job that an acceptance runs in. Pure.

One pod with all GPUs, and both servers in it: they are compared on the same GPUs, whether they take turns or
stand side by side.
"""

from __future__ import annotations

import json
from dataclasses import replace

from imagebuilder.accept.container import LABEL, OWNER
from imagebuilder.accept.model import ARMS, Scenario
from imagebuilder.deploy.kubernetes import manifests
from imagebuilder.deploy.pod import Json, literal, pod_template
from imagebuilder.deploy.server import has_init, ranks, refuse
from imagebuilder.deploy.workload import TABLE, Workload, workload_of
from imagebuilder.errors import Problem, SectionMissing
from imagebuilder.stack.model import Acceptance, DeployKubernetes, Stack
from imagebuilder.values import ImageRef

AGENT = "IMAGEBUILDER_AGENT"
SILENCE = 120
"""Seconds without a sign of life, after which the pod ends by itself."""
_KEPT_SECONDS = 600
_LONGEST = 24 * 3600
_LONGEST_NAME = 40


def acceptance_manifests(
    stack: Stack,
    acceptance: Acceptance,
    scenario: Scenario,
    image: ImageRef,
    *,
    program: str,
    suffix: str,
    owner: str,
) -> tuple[Json, ...]:
    """The claims that a deployment would make, and the Job, which is the last.

    program: the agent's text. suffix: makes its name another one than all others'. owner: which process it
    belongs to. Volumes, secrets, nodes and limits are those of [deploy.kubernetes]. Raises SectionMissing,
    StackInvalid.
    """
    if stack.deploy_kubernetes is None:
        raise SectionMissing(stack.name, "deploy.kubernetes", "how it runs in Kubernetes")
    settings = _settings(stack.deploy_kubernetes, scenario)
    refuse(stack, _problems(acceptance, scenario, settings))
    claims = [d for d in manifests(stack, image) if d["kind"] == "PersistentVolumeClaim"]
    settings = replace(settings, name=f"{(settings.name or stack.name)[:_LONGEST_NAME].rstrip('-')}-accept")
    workload = workload_of(replace(stack, deploy_kubernetes=settings), image)
    agent = {"port": agent_port(scenario), "silence": SILENCE, "secrets": list(acceptance.secrets)}
    template = _template(workload, program, agent)
    job: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{workload.name}-{suffix}",
            "namespace": settings.namespace,
            "labels": {**workload.labels, LABEL: stack.name},
            "annotations": {OWNER: owner},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": _LONGEST,
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "template": template,
        },
    }
    return (*claims, job)


def agent_port(scenario: Scenario) -> int:
    """Where the agent listens: not where servers do, which are the scenario's port and the one after it."""
    return scenario.port - 1 if scenario.port > 60000 else scenario.port + 2


def _settings(settings: DeployKubernetes, scenario: Scenario) -> DeployKubernetes:
    """One pod, whose program is the agent. Variables come with each server, from [acceptance]."""
    gpus = settings.gpus
    if scenario.gpus != "all":
        gpus = 0 if scenario.gpus == "none" else len(scenario.gpus)
    return replace(
        settings,
        command=("python3", "-c", "agent"),
        replicas=1,
        nodes=1,
        gpus=gpus,
        shm=scenario.shm or settings.shm,
        env=(),
        metrics=False,
    )


def _problems(acceptance: Acceptance, scenario: Scenario, settings: DeployKubernetes) -> list[Problem]:
    targets = {volume.target for volume in settings.volumes}
    found = [
        Problem(
            key=f"{TABLE}.volumes",
            message=f"nothing lies at {mount.target}, where [acceptance] mounts a folder",
            hint=f'[[{TABLE}.volumes]] name = "…", target = "{mount.target}", claim = "…"',
        )
        for mount in acceptance.mounts
        if mount.target not in targets
    ]
    known = {secret.env for secret in settings.secrets}
    found += [
        Problem(
            key=f"{TABLE}.secrets",
            message=f"{name} of [acceptance] secrets is not there",
            hint=f'{{ env = "{name}", secret = "NAME", key = "KEY" }}: no value leaves this machine',
        )
        for name in acceptance.secrets
        if name not in known
    ]
    wanted = max(ranks(scenario.command(arm)) for arm in ARMS)
    if settings.gpus and wanted > settings.gpus:
        found.append(
            Problem(key=f"{TABLE}.gpus", message=f"a server wants {wanted} GPUs, the pod has {settings.gpus}")
        )
    return found


def _template(workload: Workload, program: str, agent: Json) -> Json:
    """The pod of a deployment, but for what needs a server that stays: probes, ports, a drain."""
    template = pod_template(workload, "acceptance")
    spec = template["spec"]
    (container,) = spec["containers"]
    for name in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "ports", "envFrom"):
        container.pop(name, None)
    words = ["python3", "-c", literal(program)]
    entrypoint = workload.stack.image.entrypoint
    if has_init(entrypoint):
        container["command"] = [literal(word) for word in entrypoint]
    container["args"] = words
    container["env"] = [
        *({"name": name, "value": literal(value)} for name, value in workload.environment.items()),
        {"name": AGENT, "value": json.dumps(agent)},
        *container.pop("env", ()),
    ]
    spec["restartPolicy"] = "Never"
    spec["terminationGracePeriodSeconds"] = 10
    return template
