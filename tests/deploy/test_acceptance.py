"""An acceptance in a cluster: a real kubectl, a small API server, and a pod that is a process here."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.accept import results
from imagebuilder.accept.container import OWNER, owner_now
from imagebuilder.accept.model import ARMS, Scenario
from imagebuilder.accept.scenario import make_scenario
from imagebuilder.accept.server import Launch, Script, wait_healthy
from imagebuilder.deploy.acceptance import KubernetesRuntime, program
from imagebuilder.deploy.job import AGENT, acceptance_manifests, agent_port
from imagebuilder.deploy.kubectl import Cluster, subprocess_runner
from imagebuilder.errors import DeployFailed, MachineLacks, NotAccepted
from imagebuilder.lock.pylock import read_lock
from imagebuilder.progress import Silent
from imagebuilder.stack import Stack, load_stack
from imagebuilder.stack.model import SecretRef
from imagebuilder.values import Digest
from tests.accept.test_cli import kept, placed
from tests.deploy.conftest import Environment
from tests.deploy.stacks import IMAGE
from tests.support.command import ROOT, WAIT, Machine
from tests.support.fake_registry import FakeRegistry
from tests.support.kube_api import KubeApi, kube_api
from tests.support.kube_node import Node
from tests.support.ports import free_ports

pytest.importorskip("fastapi")
LOCK = read_lock(ROOT / "stacks" / "pylock.demo.toml")


@dataclass
class Place:
    """A cluster, a stack for it, and what leads kubectl there."""

    api: KubeApi
    node: Node
    environment: dict[str, str]
    machine: Machine
    stack: Stack

    @property
    def scenario(self) -> Scenario:
        assert self.stack.acceptance is not None
        return make_scenario(self.stack, self.stack.acceptance, ())

    def runtime(self, owner: str = "", **more: Any) -> KubernetesRuntime:
        assert self.stack.acceptance is not None
        documents = acceptance_manifests(
            self.stack, self.stack.acceptance, self.scenario, IMAGE,
            program=program(), suffix=f"{time.monotonic_ns() % 10**8}", owner=owner or owner_now(),
        )  # fmt: skip
        cluster = Cluster(run=subprocess_runner(self.environment))
        port = agent_port(self.scenario)
        return KubernetesRuntime(cluster, self.environment, documents, port, Silent(), **more)

    def launch(self, arm: Any = "baseline", **changes: Any) -> Launch:
        usual = Launch(arm=arm, command=self.scenario.command(arm), port=self.scenario.port, gpus="none")
        return replace(usual, **changes)

    def jobs(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.api.applied if "/jobs/" in path]


@pytest.fixture
def place(kubectl: Environment, tmp_path: Path) -> Iterator[Place]:
    with placing(kubectl, tmp_path) as made:
        yield made


@contextmanager
def placing(kubectl: Environment, folder: Path) -> Iterator[Place]:
    with ExitStack() as held:  # pods of these tests share this machine's network
        yield from _placing(kubectl, folder, free_ports(3, held))


def _placing(kubectl: Environment, folder: Path, port: int) -> Iterator[Place]:
    machine = placed(
        folder / "machine", lambda text: text.replace("port = 8000", f'port = {port}\nshm = "16MiB"')
    )
    stack = load_stack(machine.work / "stacks" / "demo.toml")
    image = folder / "image"
    for file in stack.files:
        path = image / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
    here = image / stack.image.workdir.lstrip("/")
    (folder / "bin").mkdir()
    script = folder / "bin" / "python3"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    node = Node(here, path=f"{folder / 'bin'}:{os.environ['PATH']}")
    with kube_api(node=node) as api:
        environment = kubectl(api)
        machine.environment |= {"KUBECONFIG": environment["KUBECONFIG"]}
        yield Place(api=api, node=node, environment=environment, machine=machine, stack=stack)
        until(lambda: not processes(here), "processes of the pod were left")


def processes(folder: Path) -> list[int]:
    """Those that run in this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# ---------------------------------------------------------------- it works


def test_secrets_stay_in_the_cluster(place: Place) -> None:
    assert place.stack.acceptance is not None
    assert place.stack.deploy_kubernetes is not None
    reference = SecretRef(env="HF_TOKEN", secret="hub", key="token")
    place.stack = replace(
        place.stack,
        acceptance=replace(place.stack.acceptance, secrets=("HF_TOKEN",)),
        deploy_kubernetes=replace(place.stack.deploy_kubernetes, secrets=(reference,)),
    )
    place.node.secrets["hub/token"] = "hf_canary"
    script = "import os, sys; print(os.environ['HF_TOKEN'][::-1])"
    words = ("python3", "-c", "import os; print('token', os.environ['HF_TOKEN'], os.environ['A'])")
    with place.runtime() as runtime:
        assert runtime.run(Script(name="s", source=script, data=b"0"), place.launch(), 120) == b"yranac_fh\n"
        server = runtime.start(place.launch(command=words, env=(("A", "$(HOME)"),)))
        until(server.ended, "it ends at once")
        assert server.log(5) == ["token (redacted) $(HOME)"]
    assert "hf_canary" not in json.dumps(place.node.seen)


# ---------------------------------------------------------------- what goes wrong in the pod


def test_scripts_that_fail(place: Place) -> None:
    with place.runtime() as runtime:
        with pytest.raises(NotAccepted, match="exit status 3") as failed:
            lost = Script(name="s", source="print('lost'); raise SystemExit(3)", data=b"")
            runtime.run(lost, place.launch(), 120)
        assert failed.value.seen == ""
        with pytest.raises(NotAccepted, match="did not end within 1 s"):
            runtime.run(Script(name="s", source="import time; time.sleep(60)", data=b""), place.launch(), 1)
        with pytest.raises(NotAccepted, match="ZeroDivisionError"):
            runtime.run(Script(name="s", source="1/0", data=b""), place.launch(), 120)


def test_servers_that_fail(place: Place) -> None:
    launch = place.launch()
    crash = replace(launch, command=(*launch.command, "--sim-fault", "start-crash"))
    with place.runtime() as runtime:
        with pytest.raises(NotAccepted, match="cannot be started in the image"):
            runtime.start(replace(launch, command=("/no/such/program",)))
        server = runtime.start(crash)
        with pytest.raises(NotAccepted, match=r"ended while starting \(exit status 1\)") as failed:
            asyncio.run(wait_healthy(server, crash, WAIT, Silent()))
        assert "CUDA out of memory" in str(failed.value)
        server.stop()
        good = runtime.start(launch)
        asyncio.run(wait_healthy(good, launch, WAIT, Silent()))
        with pytest.raises(NotAccepted, match="both servers would listen on one port"):
            runtime.start(replace(launch, command=("python3", "-m", "http.server")))
        good.stop()
        assert good.ended() == "it was stopped"


def test_a_pod_that_is_killed(place: Place) -> None:
    with place.runtime() as runtime:
        server = runtime.start(place.launch())
        for name, process in place.node.running.items():
            children = [p for p in processes(place.node.folder) if p != process.pid]
            process.kill()
            process.wait()
            for child in children:
                os.kill(child, signal.SIGKILL)
            assert name in place.jobs()
        with pytest.raises(NotAccepted, match=r"the pod ended .*exit status -9"):
            server.ended()
    assert place.jobs() == []


def test_a_connection_that_breaks(place: Place) -> None:
    """It is not the image that is to blame."""
    launch = place.launch()
    with place.runtime() as runtime:
        server = runtime.start(launch)
        asyncio.run(wait_healthy(server, launch, WAIT, Silent()))
        place.node.cut()
        with pytest.raises(MachineLacks, match=r"does not answer|broke") as broken:
            until(server.ended, "kubectl notices in its own time")
        assert "accept again" in broken.value.hint
    assert place.jobs() == []


# ---------------------------------------------------------------- what the cluster says

SAYS: dict[str, tuple[dict[str, Any], type[Exception], str, str]] = {
    "no image": (
        {"reason": "ImagePullBackOff", "message": "manifest unknown"}, DeployFailed, "cannot pull", "push",
    ),
    "no secret": (
        {"reason": "CreateContainerConfigError", "message": 'secret "hub" not found'}, DeployFailed,
        "cannot be made", "secrets and volumes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAYS)
def test_a_container_that_does_not_come(place: Place, case: str) -> None:
    waiting, error, words, hint = SAYS[case]
    place.node.says = {"phase": "Pending", "containerStatuses": [{"state": {"waiting": waiting}}]}
    with pytest.raises(error, match=words) as failed, place.runtime() as runtime:
        runtime.start(place.launch())
    assert waiting["message"] in str(failed.value)
    assert hint in str(failed.value)
    assert place.jobs() == []


def test_no_place_for_the_pod(place: Place) -> None:
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    place.node.says = {"phase": "Pending", "conditions": [condition]}
    with (
        pytest.raises(MachineLacks, match="no place for the pod") as failed,
        place.runtime(place_seconds=0) as runtime,
    ):
        runtime.start(place.launch())
    assert "Insufficient nvidia.com/gpu" in str(failed.value)
    assert place.jobs() == []


def test_a_pod_that_ends_at_once(place: Place) -> None:
    ended = {"exitCode": 127, "reason": "StartError"}
    place.node.says = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ended}}]}
    with pytest.raises(DeployFailed, match="ended before") as failed, place.runtime() as runtime:
        runtime.start(place.launch())
    assert "python3" in failed.value.hint
    assert place.jobs() == []


# ---------------------------------------------------------------- nothing is left


def test_what_a_killed_run_left_is_removed_and_nothing_else(place: Place) -> None:
    machine = owner_now().partition("/")[0]
    left = place.runtime(f"{machine}/999999999/5")
    left._open()  # and nobody closes it
    assert left._agent is not None
    left._end.set()
    left._agent.close()
    with place.runtime() as runtime, place.runtime("other-machine/999999999/5") as other:
        assert len(place.jobs()) == 1
        other_job = {**other._documents[-1]}
        place.api.applied[f"/apis/batch/v1/namespaces/default/jobs/{other._job}"] = other_job
        assert runtime.clean() == 1
        assert place.jobs() == [other._job]
        assert other_job["metadata"]["annotations"][OWNER].startswith("other-machine")
        assert runtime.clean() == 0


# An agent whose clock is ahead as soon as there is a file `later`.
AHEAD = """\
import os, time
really = time.monotonic
time.monotonic = lambda: really() + 1000 * os.path.exists("later")
"""


def test_an_agent_that_nobody_asks_ends(tmp_path: Path) -> None:
    """And all that it started."""
    with ExitStack() as held:
        port = free_ports(1, held)
        asked = {"port": port, "silence": 600, "secrets": []}
        agent = subprocess.Popen(
            [sys.executable, "-c", AHEAD + program()],
            env={**os.environ, AGENT: json.dumps(asked), "TMPDIR": str(tmp_path)}, cwd=tmp_path,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        way = http.client.HTTPConnection("127.0.0.1", port)
        words = [sys.executable, "-c", "import time; time.sleep(600)"]
        way.request("POST", "/", json.dumps({"do": "start", "name": "a", "words": words, "env": {}}))
        assert way.getresponse().read() == b"{}"
        assert len(processes(tmp_path)) == 2
        (tmp_path / "later").touch()
        assert agent.wait(WAIT) == 0
        assert agent.stdout.read() == "nobody asks any more\n"
        until(lambda: not processes(tmp_path), "its server was left")


# ---------------------------------------------------------------- the command


def test_the_manifests_are_printed(tmp_path: Path) -> None:
    machine = placed(tmp_path, lambda text: text.replace("port = 8000", 'port = 8000\nshm = "16MiB"'))
    printed = machine.run("accept", "demo", "--on", "kubernetes", "--image", str(IMAGE), "--dry-run")
    assert printed.code == 0, printed.err
    assert printed.out.startswith("---\napiVersion: batch/v1\nkind: Job\n")
    tagged = machine.run("accept", "demo", "--on", "kubernetes", "--image", "r.example/x:1", "--dry-run")
    assert (tagged.code, "names no digest" in tagged.err) == (2, True)
    wrong = machine.run("accept", "demo", "--image", str(IMAGE), "--dry-run")
    assert (wrong.code, "--on kubernetes" in wrong.err) == (2, True)


WAIVED = """
[[waive]]
code = "acceptance.distribution"
reason = "the pod of this test has the packages of whoever runs it"

[[waive]]
code = "acceptance.import"
reason = "the same"

[[waive]]
code = "acceptance.folder"
reason = "the same"
"""


@pytest.fixture
def pushed(place: Place) -> Iterator[tuple[Place, str, Digest]]:
    """An image in a registry, and the digest of its config, which results are bound to."""
    path = place.machine.work / "stacks" / "demo.toml"
    path.write_text(path.read_text() + WAIVED)
    with FakeRegistry() as registry:
        config = json.dumps({
            "architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": []}, "history": [],
        }).encode()  # fmt: skip
        digest = registry.put_blob("team/demo", config)
        form = "application/vnd.oci.image.manifest.v1+json"
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": form, "layers": [],
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest.text, "size": len(config),
            },
        }).encode()  # fmt: skip
        ref = f"{registry.host}/team/demo@{registry.put_manifest('team/demo', manifest, form)}"
        yield place, ref, digest


def accept_words(ref: str) -> tuple[str, ...]:
    return ("accept", "demo", "--on", "kubernetes", "--image", ref, "--quiet")


def test_the_command(pushed: tuple[Place, str, Digest]) -> None:
    """Both servers side by side in one pod; the result is the image's; nothing is left."""
    place, ref, config = pushed
    done = place.machine.run(*accept_words(ref))
    assert done.code in (0, 8), done.err  # two rounds on a busy machine may stay unclear
    assert "EAGLE-3 over baseline" in done.out, done.err
    [stored] = results.all_results(place.machine.work / "results")
    assert stored.record is not None
    assert (stored.record.config_digest, stored.record.runtime) == (config.text, "kubernetes")
    assert stored.record.accepts == (stored.record.outcome == "pass"), "it is the image that ran"
    assert "kubectl port-forward" in stored.report.with_name("report.md").read_text()
    measured = results.read_run(stored.folder)
    assert {s.arm for s in measured.servers} == set(ARMS)
    assert {r.error for round_ in measured.rounds for r in round_.requests} == {""}
    assert measured.host.machine == "node node-1 of the cluster"
    assert measured.host.path_ms is not None
    assert measured.host.path_ms > 0
    (job,) = place.node.seen
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == ref
    assert place.jobs() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ended_from_outside(pushed: tuple[Place, str, Digest], how: signal.Signals) -> None:
    """Killed: the next run removes the Job; interrupted: nothing is left."""
    place, ref, _ = pushed
    path = place.machine.work / "stacks" / "demo.toml"
    path.write_text(path.read_text().replace("rounds = 2", "rounds = 300"))
    process = place.machine.start(*accept_words(ref))
    folder = place.machine.work / "results"
    while not (any(folder.rglob("run.json.gz")) and results.read_run(kept(folder)).units > 0):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(how)
    _, err = process.communicate(timeout=WAIT)
    if how is signal.SIGINT:
        assert process.returncode == 130, err
        assert "Traceback" not in err
    else:
        assert len(place.jobs()) == 1
        with place.runtime() as runtime:
            assert runtime.clean() == 1
    assert place.jobs() == []


def test_no_kubectl(pushed: tuple[Place, str, Digest]) -> None:
    place, ref, _ = pushed
    place.machine.environment["PATH"] = "/nowhere"
    done = place.machine.run(*accept_words(ref))
    assert (done.code, "kubectl is not here" in done.err) == (6, True), done.err


def test_no_cluster(pushed: tuple[Place, str, Digest]) -> None:
    place, ref, _ = pushed
    done = place.machine.run(*accept_words(ref), "--context", "elsewhere")
    assert (done.code, "get-contexts" in done.err) == (10, True), done.err
