"""Every file of a lock, here: wheels, Debian packages and a base image's layers, verified, in the cache.

Addresses are looked up through the indexes and mirrors as configured on this machine. The wheels are also
linked to where the lock's `path`s say, so that pip and uv install the lock as it is.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from imagebuilder.cache import Cache, storage_errors
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.files import YOUR_FOLDER, check_writable, errors_of_writing, give, link_or_copy
from imagebuilder.index.debian import Archive
from imagebuilder.index.download import Wanted, fetch_all
from imagebuilder.index.http import NotFound, Session, session
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.model import DebPackage, Lock, Wheel
from imagebuilder.lock.system import archive_of, base_image
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.stack.model import ImageBase, Stack
from imagebuilder.values import Digest

_SHOWN = 3


def fetch(
    lock: Lock,
    stack: Stack,
    settings: Settings,
    cache: Cache,
    reporter: Reporter,
    *,
    folder: Path | None = None,
    base: bool = False,
) -> dict[Digest, Path]:
    """Bring what is missing; the files in the cache by digest.

    folder: where the lock lies. A wheel that is there already at its `path` is taken (and verified) instead
    of a download; `link_wheels` puts the others there. base: the layers of an image base as well, which the
    direct builder needs (not where apt runs during the build: then there is no direct build).
    Raises ArtefactUnusable: a file is gone, replaced or out of reach; MachineLacks: the disk is full.
    """
    if folder is not None:
        adopt_wheels(lock, cache, folder)
    http = session(settings)
    if settings.offline:
        _refuse_missing(lock, cache)
    indexes = Indexes(stack.indexes, settings, cache, http)
    wanted = [_wanted_wheel(wheel, lock, indexes) for wheel in lock.wheels]
    if lock.debs:
        archive = archive_of(
            stack, _suite_of(lock), settings=settings, cache=cache, http=http, reporter=reporter
        )
        wanted += [_wanted_deb(deb, lock, archive, http) for deb in lock.debs]
    found = fetch_all(wanted, cache, settings, reporter)
    return found | _fetch_base(lock, stack, settings, cache, reporter) if base else found


def missing(lock: Lock, cache: Cache) -> list[Wheel | DebPackage]:
    """The wheels and Debian packages that are not in the cache."""
    items: list[Wheel | DebPackage] = [*lock.wheels, *lock.debs]
    return [item for item in items if cache.artefact(item.sha256) is None]


def check_wheels_place(lock: Lock, folder: Path) -> None:
    """MachineLacks where `link_wheels` may not write: asked before gigabytes are downloaded."""
    for place in {(folder / wheel.path).parent for wheel in lock.wheels}:
        check_writable(place / "wheel", YOUR_FOLDER)


def link_wheels(lock: Lock, cache: Cache, folder: Path) -> Path | None:
    """Put every wheel to its `path` below the lock's folder; the folder that holds them, if there are any.

    Hard links where the cache is on the same disk, else copies. Raises ArtefactUnusable where a wheel is not
    in the cache, MachineLacks where the folder may not be written.
    """
    for wheel in lock.wheels:
        source = cache.artefact(wheel.sha256)
        if source is None:
            raise ArtefactUnusable(
                f"{wheel.filename} is not in the cache", hint=f"imagebuilder fetch {lock.stack_name}"
            )
        target = folder / wheel.path
        with errors_of_writing(target, YOUR_FOLDER):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not (target.exists() and target.samefile(source)):
                give(source, target, YOUR_FOLDER)
    return (folder / lock.wheels[0].path).parent if lock.wheels else None


# ---------------------------------------------------------------- what is wanted, and from where


def _wanted_wheel(wheel: Wheel, lock: Lock, indexes: Indexes) -> Wanted:
    return Wanted(
        name=wheel.filename,
        digest=wheel.sha256,
        size=wheel.size,
        url_lookup=lambda: _wheel_address(wheel, lock, indexes),
    )


def _wheel_address(wheel: Wheel, lock: Lock, indexes: Indexes) -> str:
    if wheel.url is not None:
        return wheel.url
    index = wheel.index or ""
    try:
        return indexes.address_of(wheel.name, index, wheel.filename, wheel.sha256)
    except NotFound as error:
        raise ArtefactUnusable(
            f"{wheel.filename} is locked, but gone from the index {index!r}",
            seen=error.seen,
            wanted=str(wheel.sha256),
            hint=f"imagebuilder lock {lock.stack_name} --upgrade={wheel.name}; or put a copy of the file at "
            f"{wheel.path} beside the lock",
        ) from None


def _wanted_deb(deb: DebPackage, lock: Lock, archive: Archive, http: Session) -> Wanted:
    return Wanted(
        name=f"{deb.name} {deb.version}",
        digest=deb.sha256,
        size=deb.size,
        url_lookup=lambda: _deb_address(deb, lock, archive, http),
    )


def _deb_address(deb: DebPackage, lock: Lock, archive: Archive, http: Session) -> str:
    """The first mirror that has the file. Mirrors keep what is current, the snapshot archive everything."""
    addresses = archive.addresses(deb.path, deb.pocket)
    for address in addresses:
        with http.request("HEAD", address, what=deb.path, allow_redirects=True) as response:
            if response.status_code == 200:
                return address
    raise ArtefactUnusable(
        f"the Debian package {deb.name} {deb.version} is locked, but gone from every mirror in reach",
        seen=f"{len(addresses)} mirrors without {deb.path}",
        hint=f"imagebuilder lock {lock.stack_name} --upgrade takes the present packages; the locked ones are "
        "still in the snapshot archive (debian.snapshot in the configuration)",
    )


def _fetch_base(
    lock: Lock, stack: Stack, settings: Settings, cache: Cache, reporter: Reporter
) -> dict[Digest, Path]:
    """The layers of an image base, where the direct builder can build on it: without apt in between."""
    if lock.base is None or lock.base.ref is None or not isinstance(stack.base, ImageBase):
        return {}
    if stack.system.packages and stack.system.resolve == "build":
        return {}
    image = base_image(stack, lock.base, settings, cache, reporter)
    return {layer.descriptor.digest: layer.path for layer in image.layers if layer.path is not None}


def _suite_of(lock: Lock) -> str:
    """The suite of the locked packages; a pocket is called after it, as in `bookworm-security`."""
    return lock.debs[0].pocket.partition("-")[0]


def _refuse_missing(lock: Lock, cache: Cache) -> None:
    absent = missing(lock, cache)
    if absent:
        names = [item.filename if isinstance(item, Wheel) else item.name for item in absent]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        raise ArtefactUnusable(
            f"{len(absent)} locked files are not in the cache, and imagebuilder is offline",
            seen=", ".join(names[:_SHOWN]) + more,
            hint=f"imagebuilder fetch {lock.stack_name}, where there is a network",
        )


# ---------------------------------------------------------------- the folder beside the lock


def adopt_wheels(lock: Lock, cache: Cache, folder: Path) -> None:
    """Take wheels from beside the lock into the cache: a carried folder is as good as a network."""
    for wheel in lock.wheels:
        path = folder / wheel.path
        if cache.artefact(wheel.sha256) is None and _has_size(path, wheel.size):
            with cache.temporary() as temporary:
                with storage_errors(temporary):
                    link_or_copy(path, temporary / "wheel")
                with contextlib.suppress(ArtefactUnusable):  # another file: `link_wheels` replaces it
                    cache.adopt(temporary / "wheel", wheel.sha256)


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False
