"""The SBOM: what is in an image, as CycloneDX 1.6. Equal images give equal bytes. Pure."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from imagebuilder import __version__
from imagebuilder.builders.direct.derive import patched_version
from imagebuilder.lock.model import Lock
from imagebuilder.oci.canonical import encode
from imagebuilder.oci.image import Image
from imagebuilder.publish.layerscan import DebianPackage, Distribution
from imagebuilder.values import Digest, ImageRef

if TYPE_CHECKING:
    from cyclonedx.model.component import Component

_PROPERTY = "imagebuilder:"


@dataclass(frozen=True, kw_only=True)
class Content:
    """What an SBOM is made from. lock: None for an image that was not built here.

    wheels: then, what was found in its layers. debs: what dpkg's database says, else those of the lock.
    wheel_licences, deb_licences: by name.
    """

    stack: str
    image: Image
    lock: Lock | None = None
    suite: str = ""
    wheels: tuple[Distribution, ...] = ()
    debs: tuple[DebianPackage, ...] = ()
    wheel_licences: Mapping[str, str] = field(default_factory=dict)
    deb_licences: Mapping[str, str] = field(default_factory=dict)


def make_sbom(content: Content) -> bytes:
    """CycloneDX JSON, in canonical form."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6

    image = content.image
    root = Component(
        type=ComponentType.CONTAINER,
        name=content.stack,
        version=image.digest.text,
        bom_ref="image",
        hashes=[_sha256(image.digest)],
        properties=_properties(config=image.config_digest.text, platform=str(image.config.platform)),
    )
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, image.digest.text))
    bom.metadata.component = root
    bom.metadata.tools.components.add(
        Component(type=ComponentType.APPLICATION, name="imagebuilder", version=__version__, bom_ref="tool")
    )
    if image.config.created:
        bom.metadata.timestamp = datetime.fromisoformat(image.config.created.replace("Z", "+00:00"))
    components = list(_components(content))
    bom.components.update(components)
    bom.register_dependency(root, components)
    _register_edges(bom, content, components)
    value: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    if not image.config.created:
        value["metadata"].pop("timestamp", None)
    return encode(value)


def _components(content: Content) -> Iterator[Component]:
    lock = content.lock
    if lock is None:
        for wheel in content.wheels:
            yield _wheel(wheel.name, wheel.version, licence=wheel.licence)
    else:
        yield from _locked_wheels(lock, content.wheel_licences)
        if lock.base is not None:
            yield _base(lock.base.ref, lock.base.path, lock.base.manifest or lock.base.index)
    hashes = {(d.name, d.version): d.sha256 for d in lock.debs} if lock else {}
    debs = content.debs or tuple(
        DebianPackage(name=d.name, version=d.version, architecture=d.architecture)
        for d in (lock.debs if lock else ())
    )
    for deb in debs:
        yield _deb(
            deb, content.suite, hashes.get((deb.name, deb.version)), content.deb_licences.get(deb.name, "")
        )


def _locked_wheels(lock: Lock, licences: Mapping[str, str]) -> Iterator[Component]:
    for wheel in lock.wheels:
        patches = tuple(lock.patches_of(wheel.name))
        version = wheel.version
        if patches:
            version = patched_version(wheel.version, wheel.sha256, [p.sha256 for p in patches])
        named = {f"patch:{PurePosixPath(p.path).name}": p.sha256.text for p in patches}
        yield _wheel(
            wheel.name,
            version,
            sha256=wheel.sha256,
            licence=licences.get(wheel.name, ""),
            filename=wheel.filename,
            index=wheel.index or "",
            **named,
        )


def _wheel(
    name: str, version: str, *, sha256: Digest | None = None, licence: str = "", **properties: str
) -> Component:
    """`sha256` is that of the wheel as it was locked, before any patch."""
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    purl = PackageURL(type="pypi", name=name, version=version)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=purl,
        bom_ref=purl.to_string(),
        hashes=[_sha256(sha256)] if sha256 else [],
        licenses=list(_licences(licence)),
        properties=_properties(**properties),
    )


def _deb(deb: DebianPackage, suite: str, sha256: Digest | None, licence: str) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    qualifiers = {"arch": deb.architecture, **({"distro": suite} if suite else {})}
    purl = PackageURL(
        type="deb", namespace="debian", name=deb.name, version=deb.version, qualifiers=qualifiers
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=deb.name,
        version=deb.version,
        purl=purl,
        bom_ref=purl.to_string(),
        hashes=[_sha256(sha256)] if sha256 else [],
        licenses=list(_licences(licence)),
    )


def _base(ref: ImageRef | None, path: str | None, digest: Digest) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    name = ref.name if ref else PurePosixPath(path or "layout").name
    short = name.rpartition("/")[2]
    purl = PackageURL(
        type="oci", name=short, version=digest.text, qualifiers={"repository_url": name} if ref else {}
    )
    return Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=(ref.tag if ref else None) or digest.text,
        purl=purl,
        bom_ref=purl.to_string(),
        hashes=[_sha256(digest)],
    )


def _licences(text: str) -> Iterator[Any]:
    """One SPDX expression or id where the text is one; else the names that it is made of."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.license import DisjunctiveLicense

    if not text:
        return
    made = LicenseFactory().make_from_string(text)
    if isinstance(made, DisjunctiveLicense) and made.name:
        for name in dict.fromkeys(part.strip() for part in text.split(" AND ") if part.strip()):
            yield DisjunctiveLicense(name=name)
    else:
        yield made


def _register_edges(bom: Any, content: Content, components: Iterable[Component]) -> None:
    """Which wheel needs which, as METADATA says."""
    if content.lock is None:
        return
    by_name = {c.name: c for c in components if c.purl and c.purl.type == "pypi"}
    for wheel in content.lock.wheels:
        bom.register_dependency(by_name[wheel.name], [by_name[n] for n in wheel.requires if n in by_name])


def _sha256(digest: Digest) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType

    return HashType(alg=HashAlgorithm.SHA_256, content=digest.hex)


def _properties(**values: str) -> list[Any]:
    from cyclonedx.model import Property

    return [Property(name=f"{_PROPERTY}{name}", value=value) for name, value in values.items() if value]


def packages_of(sbom: bytes) -> Iterator[tuple[str, str, str, str]]:
    """(purl type, name, version, sha256 or empty) of every package in an SBOM. ValueError: it is none."""
    value = json.loads(sbom)
    if not isinstance(value, dict) or value.get("bomFormat") != "CycloneDX":
        raise ValueError("not a CycloneDX document")
    for component in value.get("components", []):
        kind = str(component.get("purl", "")).partition("/")[0].removeprefix("pkg:")
        hashes = [h["content"] for h in component.get("hashes", []) if h.get("alg") == "SHA-256"]
        yield kind, str(component["name"]), str(component.get("version", "")), hashes[0] if hashes else ""
