"""Signing what is pushed: the image, and each document of its evidence."""

from __future__ import annotations

from collections.abc import Sequence

from imagebuilder.cache import Cache
from imagebuilder.oci.registry import Registry
from imagebuilder.publish import cosign
from imagebuilder.publish.evidence import Evidence
from imagebuilder.publish.keys import Signer
from imagebuilder.publish.trust import PREDICATES
from imagebuilder.values import Digest


def sign(
    registry: Registry,
    repository: str,
    image: Digest,
    evidence: Sequence[Evidence],
    *,
    signer: Signer,
    cache: Cache,
) -> int:
    """Sign the image and these documents; how many signatures were made. What the key signed already, stays.

    PushFailed, ArtefactUnusable, MachineLacks.
    """
    name = f"{registry.host}/{repository}"
    keys = (signer.public,)
    signatures, attestations = cosign.read_signed(registry, repository, image, cache)
    made = 0
    payload = cosign.payload_of(name, image)
    if not any(s.body == payload and s.by(keys) for s in signatures):
        entry = cosign.sign_image(name, image, signer)
        cosign.append(registry, repository, cosign.tag_of(image, cosign.SIGNATURE_SUFFIX), [entry])
        made += 1
    there = {a.statement for a in attestations if a.by(keys)}
    statements = [cosign.statement_of(e.data, PREDICATES[e.kind], repository, image) for e in evidence]
    missing = [cosign.attest(statement, signer) for statement in statements if statement not in there]
    if missing:
        cosign.append(registry, repository, cosign.tag_of(image, cosign.ATTESTATION_SUFFIX), missing)
    return made + len(missing)
