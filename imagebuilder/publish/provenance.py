"""Provenance: from what and by what an image was made. Pure; no time and no host is in it.

Source: in-toto attestation framework, Statement v1; SLSA provenance v1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from packageurl import PackageURL

from imagebuilder.lock.model import Lock
from imagebuilder.oci.canonical import encode
from imagebuilder.publish.built import BuildRecord
from imagebuilder.stack.model import Stack
from imagebuilder.values import Digest

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:imagebuilder:build:v1"
BUILDER = "urn:imagebuilder:builder"


def make_provenance(record: BuildRecord, stack: Stack, stack_file: bytes, lock: Lock) -> bytes:
    """An in-toto statement about the image of this record, in canonical form."""
    builder = dict(record.builder)
    name = builder.pop("name", "direct")
    predicate = {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "stack": stack.name,
                "platform": str(lock.platform),
                "python": str(lock.python),
                "builder": name,
            },
            "internalParameters": {
                "resolver": lock.resolver,
                "layers": [
                    {"title": x.get("title"), "key": x.get("key"), "digest": x.get("digest")}
                    for x in record.layers
                ],
            },
            "resolvedDependencies": list(_dependencies(record, stack, stack_file, lock)),
        },
        "runDetails": {"builder": {"id": f"{BUILDER}:{name}", "version": dict(sorted(builder.items()))}},
    }
    return encode(
        {
            "_type": STATEMENT,
            "subject": [{"name": stack.name, "digest": {"sha256": record.manifest.hex}}],
            "predicateType": PREDICATE,
            "predicate": predicate,
        }
    )


def _dependencies(
    record: BuildRecord, stack: Stack, stack_file: bytes, lock: Lock
) -> Iterator[dict[str, Any]]:
    if record.source:
        yield {
            "name": "source",
            "digest": {"gitCommit": str(record.source["commit"])},
            "annotations": {
                "path": str(record.source["path"]), "dirty": bool(record.source["dirty"]),
            },
        }  # fmt: skip
    yield _dependency(f"{stack.name}.toml", Digest.of(stack_file))
    yield _dependency(f"pylock.{stack.name}.toml", record.lock)
    if lock.base is not None:
        name = lock.base.ref.name if lock.base.ref else PurePosixPath(lock.base.path or "layout").name
        yield _dependency(name, lock.base.manifest or lock.base.index)
    for patch in lock.patches:
        yield _dependency(f"{patch.package}: {PurePosixPath(patch.path).name}", patch.sha256)
    for file in stack.files:
        yield _dependency(file.path, Digest.of(file.content))
    for wheel in lock.wheels:
        purl = PackageURL(type="pypi", name=wheel.name, version=wheel.version)
        yield _dependency(wheel.filename, wheel.sha256, purl)
    for deb in lock.debs:
        purl = PackageURL(
            type="deb", namespace="debian", name=deb.name, version=deb.version,
            qualifiers={"arch": deb.architecture},
        )  # fmt: skip
        yield _dependency(PurePosixPath(deb.path).name, deb.sha256, purl)


def _dependency(name: str, digest: Digest, purl: PackageURL | None = None) -> dict[str, Any]:
    return {
        "name": name,
        "digest": {"sha256": digest.hex},
        **({"uri": purl.to_string()} if purl else {}),
    }
