"""What the user wants, as values: one frozen dataclass per table of the stack file.

Nothing here reads TOML or a file (see `loader`) or knows how a key is spelled (see `keys`). Defaults are
here, and only here. Fields hold checked values: whoever gets a `Stack` need not look twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.values import Digest, GpuArch, ImageRef, Platform, Release

GIB = 1 << 30
LINUX_AMD64 = Platform("linux", "amd64")

Pairs = tuple[tuple[str, str], ...]
Gpus = Literal["all", "none"] | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the image must run on. `glibc` None: what the base has; `driver` None: no promise is made."""

    platform: Platform = LINUX_AMD64
    python: Release
    gpus: tuple[GpuArch, ...] = ()
    driver: Release | None = None
    glibc: Release | None = None


@dataclass(frozen=True, kw_only=True)
class ImageBase:
    """An image of a registry."""

    ref: ImageRef


@dataclass(frozen=True, kw_only=True)
class DebianBase:
    """A base made from Debian packages. `security` opts in to the suite's security pocket."""

    suite: str
    components: tuple[str, ...] = ("main",)
    security: bool = False


@dataclass(frozen=True, kw_only=True)
class OciBase:
    """An OCI layout on this machine; `path` as written, relative to the stack file."""

    path: str


Base = ImageBase | DebianBase | OciBase


@dataclass(frozen=True, kw_only=True)
class System:
    """Debian packages. `resolve`: by apt inside the Docker build, or to files while locking.

    A package is `name` or `name=version`. `snapshot`: the archive as apt sees it; None: at `as_of`.
    """

    packages: tuple[str, ...] = ()
    snapshot: datetime | None = None
    resolve: Literal["build", "lock"] = "build"


@dataclass(frozen=True, kw_only=True)
class Resolve:
    """How resolution is bounded. `as_of`: nothing newer is considered; also SOURCE_DATE_EPOCH. Aware, UTC."""

    as_of: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Index:
    """A package index with a Simple API. `explicit`: only requirements that name it come from it."""

    name: str
    url: str
    explicit: bool = False


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A patch file, read: `path` relative to the stack file (POSIX), and its bytes."""

    path: str
    content: bytes

    @property
    def digest(self) -> Digest:
        """sha256 of the content."""
        return Digest.of(self.content)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A group of requirements that share layers of the image.

    `index`: the index that every requirement of this layer comes from; None: the default one.
    `patches`: already found and read, in the order in which they are applied. Each names files below
    site-packages (`patch -p1`); the package it belongs to is the one whose wheel holds them.
    """

    name: str
    requirements: tuple[Requirement, ...]
    index: str | None = None
    patches: tuple[Patch, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Override:
    """A deliberate break of what wheels ask for: replaces every requirement on that package."""

    requirement: Requirement
    reason: str

    @property
    def package(self) -> str:
        """The normalised name."""
        return canonicalize_name(self.requirement.name)


@dataclass(frozen=True, kw_only=True)
class File:
    """An extra file of the image: absolute path, mode, bytes; `source`: the file they were read from."""

    path: str
    mode: int = 0o644
    content: bytes
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """A finding accepted on purpose. `package` and `path` (a glob) narrow it; without them: the code."""

    code: str
    package: str | None = None
    path: str | None = None
    reason: str


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """The image's own configuration. `repository`: where tags and pushes go if nothing else is said."""

    repository: str | None = None
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    workdir: str = "/"
    labels: Pairs = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder of the host, or a named volume where `source` is no path, inside the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What only one of the two compared servers gets."""

    arguments: tuple[str, ...] = ()
    env: Pairs = ()


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load of an acceptance. `decisive`: the concurrency levels whose verdict counts; empty: all.

    `pairing`: `rounds` where both servers fit side by side, `starts` (A-B-B-A) where they do not.
    `start_variation`: declared standard deviation of log throughput between two starts of one server.
    """

    prompts: str = "mixed"
    concurrency: tuple[int, ...] = (1, 8, 32)
    decisive: tuple[int, ...] = ()
    requests: int = 64
    output_tokens: int = 512
    warmup_requests: int = 16
    pairing: Literal["rounds", "starts"] = "starts"
    rounds: int = 6
    starts: int = 3
    start_variation: float | None = None


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What must hold for a pass; None: not asked for. Ratios as 1.0, times in ms, shares from 0 to 1."""

    min_speedup: float | None = 1.0
    min_accept_length: float | None = 1.05
    min_output_tok_s: float | None = None
    max_ttft_p99_ms: float | None = None
    min_known_answers: float | None = None
    known_answers_margin: float = 0.02
    max_extra_divergence: float | None = None
    no_regression_against: str | None = None


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """How an image proves itself. Paths as seen in the container; time-outs in seconds, `shm` in bytes.

    `server`: the command that serves; `arguments` go to both servers, those of an arm to one.
    `secrets`: names of variables handed through from the caller's environment, never written down.
    """

    model: str
    draft: str
    revision: str | None = None
    draft_revision: str | None = None
    server: tuple[str, ...] = ("python3", "-m", "sglang.launch_server")
    arguments: tuple[str, ...] = ()
    port: int = 30000
    gpus: Gpus = "all"
    shm: int = 32 * GIB
    mounts: tuple[Mount, ...] = ()
    env: Pairs = ()
    secrets: tuple[str, ...] = ()
    startup_timeout: int = 1800
    request_timeout: int = 600
    baseline: Arm = Arm()
    eagle3: Arm = Arm()
    load: Load = Load()
    require: Requirements = Requirements()


@dataclass(frozen=True, kw_only=True)
class DeployDocker:
    """A service on one engine. `command` empty: the image's own; time-outs in seconds, `shm` in bytes."""

    name: str | None = None
    command: tuple[str, ...] = ()
    port: int = 30000
    publish: str = "127.0.0.1:30000"
    gpus: Gpus = "all"
    shm: int = 32 * GIB
    mounts: tuple[Mount, ...] = ()
    env: Pairs = ()
    secrets: tuple[str, ...] = ()
    ulimits: Pairs = (("memlock", "-1"), ("stack", "67108864"))
    restart: Literal["no", "on-failure", "always", "unless-stopped"] = "unless-stopped"
    health_path: str = "/health"
    startup_timeout: int = 1800
    stop_timeout: int = 120


@dataclass(frozen=True, kw_only=True)
class Volume:
    """A volume of a pod: a `claim` (made where `size` is given), a `host_path`, or else an empty folder."""

    name: str
    target: str
    claim: str | None = None
    host_path: str | None = None
    size: int | None = None
    storage_class: str | None = None
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class SecretRef:
    """An environment variable that takes its value from a key of a Secret of the cluster."""

    env: str
    secret: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Toleration:
    """As Kubernetes has it."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


@dataclass(frozen=True, kw_only=True)
class DeployKubernetes:
    """A service in a cluster: a Deployment, or with `nodes` above 1 a LeaderWorkerSet.

    `gpus`, `cpu` (cores), `memory`, `shm` (bytes) are per pod; time-outs in seconds.
    """

    name: str | None = None
    namespace: str = "default"
    replicas: int = 1
    nodes: int = 1
    command: tuple[str, ...] = ()
    port: int = 30000
    gpus: int = 1
    cpu: int | None = None
    memory: int | None = None
    shm: int = 32 * GIB
    env: Pairs = ()
    secrets: tuple[SecretRef, ...] = ()
    volumes: tuple[Volume, ...] = ()
    runtime_class: str | None = None
    node_selector: Pairs = ()
    tolerations: tuple[Toleration, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    metrics: bool = False
    run_as_user: int | None = None
    health_path: str = "/health"
    startup_timeout: int = 1800
    termination_grace: int = 120


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack file, checked. `path` is the file it was read from; None for one made in memory."""

    schema: int = 1
    name: str
    summary: str = ""
    target: Target
    base: Base
    system: System = System()
    resolve: Resolve = Resolve()
    indexes: tuple[Index, ...] = ()
    layers: tuple[Layer, ...]
    overrides: tuple[Override, ...] = ()
    env: Pairs = ()
    files: tuple[File, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    image: ImageSettings = ImageSettings()
    acceptance: Acceptance | None = None
    deploy_docker: DeployDocker | None = None
    deploy_kubernetes: DeployKubernetes | None = None
    path: Path | None = field(default=None, compare=False)

    @property
    def apt_snapshot(self) -> datetime | None:
        """The instant of the archive that apt sees during a build."""
        return self.system.snapshot or self.resolve.as_of

    def layer_of(self, package: str) -> Layer | None:
        """The layer that names this package (any spelling), None if none does."""
        wanted = canonicalize_name(package)
        for layer in self.layers:
            if any(canonicalize_name(r.name) == wanted for r in layer.requirements):
                return layer
        return None
