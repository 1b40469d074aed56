"""Applying with a real kubectl against a small API server, and what is said when it does not work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.deploy.kubectl import Cluster, Done, Runner, subprocess_runner
from imagebuilder.deploy.kubernetes import manifests
from imagebuilder.errors import DeployFailed, MachineLacks
from imagebuilder.progress import Silent
from tests.deploy.conftest import Environment
from tests.deploy.stacks import IMAGE, kubernetes_stack
from tests.support.command import Machine
from tests.support.kube_api import LEADER_WORKER_SET, RESOURCES, Refusal, kube_api

STACK = kubernetes_stack(
    env=(("TRICKY", "1e3"), ("QUOTED", 'it\'s "so": $(HOME) # no'), ("ON", "on"), ("EMPTY", "")),
)


def test_everything_is_applied_as_it_is(kubectl: Environment) -> None:
    documents = manifests(STACK, IMAGE)
    with kube_api() as api:
        cluster = Cluster(run=subprocess_runner(kubectl(api)))
        said = cluster.apply(documents, Silent())
        assert len(said) == len(documents)
        assert all("serverside-applied" in line for line in said)
        stored = [without(o, "uid", "resourceVersion") for o in api.applied.values()]
        # What kubectl read out of our YAML, with its own parser, is what was meant.
        assert sorted(stored, key=str) == sorted((without(d) for d in documents), key=str)
        asked = [query for _, query in api.changes]
        assert all(query["fieldManager"] == ["imagebuilder"] for query in asked)
        dry = ["dryRun" in query for query in asked]
        assert dry == [True] * len(documents) + [False] * len(documents), "all are asked about first"
        assert cluster.apply(documents, Silent()), "a second time changes nothing"
        assert len(api.applied) == len(documents)


def without(document: dict[str, Any], *names: str) -> dict[str, Any]:
    metadata = {k: v for k, v in document["metadata"].items() if k not in names}
    return {**document, "metadata": metadata}


def test_nothing_is_applied_where_one_is_refused(kubectl: Environment) -> None:
    def refuse(document: dict[str, Any]) -> Refusal | None:
        if document["kind"] == "Deployment":
            return Refusal(
                code=403, reason="Forbidden", message='deployments.apps "sample" is forbidden: exceeded quota'
            )
        return None

    with kube_api(refuse=refuse) as api:
        with pytest.raises(DeployFailed, match="does not take the manifests") as caught:
            Cluster(run=subprocess_runner(kubectl(api))).apply(manifests(STACK, IMAGE), Silent())
        assert "exceeded quota" in caught.value.seen
        assert api.applied == {}


def test_a_dry_run_changes_nothing(kubectl: Environment) -> None:
    with kube_api() as api:
        said = Cluster(run=subprocess_runner(kubectl(api))).apply(
            manifests(STACK, IMAGE), Silent(), dry_run=True
        )
        assert said
        assert api.applied == {}


def test_several_nodes_need_their_controller(kubectl: Environment) -> None:
    documents = manifests(kubernetes_stack(nodes=2), IMAGE)
    with kube_api() as api:
        with pytest.raises(DeployFailed) as caught:
            Cluster(run=subprocess_runner(kubectl(api))).apply(documents, Silent())
        assert "LeaderWorkerSet comes with" in caught.value.hint
    with kube_api(resources=RESOURCES | LEADER_WORKER_SET) as api:
        assert Cluster(run=subprocess_runner(kubectl(api))).apply(documents, Silent())
        assert any("leaderworkersets/sample" in path for path in api.applied)


def test_no_cluster_and_no_context(kubectl: Environment) -> None:
    with kube_api() as api:
        environment = kubectl(api)
        with pytest.raises(DeployFailed) as unknown:
            Cluster(run=subprocess_runner(environment), context="other").apply(
                manifests(STACK, IMAGE), Silent()
            )
        assert "get-contexts" in unknown.value.hint
    with pytest.raises(DeployFailed) as gone:
        Cluster(run=subprocess_runner(environment)).apply(manifests(STACK, IMAGE), Silent())
    assert "cluster-info" in gone.value.hint


def test_the_command(kubectl: Environment, tmp_path: Path) -> None:
    with kube_api() as api:
        machine = Machine(root=tmp_path / "machine", environment=kubectl(api))
        words = ("deploy", "kubernetes", "demo", "--image", str(IMAGE), "--unaccepted")
        printed = machine.run(*words)
        assert printed.code == 0, printed.err
        assert printed.out.startswith("---\napiVersion: v1\n")
        applied = machine.run(*words, "--apply")
        assert applied.code == 0, applied.err
        assert len(applied.out.splitlines()) == len(api.applied) == printed.out.count("---\n")
        api.refuse = lambda _: Refusal(code=401, reason="Unauthorized", message="Unauthorized")
        refused = machine.run(*words, "--apply")
        assert refused.code == 10
        assert "next:" in refused.err
        assert "Traceback" not in refused.err


# ---------------------------------------------------------------- without kubectl


def scripted(*answers: Done) -> tuple[Runner, list[list[str]]]:
    """A runner that answers so, and what it was asked."""
    asked: list[list[str]] = []
    left = list(answers)

    def run(words: Sequence[str], data: bytes) -> Done:
        asked.append(list(words))
        return left.pop(0)

    return run, asked


OK = Done(status=0, out="x serverside-applied\n", err="")


def test_no_kubectl() -> None:
    def run(words: Sequence[str], data: bytes) -> Done:
        raise FileNotFoundError

    with pytest.raises(MachineLacks, match="kubectl is not here"):
        Cluster(run=run).apply(manifests(STACK, IMAGE), Silent())


def test_the_words() -> None:
    run, asked = scripted(OK, OK)
    Cluster(run=run, context="prod", force=True).apply(manifests(STACK, IMAGE), Silent())
    first = ["kubectl", "--context", "prod", "apply", "--server-side", "--field-manager", "imagebuilder",
             "--filename", "-", "--force-conflicts"]  # fmt: skip
    assert asked == [[*first, "--dry-run=server"], first]


def test_waiting() -> None:
    run, asked = scripted(OK, OK, OK)
    cluster = Cluster(run=run)
    cluster.wait(manifests(STACK, IMAGE), 60, Silent())
    cluster.wait(manifests(kubernetes_stack(nodes=2, replicas=3), IMAGE), 60, Silent())
    assert asked[0][1:4] == ["rollout", "status", "deployment/sample"]
    assert asked[1][2] == "--for=jsonpath={.status.updatedReplicas}=3"
    assert asked[2][2] == "--for=condition=Available"
    run, _ = scripted(Done(status=1, out="", err="error: timed out waiting for the condition"))
    with pytest.raises(DeployFailed, match="did not become available within 60 s") as caught:
        Cluster(run=run).wait(manifests(STACK, IMAGE), 60, Silent())
    assert "describe pods" in caught.value.hint


WORDS = [
    (
        'error: no matches for kind "ServiceMonitor" in version "monitoring.coreos.com/v1"',
        "Prometheus operator; annotations",
    ),
    ('Error from server (NotFound): namespaces "llm" not found', "create namespace"),
    ("error: You must be logged in to the server (Unauthorized)", "auth whoami"),
    ('Error from server (Forbidden): deployments.apps "x" is forbidden: User "u" cannot patch', "auth can-i"),
    ('Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas', "--force-conflicts"),
    (
        'The PersistentVolumeClaim "c" is invalid: spec: Forbidden: spec is immutable after creation',
        "delete the object",
    ),
    ("dial tcp 127.0.0.1:8080: connect: connection refused", "cluster-info"),
]


@pytest.mark.parametrize(("words", "hint"), WORDS, ids=[hint for _, hint in WORDS])
def test_advice(words: str, hint: str) -> None:
    run, _ = scripted(Done(status=1, out="", err=words + "\n"))
    with pytest.raises(DeployFailed) as caught:
        Cluster(run=run).apply(manifests(STACK, IMAGE, service_monitor=True), Silent())
    assert hint in caught.value.hint
    assert words in caught.value.seen
