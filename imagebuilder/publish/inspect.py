"""Reading what is attached to an image in a registry, and proving that it is about this image."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imagebuilder.accept.model import OF_THE_IMAGE
from imagebuilder.cache import Cache
from imagebuilder.oci.canonical import decode
from imagebuilder.oci.descriptor import MANIFESTS, Descriptor
from imagebuilder.oci.image import Image
from imagebuilder.oci.model import Manifest
from imagebuilder.oci.registry import Registry
from imagebuilder.publish.cosign import Signed
from imagebuilder.publish.evidence import KINDS
from imagebuilder.publish.keys import PublicKey
from imagebuilder.publish.provenance import PREDICATE, STATEMENT
from imagebuilder.publish.trust import UNKNOWN, Standing, of_document
from imagebuilder.values import Digest

MAX_DOCUMENT = 64 << 20
MAX_REFERRERS = 200


@dataclass(frozen=True, kw_only=True)
class Attached:
    """A referrer of an image. kind: a key of KINDS, or `other` (then only its manifest is known).

    data: the document. summary: what it says, in a few words. standing: who vouches for it. problems: why it
    does not prove anything, or not to a reader who named keys.
    """

    kind: str
    artifact_type: str
    manifest: Digest
    digest: Digest | None
    size: int
    data: bytes = b""
    summary: str = ""
    standing: Standing = UNKNOWN
    problems: tuple[str, ...] = ()

    @property
    def verified(self) -> bool:
        """Its bytes are those of its digest, it is of the right form, and about this very image."""
        return self.kind != "other" and not self.problems


def read_evidence(registry: Registry, repository: str, image: Image, cache: Cache) -> tuple[Attached, ...]:
    """Everything attached to the image, sorted by kind. ArtefactUnusable: the registry does not give it."""
    found = registry.referrers(repository, image.digest)[:MAX_REFERRERS]
    attached = [_attached(registry, repository, entry, image, cache) for entry in found]
    order = [*KINDS, "other"]
    return tuple(sorted(attached, key=lambda a: (order.index(a.kind), a.manifest)))


def judged(
    attached: Sequence[Attached], attestations: Sequence[Signed], keys: Sequence[PublicKey]
) -> tuple[Attached, ...]:
    """The same with who vouches for each document; without keys, only whether somebody does."""
    found = []
    for item in attached:
        if item.kind == "other" or not item.data:
            found.append(item)
            continue
        standing = of_document(item.kind, item.data, attestations, keys)
        wrong = (standing.problem,) if keys and standing.problem else ()
        found.append(replace(item, standing=standing, problems=(*item.problems, *wrong)))
    return tuple(found)


def _attached(registry: Registry, repository: str, entry: Descriptor, image: Image, cache: Cache) -> Attached:
    if entry.media_type not in MANIFESTS:
        return _other(entry, entry.media_type)
    document = registry.manifest(repository, entry.digest)
    try:
        manifest = Manifest.parse(document.data)
    except ValueError as error:
        return _other(entry, entry.artifact_type, f"its manifest is malformed: {error}"[:300])
    kind = next((k for k, media in KINDS.items() if media == manifest.artifact_type), "other")
    if kind == "other":
        return _other(entry, manifest.artifact_type or manifest.config.media_type)
    problems = []
    if manifest.subject is None or manifest.subject.digest != image.digest:
        problems.append("its subject is another image")
    if len(manifest.layers) != 1 or manifest.layers[0].size > MAX_DOCUMENT:
        return _other(entry, manifest.artifact_type, "it does not hold one document of usual size")
    blob = manifest.layers[0]
    data = registry.blob(repository, blob, cache).read_bytes()
    summary = ""
    try:
        summary = CHECKERS[kind](decode_document(data), image, problems)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        problems.append(f"the document is malformed: {type(error).__name__} {error}"[:300])
    return Attached(
        kind=kind,
        artifact_type=manifest.artifact_type,
        manifest=entry.digest,
        digest=blob.digest,
        size=blob.size,
        data=data,
        summary=summary,
        problems=tuple(problems),
    )


def _other(entry: Descriptor, artifact_type: str, *problems: str) -> Attached:
    return Attached(
        kind="other",
        artifact_type=artifact_type or entry.media_type,
        manifest=entry.digest,
        digest=None,
        size=entry.size,
        problems=problems,
    )


def decode_document(data: bytes) -> dict[str, Any]:
    """The object in a document, read as images' JSON is. ValueError."""
    decode(data, limit=MAX_DOCUMENT)  # depth, keys given twice, numbers that are none
    value: dict[str, Any] = json.loads(data)
    return value


Checker = Callable[[Mapping[str, Any], Image, list[str]], str]


def _sbom(value: Mapping[str, Any], image: Image, problems: list[str]) -> str:
    if value["bomFormat"] != "CycloneDX":
        problems.append("not a CycloneDX document")
    about = value["metadata"]["component"]
    digests = [h["content"] for h in about.get("hashes", []) if h["alg"] == "SHA-256"]
    if digests != [image.digest.hex]:
        problems.append("it is about another image")
    components = value.get("components", [])
    kinds = Counter(str(c.get("purl", "")).partition("/")[0].removeprefix("pkg:") for c in components)
    words = {"pypi": "Python packages", "deb": "Debian packages", "oci": "base"}
    listed = ", ".join(f"{kinds[kind]} {name}" for kind, name in words.items() if kinds[kind])
    licensed = sum(bool(c.get("licenses")) for c in components)
    return f"CycloneDX {value['specVersion']}: {listed}; licences of {licensed}"


def _provenance(value: Mapping[str, Any], image: Image, problems: list[str]) -> str:
    if value["_type"] != STATEMENT or value["predicateType"] != PREDICATE:
        problems.append("not an SLSA provenance v1")
    if [s["digest"] for s in value["subject"]] != [{"sha256": image.digest.hex}]:
        problems.append("it is about another image")
    definition = value["predicate"]["buildDefinition"]
    ours = {layer.descriptor.digest.text for layer in image.layers}
    if any(layer["digest"] not in ours for layer in definition["internalParameters"]["layers"]):
        problems.append("it names layers that the image does not have")
    inputs = definition["resolvedDependencies"]
    names = {d["name"]: d["digest"]["sha256"] for d in inputs if "sha256" in d["digest"]}
    source = next((d for d in inputs if "gitCommit" in d["digest"]), None)
    stack = str(definition["externalParameters"]["stack"])
    builder = value["predicate"]["runDetails"]["builder"]
    version = builder.get("version", {}).get("imagebuilder", "")
    lock = str(names.get(f"pylock.{stack}.toml", ""))[:12]
    words = f"stack {stack}, lock {lock}, {len(names)} inputs"
    if source is not None:
        changed = " and changes that were not committed" if source["annotations"]["dirty"] else ""
        words += f", commit {str(source['digest']['gitCommit'])[:12]}{changed}"
    return f"{words}, by {builder['id'].rpartition(':')[2]} {version}"


def layers_of(provenance: bytes) -> tuple[Mapping[str, Any], ...]:
    """What a verified provenance of ours says of the layers: title, key and digest of each."""
    definition = json.loads(provenance)["predicate"]["buildDefinition"]
    return tuple(definition["internalParameters"]["layers"])


def _checks(value: Mapping[str, Any], image: Image, problems: list[str]) -> str:
    if value["config"] != image.config_digest.text:
        problems.append("it is about another image")
    counted = Counter(
        f"{f['severity']}s" + (" (waived)" if f.get("waived") else "") for f in value["findings"]
    )
    words = ", ".join(f"{n} {severity}" for severity, n in counted.items()) or "no findings"
    if ran := value.get("checked"):
        words += f", {ran['codes']} codes of imagebuilder {ran['imagebuilder']}"
        words += f", {len(ran['unseen'])} things not seen" if ran["unseen"] else ""
    return words


def _acceptance(value: Mapping[str, Any], image: Image, problems: list[str]) -> str:
    if value["config_digest"] != image.config_digest.text:
        problems.append("it is about another image")
    if value["runtime"] not in OF_THE_IMAGE:
        problems.append("it is of a rehearsal")
    return f"{value['outcome']} on {value['started']}: {value['headline']}"


CHECKERS: Mapping[str, Checker] = {
    "sbom": _sbom,
    "provenance": _provenance,
    "checks": _checks,
    "acceptance": _acceptance,
}


def missing(attached: tuple[Attached, ...], required: tuple[str, ...]) -> Iterator[str]:
    """The kinds that are required and not there, or not verified."""
    there = {item.kind for item in attached if item.verified}
    return (kind for kind in required if kind not in there)
