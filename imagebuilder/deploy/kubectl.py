"""Manifests → a cluster, by kubectl and server-side apply. The runner of commands is passed in."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.deploy.kubernetes import main_object
from imagebuilder.deploy.text import yaml_documents
from imagebuilder.errors import DeployFailed, MachineLacks
from imagebuilder.progress import Reporter

FIELD_MANAGER = "imagebuilder"


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str


Runner = Callable[[Sequence[str], bytes], Done]
"""Runs a command (its words, its standard input) to its end. OSError where it cannot be started."""


def subprocess_runner(environment: Mapping[str, str]) -> Runner:
    """Runs real commands, in this environment."""

    def run(words: Sequence[str], data: bytes) -> Done:
        done = subprocess.run(
            list(words), input=data, env=dict(environment), capture_output=True, check=False
        )
        return Done(
            status=done.returncode,
            out=done.stdout.decode(errors="replace"),
            err=done.stderr.decode(errors="replace"),
        )

    return run


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster as kubectl reaches it. context: of the kubeconfig; None: the current one."""

    run: Runner
    context: str | None = None
    force: bool = False

    def apply(
        self, documents: tuple[dict[str, Any], ...], reporter: Reporter, *, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Apply all, or nothing where the cluster would refuse one of them. What kubectl says of each.

        dry_run: only ask the cluster. Raises DeployFailed, MachineLacks.
        """
        data = yaml_documents(documents).encode()
        words = ["apply", "--server-side", "--field-manager", FIELD_MANAGER, "--filename", "-"]
        words += ["--force-conflicts"] if self.force else []
        with reporter.task("asking the cluster" if dry_run else "applying"):
            said = self.ask([*words, "--dry-run=server"], data, "the cluster does not take the manifests")
            if not dry_run:
                said = self.ask(words, data, "the manifests could not be applied")
        return tuple(line for line in said.splitlines() if line.strip())

    def wait(self, documents: tuple[dict[str, Any], ...], seconds: int, reporter: Reporter) -> None:
        """Until what runs pods is rolled out. DeployFailed."""
        main = main_object(documents)
        name, namespace = main["metadata"]["name"], main["metadata"]["namespace"]
        where = ["--namespace", namespace, f"--timeout={seconds}s"]
        if main["kind"] == "Deployment":
            asked = [["rollout", "status", f"deployment/{name}", *where]]
        else:
            group = f"leaderworkerset.leaderworkerset.x-k8s.io/{name}"
            updated = f"jsonpath={{.status.updatedReplicas}}={main['spec']['replicas']}"
            asked = [
                ["wait", f"--for={wanted}", group, *where] for wanted in (updated, "condition=Available")
            ]
        hint = f"kubectl --namespace {namespace} describe pods --selector app.kubernetes.io/name={name}"
        with reporter.task(f"waiting for {name}"):
            for words in asked:
                self.ask(words, b"", f"{name} did not become available within {seconds} s", hint)

    def command(self, words: Sequence[str]) -> list[str]:
        """kubectl with these words, for this cluster."""
        return ["kubectl", *(["--context", self.context] if self.context else []), *words]

    def ask(self, words: Sequence[str], data: bytes, what: str, hint: str = "") -> str:
        """What kubectl says, which is given `data`. what: the error's words, where it fails. DeployFailed."""
        try:
            done = self.run(self.command(words), data)
        except FileNotFoundError:
            raise MachineLacks(
                "kubectl is not here",
                wanted="kubectl on PATH, to apply manifests with",
                hint="apt-get install kubernetes-client; or apply the YAML that is printed without --apply",
            ) from None
        except OSError as error:
            raise MachineLacks("kubectl cannot be started", seen=str(error)) from error
        if done.status:
            seen = "\n          ".join(line for line in done.err.splitlines() if line.strip()) or done.out
            raise DeployFailed(what, seen=seen, hint=advice(done.err, data) or hint)
        return done.out


_ADVICE = (
    (r"connection refused|no such host|i/o timeout|Unable to connect|no route to host|was refused",
     "does `kubectl cluster-info` answer? --context names another cluster"),
    (r"context \S+ does not exist|no context exists", "kubectl config get-contexts"),
    (r"namespaces? \S+ not found", "kubectl create namespace NAME, or another [deploy.kubernetes] namespace"),
    (r"Unauthorized|must be logged in|credentials", "log in to the cluster: kubectl auth whoami"),
    (r"forbidden", "kubectl auth can-i --list shows what you may do there"),
    (r"conflicts? with|Apply failed with \d+ conflict",
     "somebody else changed those fields: --force-conflicts takes them over"),
    (r"field is immutable|immutable after creation",
     "Kubernetes never changes that field: delete the object first, or give the deployment another name"),
    (r"exceeded quota", "kubectl describe resourcequota"),
    (r"PodSecurity|violates", "the namespace's security level refuses it: [deploy.kubernetes] run-as-user"),
)  # fmt: skip


_UNKNOWN_KIND = r"no matches for kind|could not find the requested resource"
_OWNERS = {
    "LeaderWorkerSet": "LeaderWorkerSet comes with its controller, https://lws.sigs.k8s.io",
    "ServiceMonitor": "ServiceMonitor comes with the Prometheus operator; annotations serve without it",
}


def advice(text: str, data: bytes = b"") -> str:
    """What to do about kubectl's words; empty: nothing is known. data: the manifests it was given."""
    if re.search(_UNKNOWN_KIND, text):
        owners = [owner for kind, owner in _OWNERS.items() if f"kind: {kind}\n".encode() in data]
        if owners:
            return f"the cluster does not know all kinds: {'; '.join(owners)}"
    return next((hint for words, hint in _ADVICE if re.search(words, text)), "")
