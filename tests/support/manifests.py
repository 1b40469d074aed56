"""A linter for manifests that serve SGLang: each rule is something that broke somebody's deployment.

It knows nothing of the generator: it takes what a cluster would take, from whoever made it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.stack.secrets import secret_argument, secret_variable

Json = dict[str, Any]
INITS = ("tini", "dumb-init", "docker-init", "catatonit")
GPU = "nvidia.com/gpu"
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A pod template with what stands around it."""

    owner: Json
    template: Json
    entrypoint: Sequence[str]
    startup: int

    @property
    def spec(self) -> Json:
        return dict(self.template["spec"])

    @property
    def labels(self) -> Json:
        return dict(self.template.get("metadata", {}).get("labels", {}))

    @property
    def containers(self) -> list[Json]:
        return list(self.spec["containers"])

    @property
    def worker(self) -> bool:
        return self.owner["kind"] == "LeaderWorkerSet" and (
            self.template is self.owner["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        )


def lint(documents: Sequence[Json], *, entrypoint: Sequence[str] = (), startup: int = 0) -> list[str]:
    """`code: words` of all that is wrong. entrypoint: the image's; startup: seconds it may take to load."""
    pods = [pod for d in documents for pod in _pods(d, entrypoint, startup)]
    found = [f"{code}: {words}" for code, rule in _POD_RULES.items() for pod in pods for words in rule(pod)]
    return found + [f"{code}: {w}" for code, rule in _SET_RULES.items() for w in rule(documents, pods)]


def _pods(document: Json, entrypoint: Sequence[str], startup: int) -> Iterator[Pod]:
    templates: list[Json] = []
    if document["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
        templates = [document["spec"]["template"]]
    if document["kind"] == "LeaderWorkerSet":
        group = document["spec"]["leaderWorkerTemplate"]
        templates = [group[name] for name in ("leaderTemplate", "workerTemplate") if name in group]
    for template in templates:
        yield Pod(owner=document, template=template, entrypoint=entrypoint, startup=startup)


def _bytes(text: Any) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]i)?", str(text))
    assert match, text
    return int(match[1]) * _UNITS.get(match[2], 1)


def _serves(pod: Pod) -> bool:
    """Whether others depend on it: a Job's pod is waited for, and nobody is led to it."""
    return pod.owner["kind"] != "Job"


def _probes(container: Json) -> Iterator[tuple[str, Json]]:
    return ((k, container[k]) for k in ("startupProbe", "readinessProbe", "livenessProbe") if k in container)


def _wants_gpu(container: Json) -> bool:
    resources = container.get("resources", {})
    return GPU in resources.get("limits", {}) or GPU in resources.get("requests", {})


# ---------------------------------------------------------------- rules of a pod


def probe_timeout(pod: Pod) -> Iterator[str]:
    """/health takes a second or more, and answers 503 by itself after 20 (the default time-out is 1 s)."""
    for c in pod.containers:
        for name, probe in _probes(c):
            sglang = "sglang.launch_server" in c.get("args", [])
            least = 21 if sglang and name == "livenessProbe" else 5
            if probe.get("timeoutSeconds", 1) < least:
                yield f"{name} waits {probe.get('timeoutSeconds', 1)} s"


def no_startup_probe(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        if "startupProbe" not in c and _serves(pod):
            yield c["name"]


def startup_budget(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        probe = c.get("startupProbe", {})
        budget = probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10)
        if probe and budget < pod.startup:
            yield f"{budget} s, and loading may take {pod.startup}"
    deadline = pod.owner["spec"].get("progressDeadlineSeconds", 600)
    if pod.owner["kind"] == "Deployment" and deadline < pod.startup:
        yield f"the rollout is given up after {deadline} s"


def no_init(pod: Pod) -> Iterator[str]:
    """As process 1 the server ignores SIGTERM while it loads, and its crash looks like success."""
    first = pod.entrypoint[0].rpartition("/")[2] if pod.entrypoint else ""
    for c in pod.containers:
        command = (c.get("command") or [first])[0].rpartition("/")[2]
        if command not in INITS and not pod.spec.get("shareProcessNamespace"):
            yield c["name"]


def no_prestop(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        stop = c.get("lifecycle", {}).get("preStop", {})
        if not (stop.get("sleep") or stop.get("exec")) and _serves(pod):
            yield c["name"]


def short_grace(pod: Pod) -> Iterator[str]:
    delay = max(
        (
            c.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            for c in pod.containers
        ),
        default=0,
    )
    if pod.spec.get("terminationGracePeriodSeconds", 30) <= delay + 5:
        yield f"{pod.spec.get('terminationGracePeriodSeconds', 30)} s"


def no_shm(pod: Pod) -> Iterator[str]:
    """64 MB break NCCL, and without a limit one pod takes half of the node's memory."""
    volumes = {v["name"]: v for v in pod.spec.get("volumes", [])}
    for c in pod.containers:
        names = [m["name"] for m in c.get("volumeMounts", []) if m["mountPath"] == "/dev/shm"]
        directory = volumes.get(names[0], {}).get("emptyDir", {}) if names else {}
        if directory.get("medium") != "Memory" or "sizeLimit" not in directory:
            yield c["name"]


def memory_below_shm(pod: Pod) -> Iterator[str]:
    shm = sum(
        _bytes(v["emptyDir"].get("sizeLimit", 0))
        for v in pod.spec.get("volumes", [])
        if v.get("emptyDir", {}).get("medium") == "Memory"
    )
    for c in pod.containers:
        limit = c.get("resources", {}).get("limits", {}).get("memory")
        if limit and _bytes(limit) <= shm:
            yield f"{limit}"


def mutable_image(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        if not re.search(r"@sha256:[0-9a-f]{64}$", c["image"]):
            yield c["image"]


def gpu_request_only(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        resources = c.get("resources", {})
        if GPU in resources.get("requests", {}) and GPU not in resources.get("limits", {}):
            yield c["name"]


def service_links(pod: Pod) -> Iterator[str]:
    """A Service called sglang sets SGLANG_PORT=tcp://…, which SGLang reads as a number."""
    if pod.spec.get("enableServiceLinks", True):
        yield pod.owner["metadata"]["name"]


def privileged(pod: Pod) -> Iterator[str]:
    """A privileged container sees every GPU; the host's namespaces open more than shared memory."""
    for name in ("hostIPC", "hostPID", "hostNetwork"):
        if pod.spec.get(name):
            yield name
    for c in pod.containers:
        context = c.get("securityContext", {})
        if context.get("privileged") or context.get("allowPrivilegeEscalation", True):
            yield c["name"]


def gpu_leak(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        shown = {e["name"]: e.get("value") for e in c.get("env", [])}.get("NVIDIA_VISIBLE_DEVICES")
        if shown not in (None, "void", "none"):
            yield f"NVIDIA_VISIBLE_DEVICES={shown}"


def literal_secret(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        for entry in c.get("env", []):
            if secret_variable(entry["name"], entry.get("value", "")):
                yield entry["name"]
        for word in c.get("args", []):
            if secret_argument(word):
                yield word.partition("=")[0]


def loopback(pod: Pod) -> Iterator[str]:
    for c in pod.containers:
        words = c.get("args", [])
        if "sglang.launch_server" in words:
            host = words[words.index("--host") + 1] if "--host" in words else "127.0.0.1"
            if host not in ("0.0.0.0", "::"):
                yield host


def surge(pod: Pod) -> Iterator[str]:
    """An update that starts a new pod first waits for GPUs that the old one has."""
    strategy = pod.owner["spec"].get("strategy", {})
    if pod.owner["kind"] != "Deployment" or not any(map(_wants_gpu, pod.containers)):
        return
    if (
        strategy.get("type") != "Recreate"
        and strategy.get("rollingUpdate", {}).get("maxSurge", "25%") not in (0, "0", "0%")
    ):  # fmt: skip
        yield pod.owner["metadata"]["name"]


def unknown_volume(pod: Pod) -> Iterator[str]:
    names = {v["name"] for v in pod.spec.get("volumes", [])}
    for c in pod.containers:
        yield from (m["name"] for m in c.get("volumeMounts", []) if m["name"] not in names)


def rendezvous(pod: Pod) -> Iterator[str]:
    if pod.owner["kind"] != "LeaderWorkerSet":
        return
    if pod.owner["spec"].get("startupPolicy") == "LeaderReady":
        yield "the leader waits for workers that wait for it"
    for c in pod.containers:
        for name in ("--nnodes", "--node-rank", "--dist-init-addr"):
            if name not in c.get("args", []):
                yield f"{name} is missing"


def retried(pod: Pod) -> Iterator[str]:
    """What is measured a second time under the same name, without anybody having asked."""
    if pod.owner["kind"] == "Job":
        if pod.owner["spec"].get("backoffLimit", 6) != 0:
            yield "backoffLimit"
        if pod.spec.get("restartPolicy") != "Never":
            yield "restartPolicy"


def job_stays(pod: Pod) -> Iterator[str]:
    """A Job that hangs keeps its GPUs, one that has ended its name."""
    if pod.owner["kind"] == "Job":
        yield from (
            k for k in ("activeDeadlineSeconds", "ttlSecondsAfterFinished") if k not in pod.owner["spec"]
        )


# ---------------------------------------------------------------- rules of the whole set


def selector(documents: Sequence[Json], pods: Sequence[Pod]) -> Iterator[str]:
    """A Service or budget that selects nothing, or the ranks that do not serve."""
    for d in documents:
        if d["kind"] == "Service":
            wanted = d["spec"]["selector"]
        elif d["kind"] == "PodDisruptionBudget":
            wanted = d["spec"]["selector"]["matchLabels"]
        else:
            continue
        hit = [p for p in pods if wanted.items() <= p.labels.items()]
        if not hit:
            yield f"{d['kind']} selects no pod"
        if d["kind"] == "Service" and any(p.worker for p in hit):
            yield "the Service selects workers"


def taken_name(documents: Sequence[Json], pods: Sequence[Pod]) -> Iterator[str]:
    """A LeaderWorkerSet's pods find each other by a headless Service of its own name."""
    groups = {d["metadata"]["name"] for d in documents if d["kind"] == "LeaderWorkerSet"}
    for d in documents:
        if d["kind"] == "Service" and d["metadata"]["name"] in groups:
            yield d["metadata"]["name"]


def plain_secret(documents: Sequence[Json], pods: Sequence[Pod]) -> Iterator[str]:
    for d in documents:
        if d["kind"] == "Secret":
            yield "a Secret stands in the manifests"
        if d["kind"] == "ConfigMap":
            yield from (k for k, v in d.get("data", {}).items() if secret_variable(k, v))


_POD_RULES: dict[str, Callable[[Pod], Iterator[str]]] = {
    rule.__name__: rule
    for rule in (
        probe_timeout, no_startup_probe, startup_budget, no_init, no_prestop, short_grace, no_shm,
        memory_below_shm, mutable_image, gpu_request_only, service_links, privileged, gpu_leak,
        literal_secret, loopback, surge, unknown_volume, rendezvous, retried, job_stays,
    )
}  # fmt: skip
_SET_RULES: dict[str, Callable[[Sequence[Json], Sequence[Pod]], Iterator[str]]] = {
    rule.__name__: rule for rule in (selector, taken_name, plain_secret)
}
JOB_RULES = frozenset(("retried", "job_stays"))
RULES = frozenset((*_POD_RULES, *_SET_RULES))
