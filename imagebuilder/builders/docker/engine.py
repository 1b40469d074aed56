"""The Docker Engine, through its SDK: what it is, images in it (load, save, push, remove) and containers."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from imagebuilder.builders.docker.advice import push_advice, refused, start_advice, unreachable
from imagebuilder.errors import BuildFailed, ImagebuilderError, MachineLacks, PushFailed, UsageProblem
from imagebuilder.oci.archive import stream_archive
from imagebuilder.oci.credentials import Credential
from imagebuilder.oci.image import Image
from imagebuilder.progress import Reporter
from imagebuilder.values import Digest, ImageRef

if TYPE_CHECKING:
    import docker

OLDEST_WITH_BUILDKIT = 23
"""Docker's major version whose default builder is BuildKit with all that our Dockerfiles use."""
T = TypeVar("T")

DEFAULT_HOST = "unix:///var/run/docker.sock"
_CHUNK = 1 << 20
_SECONDS = 60
_WORK_SECONDS = 3600  # a large image is unpacked, saved or removed in minutes of silence


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What an engine is. store: `containerd`, or the name of its graph driver (`overlay2`)."""

    host: str
    version: str
    store: str
    architecture: str
    root: str
    nvidia: bool

    @property
    def major(self) -> int:
        """26 for 26.1.5."""
        head = self.version.partition(".")[0]
        return int(head) if head.isdigit() else 0

    @property
    def has_containerd_store(self) -> bool:
        """Whether containerd keeps the images: then it exports layouts, and keeps manifests as they are."""
        return self.store == "containerd"

    @property
    def builds(self) -> bool:
        """Whether its own builder is a BuildKit that our Dockerfiles can use."""
        return self.major >= OLDEST_WITH_BUILDKIT


def host_of(environment: Mapping[str, str]) -> str:
    """Where the docker command would look: DOCKER_HOST, the chosen context, or the default socket."""
    if host := environment.get("DOCKER_HOST"):
        return host
    folder = Path(environment.get("DOCKER_CONFIG") or Path(environment.get("HOME", "/")) / ".docker")
    name = environment.get("DOCKER_CONTEXT")
    with suppress(OSError, ValueError, KeyError, TypeError):
        name = name or json.loads((folder / "config.json").read_bytes())["currentContext"]
    if not name or name == "default":
        return DEFAULT_HOST
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    try:
        return str(json.loads(meta.read_bytes())["Endpoints"]["docker"]["Host"])
    except (OSError, ValueError, KeyError, TypeError):
        raise MachineLacks(
            f"docker's context {name!r} cannot be read", seen=str(meta), hint="docker context ls"
        ) from None


class Engine:
    """An engine that answers. Use as a context manager, or close it."""

    def __init__(self, client: docker.DockerClient, facts: EngineFacts) -> None:
        self.client = client
        self.facts = facts

    @classmethod
    def connect(cls, environment: Mapping[str, str]) -> Engine:
        """The engine that this environment leads to. MachineLacks says why there is none, and what to do."""
        import docker

        host = host_of(environment)
        try:
            client = docker.DockerClient.from_env(
                environment={**environment, "DOCKER_HOST": host}, timeout=_SECONDS, use_ssh_client=True
            )
            info: dict[str, Any] = client.info()
        except Exception as error:  # the SDK lets those of urllib3, requests and ssh through
            raise unreachable(host, error) from error
        status = {tuple(pair) for pair in info.get("DriverStatus") or ()}
        containerd = ("driver-type", "io.containerd.snapshotter.v1") in status
        facts = EngineFacts(
            host=host,
            version=str(info.get("ServerVersion", "")),
            store="containerd" if containerd else str(info.get("Driver", "")),
            architecture=str(info.get("Architecture", "")),
            root=str(info.get("DockerRootDir", "")),
            nvidia="nvidia" in (info.get("Runtimes") or {}),
        )
        return cls(client, facts)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self.client.close()

    @property
    def _api(self) -> Any:
        """The SDK's lower layer, of which its type stubs know only a part."""
        return self.client.api

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        """For work in which the engine may say nothing for minutes."""
        before, self._api.timeout = self._api.timeout, _WORK_SECONDS
        try:
            yield
        finally:
            self._api.timeout = before

    # ---------------------------------------------------------------- images

    def load(self, image: Image, names: Sequence[ImageRef], reporter: Reporter) -> None:
        """Bring an image of ours into the engine under these names, if it is not there yet."""
        if names and all(self.id_of(name) in (image.config_digest, image.digest) for name in names):
            return
        total = sum(layer.descriptor.size for layer in image.layers)
        with (
            reporter.task("loading into the engine", total=total) as task,
            self._patiently(),
            self._errors(f"the engine does not take the image {names[0] if names else image.config_digest}"),
            closing(_piped(lambda out: stream_archive(out, image, names))) as chunks,
        ):

            def counted() -> Iterator[bytes]:
                for chunk in chunks:
                    task.advance(len(chunk))
                    yield chunk

            for message in self._api.load_image(counted()):
                if message.get("error"):
                    raise BuildFailed("the engine does not take the image", seen=str(message["error"]))
        for name in names:
            self._check(name, image)

    def _check(self, name: ImageRef, image: Image) -> None:
        """An engine's id of an image is its config's digest, or with containerd's store its manifest's."""
        seen = self.id_of(name)
        if seen not in (image.config_digest, image.digest):
            raise BuildFailed(
                f"the engine made another image of {name}",
                seen=str(seen),
                wanted=str(image.digest if self.facts.has_containerd_store else image.config_digest),
            )

    def id_of(self, name: ImageRef | str) -> Digest | None:
        """What the engine knows the image by; None: it has none of that name."""
        import docker

        with self._errors(f"the engine cannot be asked for {name}"):
            try:
                return Digest(str(self._api.inspect_image(str(name))["Id"]))
            except docker.errors.ImageNotFound:
                return None

    def remove(self, name: ImageRef | str) -> None:
        """Take a name away, and the image with its last one. No error where there is none."""
        import docker

        with (
            self._patiently(),
            self._errors(f"{name} cannot be removed"),
            suppress(docker.errors.ImageNotFound),
        ):
            self.client.api.remove_image(str(name))

    def saved(self, name: str, folder: Path, read: Callable[[Iterator[bytes], Path], T]) -> T:
        """What `read` makes of the image's `docker save` stream; `folder` is made for it."""
        folder.mkdir()
        with self._patiently(), self._errors(f"the engine cannot save {name}"):
            return read(self.client.api.get_image(name, chunk_size=_CHUNK), folder)

    def push(self, name: ImageRef, credential: Credential | None, reporter: Reporter) -> Digest:
        """Push; the digest of the manifest as the registry has it. PushFailed."""
        login = None
        if credential is not None:
            login = {"username": credential.username, "password": credential.secret}
            if credential.identity_token:
                login = {"identitytoken": credential.identity_token}
        pushed: Digest | None = None
        done: dict[str, int] = {}
        with (
            reporter.task(f"pushing {name}") as task,
            self._patiently(),
            self._errors(f"{name} cannot be pushed", PushFailed, hint=f"docker login {name.registry}"),
        ):
            # An empty login keeps the SDK from looking for one itself, in this process's own environment.
            messages = self.client.api.push(
                name.name, tag=name.tag, stream=True, decode=True, auth_config=login or {}
            )
            for message in messages:
                if message.get("error"):
                    raise PushFailed(
                        f"the registry {name.registry} did not take {name}",
                        seen=str(message["error"]),
                        hint=push_advice(str(message["error"]), name),
                    )
                current = int((message.get("progressDetail") or {}).get("current") or 0)
                task.advance(max(0, current - done.get(message.get("id", ""), 0)))
                done[message.get("id", "")] = max(current, done.get(message.get("id", ""), 0))
                if digest := (message.get("aux") or {}).get("Digest"):
                    pushed = Digest(digest)
        if self.facts.has_containerd_store:
            pushed = pushed or self.id_of(name)  # it pushes the manifest that it has, and does not say so
        if pushed is None:
            raise PushFailed(f"the engine did not say what it pushed as {name}")
        return pushed

    # ---------------------------------------------------------------- containers

    def container(self, identity: str) -> dict[str, Any]:
        """What the engine says of a container. UsageProblem: it has none of that name or id."""
        import docker

        with self._errors(f"the engine cannot be asked for {identity}"):
            try:
                found: dict[str, Any] = self._api.inspect_container(identity)
            except docker.errors.NotFound:
                raise UsageProblem(
                    f"the engine has no container {identity}", hint="docker ps --all"
                ) from None
        return found

    def image(self, identity: str) -> dict[str, Any]:
        """What the engine says of an image; nothing where it is gone."""
        import docker

        with self._errors(f"the engine cannot be asked for {identity}"):
            try:
                found: dict[str, Any] = self._api.inspect_image(identity)
            except docker.errors.ImageNotFound:
                return {}
        return found

    @contextmanager
    def exporting(self, identity: str) -> Iterator[Iterator[bytes]]:
        """A container's file system as a tar, in pieces; it may be left before its end."""
        with self._patiently(), self._errors(f"the engine cannot export {identity}"):
            chunks = self.client.api.export(identity, chunk_size=_CHUNK)
            try:
                yield iter(chunks)
            finally:
                if (close := getattr(chunks, "close", None)) is not None:
                    close()

    @contextmanager
    def _errors(
        self, what: str, kind: type[ImagebuilderError] = MachineLacks, hint: str = ""
    ) -> Iterator[None]:
        """Turns the SDK's errors into ours."""
        import docker
        import requests

        try:
            yield
        except docker.errors.APIError as error:
            raise refused(what, str(error.explanation or error), kind, hint) from error
        except (docker.errors.DockerException, requests.RequestException) as error:
            seen = str(error).splitlines()[0][:300]
            raise MachineLacks(what, seen=seen, hint=start_advice(self.facts.host)) from error


def _piped(write: Callable[[BinaryIO], None]) -> Generator[bytes]:
    """What `write(out)` writes, in pieces, while it is written by a thread; its exception becomes ours."""
    reading, writing = os.pipe()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with os.fdopen(writing, "wb", buffering=_CHUNK) as out:
                write(out)
        except BaseException as error:  # handed over to the reader
            failures.append(error)

    thread = threading.Thread(target=work, name="image archive", daemon=True)
    thread.start()
    try:
        with os.fdopen(reading, "rb", buffering=0) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    finally:
        thread.join()  # with the reading end closed, the writer fails at its next piece
        if failures and not isinstance(failures[0], BrokenPipeError):
            raise failures[0]
