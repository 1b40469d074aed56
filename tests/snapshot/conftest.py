"""Real environments to take snapshots of: made by venv, filled by uv from an index on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uv

from tests.support.command import Outcome
from tests.support.fixtures import imagebuilder
from tests.support.http_server import Server, SimpleIndex
from tests.support.mirror import publish
from tests.support.schemas import validated

__all__ = ["imagebuilder"]

BASE = f"registry.example/python:{sys.version_info.major}.{sys.version_info.minor}@sha256:{'ab' * 32}"
DATED = "2026-01-01T00:00:00Z"
TEXT = b"one\ntwo\nthree\nfour\nfive\n"

# A build backend that needs nothing: what an editable or local install is made by.
BACKEND = """
import base64, hashlib, zipfile
NAME, VERSION = "localpkg", "0.3"
def build(folder, files):
    info = f"{NAME}-{VERSION}.dist-info"
    files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\n",
             f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    hashes = {p: base64.urlsafe_b64encode(hashlib.sha256(t.encode()).digest()) for p, t in files.items()}
    rows = [f"{p},sha256={h.decode().rstrip('=')},{len(files[p])}" for p, h in hashes.items()]
    files[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,", ""])
    name = f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name
def build_wheel(folder, config_settings=None, metadata_directory=None):
    return build(folder, {"localpkg/__init__.py": "x = 1\\n"})
def build_editable(folder, config_settings=None, metadata_directory=None):
    return build(folder, {"__editable__localpkg.pth": "/nowhere\\n"})
"""


@dataclass(kw_only=True)
class Place:
    """An index, an environment, and the command line in a folder of its own."""

    folder: Path
    server: Server
    index: SimpleIndex
    call: Callable[..., Outcome]

    @property
    def venv(self) -> Path:
        return self.folder / "venv"

    @property
    def site(self) -> Path:
        (site,) = (self.venv / "lib").glob("python3.*/site-packages")
        return site

    @property
    def stacks(self) -> Path:
        return self.folder / "work" / "stacks"

    def make(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", *arguments, str(self.venv)], check=True
        )

    def publish(self, name: str, version: str = "1.0", **more: Any) -> str:
        more.setdefault("files", {f"{name}/text.py": TEXT, f"{name}/data.bin": bytes(range(256))})
        more.setdefault("upload_time", DATED)
        return publish(more.pop("index", self.index), self.folder, name, version, **more)

    def install(self, *arguments: str, index: str | None = None) -> None:
        words = ["pip", "install", "--quiet", "--no-config", "--python", str(self.venv / "bin" / "python")]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "UV_CACHE_DIR": str(self.folder / "uv"),
            "UV_DEFAULT_INDEX": index or self.index.url,
        }
        done = subprocess.run(
            [uv.find_uv_bin(), *words, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def local_project(self) -> Path:
        folder = self.folder / "project"
        folder.mkdir(exist_ok=True)
        (folder / "backend.py").write_text(BACKEND)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "localpkg"\nversion = "0.3"\n'
        )
        return folder

    def snapshot(self, *arguments: str) -> Outcome:
        return self.call("snapshot", "--python", str(self.venv), "--name", "s", "--base", BASE, *arguments)

    def taken(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What `--json` says."""
        outcome = self.snapshot("--json", *arguments)
        assert outcome.code == code, outcome.out + outcome.err
        said: dict[str, Any] = validated("snapshot", outcome.out)
        said["by-name"] = {p["name"]: p for p in said["packages"]}
        return said


@pytest.fixture
def place(
    imagebuilder: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """An empty environment beside an empty index."""
    with Server() as server:
        index = server.index("/simple", form="json")
        monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", index.url)
        monkeypatch.setenv("IMAGEBUILDER_TIMEOUT", "240")
        made = Place(folder=tmp_path, server=server, index=index, call=imagebuilder)
        made.make()
        yield made
