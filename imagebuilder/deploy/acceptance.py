"""The `kubernetes` runtime: servers of an acceptance in one pod of a Job, reached by kubectl port-forward.

The pod has the image and all GPUs, and runs the agent (agent.py), which starts servers and scripts there. The
load client runs here, as for every other runtime. Whatever happens the Job is deleted; one of a killed run is
found by its label and owner, and ends by itself as well, since nobody asks its agent any more.
"""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from imagebuilder.accept.container import LABEL, OWNER, is_leftover
from imagebuilder.accept.model import HostFacts, RuntimeKind
from imagebuilder.accept.process import FreePort, with_option
from imagebuilder.accept.server import Launch, Script
from imagebuilder.deploy.forward import Forward
from imagebuilder.deploy.kubectl import Cluster
from imagebuilder.deploy.pod import Json
from imagebuilder.deploy.podstate import PodState, pod_state
from imagebuilder.errors import DeployFailed, ImagebuilderError, MachineLacks, NotAccepted
from imagebuilder.progress import Reporter

_START_SECONDS = 3600
"""Until the pod runs: a node may have to be made first, and 20 GB to be pulled."""
_PLACE_SECONDS = 600
"""Of it, while the cluster has no place for the pod."""
_POLL = 2.0
_BEAT = 10.0
_ANSWER_SECONDS = 60
_ROUND_TRIPS = 20
_AGAIN = "accept again; what this run left is removed first"
_QUICK = "--request-timeout=30s"


def program() -> str:
    """The text of the agent."""
    return Path(__file__).with_name("agent.py").read_text(encoding="utf-8")


class PodServer:
    """A server in the pod. Its address is there from the start, the way to it once it listens."""

    def __init__(self, runtime: KubernetesRuntime, name: str, port: int) -> None:
        self._runtime, self._name, self.port = runtime, name, port
        self._local = FreePort()
        self._way: Forward | None = None
        self.stopped = False

    @property
    def url(self) -> str:
        """Refuses connections until the server listens: kubectl gives up a way that leads nowhere."""
        return f"http://127.0.0.1:{self._local.number}"

    def ended(self) -> str | None:
        """As the agent says, or the cluster where the whole pod has ended. MachineLacks: the way is gone."""
        if self.stopped:
            return "it was stopped"
        told = self._runtime.tell("state", name=self._name, port=self.port)
        if told["ended"] is not None:
            return str(told["ended"])
        if self._way is None and told["listening"]:
            self._way = self._runtime.forward(self._local.number, self.port)
        if self._way is not None and not self._way.open:
            raise MachineLacks(
                "the connection to the pod broke in the middle of the acceptance",
                seen=self._way.words().strip()[-300:],
                hint=_AGAIN,
            )
        return None

    def log(self, lines: int) -> list[str]:
        """The last lines it wrote; values of secrets were taken out where it runs."""
        try:
            return list(self._runtime.tell("log", name=self._name, lines=lines)["lines"])
        except ImagebuilderError:  # it is asked for while explaining another error
            return []

    def stop(self) -> None:
        """Kill it and what it started."""
        if not self.stopped:
            self.stopped = True
            with suppress(ImagebuilderError):  # the pod is gone, or goes with the Job
                self._runtime.tell("stop", name=self._name)
        if self._way is not None:
            self._way.close()
        self._local.close()


class KubernetesRuntime:
    """Use as a context manager: the Job goes with it. documents: of `acceptance_manifests`.

    environment: kubectl's. place_seconds: how long the cluster may have no room.
    """

    kind: RuntimeKind = "kubernetes"

    def __init__(
        self,
        cluster: Cluster,
        environment: Mapping[str, str],
        documents: tuple[Json, ...],
        agent_port: int,
        reporter: Reporter,
        *,
        place_seconds: float = _PLACE_SECONDS,
    ) -> None:
        self._cluster, self._environment, self._documents = cluster, environment, documents
        self._agent_port, self._reporter, self._place_seconds = agent_port, reporter, place_seconds
        metadata = documents[-1]["metadata"]
        self._job, self._namespace = metadata["name"], metadata["namespace"]
        self._applied = False
        self._pod = ""
        self._node = ""
        self._path_ms: float | None = None
        self._agent: Forward | None = None
        self._local = FreePort()
        self._servers: list[PodServer] = []
        self._end = threading.Event()
        self._beats: threading.Thread | None = None

    def __enter__(self) -> KubernetesRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._beats is not None:
            self._beats.join()
        for server in self._servers:
            server.stop()
        if self._agent is not None:
            with suppress(ImagebuilderError):
                self._post({"do": "end"}, _ANSWER_SECONDS)
            self._agent.close()
        self._local.close()
        if self._applied:
            with self._reporter.task(f"removing job {self._job}"):
                self._delete(self._job)

    # ---------------------------------------------------------------- what a runtime does

    def clean(self) -> int:
        """Delete Jobs of runs of this machine that were killed."""
        words = ["get", "jobs", *self._where(), "--selector", LABEL, "--output", "json", _QUICK]
        listed = json.loads(self._cluster.ask(words, b"", "the cluster does not list jobs"))["items"]
        left = [
            job["metadata"]["name"]
            for job in listed
            if is_leftover(str((job["metadata"].get("annotations") or {}).get(OWNER, "")))
        ]
        for name in left:
            self._delete(name)
        return len(left)

    def host(self) -> HostFacts:
        """The node; nothing is known of its GPUs but what the smoke test tells."""
        return HostFacts(
            machine=f"node {self._node} of the cluster" if self._node else "a cluster",
            note="GPUs were not sampled: they are in the cluster",
            path_ms=self._path_ms,
        )

    def start(self, launch: Launch) -> PodServer:
        """Start it in the pod, on a port of its own."""
        self._open()
        taken = {server.port for server in self._servers if not server.stopped}
        port = launch.port + 1 if launch.port in taken else launch.port
        words = with_option(launch.command, "--port", str(port))
        if port != launch.port and words == launch.command:
            raise NotAccepted(
                "both servers would listen on one port of the pod",
                seen=f"no --port in {' '.join(launch.command[:4])} …",
                hint='--port in [acceptance] arguments, or pairing = "starts"',
            )
        server = PodServer(self, f"{launch.arm}-{len(self._servers)}", port)
        told = self.tell("start", name=server._name, words=list(words), env=dict(launch.env))
        if error := told.get("error"):
            raise NotAccepted(f"{words[0]} cannot be started in the image", seen=error)
        self._servers.append(server)
        return server

    def run(self, script: Script, launch: Launch, timeout: float) -> bytes:
        """Run a script with the image's own Python, beside the servers."""
        self._open()
        told = self.tell(
            "run", seconds=timeout + _ANSWER_SECONDS, name=script.name, source=script.source,
            data=script.data.decode(), env=dict(launch.env), timeout=timeout,
        )  # fmt: skip
        if told["status"] is None:
            raise NotAccepted(f"{script.name} did not end within {timeout:g} s")
        if told["status"]:
            raise NotAccepted(
                f"{script.name} failed in the pod with exit status {told['status']}",
                seen="\n          ".join(told["log"]),
            )
        return str(told["out"]).encode()

    # ---------------------------------------------------------------- the pod

    def _open(self) -> None:
        """The Job applied, its pod running, its agent answering; nothing where that is so already."""
        if self._agent is not None:
            return
        self._applied = True  # also where only part of it was
        self._cluster.apply(self._documents, self._reporter)
        with self._reporter.task(f"waiting for the pod of {self._job}"):
            self._wait()
        self._agent = self._ready()
        times = []
        for _ in range(_ROUND_TRIPS):
            began = time.perf_counter()
            self.tell("beat")
            times.append(time.perf_counter() - began)
        self._path_ms = 1000 * statistics.median(times)
        self._beats = threading.Thread(target=self._beat, name="agent", daemon=True)
        self._beats.start()

    def _wait(self) -> None:
        """Until the pod's container runs."""
        began, told = time.monotonic(), ""
        while True:
            state = self._look()
            waited = time.monotonic() - began
            if state.stage == "runs":
                self._node = state.node
                return
            if state.stage == "ended":
                raise self._failed("the pod ended before anything was started in it", state.why)
            if state.stage == "no image":
                raise DeployFailed(
                    "the cluster cannot pull the image",
                    seen=state.why,
                    hint="imagebuilder push it first; [deploy.kubernetes] image-pull-secrets name a login",
                )
            if state.stage == "no container":
                raise DeployFailed(
                    "the pod's container cannot be made",
                    seen=state.why,
                    hint="do the secrets and volumes of [deploy.kubernetes] exist in this namespace?",
                )
            if state.stage == "unschedulable" and waited > self._place_seconds:
                raise MachineLacks(
                    "the cluster has no place for the pod",
                    seen=state.why,
                    hint="fewer [deploy.kubernetes] gpus, another node-selector, or tolerations",
                )
            if waited > _START_SECONDS:
                raise DeployFailed(
                    f"the pod did not run within {_START_SECONDS} s", seen=state.why or self._events()
                )
            if state.why and state.why != told:
                told = state.why
                self._reporter.note(f"pod: {told[:200]}")
            time.sleep(_POLL)

    def _look(self) -> PodState:
        """How the pod is; its name is kept."""
        selector = f"batch.kubernetes.io/job-name={self._job}"
        words = ["get", "pods", *self._where(), "--selector", selector, "--output", "json", _QUICK]
        pods = json.loads(self._cluster.ask(words, b"", "the cluster does not list pods"))["items"]
        if not pods:
            return PodState(stage="ended", why="it was deleted") if self._pod else PodState(stage="waiting")
        self._pod = pods[0]["metadata"]["name"]
        return pod_state(pods[0])

    def _ready(self) -> Forward:
        """The way to the agent. It listens within a moment; kubectl gives up the way until then."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            way = self.forward(self._local.number, self._agent_port)
            try:
                self._post({"do": "beat"}, _ANSWER_SECONDS)
                return way
            except MachineLacks as error:
                way.close()
                state = self._look()
                if state.stage == "ended":
                    raise self._failed("the pod ended before anything was started in it", state.why) from None
                if time.monotonic() > deadline:
                    raise MachineLacks(
                        "the pod runs, but nothing answers in it", seen=error.seen, hint=_AGAIN
                    ) from None
            except BaseException:
                way.close()
                raise
            time.sleep(0.2)

    def _failed(self, what: str, how: str) -> DeployFailed:
        words = ["logs", *self._where(), f"pod/{self._pod}", "--tail", "20", _QUICK]
        lines = ""
        with suppress(ImagebuilderError):
            lines = self._cluster.ask(words, b"", "the pod's log cannot be read").strip()
        return DeployFailed(
            f"{what} ({how})",
            seen="\n          ".join(lines.splitlines()),
            hint="the image needs python3" if "127" in how or "StartError" in how else "",
        )

    def _events(self) -> str:
        words = ["get", "events", *self._where(), "--field-selector", f"involvedObject.name={self._job}"]
        told = self._cluster.ask(
            [*words, "--output", "json", _QUICK], b"", "the cluster does not list events"
        )
        return "; ".join(str(event.get("message", "")) for event in json.loads(told)["items"][-3:])

    def _delete(self, name: str) -> None:
        words = ["delete", "job", name, *self._where(), "--ignore-not-found", "--wait=false", _QUICK]
        try:
            self._cluster.ask([*words, "--cascade=background"], b"", f"job {name} cannot be deleted")
        except ImagebuilderError as error:
            self._reporter.warn(f"{error.what}: {error.seen}; its pod ends by itself, and it then goes too")

    def _where(self) -> tuple[str, ...]:
        return ("--namespace", self._namespace)

    # ---------------------------------------------------------------- the agent

    def forward(self, local: int, remote: int) -> Forward:
        """A way to a port of the pod. Only in the main thread: with the thread that opens it, it closes."""
        return Forward(
            self._cluster, self._environment, self._namespace, self._pod, local=local, remote=remote
        )

    def tell(self, order: str, seconds: float = _ANSWER_SECONDS, **more: Any) -> dict[str, Any]:
        """The agent's answer. Where the pod has ended: NotAccepted with how; MachineLacks, it is gone."""
        try:
            return self._post({"do": order, **more}, seconds)
        except MachineLacks:
            state = self._look()
            if state.stage != "ended":
                raise
            if "Evicted" in state.why or "deleted" in state.why or "Preempt" in state.why:
                raise MachineLacks(
                    "the cluster took the pod away in the middle of the acceptance",
                    seen=state.why,
                    hint=_AGAIN,
                ) from None
            raise NotAccepted(f"the pod ended in the middle of the acceptance ({state.why})") from None

    def _post(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        way = http.client.HTTPConnection("127.0.0.1", self._local.number, timeout=seconds)
        try:
            way.request("POST", "/", json.dumps(body).encode())
            answer = way.getresponse()
            told = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = self._agent.words().strip()[-300:] if self._agent else ""
            raise MachineLacks(
                "the pod of the acceptance does not answer", seen=said or str(error), hint=_AGAIN
            ) from error
        finally:
            way.close()
        if not isinstance(told, dict):
            raise MachineLacks("the pod of the acceptance answers nonsense", seen=str(told)[:200])
        return told

    def _beat(self) -> None:
        """Signs of life, so that the pod does not end."""
        while not self._end.wait(_BEAT):
            with suppress(ImagebuilderError):
                self._post({"do": "beat"}, _ANSWER_SECONDS)
