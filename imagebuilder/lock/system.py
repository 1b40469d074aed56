"""What lies below the wheels: the base image's digest and the Debian packages."""

from __future__ import annotations

import re
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.errors import Unresolvable
from imagebuilder.index.debian import Archive
from imagebuilder.index.http import Session
from imagebuilder.lock.debian import resolve_closure
from imagebuilder.lock.model import DebPackage, LockedBase
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.stack.model import DebianBase, ImageBase, OciBase, Stack

_SUITES = ("bullseye", "bookworm", "trixie", "forky")


def lock_base(stack: Stack, settings: Settings, cache: Cache, kept: LockedBase | None) -> LockedBase | None:
    """The base by digest; None for a debian base. A reference that has a digest needs no network.

    kept: the previous lock's, which stays where the stack still names the same image.
    """
    base, platform = stack.base, stack.target.platform
    if isinstance(base, DebianBase):
        return None
    if isinstance(base, OciBase):
        from imagebuilder.oci.base import read_base

        folder = stack.path.parent if stack.path else Path()
        found = read_base(folder / base.path, platform, cache)
        digest = found.image.digest
        return LockedBase(ref=None, index=found.index or digest, manifest=digest, path=base.path)
    if base.ref.digest is not None:
        return LockedBase(ref=base.ref, index=base.ref.digest)
    if kept is not None and kept.ref == base.ref:
        return kept
    from imagebuilder.oci.base import resolve_base

    found = resolve_base(base.ref, platform, settings=settings, cache=cache)
    digest = found.image.digest
    return LockedBase(ref=base.ref, index=found.index or digest, manifest=digest)


def lock_debs(
    stack: Stack, settings: Settings, cache: Cache, http: Session, reporter: Reporter
) -> tuple[DebPackage, ...]:
    """The Debian packages in unpack order; none where apt installs them during the build."""
    if not _locks_debs(stack):
        return ()
    archive = archive_of(stack, settings, cache, http, reporter)
    essential = isinstance(stack.base, DebianBase)
    return tuple(resolve_closure(archive.packages(), stack.system.packages, essential=essential))


def archive_of(stack: Stack, settings: Settings, cache: Cache, http: Session, reporter: Reporter) -> Archive:
    """The archive that the stack's Debian packages come from."""
    base = stack.base
    debian = base if isinstance(base, DebianBase) else DebianBase(suite=_suite_of(stack))
    return Archive(
        suite=debian.suite,
        platform=stack.target.platform,
        settings=settings,
        session=http,
        cache=cache,
        components=debian.components,
        security=debian.security,
        at=stack.apt_snapshot,
        reporter=reporter,
    )


def _locks_debs(stack: Stack) -> bool:
    if isinstance(stack.base, DebianBase):
        return True
    return stack.system.resolve == "lock" and bool(stack.system.packages)


def _suite_of(stack: Stack) -> str:
    if isinstance(stack.base, ImageBase):
        words = re.split(r"[^a-z0-9]+", f"{stack.base.ref.repository} {stack.base.ref.tag or ''}")
        for suite in _SUITES:
            if suite in words:
                return suite
    raise Unresolvable(
        f'{stack.name}: [system] resolve = "lock" needs a base that is Debian and says its suite',
        seen=str(stack.base.ref if isinstance(stack.base, ImageBase) else "an OCI layout"),
        hint='use resolve = "build" (apt inside the Docker build), or a debian base',
    )
