"""The Job of an acceptance: valid, sound, and what a stack may not ask for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from imagebuilder.accept.scenario import make_scenario
from imagebuilder.deploy.acceptance import program
from imagebuilder.deploy.job import acceptance_manifests, agent_port
from imagebuilder.deploy.kubernetes import main_object, manifests
from imagebuilder.deploy.podstate import PodState, pod_state
from imagebuilder.deploy.text import yaml_documents
from imagebuilder.errors import StackInvalid, UsageProblem
from imagebuilder.stack import load_stack, shipped_stacks
from imagebuilder.stack.model import Acceptance, DeployKubernetes, Mount, SecretRef, Stack, Volume
from tests.deploy.stacks import IMAGE, SERVER, stack_of
from tests.support.manifests import JOB_RULES, lint

Json = dict[str, Any]
NEWEST = kubernetes_validate.utils.all_versions()[-3:]
SHIPPED = [path for path in shipped_stacks() if load_stack(path).acceptance]
FULL = DeployKubernetes(
    gpus=8,
    memory=200 << 30,
    secrets=(SecretRef(env="HF_TOKEN", secret="hub", key="token"),),
    volumes=(
        Volume(name="cache", target="/cache", claim="cache", size=1 << 40),
        Volume(name="models", target="/models", host_path="/mnt/models", read_only=True),
    ),
    node_selector=(("gpu", "b200"),),
)
ACCEPTANCE = Acceptance(
    model="/models/m",
    draft="/models/d",
    server=SERVER[:3],
    secrets=("HF_TOKEN",),
    mounts=(Mount(source="/data/models", target="/models", read_only=True),),
)


def job_of(
    kubernetes: DeployKubernetes | None = FULL, acceptance: Acceptance = ACCEPTANCE, **changes: Any
) -> tuple[Json, ...]:
    return made(stack_of(kubernetes=kubernetes, acceptance=acceptance, **changes))


def made(stack: Stack) -> tuple[Json, ...]:
    assert stack.acceptance is not None
    scenario = make_scenario(stack, stack.acceptance, ())
    return acceptance_manifests(
        stack, stack.acceptance, scenario, IMAGE, program=program(), suffix="0a1b2c3d", owner="m pid:[1]/2/3"
    )


def pod_of(documents: tuple[Json, ...]) -> Json:
    return dict(documents[-1]["spec"]["template"]["spec"])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_stacks(path: Path) -> None:
    stack = load_stack(path)
    documents = made(stack)
    for document in documents:
        assert all(kubernetes_validate.validate(document, version, strict=True) for version in NEWEST)
    assert lint(documents, entrypoint=stack.image.entrypoint) == []
    assert tuple(yaml.safe_load_all(yaml_documents(documents))) == documents
    assert made(stack) == documents


FAULTS: dict[str, Callable[[Json], Any]] = {
    "retried": lambda job: job["spec"].update(backoffLimit=3),
    "retried ": lambda job: job["spec"]["template"]["spec"].update(restartPolicy="OnFailure"),
    "job_stays": lambda job: job["spec"].pop("activeDeadlineSeconds"),
    "job_stays ": lambda job: job["spec"].pop("ttlSecondsAfterFinished"),
}


def test_every_rule_has_a_fault() -> None:
    assert {name.strip() for name in FAULTS} == JOB_RULES


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    documents = copy.deepcopy(job_of())
    assert lint(documents, entrypoint=("/usr/bin/tini",)) == []
    FAULTS[name](documents[-1])
    assert {line.partition(":")[0] for line in lint(documents, entrypoint=("tini",))} == {name.strip()}


def test_what_is_in_it() -> None:
    claim, job = job_of()
    assert (claim["kind"], job["kind"]) == ("PersistentVolumeClaim", "Job")
    assert job["metadata"]["name"] == "sample-accept-0a1b2c3d"
    assert job["metadata"]["annotations"] == {"io.imagebuilder.accept.owner": "m pid:[1]/2/3"}
    spec = pod_of((job,))
    (container,) = spec["containers"]
    assert container["image"] == str(IMAGE)
    assert container["command"] == ["/usr/bin/tini", "--"]
    assert container["args"][:2] == ["python3", "-c"]
    assert container["args"][2].replace("$$", "$") == program()
    assert container["resources"]["limits"] == {"memory": "200Gi", "nvidia.com/gpu": "8"}
    assert container["env"][-1]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert spec["restartPolicy"] == "Never"
    assert spec["nodeSelector"] == {"gpu": "b200"}
    assert [v["name"] for v in spec["volumes"]] == ["shm", "cache", "models"]
    assert spec["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}
    assert not {"startupProbe", "livenessProbe", "lifecycle", "ports", "envFrom"} & container.keys()


def test_nothing_that_is_deployed_takes_its_pod_for_its_own() -> None:
    labels = job_of()[-1]["spec"]["template"]["metadata"]["labels"]
    stack = stack_of(kubernetes=FULL)
    deployed = main_object(manifests(stack, IMAGE))["spec"]["selector"]["matchLabels"]
    assert not deployed.items() <= labels.items()


def test_the_claim_is_the_one_that_a_deployment_makes() -> None:
    stack = stack_of(kubernetes=replace(FULL, replicas=2), acceptance=ACCEPTANCE)
    assert made(stack)[0] in manifests(stack, IMAGE)


@pytest.mark.parametrize(("gpus", "count"), [("all", "8"), ((0, 3), "2"), ("none", None)])
def test_gpus(gpus: Any, count: str | None) -> None:
    (container,) = pod_of(job_of(acceptance=replace(ACCEPTANCE, gpus=gpus)))["containers"]
    assert container["resources"]["limits"].get("nvidia.com/gpu") == count
    shown = {e["name"]: e.get("value") for e in container["env"]}.get("NVIDIA_VISIBLE_DEVICES")
    assert shown == (None if count else "void")


def test_a_long_name_is_cut() -> None:
    documents = job_of(replace(FULL, name="n" * 63))
    assert len(documents[-1]["metadata"]["name"]) <= 63


REFUSED: dict[str, tuple[DeployKubernetes, Acceptance, str]] = {
    "a mount without a volume": (
        FULL, replace(ACCEPTANCE, mounts=(Mount(source="/x", target="/y"),)), "nothing lies at /y",
    ),
    "a secret without a reference": (
        replace(FULL, secrets=()), ACCEPTANCE, "HF_TOKEN of [acceptance] secrets is not there",
    ),
    "too few GPUs": (
        replace(FULL, gpus=4), replace(ACCEPTANCE, arguments=("--tp", "8")), "wants 8 GPUs, the pod has 4",
    ),
    "shared memory beyond the limit": (
        replace(FULL, memory=8 << 30), ACCEPTANCE, "of which /dev/shm may take",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    settings, acceptance, words = REFUSED[case]
    with pytest.raises(StackInvalid) as refused:
        job_of(settings, acceptance)
    assert words in str(refused.value)


def test_a_stack_without_the_table() -> None:
    with pytest.raises(UsageProblem, match="does not say how it runs in Kubernetes"):
        job_of(None)


def test_the_agent_has_a_port_of_its_own() -> None:
    for port in (1, 8000, 65535, 60001):
        scenario = replace(make_scenario(stack_of(acceptance=ACCEPTANCE), ACCEPTANCE, ()), port=port)
        assert agent_port(scenario) not in (port, port + 1)
        assert 0 < agent_port(scenario) < 65536


def container_status(**state: Any) -> Json:
    return {"status": {"phase": "Pending", "containerStatuses": [{"state": state}]}}


STATES: dict[str, tuple[Json, PodState]] = {
    "new": ({}, PodState(stage="waiting", why="it has no container yet")),
    "no place": (
        {"status": {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3"}]}},
        PodState(stage="unschedulable", why="0/3"),
    ),
    "pulling": (
        container_status(waiting={"reason": "ContainerCreating"}),
        PodState(stage="waiting", why="ContainerCreating"),
    ),
    "no image": (
        container_status(waiting={"reason": "ImagePullBackOff", "message": "not found"}),
        PodState(stage="no image", why="ImagePullBackOff: not found"),
    ),
    "no secret": (
        container_status(waiting={"reason": "CreateContainerConfigError", "message": "secret x"}),
        PodState(stage="no container", why="CreateContainerConfigError: secret x"),
    ),
    "runs": (
        {"spec": {"nodeName": "n"}, **container_status(running={})}, PodState(stage="runs", node="n"),
    ),
    "out of memory": (
        container_status(terminated={"exitCode": 137, "reason": "OOMKilled"}),
        PodState(stage="ended", why="exit status 137, OOMKilled"),
    ),
    "evicted": (
        {"status": {"phase": "Failed", "reason": "Evicted", "message": "disk"}},
        PodState(stage="ended", why="Evicted: disk"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_states_of_a_pod(name: str) -> None:
    told, state = STATES[name]
    assert pod_state(told) == state
