"""Referrers: with the API, with a tag in its place, and against registries that get it wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from imagebuilder.errors import ArtefactUnusable, PushFailed
from imagebuilder.oci.descriptor import OCI_INDEX
from imagebuilder.oci.image import Image
from imagebuilder.oci.model import ImageIndex
from imagebuilder.oci.push import push_image
from imagebuilder.oci.referrers import fallback_tag
from imagebuilder.oci.registry import Registry
from imagebuilder.publish.evidence import ACCEPTANCE_TYPE, SBOM_TYPE, Evidence, attach
from imagebuilder.values import Digest
from tests.support.fake_registry import FakeRegistry, Handler, drop, status
from tests.support.registry import TestRegistry

Connect = Callable[[str], Registry]
SBOM = Evidence(kind="sbom", data=b'{"bomFormat":"CycloneDX"}')
ACCEPTANCE = Evidence(
    kind="acceptance", data=b'{"outcome":"pass"}', annotations=(("dev.imagebuilder.outcome", "pass"),)
)


def with_api(fake: FakeRegistry, *, pages: bool = False) -> None:
    """Teach the registry OCI 1.1's referrers."""

    def answer(handler: Handler) -> None:
        match = re.match(r"/v2/(.+)/referrers/(sha256:[0-9a-f]{64})(?:\?from=(\d+))?", handler.path)
        assert match
        entries = []
        for (repository, reference), (kind, data) in fake.manifests.items():
            value = json.loads(data)
            if (
                repository == match[1]
                and ":" in reference
                and value.get("subject", {}).get("digest") == match[2]
            ):
                entry = {"mediaType": kind, "digest": reference, "size": len(data)}
                entries.append({**entry, "artifactType": value["artifactType"]})
        start = int(match[3] or 0)
        more: dict[str, str] = {}
        if pages and start + 1 < len(entries):
            more["Link"] = f'</v2/{match[1]}/referrers/{match[2]}?from={start + 1}>; rel="next"'
        shown = entries[start : start + 1] if pages else entries
        body = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": shown}
        handler.reply(200, json.dumps(body).encode(), Content_Type=OCI_INDEX, **more)

    def put(handler: Handler) -> None:
        original = handler.reply

        def reply(code: int, body: bytes = b"", **headers: str) -> None:
            original(code, body, **{**headers, "OCI_Subject": "yes"})

        handler.reply = reply  # type: ignore[method-assign, assignment]
        handler.serve()

    fake.on(r"GET /v2/.+/referrers/", answer)
    fake.on(r"PUT /v2/.+/manifests/sha256:", put)


def pushed(registry: Registry, image: Image) -> Registry:
    push_image(registry, "a", image)
    return registry


def types(registry: Registry, image: Image) -> list[str]:
    return sorted(d.artifact_type for d in registry.referrers("a", image.digest))


@pytest.mark.parametrize("pages", [False, True])
def test_with_the_api(pages: bool, fake: FakeRegistry, connect: Connect, image: Image) -> None:
    with_api(fake, pages=pages)
    registry = pushed(connect(fake.host), image)
    attach(registry, "a", image.descriptor, SBOM)
    attach(registry, "a", image.descriptor, ACCEPTANCE)
    assert types(registry, image) == [SBOM_TYPE, ACCEPTANCE_TYPE]
    assert ("a", fallback_tag(image.digest)) not in fake.manifests


def test_with_a_tag_in_its_place(fake: FakeRegistry, connect: Connect, image: Image) -> None:
    registry = pushed(connect(fake.host), image)
    assert types(registry, image) == []
    for evidence in (SBOM, ACCEPTANCE, SBOM):
        attach(registry, "a", image.descriptor, evidence)
    assert types(registry, image) == [SBOM_TYPE, ACCEPTANCE_TYPE]
    index = ImageIndex.parse(fake.manifests[("a", fallback_tag(image.digest))][1])
    assert dict(index.manifests[1].annotations) == {"dev.imagebuilder.outcome": "pass"}


def test_a_real_registry_of_the_old_kind(each_registry: TestRegistry, connect: Connect, image: Image) -> None:
    registry = connect(each_registry.host)
    repository = f"referrers/{image.digest.short}"
    push_image(registry, repository, image, ["1.0"])
    digest = attach(registry, repository, image.descriptor, SBOM)
    assert attach(registry, repository, image.descriptor, SBOM) == digest
    (listed,) = registry.referrers(repository, image.digest)
    assert (listed.digest, listed.artifact_type) == (digest, SBOM_TYPE)


def test_somebody_else_writes_the_tag_at_the_same_moment(
    fake: FakeRegistry, connect: Connect, image: Image
) -> None:
    registry = pushed(connect(fake.host), image)
    tag = fallback_tag(image.digest)
    theirs = replace(image.descriptor, digest=Digest.of(b"theirs"), artifact_type="application/x")

    def overwritten(handler: Handler) -> None:
        handler.serve()
        fake.put_manifest("a", ImageIndex(manifests=(theirs,)).to_bytes(), OCI_INDEX, tag)

    fake.on(f"PUT /v2/a/manifests/{tag}", overwritten, times=1)
    attach(registry, "a", image.descriptor, SBOM)
    assert types(registry, image) == ["application/vnd.cyclonedx+json", "application/x"]


def test_a_registry_that_reads_the_tag_as_the_digest(
    fake: FakeRegistry, connect: Connect, image: Image
) -> None:
    """GitLab: the tag leads to the image itself until something is put there."""
    registry = pushed(connect(fake.host), image)
    tag = fallback_tag(image.digest)

    def itself(handler: Handler) -> None:
        kind, data = fake.manifests.get(("a", tag)) or fake.manifests[("a", image.digest.text)]
        handler.reply(200, data, Content_Type=kind)

    fake.on(f"GET /v2/a/manifests/{tag}", itself)
    assert types(registry, image) == []
    attach(registry, "a", image.descriptor, SBOM)
    assert types(registry, image) == [SBOM_TYPE]


def test_a_registry_that_drops_the_tag(fake: FakeRegistry, connect: Connect, image: Image) -> None:
    registry = pushed(connect(fake.host), image)
    fake.on(f"PUT /v2/a/manifests/{fallback_tag(image.digest)}", status(201))
    with pytest.raises(PushFailed, match=r"(?s)does not keep what is put there.*--no-evidence"):
        attach(registry, "a", image.descriptor, SBOM)


def wrong(body: bytes, kind: str = OCI_INDEX, **headers: str) -> Any:
    return status(200, body, Content_Type=kind, **headers)


EMPTY = b'{"schemaVersion":2,"mediaType":"%s","manifests":[]}' % OCI_INDEX.encode()
BAD_LISTS = {
    "not JSON": (wrong(b"<html>"), "answers wrongly"),
    "no index": (wrong(b"[]"), "answers wrongly"),
    "a key twice": (wrong(b'{"schemaVersion":2,"schemaVersion":2,"manifests":[]}'), "answers wrongly"),
    "too many": (wrong(EMPTY.replace(b"[]", b"[" + b"{}," * 5000 + b"{}]")), "answers wrongly"),
    "another host": (wrong(EMPTY, Link='<http://127.0.0.2:1/x>; rel="next"'), "on another host"),
    "forbidden": (status(403), "right to read"),
    "down": (status(503), "try again later"),
    "cut": (drop(), "no connection"),
}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_lists_that_are_none(name: str, fake: FakeRegistry, connect: Connect, image: Image) -> None:
    answer, text = BAD_LISTS[name]
    registry = pushed(connect(fake.host), image)
    fake.on("GET /v2/a/referrers/", answer)
    with pytest.raises(ArtefactUnusable) as caught:
        registry.referrers("a", image.digest)
    assert text in str(caught.value) and "next:" in str(caught.value)
