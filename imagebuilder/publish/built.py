"""A built image as it lies on disk, with the record of how it was built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.oci.archive import read_archive
from imagebuilder.oci.image import Image
from imagebuilder.oci.layout import MARKER, StoredImage, read_layout
from imagebuilder.values import Digest, ImageRef

RECORD_SUFFIX = ".build.json"
_MAX_RECORD = 64 << 20


@dataclass(frozen=True, kw_only=True)
class BuildRecord:
    """What `build` wrote beside an image (`builders.output.record_of`); `fields` is all of it.

    lock: digest of the lock file. tags: of the names that the image was given. checked: what judged it
    (`checks.kept.account_of`); None where it was built unchecked. source: the stack's commit,
    path in its repository, and whether something there was not committed; empty where it lay in none.
    """

    stack: str
    lock: Digest
    manifest: Digest
    config: Digest
    tags: tuple[str, ...]
    builder: Mapping[str, str]
    layers: tuple[Mapping[str, Any], ...]
    findings: tuple[Mapping[str, Any], ...]
    checked: Mapping[str, Any] | None
    source: Mapping[str, Any]
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    """An image with the files of its layers. record: None for one that was not built here."""

    path: Path
    image: Image
    names: tuple[str, ...]
    record: BuildRecord | None


def is_image(path: Path) -> bool:
    """Whether an image lies there: a layout, or a tar file."""
    return (path.is_dir() and (path / MARKER).is_file()) or (path.is_file() and path.suffix == ".tar")


def read_built(path: Path, cache: Cache) -> BuiltImage:
    """The one image in a layout or archive, and its record where there is one.

    Layers of a layout are not hashed here: a registry does that when it gets them. ArtefactUnusable: there is
    none, there are several, or the record is of another image.
    """
    stored = read_archive(path, cache) if path.is_file() else read_layout(path, verify=False)
    one = _only_one(stored, path)
    record = read_record(path)
    if record is not None and record.manifest != one.image.digest:
        raise ArtefactUnusable(
            f"{path} is not the image that {_record_path(path).name} tells of",
            seen=one.image.digest.text,
            wanted=record.manifest.text,
            hint=f"imagebuilder build {record.stack}",
        )
    names = tuple(name for item in stored for name in item.names)
    return BuiltImage(path=path, image=one.image, names=names, record=record)


def read_record(path: Path) -> BuildRecord | None:
    """The record beside the image at `path`; None where there is none. ArtefactUnusable: not a record."""
    file = _record_path(path)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        if len(data) > _MAX_RECORD:
            raise ValueError(f"{len(data)} bytes")
        fields = json.loads(data)
        return BuildRecord(
            stack=str(fields["stack"]),
            lock=Digest(fields["lock"]),
            manifest=Digest(fields["manifest"]),
            config=Digest(fields["config"]),
            tags=tuple(dict.fromkeys(tag for n in fields["names"] if (tag := ImageRef.parse(n).tag))),
            builder={str(k): str(v) for k, v in fields["builder"].items()},
            layers=tuple(dict(layer) for layer in fields["layers"]),
            findings=tuple(dict(finding) for finding in fields["findings"]),
            checked=_checked(fields.get("checked")),
            source=_source(fields.get("source")),
            fields=fields,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtefactUnusable(
            f"{file} is not a build record", seen=str(error)[:200], hint="build the image again"
        ) from None


def _checked(fields: object) -> dict[str, Any] | None:
    if not isinstance(fields, Mapping):
        return None
    return {
        "imagebuilder": str(fields["imagebuilder"]),
        "codes": int(fields["codes"]),
        "code": Digest(fields["code"]).text,
        "tables": Digest(fields["tables"]).text,
        "unseen": [str(what) for what in fields["unseen"]],
    }


def _source(fields: object) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        return {}
    return {"commit": str(fields["commit"]), "path": str(fields["path"]), "dirty": bool(fields["dirty"])}


def _record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}{RECORD_SUFFIX}")


def _only_one(stored: tuple[StoredImage, ...], path: Path) -> StoredImage:
    if len({item.image.digest for item in stored}) != 1:
        raise ArtefactUnusable(f"{path} does not hold one image", seen=f"{len(stored)} images", wanted="1")
    return stored[0]
