"""Stack + image → Kubernetes manifests. Pure: the same stack and image give the same bytes.

Sources: the Kubernetes API reference; kubernetes-sigs/lws: api/leaderworkerset/v1, pkg/utils/pod (variables
that it gives to pods), pkg/controllers (its headless Service). What each choice is for: docs/88-deploy.md.
"""

from __future__ import annotations

from imagebuilder.deploy.pod import Json, pod_template, quantity
from imagebuilder.deploy.workload import Workload, workload_of
from imagebuilder.stack.model import Stack, Volume
from imagebuilder.values import ImageRef

_PULL_SECONDS = 1800
"""What a node may take to get an image of 20 GB, on top of the start-up."""


def manifests(stack: Stack, image: ImageRef, *, service_monitor: bool = False) -> tuple[Json, ...]:
    """What runs this image as the stack's [deploy.kubernetes] says, in the order to apply it.

    service_monitor: also one for the Prometheus operator, whose definition the cluster must have.
    Raises UsageProblem, StackInvalid.
    """
    workload = workload_of(stack, image)
    settings = workload.settings
    found = [_config_map(workload)]
    found += [_claim(workload, volume) for volume in _made_claims(workload)]
    found.append(_service(workload))
    found.append(_deployment(workload) if settings.nodes == 1 else _leader_worker_set(workload))
    found.append(_disruption_budget(workload))
    if service_monitor:
        found.append(_service_monitor(workload))
    return tuple(found)


def main_object(documents: tuple[Json, ...]) -> Json:
    """The one that runs pods."""
    return next(d for d in documents if d["kind"] in ("Deployment", "LeaderWorkerSet"))


def _object(workload: Workload, api: str, kind: str, name: str, body: Json) -> Json:
    metadata = {"name": name, "namespace": workload.settings.namespace, "labels": dict(workload.labels)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def _selector(workload: Workload) -> Json:
    return {"matchLabels": dict(workload.selector)}


def _config_map(workload: Workload) -> Json:
    body = {"immutable": True, "data": dict(workload.environment)}
    return _object(workload, "v1", "ConfigMap", workload.config_name, body)


def _made_claims(workload: Workload) -> tuple[Volume, ...]:
    by_name = {v.claim: v for v in reversed(workload.settings.volumes) if v.claim and v.size}
    return tuple(by_name[name] for name in sorted(by_name))


def _claim(workload: Workload, volume: Volume) -> Json:
    """Pods on several nodes can only share what allows it."""
    settings = workload.settings
    several = settings.replicas * settings.nodes > 1
    assert volume.claim and volume.size, "only claims with a size are made"
    spec: Json = {
        "accessModes": ["ReadWriteMany" if several else "ReadWriteOnce"],
        "resources": {"requests": {"storage": quantity(volume.size)}},
    }
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    return _object(workload, "v1", "PersistentVolumeClaim", volume.claim, {"spec": spec})


def _service(workload: Workload) -> Json:
    settings = workload.settings
    component = "server" if settings.nodes == 1 else "leader"  # only rank 0 answers
    spec = {
        "type": settings.service_type,
        "selector": {**workload.selector, "app.kubernetes.io/component": component},
        "ports": [{"name": "http", "port": settings.port, "targetPort": "http", "protocol": "TCP"}],
    }
    return _object(workload, "v1", "Service", workload.service_name, {"spec": spec})


def _deployment(workload: Workload) -> Json:
    """GPUs are not there twice, so an update replaces pods one by one and makes none beforehand."""
    settings = workload.settings
    spare = settings.gpus == 0 and not _made_claims(workload)
    rolling = {"maxSurge": 1, "maxUnavailable": 0} if spare else {"maxSurge": 0, "maxUnavailable": 1}
    template = pod_template(workload, "server")
    grace = template["spec"]["terminationGracePeriodSeconds"]
    spec = {
        "replicas": settings.replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
        "progressDeadlineSeconds": settings.startup_timeout + grace + _PULL_SECONDS,
        "selector": _selector(workload),
        "template": template,
    }
    return _object(workload, "apps/v1", "Deployment", workload.name, {"spec": spec})


def _leader_worker_set(workload: Workload) -> Json:
    """Ranks meet while they start, so none may wait until the leader is ready. A broken group starts anew."""
    settings = workload.settings
    spec = {
        "replicas": settings.replicas,
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
        },
        "leaderWorkerTemplate": {
            "size": settings.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": pod_template(workload, "leader"),
            "workerTemplate": pod_template(workload, "worker"),
        },
    }
    return _object(workload, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", workload.name, {"spec": spec})


def _disruption_budget(workload: Workload) -> Json:
    """One pod at a time; a pod that is not well anyway never holds up a drain."""
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": _selector(workload),
    }
    return _object(workload, "policy/v1", "PodDisruptionBudget", workload.name, {"spec": spec})


def _service_monitor(workload: Workload) -> Json:
    spec = {
        "selector": _selector(workload),
        "endpoints": [{"port": "http", "path": "/metrics", "interval": "30s"}],
    }
    return _object(workload, "monitoring.coreos.com/v1", "ServiceMonitor", workload.name, {"spec": spec})
