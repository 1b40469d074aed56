"""Who vouches for an image and for what is attached to it, by the keys that the reader trusts. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from imagebuilder.publish.cosign import Signed
from imagebuilder.publish.keys import PublicKey
from imagebuilder.publish.provenance import PREDICATE

PREDICATES = {
    "sbom": "https://cyclonedx.org/bom",
    "provenance": PREDICATE,
    "checks": "urn:imagebuilder:checks:v1",
    "acceptance": "urn:imagebuilder:acceptance:v1",
}
"""What a document of each kind is called as the predicate of a statement."""

State = Literal["signed", "unsigned", "another key", "altered", "not checked"]
"""altered: the key vouches for another document of this kind. not checked: signed, nobody asked by whom."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Of one thing. key: whose signature it is, where `signed`."""

    state: State
    key: PublicKey | None = None

    @property
    def problem(self) -> str:
        """In words, for what a reader with keys does not take; empty where it is fine, or was not asked."""
        words = {
            "unsigned": "it is not signed",
            "another key": "it is signed with another key",
            "altered": "it was altered: the key signed another document of this kind",
        }
        return words.get(self.state, "")


UNKNOWN = Standing(state="not checked")


def of_image(signatures: Sequence[Signed], keys: Sequence[PublicKey]) -> Standing:
    """Of the image itself."""
    return _standing(signatures, keys)


def of_document(
    kind: str, document: bytes, attestations: Sequence[Signed], keys: Sequence[PublicKey]
) -> Standing:
    """Of an attached document. An attestation counts for it only if it holds this very document."""
    of_kind = [a for a in attestations if _predicate_type(a) == PREDICATES[kind]]
    same = [a for a in of_kind if _holds(a, document)]
    found = _standing(same, keys)
    if found.state in ("unsigned", "another key") and any(a.by(keys) for a in of_kind):
        return Standing(state="altered")
    return found


def _standing(signed: Iterable[Signed], keys: Sequence[PublicKey]) -> Standing:
    there = list(signed)
    if not there:
        return Standing(state="unsigned")
    if not keys:
        return Standing(state="not checked")
    key = next(filter(None, (item.by(keys) for item in there)), None)
    return Standing(state="signed", key=key) if key else Standing(state="another key")


def _predicate_type(attestation: Signed) -> str:
    return str(json.loads(attestation.statement).get("predicateType"))


def _holds(attestation: Signed, document: bytes) -> bool:
    """Whether this statement is the document, or has it as its predicate, to the last number."""
    if attestation.statement == document:
        return True
    statement = json.loads(attestation.statement)
    return _text(statement.get("predicate")) == _text(json.loads(document))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
