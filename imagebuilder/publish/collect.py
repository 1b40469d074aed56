"""The evidence of a built image, gathered from its record, lock, layers and results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from imagebuilder.cache import Cache
from imagebuilder.lock.model import Lock
from imagebuilder.oci.canonical import encode
from imagebuilder.plan import LayerKind, make_plan
from imagebuilder.progress import Reporter
from imagebuilder.publish.built import BuildRecord, BuiltImage
from imagebuilder.publish.contents import read_image
from imagebuilder.publish.evidence import Evidence
from imagebuilder.publish.licences import system_contents, wheel_licences
from imagebuilder.publish.provenance import PREDICATE, make_provenance
from imagebuilder.publish.sbom import Content, make_sbom
from imagebuilder.stack.model import DebianBase, Stack
from imagebuilder.values import Digest

_WITHOUT_DEBIAN = (LayerKind.VENV, LayerKind.WHEELS, LayerKind.FILES)
PREDICATE_ANNOTATION = "in-toto.io/predicate-type"  # as BuildKit has it


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What an image was built from. stack_file: the bytes of the stack's file."""

    stack: Stack
    stack_file: bytes
    lock: Lock


def collect(
    built: BuiltImage,
    origin: Origin | None,
    acceptance: bytes | None,
    *,
    cache: Cache,
    reporter: Reporter,
    workers: int,
) -> tuple[Evidence, ...]:
    """SBOM, provenance, findings and acceptance, as far as there are such.

    origin: None for an image that was not built here: its SBOM comes from its layers, and nothing else is
    known. acceptance: the record of a passing one.
    """
    found = [Evidence(kind="sbom", data=make_sbom(_content(built, origin, cache, reporter, workers)))]
    if origin is not None and built.record is not None:
        data = make_provenance(built.record, origin.stack, origin.stack_file, origin.lock)
        found.append(Evidence(kind="provenance", data=data, annotations=((PREDICATE_ANNOTATION, PREDICATE),)))
    if built.record is not None and (built.record.checked or built.record.findings):
        found.append(Evidence(kind="checks", data=_checks(built.record)))
    if acceptance is not None:
        outcome = str(json.loads(acceptance)["outcome"])
        annotations = (("dev.imagebuilder.outcome", outcome),)
        found.append(Evidence(kind="acceptance", data=acceptance, annotations=annotations))
    return tuple(found)


def _content(
    built: BuiltImage, origin: Origin | None, cache: Cache, reporter: Reporter, workers: int
) -> Content:
    image = built.image
    if origin is None or built.record is None:
        contents = read_image(image, cache, reporter, workers)
        return Content(
            stack=dict(image.config.labels).get("dev.imagebuilder.stack", built.path.name),
            image=image,
            wheels=contents.wheels,
            debs=contents.debs,
            deb_licences=contents.licences,
        )
    base = origin.stack.base
    system = system_contents(image, _our_layers(built.record, origin), cache, reporter, workers)
    return Content(
        stack=origin.stack.name,
        image=image,
        lock=origin.lock,
        suite=base.suite if isinstance(base, DebianBase) else "",
        debs=system.debs,
        wheel_licences=wheel_licences(origin.lock, cache),
        deb_licences=system.licences,
    )


def _our_layers(record: BuildRecord, origin: Origin) -> frozenset[Digest]:
    """The blobs that hold no Debian package for sure."""
    plan = make_plan(origin.stack, origin.lock)
    kinds: Mapping[str, LayerKind] = {layer.key.text: layer.kind for layer in plan.layers}
    return frozenset(
        Digest(str(layer["digest"]))
        for layer in record.layers
        if kinds.get(str(layer["key"])) in _WITHOUT_DEBIAN
    )


def _checks(record: BuildRecord) -> bytes:
    return encode(
        {
            "schema": 1,
            "kind": "checks",
            "stack": record.stack,
            "lock": record.lock.text,
            "config": record.config.text,
            "findings": [dict(finding) for finding in record.findings],
            **({"checked": dict(record.checked)} if record.checked else {}),
        }
    )
