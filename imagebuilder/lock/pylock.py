"""A Lock as a file: `pylock.NAME.toml` (PEP 751), read without trust and written the same way every time.

Other tools install from it: every wheel has a `path` where `lock.fetch` puts it. What PEP 751 has no field
for stands under `tool.imagebuilder`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

import tomli
import tomli_w
from packaging.markers import Marker
from packaging.pylock import Package, PackageWheel, Pylock, PylockValidationError
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from imagebuilder.errors import LockUnusable
from imagebuilder.files import YOUR_FOLDER, check_writable, new_file
from imagebuilder.lock.debs import read_debs, write_debs
from imagebuilder.lock.fields import Bad, Fields
from imagebuilder.lock.model import (
    HASH_COMPUTED,
    HASH_FROM_INDEX,
    Lock,
    LockedBase,
    LockedOverride,
    LockedPatch,
    PassedOver,
    Wheel,
)
from imagebuilder.values import Digest, ImageRef, Platform, Release

SCHEMA = 1
_TOOL = "imagebuilder"
_HEADER = "# Made by `imagebuilder lock {name}`; edit the stack file instead.\n"


def read_lock(path: Path) -> Lock:
    """The lock in this file. Raises LockUnusable where there is none, or it is not one of ours."""
    name = re.sub(r"^pylock\.|\.toml$", "", path.name)
    hint = f"imagebuilder lock {name}"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockUnusable(f"there is no lock for {name}", seen=f"no file {path}", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockUnusable(f"{path} cannot be read", seen=str(error), hint=hint) from None
    try:
        return parse_lock(text)
    except (tomli.TOMLDecodeError, PylockValidationError, Bad) as error:
        if found := re.search(r"^<{7} ", text, re.MULTILINE):
            raise LockUnusable(
                f"{path} has a merge conflict in it",
                seen=f"line {text.count(chr(10), 0, found.start()) + 1}: <<<<<<<",
                hint=f"git checkout --ours {path.name}, which keeps one side's versions, then {hint}",
            ) from None
        raise LockUnusable(f"{path} is not a lock of imagebuilder", seen=str(error), hint=hint) from None


def check_lock_place(path: Path) -> None:
    """MachineLacks where `write_lock` may not write: asked before anything is resolved."""
    check_writable(path, YOUR_FOLDER)


def write_lock(path: Path, lock: Lock) -> None:
    """Write it whole or not at all."""
    data = format_lock(lock).encode()
    with new_file(path, YOUR_FOLDER) as file:
        file.write(data)


# ---------------------------------------------------------------- Lock → TOML


def format_lock(lock: Lock) -> str:
    """The file's text; the same for equal locks."""
    python = ".".join(lock.python.text.split(".")[:2])
    document = Pylock(
        lock_version=Version("1.0"),
        environments=[
            Marker(f"sys_platform == 'linux' and platform_machine == '{lock.platform.machine}'"),
        ],
        requires_python=SpecifierSet(f"=={python}.*"),
        created_by=_TOOL,
        packages=[_package(wheel) for wheel in lock.wheels],
        tool={_TOOL: _tool(lock)},
    )
    document.validate()
    return _HEADER.format(name=lock.stack_name) + tomli_w.dumps(document.to_dict())


def _package(wheel: Wheel) -> Package:
    tool: dict[str, Any] = {}
    if wheel.index is not None:
        tool["index"] = wheel.index
    if wheel.extras:
        tool["extras"] = list(wheel.extras)
    if wheel.hash_origin != HASH_FROM_INDEX:
        tool["hash"] = wheel.hash_origin
    if wheel.metadata_version is not None:
        tool["metadata-version"] = wheel.metadata_version
    return Package(
        name=wheel.name,
        version=Version(wheel.version),
        dependencies=[{"name": name} for name in wheel.requires] or None,
        wheels=[
            PackageWheel(
                name=wheel.filename,
                upload_time=wheel.upload_time,
                url=wheel.url,
                path=wheel.path,
                size=wheel.size,
                hashes={"sha256": wheel.sha256.hex},
            )
        ],
        tool={_TOOL: tool} if tool else None,
    )


def _tool(lock: Lock) -> dict[str, Any]:
    tool: dict[str, Any] = {
        "schema": SCHEMA,
        "stack": lock.stack_name,
        "stack-hash": str(lock.stack_hash),
        "resolver": lock.resolver,
        "python": str(lock.python),
        "platform": str(lock.platform),
        "glibc": str(lock.glibc),
    }
    if lock.as_of is not None:
        tool["as-of"] = lock.as_of.astimezone(timezone.utc)
    tool["stack-parts"] = {part: str(digest) for part, digest in lock.stack_parts}
    if lock.base is not None:
        tool["base"] = _without_none(
            image=str(lock.base.ref) if lock.base.ref else None,
            path=lock.base.path,
            index=str(lock.base.index),
            manifest=str(lock.base.manifest) if lock.base.manifest else None,
        )
    tool["override"] = [{"requirement": o.requirement, "reason": o.reason} for o in lock.overrides]
    tool["patch"] = [{"package": p.package, "path": p.path, "sha256": p.sha256.hex} for p in lock.patches]
    tool["passed-over"] = [
        {"name": p.name, "version": p.version, "chosen": p.chosen, "why": p.why} for p in lock.passed_over
    ]
    tool["debian"] = write_debs(lock.debs)
    return {key: value for key, value in tool.items() if value != []}


def _without_none(**fields: str | None) -> dict[str, str]:
    return {key: value for key, value in fields.items() if value is not None}


# ---------------------------------------------------------------- TOML → Lock


def parse_lock(text: str) -> Lock:
    """The lock that this text is. Raises TOMLDecodeError, PylockValidationError or `fields.Bad`."""
    document = Pylock.from_dict(tomli.loads(text))
    tool = Fields((document.tool or {}).get(_TOOL), f"tool.{_TOOL}")
    schema = tool.number("schema")
    if schema != SCHEMA:
        raise Bad(f"tool.{_TOOL}.schema: {schema} is not {SCHEMA}: another release of imagebuilder wrote it")
    lock = Lock(
        stack_name=tool.text("stack"),
        stack_hash=tool.value("stack-hash", Digest),
        stack_parts=_parts(tool.table("stack-parts")),
        resolver=tool.text("resolver"),
        python=tool.value("python", Release),
        platform=tool.value("platform", Platform.parse),
        glibc=tool.value("glibc", Release),
        as_of=tool.instant("as-of"),
        wheels=tuple(_wheel(package) for package in document.packages),
        debs=read_debs(tool.tables("debian")),
        base=_base(tool),
        patches=tuple(
            LockedPatch(
                package=canonicalize_name(t.text("package")),
                path=t.text("path"),
                sha256=t.value("sha256", Digest.from_hex),
            )
            for t in tool.tables("patch")
        ),
        overrides=tuple(
            LockedOverride(requirement=t.text("requirement"), reason=t.text("reason"))
            for t in tool.tables("override")
        ),
        passed_over=tuple(
            PassedOver(
                name=canonicalize_name(t.text("name")),
                version=t.text("version"),
                chosen=t.text("chosen"),
                why=t.text("why"),
            )
            for t in tool.tables("passed-over")
        ),
    )
    _check_edges(lock)
    return lock


def _wheel(package: Package) -> Wheel:
    where = f"packages.{package.name}"
    if package.version is None or not package.wheels or len(package.wheels) != 1:
        raise Bad(f"{where}: a locked package has a version and exactly one wheel")
    file = package.wheels[0]
    tool = Fields((package.tool or {}).get(_TOOL, {}), f"{where}.tool.{_TOOL}")
    if not file.size or file.size < 0 or "sha256" not in file.hashes or file.path is None:
        raise Bad(f"{where}.wheels: size, sha256 and path are wanted")
    _check_path(file.path, where)
    try:
        digest = Digest.from_hex(file.hashes["sha256"])
    except ValueError as error:
        raise Bad(f"{where}.wheels.hashes: {error}") from None
    origin = tool.optional_text("hash") or HASH_FROM_INDEX
    if origin not in (HASH_FROM_INDEX, HASH_COMPUTED):
        raise Bad(f"{where}: {origin!r} is neither {HASH_FROM_INDEX} nor {HASH_COMPUTED}")
    index = tool.optional_text("index")
    if (index is None) == (file.url is None):
        raise Bad(f"{where}: a wheel has either an index or an address")
    return Wheel(
        name=package.name,
        version=str(package.version),
        filename=PurePosixPath(file.path).name,
        size=file.size,
        sha256=digest,
        path=file.path,
        index=index,
        url=file.url,
        requires=tuple(
            canonicalize_name(Fields(d, f"{where}.dependencies").text("name"))
            for d in package.dependencies or ()
        ),
        extras=tool.texts("extras"),
        hash_origin=origin,
        upload_time=_aware(file.upload_time),
        metadata_version=tool.optional_text("metadata-version"),
    )


def _parts(table: Mapping[str, Any]) -> tuple[tuple[str, Digest], ...]:
    fields = Fields(table, f"tool.{_TOOL}.stack-parts")
    return tuple((part, fields.value(part, Digest)) for part in table)


def _aware(instant: datetime | None) -> datetime | None:
    if instant is None or instant.tzinfo is not None:
        return instant
    return instant.replace(tzinfo=timezone.utc)


def _check_path(path: str, where: str) -> None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path or "\0" in path or not pure.name:
        raise Bad(f"{where}.wheels.path: {path!r} leads out of the lock's folder")


def _base(tool: Fields) -> LockedBase | None:
    if not tool.has("base"):
        return None
    base = Fields(tool.table("base"), "tool.imagebuilder.base")
    return LockedBase(
        ref=base.value("image", ImageRef.parse) if base.has("image") else None,
        index=base.value("index", Digest),
        manifest=base.value("manifest", Digest) if base.has("manifest") else None,
        path=base.optional_text("path"),
    )


def _check_edges(lock: Lock) -> None:
    names: Mapping[str, object] = lock.by_name
    if len(names) != len(lock.wheels):
        raise Bad("packages: a package is there twice")
    for wheel in lock.wheels:
        for name in wheel.requires:
            if name not in names:
                raise Bad(f"packages.{wheel.name}.dependencies: {name} is not in the lock")
