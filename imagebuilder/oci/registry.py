"""A registry: manifests and blobs, in both directions. Source: opencontainers/distribution-spec 1.1.

Reading asks the configured mirror first. What is read by digest is verified, so a mirror need not be trusted.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

from imagebuilder.errors import ArtefactUnusable, UsageProblem
from imagebuilder.oci.auth import pull_scope
from imagebuilder.oci.canonical import decode
from imagebuilder.oci.credentials import DockerCredentials
from imagebuilder.oci.descriptor import INDEXES, MANIFESTS, MAX_MANIFEST, Descriptor, document_type
from imagebuilder.oci.download import Download
from imagebuilder.oci.model import Manifest
from imagebuilder.oci.problems import Errand, misbehaves
from imagebuilder.oci.referrers import Referrers
from imagebuilder.oci.transport import Broken, Transport, read_all
from imagebuilder.oci.upload import Body, Uploads
from imagebuilder.values import Digest, is_loopback

if TYPE_CHECKING:
    import requests

    from imagebuilder.cache import Cache
    from imagebuilder.settings import Settings

MAX_TAGS = 100_000
_ACCEPT = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
_NEXT = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Document:
    """A manifest or index as a registry has it: its exact bytes, its media type, their digest."""

    data: bytes
    media_type: str
    digest: Digest


class Registry:
    """The registry that image references name `host`; may be shared between threads.

    credentials: where logins are found (default: Docker's, as the settings say). pause: waits between tries.
    Reading ends in ArtefactUnusable, writing in PushFailed, both with advice; a certificate that is not
    trusted and a credential helper that fails are MachineLacks.
    """

    def __init__(
        self,
        host: str,
        settings: Settings,
        credentials: DockerCredentials | None = None,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        from imagebuilder.index.http import session

        logins = credentials or DockerCredentials.of(settings)
        http = session(settings, logins=False, pause=pause)
        self.host = host
        self._own = Transport(host, http, lambda: logins.find(host))
        self._uploads = Uploads(self._own)
        self._referrers = Referrers(self._own, self._uploads)
        self._mirrors: list[tuple[Transport, str]] = []
        if mirror := settings.registry_mirrors.get(host):
            name, prefix = _parse_mirror(mirror)
            self._mirrors.append((Transport(name, http, lambda: logins.find(name)), prefix))

    def manifest(
        self, repository: str, reference: str | Digest, *, mirrors: bool = True, tag: str = ""
    ) -> Document:
        """The manifest or index under that tag or digest. mirrors: those configured are asked first.

        tag: what the digest was called when it was pinned, for errors.
        """
        named = f"{repository}:{tag}" if tag else repository
        at = "@" if isinstance(reference, Digest) else ":"
        errand = Errand(thing=f"the manifest of {self.host}/{named}{at}{reference}")

        def read(source: Transport, prefix: str) -> Document:
            path = f"v2/{prefix}{repository}/manifests/{reference}"
            scopes = (pull_scope(prefix + repository),)
            try:
                response = source.request("GET", path, errand, scopes=scopes, headers=_ACCEPT)
                data = read_all(response, MAX_MANIFEST)
            except Broken as exc:
                raise source.broken(errand, str(exc)) from None
            return _document(data, response, reference, errand, source.host)

        return self._from_sources(read) if mirrors else read(self._own, "")

    def blob(
        self,
        repository: str,
        descriptor: Descriptor,
        cache: Cache,
        *,
        advance: Callable[[int], None] = lambda amount: None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Path:
        """The blob's file in the cache; downloaded where it is not there, resumed, verified on the way."""
        errand = Errand(thing=f"blob {descriptor.digest} of {self.host}/{repository}")

        def read(source: Transport, prefix: str) -> Path:
            with cache.put_artefact(descriptor.digest, cancelled) as incoming:
                if incoming is not None:
                    Download(
                        source=source,
                        repository=prefix + repository,
                        wanted=descriptor,
                        errand=errand,
                        incoming=incoming,
                        advance=advance,
                    ).run()
            path = cache.artefact(descriptor.digest)
            if path is None:
                raise ArtefactUnusable(f"{errand.thing} was removed from the cache while it was used")
            return path

        path = cache.artefact(descriptor.digest) or self._from_sources(read)
        if path.stat().st_size != descriptor.size:
            raise misbehaves(
                errand, self.host, f"{descriptor.size} bytes", wanted=f"{path.stat().st_size} bytes"
            )
        return path

    def tags(self, repository: str, most: int = MAX_TAGS) -> tuple[str, ...]:
        """The tags of a repository, in the registry's order; no further page is asked for after `most`."""
        errand = Errand(thing=f"the tags of {self.host}/{repository}")
        found: list[str] = []
        path = f"v2/{repository}/tags/list?n=1000"
        while path and len(found) < most:
            response = self._own.request("GET", path, errand, scopes=(pull_scope(repository),))
            try:
                page = decode(read_all(response, MAX_MANIFEST), limit=MAX_MANIFEST).texts("tags")
            except Broken as exc:
                raise self._own.broken(errand, str(exc)) from None
            except ValueError as exc:
                raise misbehaves(errand, self.host, str(exc)[:300]) from None
            found += page
            more = _NEXT.search(response.headers.get("Link", "")) if page else None
            path = urljoin(response.url, more[1]) if more else ""
            if path and urlsplit(path).netloc != urlsplit(response.url).netloc:
                raise misbehaves(errand, self.host, "the next page of tags is on another host")
        return tuple(found)

    def blob_exists(self, repository: str, digest: Digest) -> bool:
        """Whether the repository has the blob (asked with the right to push)."""
        return self._uploads.blob_exists(repository, digest)

    def push_blob(
        self, repository: str, digest: Digest, body: Body, *, mount_from: Sequence[str] = ()
    ) -> str:
        """Brings a blob into the repository: "exists", "mounted" (from one of `mount_from`) or "pushed".

        body: bytes, or `upload.FileBody` for a file. A broken upload is begun again, some times.
        """
        return self._uploads.blob(repository, digest, body, mount_from)

    def push_manifest(self, repository: str, data: bytes, media_type: str, tag: str | None = None) -> Digest:
        """Puts a manifest or index under its digest, or under a tag; what it refers to must be there."""
        return self._uploads.manifest(repository, data, media_type, tag or Digest.of(data).text).digest

    def referrers(self, repository: str, subject: Digest) -> tuple[Descriptor, ...]:
        """What refers to this manifest; the tag for registries without the API is read too."""
        return self._referrers.listed(repository, subject)

    def push_referrer(self, repository: str, manifest: Manifest, data: bytes | None = None) -> Digest:
        """Puts a manifest that has a `subject` under its digest, and makes it a referrer of that.

        data: the bytes of a manifest that exists already, whose digest is to stay.
        """
        return self._referrers.push(repository, manifest, data or manifest.to_bytes())

    def _from_sources(self, read: Callable[[Transport, str], T]) -> T:
        """What the mirror has, else what the registry has; where both fail, the error tells of both."""
        passed_over = ""
        for source, prefix in self._mirrors:
            try:
                return read(source, prefix)
            except ArtefactUnusable as exc:
                passed_over += f"; and its mirror {source.host}: {exc.seen or exc.what}"
        try:
            return read(self._own, "")
        except ArtefactUnusable as exc:
            exc.seen += passed_over
            raise


def _document(
    data: bytes, response: requests.Response, reference: str | Digest, errand: Errand, host: str
) -> Document:
    if len(data) > MAX_MANIFEST:
        raise misbehaves(errand, host, "a larger manifest", wanted=f"at most {MAX_MANIFEST} bytes")
    digest = Digest.of(data)
    promised = str(
        reference if isinstance(reference, Digest) else response.headers.get("Docker-Content-Digest", digest)
    )
    if promised != digest.text:
        raise misbehaves(errand, host, f"a manifest that is {digest}", wanted=promised[:100])
    try:
        media_type = document_type(decode(data, limit=MAX_MANIFEST))
    except ValueError as exc:
        raise misbehaves(
            errand, host, str(exc)[:300], wanted="a manifest or index of OCI or Docker"
        ) from None
    return Document(data=data, media_type=media_type, digest=digest)


def _parse_mirror(text: str) -> tuple[str, str]:
    """(host, prefix of repositories) of a mirror such as `mirror.example:5000` or `https://harbor.example/hub`."""
    parts = urlsplit(text if "://" in text else f"//{text}")
    if not parts.netloc or (parts.scheme == "http" and not is_loopback(parts.netloc)):
        raise UsageProblem(
            f"the registry mirror {text} cannot be used",
            wanted="host[:port][/prefix], spoken to over https",
            hint="correct [registry] in the configuration, or IMAGEBUILDER_REGISTRY_MIRRORS",
        )
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""
