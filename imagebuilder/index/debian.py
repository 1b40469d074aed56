"""The Debian archive: where it is reached from here, and what it offers, believed as far as it is signed.

Where: the mirrors of the configuration; else this machine's own apt sources, as far as their Release says
`Origin: Debian`; and the snapshot archive, where the configuration names one. No address is written here.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from imagebuilder.cache import Cache, storage_errors
from imagebuilder.errors import ArtefactUnusable, Unresolvable
from imagebuilder.index import debfile, debian_release
from imagebuilder.index.debian_packages import SCHEMA, DebFile, PackageIndex, fill
from imagebuilder.index.debian_release import Release
from imagebuilder.index.debian_sources import read_apt_sources
from imagebuilder.index.http import Denied, NotFound, Session, Unreachable, fetch
from imagebuilder.progress import Reporter, Silent
from imagebuilder.settings import Settings, redact
from imagebuilder.values import Digest, Platform

__all__ = ["Archive", "DebFile", "PackageIndex", "Site"]

APT_FOLDER = Path("/etc/apt")
_MAX_RELEASE = 8 << 20  # bytes of an InRelease; they have about 150 kB
_MAX_PACKAGES = 256 << 20  # bytes of a Packages file, unpacked; they have about 60 MB
_MAX_KEYRING_PACKAGE = 16 << 20


@dataclass(frozen=True, kw_only=True)
class Site:
    """A base address, and whether it is a dated snapshot (then nothing about it is ever out of date)."""

    url: str
    snapshot: bool = False


@dataclass(frozen=True, kw_only=True)
class _Pocket:
    name: str
    site: Site
    release: Release


class Archive:
    """One suite of the Debian archive for one platform, with its security pocket where that is asked for.

    at: the instant whose state is wanted; None: the present one. Where what is reached from here is newer,
    the snapshot archive is used if its address is configured, else the newer state, with a warning.
    keyring: instead of this machine's, or the pinned package's. now: for what is out of date; None: the
    clock. Nothing is asked before the first method is called.
    """

    def __init__(
        self,
        *,
        suite: str,
        platform: Platform,
        settings: Settings,
        session: Session,
        cache: Cache,
        components: Sequence[str] = ("main",),
        security: bool = False,
        at: datetime | None = None,
        reporter: Reporter | None = None,
        apt_folder: Path = APT_FOLDER,
        keyring: Path | None = None,
        now: datetime | None = None,
    ) -> None:
        self.suite = suite
        self.components = tuple(components)
        self.pocket_names = (suite, f"{suite}-security") if security else (suite,)
        self._platform, self._settings, self._session, self._cache = platform, settings, session, cache
        self._at, self._now = at, now
        self._reporter = reporter or Silent()
        self._apt_folder, self._keyring = apt_folder, keyring

    def packages(self) -> PackageIndex:
        """What the suite offers. ArtefactUnusable: unreachable, unsigned, tampered. Unresolvable: no such."""
        parts: list[tuple[str, Path]] = []
        for pocket in self._pockets:
            self._check_components(pocket)
            for component in self.components:
                parts.append((pocket.name, self._database(pocket, component)))
        return PackageIndex.open(parts)

    @property
    def date(self) -> datetime:
        """When the suite was last published (its Release's Date), of all pockets the latest."""
        return max(pocket.release.date for pocket in self._pockets)

    def addresses(self, path: str, pocket: str) -> list[str]:
        """Where a file of the pool may be had, best first. It is known by sha256, so any will do."""
        known = [p.site for p in self.__dict__.get("_pockets", ()) if p.name == pocket]
        sites = dict.fromkeys([*known, *self._sites(pocket)])
        return [f"{site.url}/{path}" for site in sites]

    # ------------------------------------------------------------------ where

    def _sites(self, pocket: str) -> list[Site]:
        """Every base address that may serve the pocket, best first."""
        if self._settings.debian_mirrors:
            sites = [Site(url=url.rstrip("/")) for url in self._settings.debian_mirrors]
        else:
            sources = read_apt_sources(self._apt_folder)
            release = self.suite.partition("-")[0]
            ranked = sorted(  # stable: apt's order within a rank
                sources,
                key=lambda s: (
                    pocket not in s.suites,
                    not any(suite.startswith(release) for suite in s.suites),
                ),
            )
            sites = [Site(url=source.uri) for source in ranked]
        if self._settings.snapshot_mirror and self._at:
            folder = "debian-security" if pocket.endswith("-security") else "debian"
            stamp = self._at.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
            base = self._settings.snapshot_mirror.rstrip("/")
            sites.append(Site(url=f"{base}/{folder}/{stamp}", snapshot=True))
        return list(dict.fromkeys(sites))

    @cached_property
    def _pockets(self) -> tuple[_Pocket, ...]:
        return tuple(self._find(name) for name in self.pocket_names)

    def _find(self, pocket: str) -> _Pocket:
        sites = self._sites(pocket)
        tried: list[str] = []
        newer: _Pocket | None = None
        for site in sites:
            url = f"{site.url}/dists/{pocket}/InRelease"
            try:
                data = fetch(self._session, url, f"Debian's {pocket}", limit=_MAX_RELEASE).body
            except (NotFound, Denied, Unreachable) as error:
                tried.append(error.seen or error.what)
                continue
            origin = debian_release.claimed_origin(data)
            if origin != "Debian":
                tried.append(f"{redact(site.url)}: its Origin is {origin or 'not given'!r}, not 'Debian'")
                continue
            found = _Pocket(name=pocket, site=site, release=self._verified(data, pocket, site, url))
            if self._at is None or found.release.date <= self._at:
                return found
            newer = newer or found
        if newer is None:
            raise self._nowhere(pocket, tried)
        self._reporter.warn(
            f"Debian {pocket} is of {newer.release.date:%Y-%m-%d}, newer than {self._at:%Y-%m-%d}; the newer "
            "state is used, as no snapshot archive is configured (debian.snapshot) or it was not reached"
        )
        return newer

    def _nowhere(self, pocket: str, tried: list[str]) -> ArtefactUnusable:
        if self._settings.offline:
            return ArtefactUnusable(
                f"Debian's {pocket} is not asked: imagebuilder is offline",
                hint="run it once without --offline (IMAGEBUILDER_OFFLINE): locking asks, a lock does not",
            )
        return ArtefactUnusable(
            f"Debian's {pocket} cannot be reached from here",
            seen="; ".join(dict.fromkeys(tried))
            or "no mirror is configured, and this machine's apt has no HTTP source",
            hint="name mirrors in the configuration (debian.mirrors, IMAGEBUILDER_DEBIAN_MIRRORS), or the "
            "snapshot archive (debian.snapshot) together with a date in the stack",
        )

    def _verified(self, data: bytes, pocket: str, site: Site, url: str) -> Release:
        where = redact(url)
        release = debian_release.verified_release(data, self._certificates, where)
        if release.origin != "Debian" or pocket not in {release.codename, release.suite}:
            raise ArtefactUnusable(
                f"{where} is of another suite",
                seen=f"{release.origin} {release.codename} ({release.suite})",
                wanted=f"Debian {pocket}",
            )
        now = self._now or datetime.now(timezone.utc)
        if release.valid_until and release.valid_until < now and not site.snapshot:
            raise ArtefactUnusable(
                f"{where} is out of date: its mirror is no longer updated, or this machine's clock is wrong",
                seen=f"valid until {release.valid_until:%Y-%m-%d %H:%M} UTC",
                wanted=f"valid at {now:%Y-%m-%d %H:%M} UTC",
                hint="use another mirror (debian.mirrors in the configuration)",
            )
        return release

    # ------------------------------------------------------------------ whom to believe

    @cached_property
    def _certificates(self) -> list[Any]:
        path = self._keyring or debian_release.local_keyring()
        if path:
            try:
                return debian_release.read_keyring(path.read_bytes(), str(path))
            except OSError as error:
                raise ArtefactUnusable(f"the keyring {path} cannot be read: {error.strerror}") from None
        return debian_release.read_keyring(self._pinned_keyring(), "of debian-archive-keyring")

    def _pinned_keyring(self) -> bytes:
        """The keyring out of one of the pinned packages, from the cache or any site."""
        tried: list[str] = []
        for pool_path, digest in debian_release.PINNED_KEYRINGS:
            for url in () if self._cache.artefact(digest) else self.addresses(pool_path, self.suite):
                try:
                    data = fetch(self._session, url, "Debian's keyring", limit=_MAX_KEYRING_PACKAGE).body
                except (NotFound, Denied, Unreachable) as error:
                    tried.append(error.seen or error.what)
                    continue
                if Digest.of(data) == digest:
                    with self._cache.put_artefact(digest) as incoming:
                        if incoming:
                            incoming.restart()
                            incoming.write(data)
                    break
                tried.append(f"{redact(url)}: another sha256")
            if deb := self._cache.artefact(digest):
                name = pool_path.rpartition("/")[2]
                with debfile.open_deb(deb) as file:
                    for keyring in debian_release.KEYRING_NAMES:
                        data_or_none = debfile.read_data(
                            file, f"usr/share/keyrings/{keyring}", name, _MAX_KEYRING_PACKAGE
                        )
                        if data_or_none:
                            return data_or_none
        raise ArtefactUnusable(
            "there is no Debian archive keyring to verify signatures with",
            seen="; ".join(tried),
            hint="apt-get install debian-archive-keyring",
        )

    # ------------------------------------------------------------------ what there is

    def _check_components(self, pocket: _Pocket) -> None:
        for component in self.components:
            if component not in pocket.release.components:
                raise Unresolvable(
                    f"Debian {pocket.name} has no component {component!r}",
                    wanted=" or ".join(pocket.release.components),
                    hint="correct base.debian.components in the stack file",
                )

    def _database(self, pocket: _Pocket, component: str) -> Path:
        """The parsed package list, made once per sha256."""
        plain = f"{component}/binary-{self._platform.debian}/Packages"
        name = next((n for n in (f"{plain}.xz", f"{plain}.gz") if n in pocket.release.files), None)
        if name is None:
            raise Unresolvable(f"Debian {pocket.name} has no packages for {self._platform}")
        digest, size = pocket.release.files[name]
        path = self._cache.root / "debian" / f"{digest.hex}-{SCHEMA}.sqlite"
        if path.is_file():
            return path
        with (
            self._cache.lock(f"debian-{digest.hex}"),
            self._cache.temporary() as folder,
            storage_errors(path),
        ):
            if not path.is_file():
                packed = io.BytesIO(self._download(pocket, name, digest, size))
                member = debfile.Member(compression=name.rpartition(".")[2], offset=0, size=size)
                made = folder / "made.sqlite"
                with closing(sqlite3.connect(made)) as connection:
                    fill(connection, debfile.unpacked(packed, member, name, _MAX_PACKAGES), pocket.name)
                path.parent.mkdir(parents=True, exist_ok=True)
                made.replace(path)
        return path

    def _download(self, pocket: _Pocket, name: str, digest: Digest, size: int) -> bytes:
        """A file of the release, by its hash where the archive has such names, else by its own."""
        folder = f"{pocket.site.url}/dists/{pocket.name}"
        urls = [f"{folder}/{name}"]
        if pocket.release.by_hash:
            urls.insert(0, f"{folder}/{name.rpartition('/')[0]}/by-hash/SHA256/{digest.hex}")
        what = f"the package list of Debian {pocket.name}"
        problems: list[str] = []
        with self._reporter.task(what, total=size) as task:
            for url in urls:
                try:
                    data = fetch(self._session, url, what, limit=size).body
                except ArtefactUnusable as error:
                    problems.append(error.seen or error.what)
                    continue
                task.advance(len(data))
                if Digest.of(data) == digest:
                    return data
                problems.append(f"{redact(url)}: {Digest.of(data)}, {len(data)} bytes")
        raise ArtefactUnusable(
            f"{what} is not what its signed Release says",
            seen="; ".join(problems),
            wanted=f"{digest}, {size} bytes",
            hint="the mirror is perhaps just being updated: try again in some minutes, or use another mirror",
        )
