"""What the stack file says of running the image, declared: [acceptance] and [deploy.*]."""

from __future__ import annotations

import re
from typing import Any

from imagebuilder.stack import model
from imagebuilder.stack.grammar import Array, Key, Place, Table, Wrong, shown
from imagebuilder.stack.kinds import Choice, Names, Number, Size, Text
from imagebuilder.stack.vocabulary import (
    ABSOLUTE,
    ARGUMENTS,
    COMMAND,
    COUNT,
    DNS_LABEL,
    ENV,
    GPUS,
    LINE,
    NAME,
    PORT,
    POSITIVE,
    SECONDS,
    SECRETS,
    SHARE,
    SWITCH,
    VARIABLE,
)  # fmt: skip

_K8S_KEY = r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_K8S_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?"
_CLUSTER_NAME = Text(
    pattern=r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?", form="the name of an object of the cluster"
)
_DOCKER_NAME = Text(pattern=r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", form="the name of a container")
_ULIMIT = Text(pattern=r"-1|[0-9]{1,15}(?::(?:-1|[0-9]{1,15}))?", form="a limit, as soft or soft:hard")
_PUBLISH = Text(
    pattern=r"(?:(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-fA-F:]+\]):)?[0-9]{1,5}",
    form="a port, or address:port",
)
_HTTP_PATH = Text(pattern=r"/[A-Za-z0-9._~/-]*", form="a path such as /health")


def _mount(place: Place, **fields: Any) -> model.Mount | Wrong:
    source = fields["source"]
    if not source.startswith("/") and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]+", source):
        return place.child("source").wrong(f"{shown(source)} is neither an absolute path nor a volume's name")
    return model.Mount(**fields)


def _volume(place: Place, **fields: Any) -> model.Volume | Wrong:
    if fields.get("claim") and fields.get("host_path"):
        return place.wrong("a volume is a claim or a host-path, not both")
    if fields.get("storage_class") and not (fields.get("claim") and fields.get("size")):
        return place.child("storage-class").wrong("only for a claim with a size, which is then made")
    return model.Volume(**fields)


MOUNT = Table(
    model.Mount,
    make=_mount,
    keys=(
        Key("source", LINE, "a folder of the host (absolute), or the name of a Docker volume"),
        Key("target", ABSOLUTE, "where it is in the container"),
        Key("read-only", SWITCH, "may not be written to"),
    ),
)
_MOUNTS = Key(
    "mounts",
    Array(of=MOUNT, key=lambda m: m.target, noun="target"),
    "folders and volumes seen inside the container",
)
_ENV = Key("env", ENV, "variables on top of the image's own; never secrets")
_SECRETS = Key(
    "secrets", SECRETS, "variables handed through from the caller's environment; only their names are kept"
)
_SHM = Key("shm", Size(), "size of /dev/shm (64 MB, the engine's own default, breaks NCCL)")
_STARTUP = Key("startup-timeout", SECONDS, "seconds from the start until the server must be healthy")
_HEALTH = Key("health-path", _HTTP_PATH, "what health probes ask for")

ARM = Table(
    model.Arm,
    keys=(
        Key("arguments", ARGUMENTS, "arguments only this server gets"),
        Key("env", ENV, "variables only this server gets"),
    ),
)

LOAD = Table(
    model.Load,
    keys=(
        Key("prompts", NAME, "the shipped prompt set"),
        Key("concurrency", Array(of=COUNT, at_least=1, key=str, noun="level"), "requests in flight"),
        Key("decisive", Array(of=COUNT, key=str, noun="level"), "levels whose verdict counts; empty: all"),
        Key("requests", COUNT, "requests of one round at one level"),
        Key("output-tokens", COUNT, "most tokens one answer may have"),
        Key("warmup-requests", Number(at_most=1_000_000), "requests before measuring, at each level"),
        Key("pairing", Choice(options=("rounds", "starts")),
            '"rounds": both servers fit side by side; "starts": they take turns, in the order A-B-B-A'),
        Key("rounds", Number(at_least=2, at_most=1000), "paired rounds"),
        Key("starts", Number(at_least=2, at_most=100), "server starts of each arm, where they take turns"),
        Key("start-variation", POSITIVE, "standard deviation of log throughput between two starts, where it "
            "is known; it widens the interval"),
    ),
)  # fmt: skip

REQUIRE = Table(
    model.Requirements,
    keys=(
        Key("min-speedup", POSITIVE, "EAGLE-3's output tokens/s over the baseline's"),
        Key("min-accept-length", POSITIVE, "tokens per verify step; at 1.05 or less the draft does nothing"),
        Key("min-output-tok-s", POSITIVE, "output tokens/s of the EAGLE-3 server at the decisive levels"),
        Key("max-ttft-p99-ms", POSITIVE, "99th percentile of the time to the first token"),
        Key("min-known-answers", SHARE, "share of the known-answer tasks that must be right"),
        Key("known-answers-margin", SHARE, "how much worse than the baseline EAGLE-3 may be at them"),
        Key("max-extra-divergence", SHARE, "how much oftener EAGLE-3's greedy texts may differ from the "
            "baseline's than those from themselves"),
        Key("no-regression-against", LINE, "the name of an earlier result that must not be fallen short of"),
    ),
)  # fmt: skip

ACCEPTANCE = Table(
    model.Acceptance,
    keys=(
        Key("model", LINE, "the target model: a path in the container or a hub id"),
        Key("draft", LINE, "the EAGLE-3 draft model, likewise"),
        Key("revision", LINE, "the target's revision on the hub"),
        Key("draft-revision", LINE, "the draft's revision on the hub"),
        Key("server", COMMAND, "the command that serves"),
        Key("arguments", ARGUMENTS, "arguments of both servers"),
        Key("port", PORT, "the port it serves on, in the container"),
        Key("gpus", GPUS, "GPUs of each server"),
        _SHM,
        _MOUNTS,
        _ENV,
        _SECRETS,
        _STARTUP,
        Key("request-timeout", SECONDS, "seconds until an answer must be complete"),
        Key("baseline", ARM, "the server without speculation"),
        Key("eagle3", ARM, "the server with it"),
        Key("load", LOAD, "what is asked of both"),
        Key("require", REQUIRE, "what must hold"),
    ),
)

DOCKER = Table(
    model.DeployDocker,
    keys=(
        Key("name", _DOCKER_NAME, "the container's name; default: the stack's"),
        Key("command", COMMAND, "the command that serves; default: the image's"),
        Key("port", PORT, "the port it serves on, in the container"),
        Key("publish", _PUBLISH, "where the host offers it"),
        Key("gpus", GPUS, "GPUs of the container"),
        _SHM,
        _MOUNTS,
        _ENV,
        _SECRETS,
        Key(
            "ulimits", Names(name=Text(pattern="[a-z]+", form="the name of a limit"), value=_ULIMIT), "limits"
        ),
        Key(
            "restart",
            Choice(options=("no", "on-failure", "always", "unless-stopped")),
            "when it is restarted",
        ),
        _HEALTH,
        _STARTUP,
        Key("stop-timeout", SECONDS, "seconds to finish open requests in"),
    ),
)

VOLUME = Table(
    model.Volume,
    make=_volume,
    keys=(
        Key("name", DNS_LABEL, "its name in the pod"),
        Key("target", ABSOLUTE, "where it is in the container"),
        Key("claim", _CLUSTER_NAME, "a PersistentVolumeClaim"),
        Key("host-path", ABSOLUTE, "a folder of the node"),
        Key("size", Size(), "makes the claim, of this size; without a claim: limits the empty folder"),
        Key("storage-class", _CLUSTER_NAME, "of a claim that is made"),
        Key("read-only", SWITCH, "may not be written to"),
    ),
)
SECRET_REF = Table(
    model.SecretRef,
    keys=(
        Key("env", VARIABLE, "the variable"),
        Key("secret", _CLUSTER_NAME, "the Secret"),
        Key("key", Text(pattern=r"[A-Za-z0-9._-]+", form="a key of a Secret"), "its key"),
    ),
)
TOLERATION = Table(
    model.Toleration,
    keys=(
        Key("key", Text(pattern=_K8S_KEY, form="the key of a taint"), "the taint's key"),
        Key("operator", Choice(options=("Exists", "Equal")), "how it is compared"),
        Key("value", Text(pattern=_K8S_VALUE, form="the value of a taint"), "its value, for Equal"),
        Key(
            "effect",
            Choice(options=("NoSchedule", "PreferNoSchedule", "NoExecute")),
            "its effect; default: any",
        ),
    ),
)

KUBERNETES = Table(
    model.DeployKubernetes,
    keys=(
        Key("name", DNS_LABEL, "name of the workload; default: the stack's"),
        Key("namespace", DNS_LABEL, "where it is made"),
        Key("replicas", Number(at_most=10_000), "pods, or groups of `nodes` pods"),
        Key("nodes", Number(at_least=1, at_most=1000), "nodes one server spans; above 1: a LeaderWorkerSet"),
        Key("command", COMMAND, "the command that serves; default: the image's"),
        Key("port", PORT, "the port it serves on"),
        Key("gpus", Number(at_most=64), "GPUs of each pod"),
        Key("cpu", Number(at_least=1, at_most=4096), "cores of each pod"),
        Key("memory", Size(), "memory of each pod; /dev/shm counts against it"),
        _SHM,
        _ENV,
        Key("secrets", Array(of=SECRET_REF, key=lambda s: s.env, noun="variable"), "variables from Secrets"),
        Key("volumes", Array(of=VOLUME, key=lambda v: v.name, noun="volume"), "volumes"),
        Key("runtime-class", _CLUSTER_NAME, "RuntimeClass, where the cluster needs one for GPUs"),
        Key(
            "node-selector",
            Names(
                name=Text(pattern=_K8S_KEY, form="the key of a label"),
                value=Text(pattern=_K8S_VALUE, form="the value of a label", empty=True),
            ),
            "labels a node must have",
        ),
        Key("tolerations", Array(of=TOLERATION), "taints it accepts"),
        Key("image-pull-secrets", Array(of=_CLUSTER_NAME, key=str), "Secrets to pull the image with"),
        Key("service-type", Choice(options=("ClusterIP", "NodePort", "LoadBalancer")), "kind of the Service"),
        Key("metrics", SWITCH, "serve and announce Prometheus metrics (`--enable-metrics`)"),
        Key("run-as-user", Number(at_least=1, at_most=2**31 - 1), "uid, where it can run without root"),
        _HEALTH,
        _STARTUP,
        Key("termination-grace", SECONDS, "seconds to finish open requests in"),
    ),
)


def _deploy(place: Place, **fields: Any) -> dict[str, Any]:
    return fields


DEPLOY: Table[dict[str, Any]] = Table(
    None,
    make=_deploy,
    optional=("docker", "kubernetes"),
    keys=(
        Key("docker", DOCKER, "as a container of one engine"),
        Key("kubernetes", KUBERNETES, "as a workload of a cluster"),
    ),
)
