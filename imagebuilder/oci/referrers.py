"""What refers to a manifest (SBOMs, reports, signatures): by the API, or by a tag where there is none.

Source: opencontainers/distribution-spec 1.1, "Listing Referrers", "Referrers Tag Schema" and "Pushing
Manifests with Subject". Where there is no API (docker-registry 2.8, GHCR, GitLab), an index under the tag
`sha256-<hex>` takes its place, which clients maintain.
"""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urljoin, urlsplit

from imagebuilder.errors import ArtefactUnusable, PushFailed
from imagebuilder.oci.auth import pull_scope, push_scope
from imagebuilder.oci.canonical import decode
from imagebuilder.oci.descriptor import (
    INDEXES,
    MAX_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Descriptor,
    document_type,
)
from imagebuilder.oci.model import ImageIndex, Manifest
from imagebuilder.oci.problems import Errand, misbehaves
from imagebuilder.oci.transport import Broken, Transport, read_all
from imagebuilder.oci.upload import Uploads
from imagebuilder.values import Digest

MAX_PAGES = 100
_NEXT = re.compile(r'<([^>]*)>\s*;\s*rel="?next"?')
_TRIES = 3  # two clients that write the tag at once overwrite each other


def fallback_tag(subject: Digest) -> str:
    """The tag that holds the index of a manifest's referrers."""
    return subject.text.replace(":", "-")


class Referrers:
    """Reads and writes referrers in the registry that `target` speaks to, never in a mirror."""

    def __init__(self, target: Transport, uploads: Uploads) -> None:
        self._target = target
        self._uploads = uploads

    def listed(self, repository: str, subject: Digest) -> tuple[Descriptor, ...]:
        """The manifests that refer to `subject`. ArtefactUnusable."""
        errand = Errand(thing=f"what refers to {self._target.host}/{repository}@{subject}")
        by_api = self._by_api(repository, subject, errand)
        if by_api is not None:
            return by_api
        return self._by_tag(repository, subject, errand, pull_scope(repository))

    def push(self, repository: str, manifest: Manifest, data: bytes) -> Digest:
        """Puts the manifest, whose bytes these are, and sees to it that it is listed. PushFailed."""
        subject = manifest.subject
        assert subject is not None, "a referrer names what it refers to"
        stored = self._uploads.manifest(repository, data, manifest.media_type, Digest.of(data).text)
        if not stored.listed:
            entry = replace(
                Descriptor.of(manifest.media_type, data, manifest.annotations),
                artifact_type=manifest.artifact_type or manifest.config.media_type,
            )
            self._list_by_tag(repository, subject.digest, entry)
        return stored.digest

    def _by_api(self, repository: str, subject: Digest, errand: Errand) -> tuple[Descriptor, ...] | None:
        """None: the registry has no such API."""
        found: list[Descriptor] = []
        path = f"v2/{repository}/referrers/{subject}"
        for _ in range(MAX_PAGES):
            response = self._target.request(
                "GET",
                path,
                errand,
                scopes=(pull_scope(repository),),
                ok=(200, 400, 404, 405, 501),
                headers={"Accept": OCI_INDEX},
            )
            if response.status_code != 200:
                response.close()
                return None
            try:
                data = read_all(response, MAX_MANIFEST)
                if document_type(decode(data, limit=MAX_MANIFEST)) not in INDEXES:
                    return None  # a page of something else that answers 200 to everything
                found += ImageIndex.parse(data).manifests
            except Broken as exc:
                raise self._target.broken(errand, str(exc)) from None
            except ValueError as exc:
                raise misbehaves(errand, self._target.host, str(exc)[:300]) from None
            more = _NEXT.search(response.headers.get("Link", ""))
            if not more:
                break
            path = urljoin(response.url, more[1])
            if urlsplit(path).netloc != urlsplit(response.url).netloc:
                raise misbehaves(errand, self._target.host, "the next page is on another host")
        return tuple(found)

    def _by_tag(self, repository: str, subject: Digest, errand: Errand, scope: str) -> tuple[Descriptor, ...]:
        with self._target.request(
            "GET",
            f"v2/{repository}/manifests/{fallback_tag(subject)}",
            errand,
            scopes=(scope,),
            ok=(200, 404),
            headers={"Accept": f"{OCI_INDEX}, {OCI_MANIFEST}"},
        ) as response:
            if response.status_code == 404:
                return ()
            try:
                data = read_all(response, MAX_MANIFEST)
                if Digest.of(data) == subject:  # GitLab reads the tag as the digest itself
                    return ()
                if document_type(decode(data, limit=MAX_MANIFEST)) not in INDEXES:
                    return ()
                return ImageIndex.parse(data).manifests
            except Broken as exc:
                raise self._target.broken(errand, str(exc)) from None
            except ValueError as exc:
                raise misbehaves(errand, self._target.host, str(exc)[:300]) from None

    def _list_by_tag(self, repository: str, subject: Digest, entry: Descriptor) -> None:
        tag = fallback_tag(subject)
        errand = Errand(
            thing=f"the list of what refers to {self._target.host}/{repository}@{subject}", pushing=True
        )
        for _ in range(_TRIES):
            there = self._by_tag(repository, subject, errand, push_scope(repository))
            if any(known.digest == entry.digest for known in there):
                return
            index = ImageIndex(manifests=(*there, entry))
            self._uploads.manifest(repository, index.to_bytes(), OCI_INDEX, tag)
        try:
            there = self._by_tag(repository, subject, errand, push_scope(repository))
        except ArtefactUnusable as exc:
            raise PushFailed(exc.what, seen=exc.seen, hint=exc.hint) from None
        if all(known.digest != entry.digest for known in there):
            raise misbehaves(
                errand,
                self._target.host,
                f"the tag {tag} does not keep what is put there",
                hint="push without evidence (--no-evidence), or to a registry with OCI 1.1's referrers",
            )
