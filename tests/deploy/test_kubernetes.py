"""Manifests: valid, sound, literal, stable; and what a stack may not ask for."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from referencing import Registry, Resource

from imagebuilder.deploy.kubernetes import main_object, manifests
from imagebuilder.deploy.pod import literal, quantity
from imagebuilder.deploy.text import yaml_document, yaml_documents
from imagebuilder.errors import StackInvalid, UsageProblem
from imagebuilder.stack import load_stack, shipped_stacks
from imagebuilder.stack.model import DeployKubernetes, ImageSettings, SecretRef, Stack, Toleration, Volume
from imagebuilder.values import ImageRef
from tests.deploy.stacks import IMAGE, SERVER, TEXT, TINI, kubernetes_stack, kubernetes_stacks, stack_of
from tests.support.manifests import JOB_RULES, RULES, lint

Json = dict[str, Any]
NEWEST = kubernetes_validate.utils.all_versions()[-3:]
OWN = Path(__file__).parent.parent / "data" / "kubernetes"
OWN_SCHEMAS = {"LeaderWorkerSet": "leaderworkerset.json", "ServiceMonitor": "servicemonitor.json"}
SHIPPED = [path for path in shipped_stacks() if load_stack(path).deploy_kubernetes]


# ---------------------------------------------------------------- schemas


@cache
def validator(kind: str, api: str, version: str) -> jsonschema.Draft202012Validator:
    """The strict schema of a kind; of one that Kubernetes itself has not: ours, with that version's pods."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict"
    name = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api)  # as kubernetes-validate names its files
    own = OWN_SCHEMAS.get(kind)
    schema = json.loads((OWN / own if own else folder / f"{kind.lower()}-{name}.json").read_text())
    return jsonschema.Draft202012Validator(schema, registry=definitions(version))


@cache
def definitions(version: str) -> Registry[Any]:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict"
    resource = Resource.from_contents(json.loads((folder / "_definitions.json").read_text()))
    return resource @ Registry().with_resource("_definitions.json", resource)


def validate(documents: tuple[Json, ...], versions: list[str] = NEWEST) -> None:
    for document in documents:
        for version in versions:
            validator(document["kind"], document["apiVersion"], version).validate(document)


def lint_stack(stack: Stack, documents: tuple[Json, ...]) -> list[str]:
    assert stack.deploy_kubernetes is not None
    return lint(documents, entrypoint=stack.image.entrypoint, startup=stack.deploy_kubernetes.startup_timeout)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_shipped_stacks(path: Path) -> None:
    stack = load_stack(path)
    documents = manifests(stack, IMAGE, service_monitor=True)
    validate(documents)
    for document in documents:
        if document["kind"] not in OWN_SCHEMAS:
            assert all(kubernetes_validate.validate(document, version, strict=True) for version in NEWEST)
    assert lint_stack(stack, documents) == []
    assert tuple(yaml.safe_load_all(yaml_documents(documents))) == documents


@settings(max_examples=40)
@given(kubernetes_stacks())
def test_any_stack(stack: Stack) -> None:
    documents = manifests(stack, IMAGE, service_monitor=True)
    validate(documents)
    assert lint_stack(stack, documents) == []
    assert tuple(yaml.safe_load_all(yaml_documents(documents))) == documents
    assert yaml_documents(manifests(stack, IMAGE, service_monitor=True)) == yaml_documents(documents)


def test_schemas_of_ours_are_strict() -> None:
    (group,) = (d for d in manifests(kubernetes_stack(nodes=2), IMAGE) if d["kind"] == "LeaderWorkerSet")
    for path, value in (
        (("spec", "sizes"), 2),
        (("spec", "startupPolicy"), "Sometime"),
        (("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "enableServiceLink"), False),
        (("spec", "leaderWorkerTemplate", "size"), "2"),
    ):
        wrong = copy.deepcopy(group)
        here = wrong
        for key in path[:-1]:
            here = here[key]
        here[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            validate((wrong,), NEWEST[-1:])


# ---------------------------------------------------------------- the linter finds what it is for

FULL = DeployKubernetes(
    gpus=8,
    memory=200 << 30,
    metrics=True,
    secrets=(SecretRef(env="HF_TOKEN", secret="hub", key="token"),),
    volumes=(Volume(name="cache", target="/cache", claim="cache", size=1 << 40),),
    startup_timeout=3600,
)


def pod(documents: list[Json]) -> Json:
    """The pod that serves, whatever makes it."""
    spec = main_object(tuple(documents))["spec"]
    template: Json = (
        spec["template"] if "template" in spec else spec["leaderWorkerTemplate"]["leaderTemplate"]
    )
    return template["spec"]


def one(documents: list[Json]) -> Json:
    container: Json = pod(documents)["containers"][0]
    return container


def of_kind(documents: list[Json], kind: str) -> Json:
    return next(d for d in documents if d["kind"] == kind)


def drop_word(container: Json, word: str) -> None:
    at = container["args"].index(word)
    del container["args"][at : at + 2]


FAULTS: dict[str, list[Callable[[list[Json]], Any]]] = {
    "probe_timeout": [
        lambda d: one(d)["readinessProbe"].pop("timeoutSeconds"),
        lambda d: one(d)["startupProbe"].update(timeoutSeconds=1),
        lambda d: one(d)["livenessProbe"].update(timeoutSeconds=10),
    ],
    "no_startup_probe": [lambda d: one(d).pop("startupProbe")],
    "startup_budget": [
        lambda d: one(d)["startupProbe"].update(failureThreshold=30),
        lambda d: of_kind(d, "Deployment")["spec"].pop("progressDeadlineSeconds"),
    ],
    "no_init": [lambda d: one(d).update(command=["python3"])],
    "no_prestop": [lambda d: one(d).pop("lifecycle")],
    "short_grace": [
        lambda d: pod(d).update(terminationGracePeriodSeconds=12),
        lambda d: one(d)["lifecycle"]["preStop"]["sleep"].update(seconds=300),
    ],
    "no_shm": [
        lambda d: pod(d)["volumes"][0].update(emptyDir={"sizeLimit": "32Gi"}),
        lambda d: pod(d)["volumes"][0].update(emptyDir={"medium": "Memory"}),
        lambda d: one(d)["volumeMounts"].pop(0),
    ],
    "memory_below_shm": [lambda d: one(d)["resources"]["limits"].update(memory="16Gi")],
    "mutable_image": [lambda d: one(d).update(image="registry.example/team/sglang:latest")],
    "gpu_request_only": [lambda d: one(d)["resources"]["limits"].pop("nvidia.com/gpu")],
    "service_links": [
        lambda d: pod(d).pop("enableServiceLinks"),
        lambda d: pod(d).update(enableServiceLinks=True),
    ],
    "privileged": [
        lambda d: one(d)["securityContext"].update(privileged=True),
        lambda d: one(d).pop("securityContext"),
        lambda d: pod(d).update(hostIPC=True),
        lambda d: pod(d).update(hostNetwork=True),
    ],
    "gpu_leak": [lambda d: one(d)["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})],
    "literal_secret": [
        lambda d: one(d)["env"].append({"name": "HF_TOKEN", "value": "hf_" + "a" * 30}),
        lambda d: one(d)["args"].append("--api-key=secret"),
    ],
    "loopback": [lambda d: drop_word(one(d), "--host")],
    "surge": [
        lambda d: of_kind(d, "Deployment")["spec"].pop("strategy"),
        lambda d: of_kind(d, "Deployment")["spec"]["strategy"]["rollingUpdate"].update(maxSurge=1),
    ],
    "unknown_volume": [lambda d: pod(d)["volumes"].pop()],
    "selector": [
        lambda d: of_kind(d, "Service")["spec"]["selector"].update(other="x"),
        lambda d: of_kind(d, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].update(other="x"),
    ],
    "plain_secret": [
        lambda d: of_kind(d, "ConfigMap")["data"].update(HF_TOKEN="hf_" + "a" * 30),
        lambda d: d.append({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}),
    ],
}
GROUP_FAULTS: dict[str, list[Callable[[list[Json]], Any]]] = {
    "rendezvous": [
        lambda d: of_kind(d, "LeaderWorkerSet")["spec"].update(startupPolicy="LeaderReady"),
        lambda d: drop_word(one(d), "--dist-init-addr"),
    ],
    "taken_name": [
        lambda d: of_kind(d, "Service")["metadata"].update(
            name=of_kind(d, "LeaderWorkerSet")["metadata"]["name"]
        ),
    ],
    "selector": [lambda d: of_kind(d, "Service")["spec"]["selector"].pop("app.kubernetes.io/component")],
    "no_startup_probe": [lambda d: one(d).pop("startupProbe")],
}
PLANTED = [
    pytest.param(nodes, code, fault, id=f"{nodes}-{code}-{number}")
    for nodes, faults in ((1, FAULTS), (2, GROUP_FAULTS))
    for code, planted in faults.items()
    for number, fault in enumerate(planted)
]


def test_every_rule_has_a_fault() -> None:
    assert FAULTS.keys() | GROUP_FAULTS.keys() == RULES - JOB_RULES


@pytest.mark.parametrize(("nodes", "code", "fault"), PLANTED)
def test_a_planted_fault_is_found(nodes: int, code: str, fault: Callable[[list[Json]], Any]) -> None:
    stack = stack_of(kubernetes=replace(FULL, nodes=nodes))
    documents = list(copy.deepcopy(manifests(stack, IMAGE)))
    assert lint_stack(stack, tuple(documents)) == []
    fault(documents)
    assert code in {line.partition(":")[0] for line in lint_stack(stack, tuple(documents))}


# ---------------------------------------------------------------- what is in them


def test_kinds_and_order() -> None:
    kinds = [d["kind"] for d in manifests(stack_of(kubernetes=FULL), IMAGE, service_monitor=True)]
    assert kinds == [
        "ConfigMap", "PersistentVolumeClaim", "Service", "Deployment", "PodDisruptionBudget",
        "ServiceMonitor",
    ]  # fmt: skip
    assert [d["kind"] for d in manifests(kubernetes_stack(nodes=2), IMAGE)][-2] == "LeaderWorkerSet"


def test_the_image_is_named_by_its_digest_alone() -> None:
    tagged = replace(IMAGE, tag="cu130")
    assert one(list(manifests(kubernetes_stack(), tagged)))["image"] == str(IMAGE)
    with pytest.raises(UsageProblem, match="names no digest"):
        manifests(kubernetes_stack(), ImageRef.parse("registry.example/team/sglang:cu130"))


def test_a_stack_without_the_table() -> None:
    with pytest.raises(UsageProblem, match="does not say how"):
        manifests(stack_of(), IMAGE)


def test_sglang_is_told_where_to_serve() -> None:
    args = one(list(manifests(kubernetes_stack(port=8080, metrics=True), IMAGE)))["args"]
    assert args == [*SERVER, "--host", "0.0.0.0", "--port", "8080", "--enable-metrics"]
    complete = (*SERVER, "--host=0.0.0.0", "--port=30000")
    stack = stack_of(kubernetes=DeployKubernetes(), image=ImageSettings(command=complete))
    assert "args" not in one(list(manifests(stack, IMAGE))), "the image's own command is right"


def test_several_nodes() -> None:
    documents = list(manifests(kubernetes_stack(nodes=2, gpus=8, command=(*SERVER, "--tp", "16")), IMAGE))
    group = of_kind(documents, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    leader, worker = (group[t]["spec"]["containers"][0] for t in ("leaderTemplate", "workerTemplate"))
    assert leader["args"] == worker["args"]
    assert leader["args"][-6:] == [
        "--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)",
        "--dist-init-addr", "$(LWS_LEADER_ADDRESS):20000",
    ]  # fmt: skip
    assert "livenessProbe" in leader
    assert "livenessProbe" not in worker
    assert of_kind(documents, "Service")["metadata"]["name"] == "sample-leader"


def test_an_init_of_the_image_is_named() -> None:
    container = one(list(manifests(kubernetes_stack(), IMAGE)))
    assert container["command"] == list(TINI)
    for command in ((), ("python3", "serve.py")):
        image = ImageSettings(entrypoint=TINI, command=command)
        container = one(list(manifests(stack_of(kubernetes=DeployKubernetes(), image=image), IMAGE)))
        # Without words of its own, those of the base image would be taken away.
        assert container.get("args", []) == list(command)
        assert ("command" in container) is bool(command)


def test_the_init() -> None:
    for entrypoint, shared in ((TINI, False), ((), True), (("/nvidia_entrypoint.sh",), True)):
        image = ImageSettings(entrypoint=entrypoint, command=SERVER)
        stack = stack_of(kubernetes=DeployKubernetes(), image=image)
        assert pod(list(manifests(stack, IMAGE))).get("shareProcessNamespace", False) is shared


@pytest.mark.parametrize(
    ("user", "run_as", "uid"),
    [
        ("", None, None),
        ("app", None, None),
        ("0", None, None),
        ("1000:1000", None, 1000),
        ("", 7, 7),
        ("8", 7, 7),
    ],
)
def test_the_user(user: str, run_as: int | None, uid: int | None) -> None:
    stack = stack_of(
        kubernetes=DeployKubernetes(run_as_user=run_as), image=ImageSettings(command=SERVER, user=user)
    )
    documents = list(manifests(stack, IMAGE))
    context = pod(documents)["securityContext"]
    assert context.get("runAsUser") == uid
    assert context.get("runAsNonRoot", False) is (uid is not None)
    assert ("HOME" in of_kind(documents, "ConfigMap")["data"]) is (uid is not None)


def test_no_gpus_means_none() -> None:
    data = of_kind(list(manifests(kubernetes_stack(gpus=0), IMAGE)), "ConfigMap")["data"]
    assert data["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_secrets_are_references() -> None:
    container = one(list(manifests(stack_of(kubernetes=FULL), IMAGE)))
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert container["env"] == [{"name": "HF_TOKEN", "valueFrom": reference}]


def test_other_variables_are_another_map_and_a_rollout() -> None:
    before, after = (list(manifests(kubernetes_stack(env=(("A", value),)), IMAGE)) for value in ("1", "2"))
    names = [of_kind(d, "ConfigMap")["metadata"]["name"] for d in (before, after)]
    assert names[0] != names[1]
    assert one(after)["envFrom"] == [{"configMapRef": {"name": names[1]}}]
    assert of_kind(after, "ConfigMap")["immutable"] is True


def test_claims_for_one_pod_and_for_several() -> None:
    for replicas, nodes, mode in ((1, 1, "ReadWriteOnce"), (2, 1, "ReadWriteMany"), (1, 2, "ReadWriteMany")):
        documents = list(manifests(stack_of(kubernetes=replace(FULL, replicas=replicas, nodes=nodes)), IMAGE))
        assert of_kind(documents, "PersistentVolumeClaim")["spec"]["accessModes"] == [mode]


@given(st.integers(1, 86400), st.integers(1, 86400))
def test_budgets(startup: int, grace: int) -> None:
    stack = kubernetes_stack(startup_timeout=startup, termination_grace=grace)
    documents = list(manifests(stack, IMAGE))
    probe = one(documents)["startupProbe"]
    assert probe["failureThreshold"] == math.ceil(startup / 10)
    stop = one(documents)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod(documents)["terminationGracePeriodSeconds"] >= stop + grace


# ---------------------------------------------------------------- texts stay what they are


def expanded(word: str, variables: dict[str, str]) -> str:
    """As the kubelet does it. Source: kubernetes, third_party/forked/golang/expansion/expand.go."""
    return re.sub(
        r"\$(\$|\(([^)]*)\))",
        lambda m: "$" if m[1] == "$" else variables.get(m[2], m[0]),
        word,
    )


@given(TEXT, st.text(alphabet="$()HOMEx", max_size=20))
def test_words_are_not_expanded(word: str, dollars: str) -> None:
    for text in (word, dollars, f"$(HOME){word}$$(HOME)"):
        assert expanded(literal(text), {"HOME": "/root", "x": "y", "": "z"}) == text


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=40) | TEXT)
def test_yaml_keeps_texts(text: str) -> None:
    document = {"key": text, "list": [text, {"x": text}]}
    written = yaml_document(document)
    assert yaml.safe_load(written) == document
    # A parser that knows other kinds of bare words reads the same: whatever could be one stands in quotes.
    bare = re.fullmatch(r"key: ([^\"\n]*)\n.*", written, re.DOTALL)
    if bare:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", bare[1])
        assert bare[1].lower() not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")


def test_quantities() -> None:
    assert [quantity(n) for n in (1, 1 << 10, 3 << 19, 1 << 30, 1536 << 20, 2 << 40)] == [
        "1", "1Ki", "1536Ki", "1Gi", "1536Mi", "2Ti",
    ]  # fmt: skip


# ---------------------------------------------------------------- what a stack may not ask for

GIB = 1 << 30
BAD: list[tuple[dict[str, Any], str]] = [
    ({"command": (*SERVER, "--host", "127.0.0.1")}, "could not be reached"),
    ({"command": (*SERVER, "--port", "8000")}, "deploy.kubernetes.port is 30000"),
    ({"command": (*SERVER, "--tp", "8"), "gpus": 4}, "wants 8 GPUs, 1 nodes have 4 each"),
    ({"command": (*SERVER, "--tp=4", "--pp-size", "4"), "gpus": 4, "nodes": 2}, "wants 16 GPUs"),
    ({"command": (*SERVER, "--nnodes", "2"), "nodes": 2}, "--nnodes is set by the deployment"),
    ({"command": ("python3", "serve.py"), "nodes": 2}, "only known of SGLang"),
    ({"name": "a" * 60, "nodes": 2}, "52 characters at most"),
    ({"memory": GIB, "shm": GIB}, "/dev/shm may take 1024 MiB"),
    ({"env": (("A", "1"),), "secrets": (SecretRef(env="A", secret="s", key="k"),)}, "A is in"),
    ({"tolerations": (Toleration(key="a", value="b"),)}, "only compared by the operator Equal"),
    ({"volumes": (Volume(name="shm", target="/x"),)}, "/dev/shm's own volume"),
    ({"volumes": (Volume(name="x", target="/dev/shm"),)}, "nothing can lie at /dev/shm"),
    ({"volumes": (Volume(name="x", target="/"),)}, "nothing can lie at /"),
    ({"volumes": (Volume(name="x", target="/a"), Volume(name="y", target="/a"))}, "target of another volume"),
    (
        {
            "volumes": (
                Volume(name="x", target="/a", claim="c", size=GIB),
                Volume(name="y", target="/b", claim="c", size=2 * GIB),
            )
        },
        "another size",
    ),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=[w for _, w in BAD])
def test_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(StackInvalid, match=re.escape(words)):
        manifests(kubernetes_stack(**fields), IMAGE)


@pytest.mark.parametrize("name", ["a_b", "1a", "-a", "A"])
def test_a_name_that_the_cluster_does_not_take(name: str) -> None:
    with pytest.raises(StackInvalid, match="is no name"):
        manifests(stack_of(kubernetes=DeployKubernetes(), name=name), IMAGE)


def test_all_problems_at_once() -> None:
    with pytest.raises(StackInvalid) as caught:
        manifests(kubernetes_stack(memory=1, volumes=(Volume(name="shm", target="/dev/shm"),)), IMAGE)
    assert len(caught.value.problems) == 3
