"""Values that cannot be wrong once made: each parses at the edge and is trusted afterwards.

Constructors named `parse` raise ValueError with the value seen and the form wanted; the edge that read the
value turns this into an error of `imagebuilder.errors` with file and key.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from functools import total_ordering
from urllib.parse import urlsplit

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class Digest:
    """A sha256 digest, written `sha256:<64 hex>` as OCI does."""

    text: str

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.text):
            raise ValueError(f"{self.text!r} is not a digest: sha256: and 64 hexadecimal digits")

    @classmethod
    def of(cls, data: bytes) -> Digest:
        """The digest of these bytes."""
        return cls("sha256:" + hashlib.sha256(data).hexdigest())

    @classmethod
    def from_hex(cls, hexdigest: str) -> Digest:
        """From 64 hexadecimal digits without the algorithm."""
        return cls("sha256:" + hexdigest.lower())

    @property
    def hex(self) -> str:
        """The 64 hexadecimal digits."""
        return self.text[7:]

    @property
    def short(self) -> str:
        """Twelve digits, for people."""
        return self.text[7:19]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, order=True)
class Platform:
    """An OCI platform such as `linux/amd64`, with the names others give it."""

    os: str
    architecture: str

    # OCI name → (machine of wheel tags and uv, Debian architecture, GNU triplet)
    _KNOWN = {  # noqa: RUF012 - a constant table; dataclass ignores it without annotation
        "amd64": ("x86_64", "amd64", "x86_64-linux-gnu"),
        "arm64": ("aarch64", "arm64", "aarch64-linux-gnu"),
    }

    @classmethod
    def parse(cls, text: str) -> Platform:
        """From `os/architecture`; only linux on amd64 or arm64 is known."""
        os, _, architecture = text.partition("/")
        if os != "linux" or architecture not in cls._KNOWN:
            raise ValueError(f"{text!r} is not a known platform: linux/amd64 or linux/arm64")
        return cls(os, architecture)

    @property
    def machine(self) -> str:
        """As wheel tags and `uname -m` say it: x86_64, aarch64."""
        return self._KNOWN[self.architecture][0]

    @property
    def debian(self) -> str:
        """As dpkg says it: amd64, arm64."""
        return self._KNOWN[self.architecture][1]

    @property
    def triplet(self) -> str:
        """The GNU triplet of library folders: x86_64-linux-gnu."""
        return self._KNOWN[self.architecture][2]

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


@total_ordering
@dataclass(frozen=True)
class Release:
    """A dotted version of numbers only (Python 3.12, glibc 2.36, driver 580.65.06), compared by its parts."""

    text: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+(\.\d+)*", self.text):
            raise ValueError(f"{self.text!r} is not a version of dotted numbers such as 3.12")

    @property
    def parts(self) -> tuple[int, ...]:
        """(3, 12) for 3.12; leading zeros do not count."""
        return tuple(int(p) for p in self.text.split("."))

    def __lt__(self, other: Release) -> bool:
        return self.parts < other.parts

    def __str__(self) -> str:
        return self.text


_GPU = re.compile(r"(sm|compute)_(\d{2,3})([af]?)")


@dataclass(frozen=True, order=True)
class GpuArch:
    """A GPU code architecture, `sm_120`, `sm_90a`, `sm_100f` or `compute_90` (PTX)."""

    kind: str
    number: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> GpuArch:
        """From nvcc's spelling."""
        m = _GPU.fullmatch(text)
        if not m:
            raise ValueError(f"{text!r} is not a GPU architecture such as sm_120, sm_90a or compute_90")
        return cls(m[1], int(m[2]), m[3])

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability (major, minor): (12, 0) for sm_120."""
        return self.number // 10, self.number % 10

    def __str__(self) -> str:
        return f"{self.kind}_{self.number}{self.suffix}"


_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d+)?")


@dataclass(frozen=True, order=True)
class ImageRef:
    """A reference to an image: registry, repository, and a tag, a digest or both.

    Docker's rules: without a host it is Docker Hub (`docker.io`), where a single name lies under `library/`.
    Source: distribution/reference grammar.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        """From what `docker pull` takes. Without tag and digest the tag is `latest`."""
        rest, at, digest_text = text.partition("@")
        digest = Digest(digest_text) if at else None
        head, slash, tail = rest.partition("/")
        if slash and ("." in head or ":" in head or head == "localhost" or head.startswith("[")):
            registry, path = head, tail
        else:
            registry, path = "docker.io", rest
        path, colon, tag = path.partition(":")
        if registry == "docker.io" and "/" not in path:
            path = f"library/{path}"
        if (
            not _REPOSITORY.fullmatch(path)
            or not _HOST.fullmatch(registry)
            or (colon and not _TAG.fullmatch(tag))
        ):
            raise ValueError(f"{text!r} is not an image reference such as registry.example/name:tag")
        return cls(registry, path, tag if colon else (None if digest else "latest"), digest)

    @property
    def name(self) -> str:
        """registry/repository, without tag and digest."""
        return f"{self.registry}/{self.repository}"

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def is_loopback(host: str) -> bool:
    """Whether this name or address, with a port or not, is this machine; 127.example.com is not."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
