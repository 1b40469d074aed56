"""Driving `docker buildx`: finding it, asking it, and running one build that leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagebuilder.errors import MachineLacks

# Of buildx; older ones do not know `--provenance`, or say how a build goes in another form.
OLDEST = (0, 10)
RAWJSON_SINCE = (0, 14)
_STOP_SECONDS = 15.0
_REFUSED = re.compile(r"permission denied|read-only file system", re.IGNORECASE)
_OWN_FOLDER = "make docker's folder yours (sudo chown -R $USER ~/.docker), or set BUILDX_CONFIG to another"


@dataclass(frozen=True, kw_only=True)
class Buildx:
    """A `docker` with a usable buildx. environment: of the commands, with what leads to the engine."""

    docker: str
    version: str
    environment: Mapping[str, str]

    @property
    def release(self) -> tuple[int, ...]:
        """(0, 13, 1)."""
        return _release(self.version)

    @property
    def progress_form(self) -> str:
        """The form of `--progress` that we read."""
        return "rawjson" if self.release >= RAWJSON_SINCE else "plain"

    def ask(self, *arguments: str, timeout: float = 60) -> str:
        """What `docker ARGUMENTS` prints. MachineLacks with its own words where it fails."""
        return _ask(self.docker, self.environment, *arguments, timeout=timeout)

    def driver(self, builder: str | None) -> str:
        """docker, docker-container, remote, kubernetes or cloud: how the builder runs BuildKit."""
        text = self.ask("buildx", "inspect", *([builder] if builder else []))
        found = re.search(r"^Driver:\s*(\S+)", text, re.MULTILINE)
        return found[1] if found else "docker"

    def buildkit_versions(self, builder: str | None) -> list[str]:
        """BuildKit's version on each node, as far as told."""
        text = self.ask("buildx", "inspect", *([builder] if builder else []))
        return re.findall(r"^BuildKit(?: version)?:\s*(\S+)", text, re.MULTILINE)

    def _dying_with_us(self) -> list[str]:
        """What makes a command be interrupted when we are killed (Linux, util-linux 2.33)."""
        setpriv = shutil.which("setpriv", path=self.environment.get("PATH"))
        return [setpriv, "--pdeathsig", "SIGINT"] if setpriv else []

    def run(self, arguments: Sequence[str], feed: Callable[[str], None]) -> int:
        """Run `docker ARGUMENTS`, passing on every line; returns its exit status.

        Interrupted or failing here, the command is told to stop and is gone when this returns; the engine
        cancels a build whose client has left.
        """
        process = subprocess.Popen(
            [*self._dying_with_us(), self.docker, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(self.environment),
            start_new_session=True,  # so that Ctrl-C reaches it through us, once
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                feed(line.decode(errors="replace").rstrip("\r\n"))
            return process.wait()
        finally:
            _stop(process)
            process.stderr.close()


def find_buildx(environment: Mapping[str, str]) -> Buildx:
    """The `docker buildx` on PATH. MachineLacks with the way to get one."""
    docker = shutil.which("docker", path=environment.get("PATH"))
    if docker is None:
        raise MachineLacks(
            "there is no docker command",
            wanted="docker with the buildx plugin on PATH",
            hint="install docker-cli and docker-buildx, or build with --builder direct, which needs neither",
        )
    try:
        text = _ask(docker, environment, "buildx", "version")
    except MachineLacks as error:
        raise MachineLacks(
            "docker has no buildx plugin",
            seen=error.seen,
            wanted=f"buildx {_dotted(OLDEST)} or newer",
            hint="install docker-buildx (Debian) or docker-buildx-plugin (Docker), or use --builder direct",
        ) from None
    words = text.split()
    version = words[1].removeprefix("v") if len(words) > 1 else "0"
    if _release(version) < OLDEST:
        raise MachineLacks(
            "docker's buildx plugin is too old",
            seen=version,
            wanted=f"{_dotted(OLDEST)} or newer",
            hint="update docker-buildx, or use --builder direct",
        )
    return Buildx(docker=docker, version=version, environment=environment)


def _ask(docker: str, environment: Mapping[str, str], *arguments: str, timeout: float = 60) -> str:
    command = f"docker {' '.join(arguments)}"
    try:
        done = subprocess.run(
            [docker, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(environment),
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        raise MachineLacks(f"{docker} cannot be run", seen=str(error)) from error
    except subprocess.TimeoutExpired:
        raise MachineLacks(f"`{command}` did not answer within {timeout:.0f} seconds") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        hint = _OWN_FOLDER if _REFUSED.search(lines[0]) else ""
        raise MachineLacks(f"`{command}` failed", seen=lines[0], hint=hint)
    return done.stdout


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the command and its plugin; kill them where that does not help."""
    for how in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One `docker buildx build`. secrets: id → file. output: of `--output`; or else a tag for the store.

    label: of the image, as KEY=VALUE.
    """

    context: Path
    platform: str
    epoch: int
    output: str = ""
    tag: str = ""
    label: str = ""
    builder: str | None = None
    no_cache: bool = False
    secrets: tuple[tuple[str, Path], ...] = ()
    arguments: tuple[tuple[str, str], ...] = ()

    def words(self, form: str) -> list[str]:
        """The arguments of `docker`."""
        words = ["buildx", "build", f"--progress={form}", f"--platform={self.platform}"]
        # Attestations hold times and ids of the build: evidence is attached when pushing, by us.
        words += ["--provenance=false", "--sbom=false"]
        words += [f"--build-arg=SOURCE_DATE_EPOCH={self.epoch}"]
        words += [f"--build-arg={name}={value}" for name, value in self.arguments]
        words += [f"--secret=id={name},src={path}" for name, path in self.secrets]
        words += [f"--output={self.output}"] if self.output else []
        words += [f"--tag={self.tag}"] if self.tag else []
        words += [f"--label={self.label}"] if self.label else []
        words += [f"--builder={self.builder}"] if self.builder else []
        words += ["--no-cache"] if self.no_cache else []
        return [*words, str(self.context)]
