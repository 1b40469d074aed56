"""Stacks to deploy: one by hand, and any that the stack file's grammar allows."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from imagebuilder.deploy.server import is_sglang
from imagebuilder.stack import Stack
from imagebuilder.stack.model import (
    DebianBase,
    DeployDocker,
    DeployKubernetes,
    ImageSettings,
    Mount,
    SecretRef,
    Target,
    Toleration,
    Volume,
)
from imagebuilder.values import GpuArch, ImageRef, Release

IMAGE = ImageRef.parse("registry.example/team/sglang@sha256:" + "5" * 64)
SERVER = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/m")
TINI = ("/usr/bin/tini", "--")


def stack_of(
    kubernetes: DeployKubernetes | None = None, docker: DeployDocker | None = None, **changes: Any
) -> Stack:
    stack = Stack(
        name="sample",
        target=Target(python=Release("3.12"), gpus=(GpuArch.parse("sm_120"),)),
        base=DebianBase(suite="bookworm"),
        layers=(),
        image=ImageSettings(entrypoint=TINI, command=SERVER),
        deploy_kubernetes=kubernetes,
        deploy_docker=docker,
    )
    return replace(stack, **changes)


def kubernetes_stack(**settings: Any) -> Stack:
    return stack_of(kubernetes=DeployKubernetes(**settings))


def docker_stack(**settings: Any) -> Stack:
    return stack_of(docker=DeployDocker(**settings))


# ---------------------------------------------------------------- any

_lower = string.ascii_lowercase + string.digits
LINE = st.text(
    alphabet=st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029"),
    min_size=1,
    max_size=30,
)
"""Any text of one line: quotes, dollars, commas, colons, backslashes, other scripts."""
NASTY = st.sampled_from(
    ["$(HOME)", "$HOME", "`id`", "a b", "'", '"', "\\", "; rm -rf /", "$(touch /tmp/x)", "1e3", "on", "~",
     "null", "0o7", "0x1f", "1_000", "2026-01-01", "- a", "a: b", "# c", "{}", "[]", "&a", "*a", "!t", "%",
     "@", "|", ">", "-", "--", "a,b", "a=b", "ü", "\U0001f600", " lead", "trail ", "a:b:c", "12:30:45",
     ".inf", "=", "<<", "No"]
)  # fmt: skip
TEXT = LINE | NASTY
LABEL = st.builds(str.__add__, st.sampled_from(string.ascii_lowercase), st.text(alphabet=_lower, max_size=20))
VARIABLE = st.builds(
    str.__add__,
    st.sampled_from(string.ascii_uppercase),
    st.text(alphabet=string.ascii_uppercase + "_9", max_size=12),
)
PATH = st.lists(TEXT.map(lambda t: t.replace("/", "_")), min_size=1, max_size=3).map(
    lambda parts: "/" + "/".join(p if p not in (".", "..") else "dots" for p in parts)
)
SIZE = st.integers(1, 999).map(lambda n: n << 20)
ENV = st.dictionaries(VARIABLE, TEXT | st.just(""), max_size=4).map(lambda d: tuple(sorted(d.items())))
PORT = st.integers(1, 65535)
GPU_ENV = ("HOME", "USER", "NVIDIA_VISIBLE_DEVICES")


@st.composite
def kubernetes_stacks(draw: st.DrawFn) -> Stack:
    nodes = draw(st.integers(1, 4))
    words = (*SERVER, *draw(st.lists(TEXT.filter(lambda t: not t.startswith("-")), max_size=4)))
    if nodes == 1 and draw(st.booleans()):
        words = tuple(draw(st.lists(TEXT, max_size=4)))
    gpus = draw(st.integers(0, 8))
    shm = draw(SIZE)
    paths = draw(st.lists(PATH, max_size=3, unique=True))
    env = draw(ENV)
    secrets = [v for v in draw(st.lists(VARIABLE, max_size=2, unique=True)) if v not in dict(env)]
    settings = DeployKubernetes(
        name=draw(st.none() | LABEL),
        namespace=draw(LABEL),
        replicas=draw(st.integers(0, 5)),
        nodes=nodes,
        command=words,
        port=draw(PORT),
        gpus=gpus,
        cpu=draw(st.none() | st.integers(1, 64)),
        memory=draw(st.none() | SIZE.map(lambda n: n + shm)),
        shm=shm,
        env=env,
        secrets=tuple(SecretRef(env=v, secret=draw(LABEL), key=draw(LABEL)) for v in secrets),
        volumes=tuple(_volume(draw, number, path) for number, path in enumerate(paths)),
        runtime_class=draw(st.none() | LABEL),
        node_selector=draw(
            st.dictionaries(LABEL, LABEL | st.just(""), max_size=2).map(lambda d: (*d.items(),))
        ),
        tolerations=draw(
            st.lists(
                st.builds(
                    Toleration,
                    key=LABEL,
                    effect=st.sampled_from(("NoSchedule", "PreferNoSchedule", "NoExecute", None)),
                )
                | st.builds(Toleration, key=LABEL, operator=st.just("Equal"), value=LABEL),
                max_size=2,
            ).map(tuple)
        ),
        image_pull_secrets=tuple(draw(st.lists(LABEL, max_size=2, unique=True))),
        service_type=draw(st.sampled_from(("ClusterIP", "NodePort", "LoadBalancer"))),
        metrics=draw(st.booleans()),
        run_as_user=draw(st.none() | st.integers(1, 2**31 - 1)),
        health_path=draw(st.sampled_from(("/health", "/", "/v1/models"))),
        startup_timeout=draw(st.integers(1, 86400)),
        termination_grace=draw(st.integers(1, 86400)),
    )
    image = ImageSettings(
        entrypoint=draw(st.sampled_from((TINI, (), ("/opt/nvidia/nvidia_entrypoint.sh",)))),
        command=draw(st.sampled_from((SERVER, ()))),
        user=draw(st.sampled_from(("", "root", "app", "1000", "1000:1000", "0"))),
    )
    return stack_of(kubernetes=settings, image=image)


def _volume(draw: st.DrawFn, number: int, path: str) -> Volume:
    kind = draw(st.sampled_from(("claim", "made", "host", "empty")))
    name = f"v{number}"
    read_only = draw(st.booleans())
    if kind == "host":
        return Volume(name=name, target=path, host_path=draw(PATH), read_only=read_only)
    if kind == "claim":
        return Volume(name=name, target=path, claim=draw(LABEL), read_only=read_only)
    if kind == "made":
        return Volume(
            name=name,
            target=path,
            claim=f"made{number}",
            size=draw(SIZE),
            storage_class=draw(st.none() | LABEL),
        )
    return Volume(name=name, target=path, size=draw(st.none() | SIZE))


@st.composite
def docker_stacks(draw: st.DrawFn) -> Stack:
    words = tuple(draw(st.lists(TEXT, max_size=5)))
    paths = draw(st.lists(PATH, max_size=3, unique=True))
    env = draw(ENV)
    settings = DeployDocker(
        name=draw(st.none() | LABEL.filter(lambda t: len(t) > 1)),
        command=() if is_sglang(words) else words,
        port=draw(PORT),
        publish=draw(
            st.one_of(PORT.map(str), PORT.map(lambda p: f"127.0.0.1:{p}"), PORT.map(lambda p: f"[::1]:{p}"))
        ),
        gpus=draw(st.sampled_from(("all", "none", (0,), (1, 3)))),
        shm=draw(SIZE),
        mounts=tuple(
            Mount(
                source=draw(PATH | LABEL.filter(lambda t: len(t) > 1)),
                target=p,
                read_only=draw(st.booleans()),
            )
            for p in paths
        ),
        env=env,
        secrets=tuple(v for v in draw(st.lists(VARIABLE, max_size=2, unique=True)) if v not in dict(env)),
        ulimits=draw(st.sampled_from(((), (("memlock", "-1"), ("nofile", "1024:4096"))))),
        restart=draw(st.sampled_from(("no", "on-failure", "always", "unless-stopped"))),
        health_path=draw(st.sampled_from(("/health", "/", "/v1/models"))),
        startup_timeout=draw(st.integers(1, 86400)),
        stop_timeout=draw(st.integers(1, 86400)),
    )
    image = ImageSettings(entrypoint=draw(st.sampled_from((TINI, ()))), command=SERVER)
    return stack_of(docker=settings, image=image)
