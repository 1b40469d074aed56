"""What a pod's status means for whoever waits for it. Pure.

Sources: the Kubernetes API reference (PodStatus); kubelet's reasons of waiting containers (pkg/kubelet/images
and kuberuntime).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

_PULL = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_MAKE = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True, kw_only=True)
class PodState:
    """Where a pod stands. why: in the cluster's words. node: where it runs."""

    stage: Literal["waiting", "unschedulable", "no image", "no container", "runs", "ended"]
    why: str = ""
    node: str = ""


def pod_state(pod: Mapping[str, Any]) -> PodState:
    """Of a pod with one container, as the API server has it."""
    status = pod.get("status") or {}
    node = str(pod.get("spec", {}).get("nodeName") or "")
    container: Mapping[str, Any] = next(iter(status.get("containerStatuses") or []), {})
    state = container.get("state") or {}
    if ended := state.get("terminated"):
        return PodState(stage="ended", why=_end(ended, status), node=node)
    if status.get("phase") in ("Failed", "Succeeded"):  # evicted before its container ran
        return PodState(stage="ended", why=_joined(status), node=node)
    if waiting := state.get("waiting"):
        stage: Literal["no image", "no container", "waiting"] = "waiting"
        if waiting.get("reason") in _PULL:
            stage = "no image"
        elif waiting.get("reason") in _MAKE:
            stage = "no container"
        return PodState(stage=stage, why=_joined(waiting), node=node)
    if "running" in state:
        return PodState(stage="runs", node=node)
    return _before(status.get("conditions") or [], node)


def _before(conditions: Iterable[Mapping[str, Any]], node: str) -> PodState:
    for condition in conditions:
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            return PodState(stage="unschedulable", why=str(condition.get("message") or ""))
    return PodState(stage="waiting", why="it has no container yet", node=node)


def _end(ended: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    """`exit status 137, OOMKilled`; of an evicted pod its reason too."""
    words = [f"exit status {ended.get('exitCode')}"]
    if (reason := ended.get("reason")) and reason not in ("Error", "Completed"):
        words.append(str(reason))
    if status.get("reason"):
        words.append(_joined(status))
    return ", ".join(words)


def _joined(told: Mapping[str, Any]) -> str:
    return ": ".join(str(told[name]) for name in ("reason", "message") if told.get(name))
