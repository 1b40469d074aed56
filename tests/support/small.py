"""A small stack that builds in a blink: wheels from an index on loopback, on the tiny base of tests/data.

small = Small(folder, server)              # `folder` is the current folder of commands
small.wheel("one", requires=["two"])       # made, listed and served
small.write("one")                         # folder/stacks/s.toml
environment |= small.environment
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from tests.support.command import ROOT
from tests.support.http_server import Server
from tests.support.mirror import publish

BASE = ROOT / "tests" / "data" / "wheels-stack" / "base"
UPLOADED = "2025-06-01T00:00:00Z"


class Small:
    """See the module. index: the default index of the commands."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.index = server.index("/simple", form="json")
        self.environment = {
            "IMAGEBUILDER_INDEX_DEFAULT_URL": self.index.url,
            "IMAGEBUILDER_TIMEOUT": "240",
            "IMAGEBUILDER_WORKERS": "2",
        }
        self._made = folder.parent / "made"

    @property
    def lock(self) -> Path:
        """Where the lock is written."""
        return self.folder / "stacks" / "pylock.s.toml"

    @property
    def image(self) -> Path:
        """Where the image is written."""
        return self.folder / "images" / "s"

    def wheel(self, name: str, version: str = "1.0", **more: Any) -> Path:
        """Make a wheel of pure Python, list and serve it; the file. more: as `publish` takes it."""
        more.setdefault("upload_time", UPLOADED)
        files = {f"{name}/data.bin": noise(name, 40_000), f"{name}/text.py": b"# text\n" * 500}
        publish(self.index, self._made, name, version, **{"files": files, **more})
        return self._made / "made" / f"{name}-{version}-py3-none-any.whl"

    def write(self, *requirements: str, base: str = 'oci = "base"', head: str = "", tail: str = "") -> Path:
        """Write the stack; each requirement is a layer. head: in [target]; tail: more TOML behind it all."""
        layers = "".join(
            f'[[layer]]\nname = "layer{number}"\nrequirements = [{text!r}]\n'
            for number, text in enumerate(requirements)
        )
        path = self.folder / "stacks" / "s.toml"
        path.parent.mkdir(exist_ok=True)
        if "oci" in base and not (path.parent / "base").exists():
            shutil.copytree(BASE, path.parent / "base")
        path.write_text(
            'schema = 1\nname = "s"\n[target]\nplatform = "linux/amd64"\npython = "3.11"\nglibc = "2.36"\n'
            f"{head}\n[base]\n{base}\n{layers}{tail}",
            encoding="utf-8",
        )
        return path


def noise(seed: str, size: int) -> bytes:
    """Bytes that do not compress, always the same."""
    blocks = (hashlib.sha256(f"{seed} {n}".encode()).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]
