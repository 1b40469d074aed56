"""Putting a new container in the place of an old one, which is kept until the new one is healthy, and longer.

Names tell how far a switch is, so that one that was killed is taken up by the next command:

    NAME            serves
    NAME-next       made, not yet started
    NAME-replaced   the old one, while the new one starts: whoever finds it finds a switch that was broken off
    NAME-previous   the old one, stopped, for `--rollback`

Two servers cannot have the same GPUs and port, so the old one is stopped before the new one starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from imagebuilder.accept.server import redact
from imagebuilder.builders.docker.advice import refused, start_advice
from imagebuilder.builders.docker.engine import Engine
from imagebuilder.deploy.container import IDENTITY, LABEL, RESTART, Container, create_options
from imagebuilder.errors import DeployFailed, MachineLacks
from imagebuilder.progress import Reporter

if TYPE_CHECKING:
    from docker.models.containers import Container as Running

LOG_LINES = 30
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How it ended. what: `started`, `unchanged` or `rolled back`."""

    what: str
    container: str
    image: str


@dataclass(kw_only=True)
class Switch:
    """One deployment on one engine. secrets: values by name. sleep, clock: time, to be replaced in tests."""

    engine: Engine
    wanted: Container
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    reporter: Reporter
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    # ---------------------------------------------------------------- the two commands

    def deploy(self) -> Outcome:
        """Start what is wanted in place of what serves now. Raises DeployFailed, MachineLacks."""
        self._recover()
        current = self._find("")
        if current is not None and self._same(current):
            self.reporter.note(f"{self.wanted.name} runs already, made from the same")
            self._let_restart(current)
            return self._outcome("unchanged", current)
        try:
            return self._outcome("started", self._switch(self._create("-next"), current))
        except BaseException:
            with suppress(Exception):
                self._remove(self._find("-next"))
            raise

    def rollback(self) -> Outcome:
        """Start the container that served before. Raises DeployFailed, MachineLacks."""
        self._recover()
        candidate = self._find("-previous")
        if candidate is None:
            raise DeployFailed(
                f"there is nothing to roll {self.wanted.name} back to",
                wanted=f"a container {self.wanted.name}-previous, which a deployment leaves",
            )
        try:
            return self._outcome("rolled back", self._switch(candidate, self._find("")))
        except BaseException:
            with suppress(Exception):
                if self._find("-previous") is None and (taken_back := self._find("-next")):
                    self._rename(taken_back, "-previous")
            raise

    # ---------------------------------------------------------------- steps

    def _switch(self, candidate: Running, current: Running | None) -> Running:
        """Old one aside, new one in its place; the other way round again where that fails."""
        well = current is not None and self._healthy(current)
        if current is not None:
            self.reporter.note(f"stopping {self.wanted.name}, which is kept until the new one is healthy")
        try:
            if current is not None:
                self._rename(current, "-replaced")
                self._stop(current)
            self._rename(candidate, "")
            candidate = self._start(candidate)
            self._wait(candidate)
            self._let_restart(candidate)
        except BaseException as failure:
            self._put_back(current, failure, well=well)
            raise
        if current is not None:
            self._keep(current, well=well)
        return candidate

    def _keep(self, replaced: Running, *, well: bool) -> None:
        """As the one to roll back to, unless it was not well itself and there is another."""
        previous = self._find("-previous")
        if well or previous is None:
            self._remove(previous)
            self._rename(replaced, "-previous")
        else:
            self._remove(replaced)

    def _put_back(self, current: Running | None, failure: BaseException, *, well: bool) -> None:
        """Whatever has the name now becomes NAME-next, stopped, and the old one serves again."""
        try:
            candidate = self._find("")
            if candidate is not None and (current is None or candidate.id != current.id):
                self._stop(candidate, timeout=10)
                self._rename(candidate, "-next")
            if current is None:
                return
            self.reporter.warn(f"the new container did not become healthy: {self.wanted.name} is put back")
            self._revive(current, wait=well)
            self.reporter.note(f"{self.wanted.name} serves again as before")
        except Exception as error:
            raise DeployFailed(
                f"{failure}\nand what served before could not be put back",
                seen=str(error),
                hint=f"docker ps -a; docker rename {self.wanted.name}-replaced {self.wanted.name}; "
                f"docker start {self.wanted.name}",
            ) from failure

    def _revive(self, container: Running, *, wait: bool) -> None:
        """Give an old container its name again, start it, and see it healthy where it was."""
        self._rename(container, "")
        container = self._start(container)
        if wait:
            self._wait(container)
        self._let_restart(container)

    def _recover(self) -> None:
        """Finish or undo a switch that was killed."""
        self._remove(self._find("-next"))
        replaced = self._find("-replaced")
        if replaced is None:
            return
        self.reporter.warn(f"an earlier deployment of {self.wanted.name} was broken off")
        current = self._find("")
        if current is not None and self._healthy(current):
            self._let_restart(current)
            self._keep(replaced, well=True)
            return
        if current is not None and self._find("-previous") is None:  # perhaps the target of a rollback
            self._stop(current, timeout=10)
            self._rename(current, "-previous")
        else:
            self._remove(current)
        self._revive(replaced, wait=False)

    def _create(self, suffix: str, *, limits: bool = True) -> Running:
        """A new container, not started. An unknown image, mount or option is found before anything stops."""
        api = self.engine.client.api
        wanted = self.wanted if limits else replace(self.wanted, limits=())
        options = create_options(wanted, self.secrets, api) | {"labels": dict(self.wanted.labels)}
        with self._errors(f"a container {self.wanted.name} cannot be made"):
            made = api.create_container(**options, name=f"{self.wanted.name}{suffix}")
            return self.engine.client.containers.get(made["Id"])

    def _start(self, container: Running) -> Running:
        """Start it. Until it is healthy the engine does not restart it: how it ends is then seen.

        An engine that may not raise limits gets a new container without them: what is returned.
        """
        try:
            self._set_restart(container, "no")
            with self._errors(f"{self.wanted.name} cannot be started"):
                container.start()
        except DeployFailed as error:
            limited = container.attrs["HostConfig"].get("Ulimits")
            if (
                "rlimit" not in error.seen
                or not limited
                or container.labels[IDENTITY] != self.wanted.identity
            ):
                raise
            self.reporter.warn(
                "this engine may not raise limits (ulimits): the container has the engine's own"
            )
            self._remove(container)
            return self._start(self._create("", limits=False))
        return container

    def _stop(self, container: Running, timeout: int | None = None) -> None:
        """Stop it so that the engine never starts it by itself, not even after its own restart."""
        seconds = timeout or int(container.attrs["Config"].get("StopTimeout") or 10)
        self._set_restart(container, "no")
        with self._errors(f"{container.name} cannot be stopped"):
            container.stop(timeout=seconds)

    def _let_restart(self, container: Running) -> None:
        """Give it the restart policy that it was made with."""
        self._set_restart(container, container.labels.get(RESTART, "no"))

    def _set_restart(self, container: Running, policy: str) -> None:
        wanted: Any = {"Name": policy}
        with self._errors(f"the restart policy of {container.name} cannot be set"):
            container.reload()
            if container.attrs["HostConfig"]["RestartPolicy"]["Name"] != policy:
                container.update(restart_policy=wanted)

    def _rename(self, container: Running, suffix: str) -> None:
        name = f"{self.wanted.name}{suffix}"
        with self._errors(f"{container.name} cannot be renamed to {name}"):
            if container.name != name:
                container.rename(name)
                container.reload()

    def _remove(self, container: Running | None) -> None:
        if container is not None:
            with self._errors(f"{container.name} cannot be removed"):
                container.remove(force=True, v=True)

    # ---------------------------------------------------------------- looking

    def _find(self, suffix: str) -> Running | None:
        """The container of that name. DeployFailed where it is none of ours."""
        import docker

        name = f"{self.wanted.name}{suffix}"
        with self._errors(f"the engine cannot be asked for {name}"):
            try:
                found = self.engine.client.containers.get(name)
            except docker.errors.NotFound:
                return None
        if LABEL not in found.labels:
            raise DeployFailed(
                f"there is a container {name} that imagebuilder did not make",
                seen=f"made from {found.attrs['Config'].get('Image', '')}",
                hint=f"docker rename {name} SOMETHING, docker rm {name}, or another [deploy.docker] name",
            )
        return found

    def _same(self, container: Running) -> bool:
        """Whether it is what is wanted, with the same image and secrets, and healthy."""
        environment = container.attrs["Config"].get("Env") or []
        return (
            container.labels.get(IDENTITY) == self.wanted.identity
            and container.attrs["Image"] == str(self.engine.id_of(self.wanted.image))
            and all(f"{name}={value}" in environment for name, value in self.secrets.items())
            and self._healthy(container)
        )

    def _healthy(self, container: Running) -> bool:
        """Whether it answers, asked from inside by its own health check, without waiting for the engine's."""
        import docker

        with self._errors(f"{container.name} cannot be looked at"):
            container.reload()
            check = (container.attrs["Config"].get("Healthcheck") or {}).get("Test") or []
            if container.status != "running" or not check:
                return False
            try:
                status, _ = container.exec_run(["/bin/sh", "-c", check[-1]])
            except docker.errors.APIError:  # it ended in between
                return False
        return bool(status == 0)

    def _wait(self, container: Running) -> None:
        """Until it is healthy. DeployFailed with its last words where it ends or takes too long."""
        limit = int(container.attrs["Config"]["Healthcheck"]["StartPeriod"]) // 10**9
        begun, told = self.clock(), 0
        with self.reporter.task(f"waiting for {self.wanted.name}", total=limit, unit="second") as task:
            while not self._healthy(container):
                if why := _ended(container):
                    raise self._failure(container, why)
                passed = int(self.clock() - begun)
                if passed > limit:
                    raise self._failure(container, f"is not healthy after {limit} s")
                task.advance(passed - told)
                told = passed
                self.sleep(_LOOK_SECONDS)

    def _failure(self, container: Running, why: str) -> DeployFailed:
        lines: list[str] = []
        with suppress(Exception):
            lines = container.logs(tail=LOG_LINES).decode(errors="replace").splitlines()
        text = "\n          ".join(line.rstrip() for line in redact(lines, self.secrets) if line.strip())
        return DeployFailed(
            f"{self.wanted.name} {why}",
            seen=text or "(its log is empty)",
            wanted=f"an answer from {self.wanted.health[3]} in the container",
            hint="a longer [deploy.docker] startup-timeout, where loading takes longer"
            if "after" in why
            else "imagebuilder deploy docker STACK --dry-run prints the command, to try it by hand",
        )

    def _outcome(self, what: str, container: Running) -> Outcome:
        return Outcome(what=what, container=str(container.id), image=str(container.attrs["Image"]))

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turns the SDK's errors into ours."""
        import docker
        import requests

        try:
            yield
        except docker.errors.APIError as error:
            raise refused(what, str(error.explanation or error), DeployFailed, "") from error
        except (docker.errors.DockerException, requests.RequestException) as error:
            seen = str(error).splitlines()[0][:300]
            raise MachineLacks(what, seen=seen, hint=start_advice(self.engine.facts.host)) from error


def _ended(container: Running) -> str | None:
    """How it ended, if it did."""
    state = container.attrs["State"]
    if state["Status"] in ("exited", "dead"):
        memory = " for want of memory" if state.get("OOMKilled") else ""
        return f"ended{memory} with status {state.get('ExitCode')} while it started"
    return None
