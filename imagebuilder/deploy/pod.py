"""The pod of a deployment: container, probes, volumes, limits. Pure."""

from __future__ import annotations

from typing import Any

from imagebuilder.deploy.server import (
    DEEP_HEALTH,
    HEALTH_TIMEOUT,
    LEADER_PORT,
    has_init,
    is_sglang,
)
from imagebuilder.deploy.workload import SHM_VOLUME, Workload
from imagebuilder.stack.model import DeployKubernetes, Volume

PRESTOP_SECONDS = 10
"""Seconds between a pod's leaving the Service and SIGTERM: proxies and clients need to notice.

SGLang takes new requests until the end, and would cut them off (srt/managers/tokenizer_manager.py).
"""
_DRAIN_SECONDS = 10
"""On top of the longest answer: SGLang looks every 5 s whether all requests are done."""
_PERIOD = 10
_DEEP_PERIOD, _DEEP_FAILURES = 30, 10
"""A server that answers nothing for 300 s is restarted; SGLang's own watchdog waits as long."""
_PLAIN_TIMEOUT = 5

Json = dict[str, Any]


def pod_template(workload: Workload, component: str) -> Json:
    """The template of a Deployment's pods, or of a group's `leader` or `worker`."""
    settings = workload.settings
    metadata: Json = {"labels": {**workload.labels, "app.kubernetes.io/component": component}}
    if settings.metrics and component != "worker":
        metadata["annotations"] = {
            "prometheus.io/scrape": "true",
            "prometheus.io/port": str(settings.port),
            "prometheus.io/path": "/metrics",
        }
    return {"metadata": metadata, "spec": _pod_spec(workload, component)}


def _pod_spec(workload: Workload, component: str) -> Json:
    settings = workload.settings
    spec: Json = {"automountServiceAccountToken": False, "enableServiceLinks": False}
    if not has_init(workload.stack.image.entrypoint):
        spec["shareProcessNamespace"] = True  # the pause process is then the init
    spec["terminationGracePeriodSeconds"] = PRESTOP_SECONDS + settings.termination_grace + _DRAIN_SECONDS
    spec["securityContext"] = _pod_security(workload)
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    if settings.node_selector:
        spec["nodeSelector"] = dict(settings.node_selector)
    if settings.tolerations:
        spec["tolerations"] = [
            _present(key=t.key, operator=t.operator, value=t.value, effect=t.effect)
            for t in settings.tolerations
        ]
    if settings.replicas > 1 and component == "server":
        spec["topologySpreadConstraints"] = [_spread(workload)]
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    spec["containers"] = [_container(workload, component)]
    spec["volumes"] = _volumes(settings)
    return spec


def _pod_security(workload: Workload) -> Json:
    context: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if (uid := workload.user) is not None:
        # fsGroup makes claims writable; the image's own files are only read.
        context |= {
            "runAsNonRoot": True,
            "runAsUser": uid,
            "runAsGroup": uid,
            "fsGroup": uid,
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    return context


def _spread(workload: Workload) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": dict(workload.selector)},
    }


def _container(workload: Workload, component: str) -> Json:
    settings = workload.settings
    ports: list[Json] = [{"name": "http", "containerPort": settings.port, "protocol": "TCP"}]
    if settings.nodes > 1:
        ports.append({"name": "ranks", "containerPort": LEADER_PORT, "protocol": "TCP"})
    container: Json = {"name": "server", "image": str(workload.image), "imagePullPolicy": "IfNotPresent"}
    container |= _command(workload)
    container["envFrom"] = [{"configMapRef": {"name": workload.config_name}}]
    if settings.secrets:
        container["env"] = [
            {"name": s.env, "valueFrom": {"secretKeyRef": {"name": s.secret, "key": s.key}}}
            for s in settings.secrets
        ]
    container["ports"] = ports
    container["resources"] = _resources(settings)
    container |= _probes(workload, component)
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": PRESTOP_SECONDS}}}
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    container["volumeMounts"] = [
        {"name": SHM_VOLUME, "mountPath": "/dev/shm"},
        *(
            {"name": v.name, "mountPath": v.target, **({"readOnly": True} if v.read_only else {})}
            for v in settings.volumes
        ),
    ]
    return container


def _command(workload: Workload) -> Json:
    """What is started. An image's init is named again, so that the manifest shows it and does not rely on it.

    A `command` takes the image's own words away, so that the arguments are then said too.
    """
    words = [*map(literal, workload.words), *workload.rank_words]
    image = workload.stack.image
    if not has_init(image.entrypoint) or not (words or image.command):
        return {"args": words} if words else {}
    return {
        "command": [literal(word) for word in image.entrypoint],
        "args": words or [literal(word) for word in image.command],
    }


def literal(word: str) -> str:
    """A word that the kubelet hands on as it is: it replaces `$(NAME)`, and `$$` by `$`."""
    return word.replace("$", "$$")


def _resources(settings: DeployKubernetes) -> Json:
    """GPUs and memory as limits, which are the requests too; cores as requests alone: limits throttle."""
    limits, requests = {}, {}
    if settings.cpu:
        requests["cpu"] = str(settings.cpu)
    if settings.memory:
        requests["memory"] = limits["memory"] = quantity(settings.memory)
    if settings.gpus:
        requests["nvidia.com/gpu"] = limits["nvidia.com/gpu"] = str(settings.gpus)
    return _present(requests=requests or None, limits=limits or None)


def _probes(workload: Workload, component: str) -> Json:
    """Start-up with the stack's budget, then readiness; liveness by a real answer, and not of workers.

    A worker serves /health only once it has loaded, and says nothing of its later state: when one dies, the
    LeaderWorkerSet starts its group anew.
    """
    settings = workload.settings
    sglang = is_sglang(workload.words or workload.stack.image.command)
    timeout = HEALTH_TIMEOUT if sglang else _PLAIN_TIMEOUT

    def probe(path: str, period: int, failures: int) -> Json:
        return {
            "httpGet": {"path": path, "port": "http"},
            "periodSeconds": period,
            "timeoutSeconds": timeout,
            "failureThreshold": failures,
        }

    probes = {
        "startupProbe": probe(settings.health_path, _PERIOD, -(-settings.startup_timeout // _PERIOD)),
        "readinessProbe": probe(settings.health_path, _PERIOD, 3),
    }
    if component != "worker":
        deep = DEEP_HEALTH if sglang and settings.health_path == "/health" else settings.health_path
        probes["livenessProbe"] = probe(deep, _DEEP_PERIOD, _DEEP_FAILURES)
    return probes


def _volumes(settings: DeployKubernetes) -> list[Json]:
    shm = {"medium": "Memory", "sizeLimit": quantity(settings.shm)}
    return [{"name": SHM_VOLUME, "emptyDir": shm}, *(_volume(v) for v in settings.volumes)]


def _volume(volume: Volume) -> Json:
    if volume.claim:
        return {
            "name": volume.name,
            "persistentVolumeClaim": _present(claimName=volume.claim, readOnly=volume.read_only or None),
        }
    if volume.host_path:
        # A folder that is only read must be there: an empty one in its place would hide the mistake.
        kind = "Directory" if volume.read_only else "DirectoryOrCreate"
        return {"name": volume.name, "hostPath": {"path": volume.host_path, "type": kind}}
    return {"name": volume.name, "emptyDir": {"sizeLimit": quantity(volume.size)} if volume.size else {}}


def quantity(size: int) -> str:
    """Bytes as Kubernetes writes them, in the largest binary unit that is whole: `32Gi`."""
    for unit, suffix in ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def _present(**fields: Any) -> Json:
    return {key: value for key, value in fields.items() if value is not None}
