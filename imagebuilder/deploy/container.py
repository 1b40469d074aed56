"""A stack's [deploy.docker] → one container: as `docker run` words, as a compose file, and for the SDK.

Pure. All three say the same: tests hold what the engine then has of each against the others.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from imagebuilder.deploy.server import HEALTH_TIMEOUT, has_init, is_sglang, ranks, refuse, serving_command
from imagebuilder.errors import Problem, SectionMissing
from imagebuilder.stack.model import DeployDocker, Gpus, Mount, Pairs, Stack
from imagebuilder.values import Digest

TABLE = "deploy.docker"
LABEL = "io.imagebuilder.deploy"
"""Of containers that a deployment made; its value is the stack's name."""
IDENTITY = f"{LABEL}.identity"
"""The digest of all that a container was made from, to see whether a new one would be the same."""
RESTART = f"{LABEL}.restart"
"""Its restart policy, which is taken from it while it is kept aside."""
_HEALTH_INTERVAL, _HEALTH_RETRIES = 30, 3
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")

_PROBE = (
    "import sys, urllib.request as r; "
    "r.build_opener(r.ProxyHandler({})).open(sys.argv[1], timeout=float(sys.argv[2]))"
)
"""Ends with 0 where the address answers with success; past any proxy that the environment names."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """One container, completely decided. Sizes in bytes, times in seconds.

    words: empty where the image's own serve. secrets: names only. limits: (name, soft, hard).
    address, host_port: where the host offers `port`; an empty address is every one.
    """

    stack: str
    name: str
    image: str
    words: tuple[str, ...]
    init: bool
    gpus: Gpus
    shm: int
    mounts: tuple[Mount, ...]
    env: Pairs
    secrets: tuple[str, ...]
    limits: tuple[tuple[str, int, int], ...]
    restart: str
    port: int
    address: str
    host_port: int
    health: tuple[str, ...]
    health_timeout: int
    startup_timeout: int
    stop_timeout: int

    @property
    def identity(self) -> str:
        """A digest of everything but the values of secrets."""
        return Digest.of(repr(self).encode()).text

    @property
    def labels(self) -> Mapping[str, str]:
        """What a later deployment knows it by."""
        return {LABEL: self.stack, IDENTITY: self.identity, RESTART: self.restart}

    @property
    def health_command(self) -> str:
        """For a shell in the container."""
        return shlex.join(self.health)


def container_of(stack: Stack, image: str) -> Container:
    """What [deploy.docker] makes of an image. Raises SectionMissing, StackInvalid with every problem."""
    settings = stack.deploy_docker
    if settings is None:
        raise SectionMissing(stack.name, TABLE, "how it is deployed with Docker")
    address, _, port = settings.publish.rpartition(":")
    refuse(stack, _problems(stack, settings, int(port)))
    words = serving_command(stack, TABLE, settings.command, port=settings.port)
    timeout = HEALTH_TIMEOUT if is_sglang(words or stack.image.command) else 5
    url = f"http://127.0.0.1:{settings.port}{settings.health_path}"
    env = dict(settings.env)
    if settings.gpus == "none" and stack.target.gpus and "NVIDIA_VISIBLE_DEVICES" not in env:
        # CUDA images say `all`: where NVIDIA's runtime is the default one, they would get every GPU.
        env["NVIDIA_VISIBLE_DEVICES"] = "void"
    return Container(
        stack=stack.name,
        name=settings.name or stack.name,
        image=image,
        words=words,
        init=not has_init(stack.image.entrypoint),
        gpus=settings.gpus,
        shm=settings.shm,
        mounts=settings.mounts,
        env=tuple(sorted(env.items())),
        secrets=settings.secrets,
        limits=tuple((name, *_limit(value)) for name, value in settings.ulimits),
        restart=settings.restart,
        port=settings.port,
        address=address.strip("[]"),
        host_port=int(port),
        health=("python3", "-c", _PROBE, url, str(timeout)),
        health_timeout=timeout + 5,
        startup_timeout=settings.startup_timeout,
        stop_timeout=settings.stop_timeout,
    )


def _limit(text: str) -> tuple[int, int]:
    soft, colon, hard = text.partition(":")
    return int(soft), int(hard if colon else soft)


def _problems(stack: Stack, settings: DeployDocker, host_port: int) -> Iterator[Problem]:
    name = settings.name or stack.name
    if not _NAME.fullmatch(name):
        yield Problem(key=f"{TABLE}.name", message=f"{name!r} is too short for a container: two characters")
    if not 1 <= host_port <= 65535:
        yield Problem(key=f"{TABLE}.publish", message=f"{host_port} is not a port")
    for variable in sorted({v for v, _ in settings.env} & set(settings.secrets)):
        yield Problem(key=f"{TABLE}.secrets", message=f"{variable} is in {TABLE}.env too")
    targets = Counter(mount.target for mount in settings.mounts)
    for number, mount in enumerate(settings.mounts):
        key = f"{TABLE}.mounts[{number}].target"
        if mount.target in ("/dev/shm", "/"):
            hint = f"{TABLE}.shm is its size" if mount.target != "/" else ""
            yield Problem(key=key, message=f"nothing can be mounted at {mount.target}", hint=hint)
        elif targets[mount.target] > 1:
            yield Problem(key=key, message=f"{mount.target} is the target of another mount too")
    words = settings.command or stack.image.command
    if isinstance(settings.gpus, tuple) and is_sglang(words) and ranks(words) > len(settings.gpus):
        yield Problem(
            key=f"{TABLE}.gpus",
            message=f"the command wants {ranks(words)} GPUs, and there are {len(settings.gpus)}",
        )


# ---------------------------------------------------------------- docker run


def run_words(container: Container) -> tuple[str, ...]:
    """The words of `docker run`. Secrets are named only: docker takes their values from its environment."""
    c = container
    words = ["docker", "run", "--detach", "--name", c.name, "--restart", c.restart]
    words += ["--init"] if c.init else []
    words += _gpu_words(c.gpus)
    words += ["--shm-size", _size(c.shm)]
    for name, soft, hard in c.limits:
        words += ["--ulimit", f"{name}={soft}" if soft == hard else f"{name}={soft}:{hard}"]
    host = f"[{c.address}]" if ":" in c.address else c.address
    words += ["--publish", f"{host}:{c.host_port}:{c.port}" if host else f"{c.host_port}:{c.port}"]
    for mount in c.mounts:
        words += ["--mount", _mount_text(mount)]
    for name, value in c.env:
        words += ["--env", f"{name}={value}"]
    for name in c.secrets:
        words += ["--env", name]
    words += ["--health-cmd", c.health_command, "--health-interval", f"{_HEALTH_INTERVAL}s"]
    words += ["--health-timeout", f"{c.health_timeout}s", "--health-retries", str(_HEALTH_RETRIES)]
    words += ["--health-start-period", f"{c.startup_timeout}s", "--stop-timeout", str(c.stop_timeout)]
    for name, value in c.labels.items():
        words += ["--label", f"{name}={value}"]
    return (*words, c.image, *c.words)


def run_line(container: Container) -> str:
    """`docker run` as one line for a shell."""
    return shlex.join(run_words(container))


def _gpu_words(gpus: Gpus) -> list[str]:
    if gpus == "none":
        return []
    # docker reads the value as a line of CSV, so a list of devices is quoted for it too.
    return ["--gpus", "all" if gpus == "all" else f'"device={",".join(map(str, gpus))}"']


def _size(size: int) -> str:
    for unit, suffix in ((1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")):
        if size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def _mount_text(mount: Mount) -> str:
    """A line of CSV, as `--mount` wants it."""
    fields = [f"type={_mount_type(mount)}", f"source={mount.source}", f"target={mount.target}"]
    fields += ["readonly"] if mount.read_only else []
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()


def _mount_type(mount: Mount) -> Literal["bind", "volume"]:
    return "bind" if mount.source.startswith("/") else "volume"


# ---------------------------------------------------------------- the SDK


def create_options(container: Container, secrets: Mapping[str, str], api: Any) -> dict[str, Any]:
    """The arguments of the SDK's `api.create_container`. secrets: values by name."""
    from docker.types import DeviceRequest, Healthcheck, Ulimit
    from docker.types import Mount as SdkMount

    c = container
    requests = []
    if c.gpus == "all":
        requests = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    elif c.gpus != "none":
        requests = [DeviceRequest(device_ids=[str(n) for n in c.gpus], capabilities=[["gpu"]])]
    host_config = api.create_host_config(
        restart_policy={"Name": c.restart},
        init=c.init or None,
        device_requests=requests or None,
        shm_size=c.shm,
        ulimits=[Ulimit(name=name, soft=soft, hard=hard) for name, soft, hard in c.limits],
        port_bindings={f"{c.port}/tcp": (c.address, c.host_port)},
        mounts=[
            SdkMount(target=m.target, source=m.source, type=_mount_type(m), read_only=m.read_only)
            for m in c.mounts
        ],
    )
    seconds = 10**9
    return {
        "image": c.image,
        "command": list(c.words) or None,
        "ports": [(str(c.port), "tcp")],
        "environment": [f"{name}={value}" for name, value in (*c.env, *secrets.items())],
        "labels": dict(c.labels),
        "stop_timeout": c.stop_timeout,
        "healthcheck": Healthcheck(
            test=["CMD-SHELL", c.health_command],
            interval=_HEALTH_INTERVAL * seconds,
            timeout=c.health_timeout * seconds,
            retries=_HEALTH_RETRIES,
            start_period=c.startup_timeout * seconds,
        ),
        "host_config": host_config,
    }


# ---------------------------------------------------------------- compose


def compose_file(container: Container) -> dict[str, Any]:
    """A compose file of one service. Source: the compose specification, 05-services and 12-interpolation."""
    c = container
    service: dict[str, Any] = {"image": c.image, "container_name": c.name, "restart": c.restart}
    service |= {"init": True} if c.init else {}
    service |= {"command": list(c.words)} if c.words else {}
    service["environment"] = [*(f"{name}={value}" for name, value in c.env), *c.secrets]
    published = {"target": c.port, "published": str(c.host_port), "protocol": "tcp"}
    service["ports"] = [{**published, **({"host_ip": c.address} if c.address else {})}]
    service["volumes"] = [_compose_mount(mount) for mount in c.mounts]
    service["shm_size"] = _size(c.shm)
    service["ulimits"] = {name: {"soft": soft, "hard": hard} for name, soft, hard in c.limits}
    service["healthcheck"] = {
        "test": ["CMD-SHELL", c.health_command],
        "interval": f"{_HEALTH_INTERVAL}s",
        "timeout": f"{c.health_timeout}s",
        "retries": _HEALTH_RETRIES,
        "start_period": f"{c.startup_timeout}s",
    }
    service["stop_grace_period"] = f"{c.stop_timeout}s"
    service["labels"] = dict(c.labels)
    if c.gpus != "none":
        which = {"count": "all"} if c.gpus == "all" else {"device_ids": [str(n) for n in c.gpus]}
        device = {**which, "capabilities": ["gpu"]}  # of whatever driver has them, as with `--gpus`
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    service = {key: value for key, value in service.items() if value not in ([], {})}
    document: dict[str, Any] = {"name": c.stack, "services": {c.stack: _literal(service)}}
    if volumes := sorted({m.source for m in c.mounts if not m.source.startswith("/")}):
        document["volumes"] = {name: {"name": name} for name in volumes}
    return document


def _compose_mount(mount: Mount) -> dict[str, Any]:
    read_only = {"read_only": True} if mount.read_only else {}
    where = {"type": _mount_type(mount), "source": mount.source, "target": mount.target, **read_only}
    # As `docker run --mount`: a folder that is not there is an error, not an empty folder of root's.
    return where | ({"bind": {"create_host_path": False}} if where["type"] == "bind" else {})


def _literal(value: Any) -> Any:
    """Texts with `$` as compose reads it: `$$`."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_literal(item) for item in value]
    return value
