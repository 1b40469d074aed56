"""Signatures in the form that cosign keeps beside an image, written and read. The forms are pure.

`sha256-HEX.sig` holds payloads ("this digest is this repository's") with a signature each, `sha256-HEX.att`
DSSE envelopes around in-toto statements, whose predicates are the documents of the evidence.
Source: cosign, specs/SIGNATURE_SPEC.md and ATTESTATION_SPEC.md; DSSE, protocol.md; containers/image,
docs/containers-signature.5.md ("simple signing"). All of it was read back by cosign 2.5 and 3.1.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from imagebuilder.cache import Cache
from imagebuilder.errors import PushFailed
from imagebuilder.oci.canonical import decode, encode
from imagebuilder.oci.descriptor import OCI_CONFIG, Descriptor, Pairs
from imagebuilder.oci.model import Manifest
from imagebuilder.oci.problems import Missing
from imagebuilder.oci.registry import Registry
from imagebuilder.publish.keys import PublicKey, Signer
from imagebuilder.publish.provenance import STATEMENT
from imagebuilder.values import Digest

PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
STATEMENT_TYPE = "application/vnd.in-toto+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
PREDICATE_TYPE = "predicateType"
SIGNATURE_SUFFIX, ATTESTATION_SUFFIX = ".sig", ".att"
MAX_ENTRY = 128 << 20  # bytes; as much as cosign reads
MAX_ENTRIES = 256
_TRIES = 3  # two that write a tag at once overwrite each other


@dataclass(frozen=True, kw_only=True)
class Signed:
    """One entry beside an image: what was signed, by whom not yet known.

    body: what the signatures are over. statement: of an attestation; empty for a signature of the image.
    """

    body: bytes
    signatures: tuple[bytes, ...]
    statement: bytes = b""

    def by(self, keys: Sequence[PublicKey]) -> PublicKey | None:
        """The first of these keys that signed it."""
        for key in keys:
            if any(key.verifies(self.body, signature) for signature in self.signatures):
                return key
        return None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A blob for one of the two tags."""

    media_type: str
    data: bytes
    annotations: Pairs

    @property
    def descriptor(self) -> Descriptor:
        """As a layer of the tag's manifest."""
        return Descriptor.of(self.media_type, self.data, self.annotations)


def tag_of(image: Digest, suffix: str) -> str:
    """`sha256-HEX.sig`."""
    return image.text.replace(":", "-") + suffix


# ---------------------------------------------------------------- writing


def sign_image(name: str, image: Digest, signer: Signer) -> Entry:
    """A signature that this digest belongs to the repository `name` (with its registry)."""
    payload = payload_of(name, image)
    signature = base64.b64encode(signer.sign(payload)).decode()
    return Entry(media_type=PAYLOAD_TYPE, data=payload, annotations=((SIGNATURE, signature),))


def payload_of(name: str, image: Digest) -> bytes:
    """What a signature of the image is over."""
    return encode(
        {
            "critical": {
                "identity": {"docker-reference": name},
                "image": {"docker-manifest-digest": image.text},
                "type": "cosign container image signature",
            },
            "optional": None,
        }
    )


def statement_of(document: bytes, predicate_type: str, name: str, image: Digest) -> bytes:
    """The document as an in-toto statement about the image; one that is a statement already stays."""
    value: dict[str, Any] = json.loads(document)
    if value.get("_type") == STATEMENT:
        return document
    return encode(
        {
            "_type": STATEMENT,
            "subject": [{"name": name, "digest": {"sha256": image.hex}}],
            "predicateType": predicate_type,
            "predicate": value,
        }
    )


def attest(statement: bytes, signer: Signer) -> Entry:
    """The statement in a signed envelope."""
    signature = base64.b64encode(signer.sign(pre_authentication(statement))).decode()
    data = encode(
        {
            "payloadType": STATEMENT_TYPE,
            "payload": base64.b64encode(statement).decode(),
            "signatures": [{"keyid": "", "sig": signature}],
        }
    )
    predicate = str(json.loads(statement)["predicateType"])
    return Entry(
        media_type=ENVELOPE_TYPE, data=data, annotations=((SIGNATURE, ""), (PREDICATE_TYPE, predicate))
    )


def pre_authentication(payload: bytes, payload_type: str = STATEMENT_TYPE) -> bytes:
    """What the signature of an envelope is over (DSSE's PAE)."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def append(registry: Registry, repository: str, tag: str, entries: Sequence[Entry]) -> None:
    """Put these entries beside what the tag has already, and see to it that they stay. PushFailed."""
    for entry in entries:
        registry.push_blob(repository, entry.descriptor.digest, entry.data)
    append_layers(registry, repository, tag, [entry.descriptor for entry in entries])


def append_layers(registry: Registry, repository: str, tag: str, wanted: Sequence[Descriptor]) -> None:
    """The same for blobs that are there."""
    for _ in range(_TRIES):
        try:
            there = layers_of(registry, repository, tag)
        except ValueError as error:
            raise PushFailed(
                f"the tag {tag} of {registry.host}/{repository} holds no signatures, so none is put there",
                seen=str(error)[:200],
                hint="look who wrote it, and remove it",
            ) from None
        missing = [layer for layer in dict.fromkeys(wanted) if layer not in there]
        if not missing:
            return
        layers = (*there, *missing)
        config = encode(
            {
                "architecture": "", "created": "0001-01-01T00:00:00Z", "os": "", "config": {},
                "rootfs": {"type": "layers", "diff_ids": [layer.digest.text for layer in layers]},
            }
        )  # fmt: skip
        manifest = Manifest(config=Descriptor.of(OCI_CONFIG, config), layers=layers)
        registry.push_blob(repository, manifest.config.digest, config)
        registry.push_manifest(repository, manifest.to_bytes(), manifest.media_type, tag=tag)
    if any(layer not in layers_of(registry, repository, tag) for layer in wanted):
        raise PushFailed(
            f"the tag {tag} of {registry.host}/{repository} does not keep what is put there",
            hint="somebody else writes it all the time, or the registry keeps tags immutable",
        )


# ---------------------------------------------------------------- reading


def layers_of(registry: Registry, repository: str, tag: str) -> tuple[Descriptor, ...]:
    """The entries under this tag; none where there is no such tag. ValueError: it is no manifest."""
    try:
        document = registry.manifest(repository, tag, mirrors=False)
    except Missing:
        return ()
    return Manifest.parse(document.data).layers


def read_signed(
    registry: Registry, repository: str, image: Digest, cache: Cache
) -> tuple[tuple[Signed, ...], tuple[Signed, ...]]:
    """(signatures of the image, attestations about it) that are well-formed and about this very image."""
    signatures = tuple(_entries(registry, repository, image, SIGNATURE_SUFFIX, cache))
    attestations = tuple(_entries(registry, repository, image, ATTESTATION_SUFFIX, cache))
    return signatures, attestations


def _entries(
    registry: Registry, repository: str, image: Digest, suffix: str, cache: Cache
) -> Iterator[Signed]:
    try:
        layers = layers_of(registry, repository, tag_of(image, suffix))
    except ValueError:
        return  # something of somebody else
    for layer in layers[:MAX_ENTRIES]:
        if layer.media_type not in (PAYLOAD_TYPE, ENVELOPE_TYPE) or layer.size > MAX_ENTRY:
            continue
        data = registry.blob(repository, layer, cache).read_bytes()
        try:
            if layer.media_type == PAYLOAD_TYPE:
                yield parse_payload(data, dict(layer.annotations).get(SIGNATURE, ""), image)
            else:
                yield parse_envelope(data, image)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue  # it proves nothing


def parse_payload(data: bytes, signature: str, image: Digest) -> Signed:
    """A signature of this image. ValueError and its like: it is none."""
    critical = _object(data)["critical"]
    if critical["image"]["docker-manifest-digest"] != image.text:
        raise ValueError("it is of another image")
    if critical["type"] not in ("cosign container image signature", "atomic container signature"):
        raise ValueError("it is another kind of signature")
    return Signed(body=data, signatures=(_unpacked(signature),))


def parse_envelope(data: bytes, image: Digest) -> Signed:
    """An attestation about this image. ValueError and its like: it is none."""
    envelope = _object(data)
    if envelope["payloadType"] != STATEMENT_TYPE:
        raise ValueError("it holds no in-toto statement")
    statement = _unpacked(envelope["payload"])
    digests = [subject["digest"].get("sha256") for subject in _object(statement)["subject"]]
    if image.hex not in digests:
        raise ValueError("it is about another image")
    signatures = tuple(_unpacked(s["sig"]) for s in envelope["signatures"][:16])
    return Signed(body=pre_authentication(statement), signatures=signatures, statement=statement)


def _object(data: bytes) -> dict[str, Any]:
    """As images' JSON is read: depth, keys given twice, numbers that are none."""
    decode(data, limit=MAX_ENTRY)
    value: dict[str, Any] = json.loads(data)
    return value


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
