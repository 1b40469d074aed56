"""A node of the small API server: it runs a Job's container as processes of this machine.

Containers share this machine's network, so tests give their servers free ports. `says` stands in for a status
that no process here can have: an image that is not found, GPUs that are not there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.command import WAIT
from tests.support.spdy import Session

Json = dict[str, Any]


@dataclass
class Node:
    """folder: where containers start; their logs lie beside it. path: containers' PATH.

    secrets: `secret/key` → value.
    """

    folder: Path
    path: str = field(default_factory=lambda: os.environ["PATH"])
    secrets: dict[str, str] = field(default_factory=dict)
    says: Json | None = None
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    sessions: dict[str, list[Session]] = field(default_factory=dict)
    jobs: dict[str, Json] = field(default_factory=dict)
    seen: list[Json] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # kubectl and the test ask at the same time

    def start(self, job: Json) -> None:
        """The Job's pod, called as the Job."""
        with self._lock:
            self._start(job["metadata"]["name"], job)

    def _start(self, name: str, job: Json) -> None:
        if name in self.jobs:
            return
        self.jobs[name] = job
        self.seen.append(job)
        if self.says is not None:
            return
        (container,) = job["spec"]["template"]["spec"]["containers"]
        with self._log(name).open("wb") as log:
            self.running[name] = subprocess.Popen(
                [word.replace("$$", "$") for word in container["args"]],
                cwd=self.folder,
                env={"PATH": self.path, "TMPDIR": str(self.folder.parent), **self._environment(container)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self, container: Json) -> dict[str, str]:
        given = {}
        for entry in container["env"]:
            if "value" in entry:
                given[entry["name"]] = entry["value"].replace("$$", "$")
            else:
                ref = entry["valueFrom"]["secretKeyRef"]
                given[entry["name"]] = self.secrets[f"{ref['name']}/{ref['key']}"]
        return given

    def _log(self, name: str) -> Path:
        return self.folder.parent / f"{name}.log"

    def log(self, name: str) -> str:
        return self._log(name).read_text() if name in self.running else ""

    def pods(self) -> list[Json]:
        with self._lock:
            return [self._pod(name, job) for name, job in self.jobs.items()]

    def _pod(self, name: str, job: Json) -> Json:
        template = job["spec"]["template"]
        labels = {**template["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
        status = self.says
        if status is None:
            code = self.running[name].poll()
            ended = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
            state = {"running": {}} if code is None else ended
            phase = "Running" if code is None else "Failed" if code else "Succeeded"
            status = {"phase": phase, "containerStatuses": [{"name": "server", "state": state}]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": job["metadata"]["namespace"], "labels": labels},
            "spec": {**template["spec"], "nodeName": "node-1"},
            "status": status,
        }

    def forward(self, name: str, session: Session) -> None:
        """Until either side ends it."""
        self.sessions.setdefault(name, []).append(session)
        session.serve()

    def cut(self) -> None:
        """All connections to pods break."""
        for sessions in self.sessions.values():
            for session in sessions:
                session.close()

    def remove(self, name: str) -> None:
        """Pod and Job are gone, at once for whoever asks."""
        with self._lock:
            self.jobs.pop(name, None)
            process = self.running.pop(name, None)
        if process is not None:
            threading.Thread(target=self._end, args=(process,)).start()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()  # the agent ends what it started
        try:
            process.wait(WAIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        for name in list(self.jobs):
            self.remove(name)
