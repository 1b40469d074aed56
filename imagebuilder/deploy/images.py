"""Images for an engine: there already, or pulled."""

from __future__ import annotations

from imagebuilder.builders.docker.engine import Engine
from imagebuilder.errors import DeployFailed
from imagebuilder.oci.credentials import Credential
from imagebuilder.progress import Reporter
from imagebuilder.values import Digest, ImageRef


def bring(engine: Engine, ref: ImageRef, credential: Credential | None, reporter: Reporter) -> Digest:
    """The engine's id of the image, which is pulled where it is not there. Raises DeployFailed."""
    import docker
    import requests

    if found := engine.id_of(ref):
        return found
    login = None
    if credential is not None:
        login = {"username": credential.username, "password": credential.secret}
        if credential.identity_token:
            login = {"identitytoken": credential.identity_token}
    try:
        with reporter.task(f"pulling {ref}"):
            # An empty login keeps the SDK from looking for one in this process's own environment.
            engine.client.api.pull(ref.name, tag=str(ref.digest or ref.tag), auth_config=login or {})
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise DeployFailed(
            f"the engine cannot get {ref}",
            seen=str(getattr(error, "explanation", None) or error).splitlines()[0][:300],
            hint=f"docker login {ref.registry}, or without --image: the image that was built here",
        ) from error
    pulled = engine.id_of(ref)
    if pulled is None:
        raise DeployFailed(f"the engine pulled {ref} and does not know it")
    return pulled
