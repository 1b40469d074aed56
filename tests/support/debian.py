"""Small Debian packages and signed archives, made for tests: real `ar`, real tar, real OpenPGP signatures."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard
from pysequoia import SignatureMode, Tsk, sign

from imagebuilder.lock.model import DebPackage
from imagebuilder.values import Digest
from tests.support.http_server import Server

TIME = 1_600_000_000


def member(name: str, data: bytes) -> bytes:
    """One member of an ar archive."""
    header = f"{name:<16}{TIME:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)


def tar(entries: Sequence[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as file:
        for entry in entries:
            info, data = entry if isinstance(entry, tuple) else (entry, b"")
            file.addfile(info, io.BytesIO(data))
    return out.getvalue()


def info(
    name: str, kind: bytes = tarfile.REGTYPE, *, mode: int = 0o644, target: str = "", **extra: Any
) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.mtime = kind, mode, target, TIME
    for key, value in extra.items():
        setattr(entry, key, value)
    return entry


def folder(name: str, mode: int = 0o755, **extra: Any) -> tarfile.TarInfo:
    return info(name, tarfile.DIRTYPE, mode=mode, **extra)


def file(name: str, data: bytes = b"", mode: int = 0o644, **extra: Any) -> tuple[tarfile.TarInfo, bytes]:
    return info(name, mode=mode, size=len(data), **extra), data


def link(name: str, target: str) -> tarfile.TarInfo:
    return info(name, tarfile.SYMTYPE, mode=0o777, target=target)


def parents(paths: Sequence[str]) -> list[tarfile.TarInfo]:
    """The folders above these paths, as a package has them."""
    found: dict[str, None] = {"./": None}
    for path in paths:
        parts = path.removeprefix("./").split("/")
        found.update({"./" + "/".join(parts[:n]): None for n in range(1, len(parts))})
    return [folder(name) for name in found]


PACK = {"xz": lzma.compress, "gz": gzip.compress, "zst": zstandard.compress, "": bytes}


def make_deb(
    name: str,
    data: Sequence[tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]] = (),
    *,
    version: str = "1.0",
    architecture: str = "amd64",
    control: Mapping[str, str] | None = None,
    scripts: Mapping[str, str] | None = None,
    pack: str = "xz",
    raw_data: bytes | None = None,
    whole: bool = False,
) -> bytes:
    """A .deb. control: further fields. scripts: further control files. whole: `data` has its own folders."""
    fields = {
        "Package": name,
        "Version": version,
        "Architecture": architecture,
        "Maintainer": "Nobody <nobody@example.org>",
        **(control or {}),
        "Description": f"{name}\n a package for tests",
    }
    text = "".join(f"{key}: {value}\n" for key, value in fields.items()).encode()
    files = [file("./control", text)]
    files += [file(f"./{key}", value.encode(), 0o755) for key, value in (scripts or {}).items()]
    names = [entry[0].name if isinstance(entry, tuple) else entry.name for entry in data]
    contents = raw_data if raw_data is not None else tar([*([] if whole else parents(names)), *data])
    dot = f".{pack}" if pack else ""
    return (
        b"!<arch>\n"
        + member("debian-binary", b"2.0\n")
        + member("control.tar.gz", gzip.compress(tar([folder("./"), *files])))
        + member(f"data.tar{dot}", PACK[pack](contents))
    )


def locked(name: str, deb: bytes, folder: Path, *, version: str = "1.0", architecture: str = "amd64") -> Any:
    """(the locked package, its file)."""
    path = folder / f"{name}_{version}.deb"
    path.write_bytes(deb)
    package = DebPackage(
        name=name,
        version=version,
        architecture=architecture,
        path=f"pool/main/{name[0]}/{name}/{path.name}",
        size=len(deb),
        sha256=Digest.of(deb),
        pocket="test",
    )
    return package, path


def stanza(name: str, version: str = "1.0", **fields: str) -> str:
    """An entry of a Packages file; `_` in field names for `-`."""
    given = {
        "Package": name,
        "Version": version,
        "Architecture": "amd64",
        "Filename": f"pool/main/{name[0]}/{name}/{name}_{version}_amd64.deb",
        "Size": "1000",
        "SHA256": hashlib.sha256(f"{name} {version}".encode()).hexdigest(),
        **{key.replace("_", "-"): value for key, value in fields.items()},
    }
    return "".join(f"{key}: {value}\n" for key, value in given.items())


def packages_text(*stanzas: str) -> bytes:
    return "\n".join(stanzas).encode()


@dataclass
class FakeArchive:
    """An archive on a loopback server, signed with a key of its own."""

    server: Server
    root: str = "/debian"
    key: Any = field(default_factory=lambda: Tsk.generate("Test Archive <test@example.org>"))
    origin: str = "Debian"
    by_hash: bool = True

    @property
    def url(self) -> str:
        return self.server.url + self.root

    def keyring(self, folder: Path) -> Path:
        path = folder / "keyring.pgp"
        path.write_bytes(bytes(self.key.extract_certificate()))
        return path

    def release(self, suite: str, files: Mapping[str, bytes], **fields: str) -> str:
        given = {
            "Origin": self.origin,
            "Suite": "stable",
            "Codename": suite,
            "Date": "Sat, 11 Jul 2026 10:16:37 UTC",
            "Acquire-By-Hash": "yes" if self.by_hash else "no",
            "Components": "main contrib",
            **{key.replace("_", "-"): value for key, value in fields.items()},
        }
        lines = [f"{key}: {value}" for key, value in given.items() if value] + ["SHA256:"]
        lines += [f" {hashlib.sha256(d).hexdigest()} {len(d)} {path}" for path, d in files.items()]
        return "\n".join(lines) + "\n"

    def sign(self, release: str) -> bytes:
        return bytes(sign(self.key.signer(), release.encode(), mode=SignatureMode.CLEAR))

    def publish(self, suite: str, text: bytes, **fields: str) -> None:
        """Serves a suite whose component main has these packages."""
        packed = lzma.compress(text)
        path = "main/binary-amd64/Packages"
        release = self.release(suite, {f"{path}.xz": packed, path: text}, **fields)
        self.server.put(f"{self.root}/dists/{suite}/InRelease", self.sign(release))
        digest = hashlib.sha256(packed).hexdigest()
        name = f"main/binary-amd64/by-hash/SHA256/{digest}" if self.by_hash else f"{path}.xz"
        self.server.put(f"{self.root}/dists/{suite}/{name}", packed)
