"""What the template sees, and the files that a rendered Dockerfile needs beside it."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.utils import canonicalize_name

from imagebuilder.lock.model import DebPackage, Wheel
from imagebuilder.plan import PlannedWheel
from imagebuilder.values import Digest

PIP = Wheel(
    name=canonicalize_name("pip"),
    version="26.3",
    filename="pip-26.3-py3-none-any.whl",
    size=1950951,
    sha256=Digest("sha256:f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"),
    path="wheels/pip-26.3-py3-none-any.whl",
)
"""The pip that installs in a Docker build. The direct builder writes what this very version writes."""

BASE_TAR = "base.tar.gz"
FILES_TAR = "files.tar"
TOOLS = "tools"
LAYERS = "layers"


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Wheels of a layer that come from one index. file: the requirements, in the layer's folder.

    index and url are empty for the default index, whose address is pip's own setting, and for wheels that
    have an address of their own.
    """

    file: str
    index: str = ""
    url: str = ""

    @property
    def secret(self) -> str:
        """The build secret that may hold another address for the index."""
        return f"index-{self.index}" if self.index else ""


@dataclass(frozen=True, kw_only=True)
class WheelStep:
    """One RUN that installs wheels. folder: in the context. heading: what it installs, for people.

    here: some of the wheels are files of the folder (patched or vendored). fetches: where others come from.
    """

    folder: str
    heading: str
    fetches: tuple[Fetch, ...] = ()
    here: bool = False

    @property
    def secrets(self) -> tuple[str, ...]:
        """The build secrets that fetching may use."""
        if not self.fetches:
            return ()
        return (*(f.secret for f in self.fetches if f.secret), "pip.conf", "netrc", "ca-bundle")


@dataclass(frozen=True, kw_only=True)
class Derived:
    """What a patched wheel became: file name, version and sha256 of the derived one."""

    filename: str
    version: str
    sha256: Digest


@dataclass(frozen=True, kw_only=True)
class ContextFile:
    """A file of the context: exactly one of content, wheel, derived and debs says what is in it.

    path: relative, POSIX. wheel: the locked file itself. derived: the wheel made of this one by its patches.
    debs: these packages, unpacked and written as one gzipped tar.
    """

    path: str
    content: bytes | None = None
    executable: bool = False
    wheel: Wheel | None = None
    derived: PlannedWheel | None = None
    debs: tuple[DebPackage, ...] = ()
