"""A way from a port of this machine's loopback address to one of a pod: `kubectl port-forward`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping

from imagebuilder.accept.process import die_with_parent, end
from imagebuilder.deploy.kubectl import Cluster, advice
from imagebuilder.errors import MachineLacks

_OPEN_SECONDS = 60
_TAIL = 4096


class Forward:
    """Open from the start until `close`, or until kubectl ends. MachineLacks where it does not open."""

    def __init__(
        self,
        cluster: Cluster,
        environment: Mapping[str, str],
        namespace: str,
        pod: str,
        *,
        local: int,
        remote: int,
    ) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        words = ["port-forward", "--namespace", namespace, "--address", "127.0.0.1", f"pod/{pod}"]
        self._process = subprocess.Popen(
            cluster.command([*words, f"{local}:{remote}"]),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to handle
            preexec_fn=die_with_parent,  # noqa: PLW1509 - it calls one C function
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + _OPEN_SECONDS
        while "Forwarding from" not in self.words():
            if not self.open or time.monotonic() > deadline:
                words = self.words().strip()
                raise MachineLacks(
                    "the pod's port cannot be reached from here",
                    seen=words or "kubectl port-forward said nothing",
                    hint=advice(words) or "kubectl auth can-i create pods/portforward",
                )
            time.sleep(0.05)

    @property
    def open(self) -> bool:
        """Whether kubectl still forwards."""
        return self._process.poll() is None

    def words(self) -> str:
        """What kubectl said, the end of it."""
        number = self._said.fileno()
        size = os.fstat(number).st_size
        # Not by seek: kubectl writes where that would lead.
        return os.pread(number, _TAIL, max(0, size - _TAIL)).decode(errors="replace")

    def close(self) -> None:
        """May be called again."""
        end(self._process)
        if not self._said.closed:
            self._said.close()
