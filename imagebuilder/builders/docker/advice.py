"""What usually lies behind a failed build, push or run, and what to do: known words of the tools → advice."""

from __future__ import annotations

import re
from dataclasses import dataclass

from imagebuilder.errors import ArtefactUnusable, BuildFailed, ImagebuilderError, MachineLacks
from imagebuilder.values import ImageRef


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Words that tools use for one situation, the error it is, and the way out."""

    words: str
    error: type[ImagebuilderError]
    what: str
    hint: str


# The first that matches counts: from the particular to the general.
BUILD_CAUSES = (
    Cause(
        words=r"no space left on device|disk quota exceeded",
        error=MachineLacks,
        what="the engine's disk is full",
        hint="docker system df; docker builder prune; docker image prune",
    ),
    Cause(
        words=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|certificate is NOT trusted"
        r"|x509: certificate signed by unknown authority|server certificate verification failed",
        error=BuildFailed,
        what="a server's certificate is not trusted inside the build",
        hint="IMAGEBUILDER_CA_BUNDLE=FILE names the private authority; the build does not keep it",
    ),
    Cause(
        words=r"HASHES|do not match the hashes|Expected sha256|Hash Sum mismatch",
        error=ArtefactUnusable,
        what="the build was given another file than the one that is locked",
        hint="is a proxy or mirror serving stale files? `imagebuilder fetch STACK` says which",
    ),
    Cause(
        words=r"apt \S+ cannot read snapshots",
        error=BuildFailed,
        what="the base image's apt is too old to install packages as of a date",
        hint='[system] resolve = "lock" puts the packages in the lock',
    ),
    Cause(
        words=r"Temporary failure in name resolution|Temporary failure resolving|Could not resolve"
        r"|Network is unreachable|Failed to establish a new connection|NameResolutionError|no such host"
        r"|Connection timed out|Max retries exceeded|Could not connect to",
        error=BuildFailed,
        what="there is no network inside the build, or not to where the wheels and packages are",
        hint="--vendored builds from files that imagebuilder fetches here",
    ),
    Cause(
        words=r"No matching distribution found",
        error=ArtefactUnusable,
        what="an index no longer has a locked wheel",
        hint="imagebuilder lock STACK --upgrade, or --vendored if `imagebuilder fetch` has it",
    ),
    Cause(
        words=r"Unable to locate package|has no installation candidate|Version '\S+' for '\S+' was not found",
        error=BuildFailed,
        what="the archive that apt sees has not a package of [system]",
        hint="look at [system] packages and snapshot in the stack file",
    ),
    Cause(
        words=r"pull access denied|manifest unknown|repository does not exist"
        r"|failed to resolve source metadata",
        error=BuildFailed,
        what="the engine cannot get the base image",
        hint="docker login, a mirror in the engine's daemon.json, or a stack with a Debian base",
    ),
    Cause(
        words=r"Cannot connect to the Docker daemon|connection refused|closing transport|transport is closing"
        r"|error reading from server|EOF|connection reset|use of closed network|graceful_stop"
        r"|context canceled",
        error=MachineLacks,
        what="the Docker Engine stopped, or closed the connection, while it was building",
        hint="start it again and repeat the command: finished steps are kept",
    ),
    Cause(
        words=r"unknown flag: --mount|unknown frontend|requires BuildKit",
        error=MachineLacks,
        what="this engine's builder is too old",
        hint="use Docker Engine 23 or newer, or --builder direct, which needs no engine",
    ),
)


def explain(text: str, what: str, *, lines: list[str], otherwise: str) -> ImagebuilderError:
    """The error for a failed build whose output has `text`; `lines` are what the user should see of it."""
    seen = "\n          ".join(line.rstrip() for line in lines[-6:] if line.strip())
    for cause in BUILD_CAUSES:
        if re.search(cause.words, text):
            return cause.error(f"{what}: {cause.what}", seen=seen, hint=cause.hint)
    return BuildFailed(what, seen=seen, hint=otherwise)


NO_ENGINE_NEEDED = "or use --builder direct, which needs no engine"


def unreachable(host: str, error: Exception) -> MachineLacks:
    """There is no engine at `host`, or none for this user."""
    text = str(error)
    if "Permission denied" in text:
        return MachineLacks(
            f"you may not use the Docker Engine at {host}",
            seen="permission denied",
            hint="sudo usermod -aG docker $USER, then log in again",
        )
    return MachineLacks(
        f"no Docker Engine answers at {host}",
        seen=text.splitlines()[0][:300] if text else type(error).__name__,
        hint=start_advice(host),
    )


def start_advice(host: str) -> str:
    """How to get an engine that answers at `host`."""
    if host.startswith("unix://"):
        return "start it (systemctl start docker), or set DOCKER_HOST"
    return "check DOCKER_HOST and `docker context ls`"


def refused(what: str, text: str, kind: type[ImagebuilderError], hint: str) -> ImagebuilderError:
    """The engine answered with an error: `text` is its explanation."""
    if "could not select device driver" in text and "gpu" in text:
        return MachineLacks(
            "this engine has no GPUs to give to containers",
            seen=text,
            hint="install NVIDIA's container toolkit, then: "
            "nvidia-ctk runtime configure --runtime=docker; systemctl restart docker",
        )
    if "no space left" in text:
        return MachineLacks(
            what, seen=text, hint="docker system df; docker builder prune; docker image prune"
        )
    return kind(what, seen=text, hint=hint)


def push_advice(text: str, name: ImageRef) -> str:
    """What to do when a registry did not take an image with these words."""
    if any(word in text for word in ("denied", "unauthorized", "authentication required", "no basic auth")):
        return f"docker login {name.registry}, with an account that may push to {name.repository}"
    if "HTTP response to HTTPS client" in text:
        return f"add {name.registry} to insecure-registries in the engine's daemon.json, or give it TLS"
    if "x509" in text or "certificate" in text:
        return f"put the registry's CA in /etc/docker/certs.d/{name.registry}/ca.crt on the engine's machine"
    return "look at the registry's log; finished layers are not pushed again"
