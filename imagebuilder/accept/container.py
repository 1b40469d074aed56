"""The `docker` runtime: the server in a container of the image, with its GPUs, on a loopback port.

Every container has labels that say which process owns it. One whose owner no longer lives is removed by the
next run; one of a run that is still going is not touched.
"""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuilder.accept.model import RuntimeKind
from imagebuilder.accept.server import LOG_LINES, Launch, Script, redact
from imagebuilder.builders.docker.advice import refused
from imagebuilder.builders.docker.engine import Engine
from imagebuilder.errors import MachineLacks, NotAccepted
from imagebuilder.progress import Reporter

if TYPE_CHECKING:
    from docker.models.containers import Container

LABEL = "io.imagebuilder.accept"
OWNER = f"{LABEL}.owner"
_FOLDER = "imagebuilder-accept"
_LOCAL = ("unix://", "tcp://127.", "tcp://localhost", "http://127.", "http://localhost")
_RESTART = "start it (systemctl start docker) and accept again, which first removes what this run left"
_ULIMITS: tuple[tuple[str, int, int], ...] = (("memlock", -1, -1), ("stack", 67108864, 67108864))
"""As NVIDIA and SGLang recommend for NCCL."""


def runs_here(engine: Engine, machine: str) -> bool:
    """Whether an image for this machine type runs on that engine, and its ports are within reach."""
    return engine.facts.host.startswith(_LOCAL) and engine.facts.architecture == machine


class ContainerServer:
    """A server in a container."""

    def __init__(self, engine: Engine, container: Container, port: int) -> None:
        self._engine, self._container, self._port = engine, container, port
        self._url = ""

    @property
    def url(self) -> str:
        """The published port on loopback."""
        if not self._url:
            with _errors(self._engine, "the container's port is not known"):
                self._container.reload()
                bound = self._container.ports.get(f"{self._port}/tcp")
            if not bound:
                raise NotAccepted(
                    f"port {self._port} of the container is not published", seen=self.ended() or ""
                )
            self._url = f"http://127.0.0.1:{bound[0]['HostPort']}"
        return self._url

    def ended(self) -> str | None:
        """As the engine says. MachineLacks where that no longer answers: the image is not to blame for it."""
        import docker

        try:
            self._container.reload()
        except docker.errors.NotFound:
            return "its container was removed"
        except Exception as error:  # the SDK lets those of urllib3 and requests through
            raise MachineLacks(
                "the Docker Engine stopped answering in the middle of the acceptance",
                seen=type(error).__name__,
                hint=_RESTART,
            ) from error
        state = self._container.attrs["State"]
        if state["Status"] in ("created", "running", "paused", "restarting"):
            return None
        memory = ", out of memory" if state.get("OOMKilled") else ""
        return f"exit status {state.get('ExitCode')}{memory}"

    def log(self, lines: int) -> list[str]:
        """What the engine kept of its output."""
        try:
            return self._container.logs(tail=lines).decode(errors="replace").splitlines()
        except Exception:  # it is asked for while explaining another error
            return []

    def stop(self) -> None:
        """Kill and remove it; nothing in it is worth waiting for."""
        with suppress(Exception):  # gone already, or the engine is: then the next run removes it
            self._container.remove(force=True, v=True)


class DockerRuntime:
    """Containers of one image. identity: of this process, as `owner_now` has it."""

    kind: RuntimeKind = "docker"

    def __init__(
        self, engine: Engine, image: str, stack_name: str, identity: str, reporter: Reporter
    ) -> None:
        if not engine.facts.host.startswith(_LOCAL):
            raise MachineLacks(
                "an acceptance needs an engine on this machine: its servers listen on loopback only",
                seen=engine.facts.host,
                hint="run imagebuilder where the GPUs are",
            )
        self._engine, self._image, self._reporter = engine, image, reporter
        self._ulimits = _ULIMITS
        self._labels = {LABEL: stack_name, OWNER: identity}

    def clean(self) -> int:
        """Remove containers of runs on this machine that were killed."""
        removed = 0
        with _errors(self._engine, "containers cannot be listed"):
            listed = self._engine.client.containers.list(
                all=True, filters={"label": OWNER}, ignore_removed=True
            )
        for container in listed:
            if is_leftover(str(container.labels.get(OWNER, ""))):
                with suppress(Exception):  # another run removes it at the same time
                    container.remove(force=True, v=True)
                    removed += 1
        return removed

    def host(self) -> None:
        """This machine."""

    def start(self, launch: Launch) -> ContainerServer:
        """Create and start a container; it is removed again when that fails."""
        with _errors(self._engine, f"the {launch.arm} server cannot be started"):
            return ContainerServer(self._engine, self._started(launch, launch.command), launch.port)

    def run(self, script: Script, launch: Launch, timeout: float) -> bytes:
        """Run a script with the image's own Python, with the server's GPUs, mounts and environment."""
        import requests

        command = ("python3", f"/{_FOLDER}/{script.name}.py", f"/{_FOLDER}/{script.name}.json")
        with _errors(self._engine, f"{script.name} cannot be run in the image"):
            container = self._started(launch, command, script)
            try:
                try:
                    status = int(container.wait(timeout=timeout)["StatusCode"])
                except (requests.ReadTimeout, requests.ConnectionError) as error:
                    if "timed out" not in str(error):  # the engine itself is gone
                        raise
                    raise NotAccepted(f"{script.name} did not end within {timeout:g} s") from None
                if status:
                    lines = container.logs(tail=LOG_LINES).decode(errors="replace").splitlines()
                    raise NotAccepted(
                        f"{script.name} failed in the container with exit status {status}",
                        seen="\n          ".join(redact(lines, launch.secrets)),
                        hint="the image needs python3" if status in (126, 127) else "",
                    )
                output: bytes = container.logs(stdout=True, stderr=False)
                return output
            finally:
                with suppress(Exception):
                    container.remove(force=True, v=True)

    def _started(self, launch: Launch, command: tuple[str, ...], script: Script | None = None) -> Container:
        """A container that runs; removed where it does not get so far."""
        import docker

        container = self._create(launch, command, published=script is None)
        try:
            if script is not None:
                container.put_archive("/", _archive(script))
            container.start()
        except docker.errors.APIError as error:
            with suppress(Exception):
                container.remove(force=True, v=True)
            if not self._ulimits or "rlimit" not in str(error.explanation):
                raise
            names = ", ".join(name for name, _, _ in self._ulimits)
            self._reporter.warn(f"this engine may not raise limits ({names}): servers run with its own")
            self._ulimits = ()
            return self._started(launch, command, script)
        except BaseException:
            with suppress(Exception):
                container.remove(force=True, v=True)
            raise
        return container

    def _create(self, launch: Launch, command: tuple[str, ...], *, published: bool) -> Container:
        from docker.types import DeviceRequest, Mount, Ulimit

        options: dict[str, Any] = {}
        if launch.gpus == "all":
            options["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
        elif launch.gpus != "none":
            chosen = [str(index) for index in launch.gpus]
            options["device_requests"] = [DeviceRequest(device_ids=chosen, capabilities=[["gpu"]])]
        if published:
            options["ports"] = {f"{launch.port}/tcp": ("127.0.0.1", None)}
        if launch.shm:
            options["shm_size"] = launch.shm
        created: Container = self._engine.client.containers.create(
            self._image,
            list(command),
            name=f"{_FOLDER}-{launch.arm}-{secrets.token_hex(4)}",
            labels=self._labels,
            environment={**dict(launch.env), **launch.secrets},
            ulimits=[Ulimit(name=name, soft=soft, hard=hard) for name, soft, hard in self._ulimits],
            mounts=[
                Mount(
                    target=m.target,
                    source=m.source,
                    type="bind" if m.source.startswith("/") else "volume",
                    read_only=m.read_only,
                )
                for m in launch.mounts
            ],
            **options,
        )
        return created


def _archive(script: Script) -> bytes:
    """The script and its data as a tar, below a folder of its own."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        folder = tarfile.TarInfo(_FOLDER)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        for name, data in (
            (f"{script.name}.py", script.source.encode()),
            (f"{script.name}.json", script.data),
        ):
            entry = tarfile.TarInfo(f"{_FOLDER}/{name}")
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


@contextmanager
def _errors(engine: Engine, what: str) -> Iterator[None]:
    """Turns the SDK's errors into ours."""
    import docker
    import requests

    try:
        yield
    except docker.errors.APIError as error:
        raise refused(what, str(error.explanation or error), MachineLacks, "") from error
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise MachineLacks(what, seen=str(error).splitlines()[0][:300], hint=_RESTART) from error


# ---------------------------------------------------------------- who owns a container


def owner_now() -> str:
    """This process, as a label says it: machine, process id, and when it was started."""
    import os

    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def is_leftover(owner: str) -> bool:
    """Whether the owner was a process of this machine that no longer lives."""
    machine, _, rest = owner.partition("/")
    pid, _, started = rest.partition("/")
    return machine == _machine() and pid.isdigit() and _started(int(pid)) != started


def _machine() -> str:
    """This machine and its space of process ids, which is another one inside a container."""
    with suppress(OSError):
        space = Path("/proc/self/ns/pid").readlink()
        for path in (Path("/etc/machine-id"), Path("/proc/sys/kernel/hostname")):
            with suppress(OSError):
                if text := path.read_text().strip():
                    return f"{text} {space}"
    return "unknown"


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did; empty where there is no such process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return after_name[19]  # starttime, the 22nd field: proc(5)
