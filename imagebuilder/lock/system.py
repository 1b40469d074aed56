"""What lies below the wheels: the base image's digest and the Debian packages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.image_tree import ImageTree
from imagebuilder.index.debian import Archive
from imagebuilder.index.http import Session
from imagebuilder.lock.debian import base_packages, check_python, debian_suite, resolve_closure
from imagebuilder.lock.model import DebPackage, LockedBase
from imagebuilder.oci.image import Image
from imagebuilder.progress import Reporter
from imagebuilder.settings import Settings
from imagebuilder.stack.model import DebianBase, OciBase, Stack


def lock_base(stack: Stack, settings: Settings, cache: Cache, kept: LockedBase | None) -> LockedBase | None:
    """The base by digest; None for a debian base. A reference that has a digest needs no network.

    kept: the previous lock's, which stays where the stack still names the same image.
    """
    base, platform = stack.base, stack.target.platform
    if isinstance(base, DebianBase):
        return None
    if isinstance(base, OciBase):
        from imagebuilder.oci.base import read_base

        found = read_base(_layout(stack, base), platform, cache)
        return LockedBase(ref=None, index=found.index_digest, manifest=found.manifest_digest, path=base.path)
    if base.ref.digest is not None:
        return LockedBase(ref=base.ref, index=base.ref.digest)
    if kept is not None and kept.ref == base.ref:
        return kept
    from imagebuilder.oci.base import resolve_base

    found = resolve_base(base.ref, platform, settings=settings, cache=cache)
    return LockedBase(ref=base.ref, index=found.index_digest, manifest=found.manifest_digest)


def base_image(
    stack: Stack, locked: LockedBase, settings: Settings, cache: Cache, reporter: Reporter
) -> Image:
    """The locked base with its layers here, fetched where they are missing.

    ArtefactUnusable: it cannot be had, or what lies on disk is not what was locked.
    """
    from imagebuilder.oci.base import fetch_layers, read_base, resolve_base

    platform = stack.target.platform
    if isinstance(stack.base, OciBase):
        found = read_base(_layout(stack, stack.base), platform, cache)
        if found.index_digest != locked.index:
            raise ArtefactUnusable(
                f"the base at {stack.base.path} is not the locked one",
                seen=found.index_digest.text,
                wanted=locked.index.text,
                hint=f"imagebuilder lock {stack.name}",
            )
        return found.image
    assert locked.ref is not None, "only a base on disk has no reference"
    ref = replace(locked.ref, digest=locked.index)
    found = resolve_base(ref, platform, settings=settings, cache=cache)
    return fetch_layers(found, settings=settings, cache=cache, reporter=reporter).image


def lock_debs(
    stack: Stack,
    base: LockedBase | None,
    *,
    settings: Settings,
    cache: Cache,
    http: Session,
    reporter: Reporter,
) -> tuple[DebPackage, ...]:
    """The Debian packages in unpack order; none where apt installs them during the build.

    On an image base what it has installed stays as it is, and only what is missing is locked.
    """
    if isinstance(stack.base, DebianBase):
        archive = archive_of(
            stack, stack.base.suite, settings=settings, cache=cache, http=http, reporter=reporter
        )
        closure = resolve_closure(archive.packages(), stack.system.packages)
        check_python(closure, stack.target.python, stack.base.suite)
        return closure
    if base is None or stack.system.resolve != "lock" or not stack.system.packages:
        return ()
    image = base_image(stack, base, settings, cache, reporter)
    tree = ImageTree.read([layer.path for layer in image.layers if layer.path])
    suite = debian_suite(tree)
    archive = archive_of(stack, suite, settings=settings, cache=cache, http=http, reporter=reporter)
    present = base_packages(tree)
    return resolve_closure(archive.packages(), stack.system.packages, essential=False, present=present)


def archive_of(
    stack: Stack, suite: str, *, settings: Settings, cache: Cache, http: Session, reporter: Reporter
) -> Archive:
    """The archive that the stack's Debian packages come from."""
    debian = stack.base if isinstance(stack.base, DebianBase) else DebianBase(suite=suite)
    return Archive(
        suite=suite,
        platform=stack.target.platform,
        settings=settings,
        session=http,
        cache=cache,
        components=debian.components,
        security=debian.security,
        at=stack.apt_snapshot,
        reporter=reporter,
    )


def _layout(stack: Stack, base: OciBase) -> Path:
    return (stack.path.parent if stack.path else Path()) / base.path
