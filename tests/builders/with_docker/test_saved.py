"""Images as engines of any age save them."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from imagebuilder.builders.docker.saved import read_saved
from imagebuilder.errors import ArtefactUnusable

LAYERS = (b"first layer", b"second layer")
CONFIG = json.dumps(
    {
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(x).hexdigest()}" for x in LAYERS]},
    }
).encode()


def stream(files: dict[str, bytes], links: dict[str, str] | None = None, size: int = 100) -> list[bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    data = out.getvalue()
    return [data[n : n + size] for n in range(0, len(data), size)]


def manifest(*layers: str, config: str = "c.json") -> bytes:
    return json.dumps([{"Config": config, "Layers": layers, "RepoTags": None}]).encode()


def test_the_form_of_docker_25(tmp_path: Path) -> None:
    names = [f"blobs/sha256/{hashlib.sha256(x).hexdigest()}" for x in LAYERS]
    files = dict(zip(names, LAYERS, strict=True)) | {"c.json": CONFIG, "manifest.json": manifest(*names)}
    raw = read_saved(stream(files), tmp_path)
    assert [p.read_bytes() for p in raw.layers] == list(LAYERS)


def test_the_older_form_with_a_layer_that_comes_twice(tmp_path: Path) -> None:
    files = {
        "a/layer.tar": LAYERS[0],
        "c.json": CONFIG,
        "manifest.json": manifest("a/layer.tar", "b/layer.tar"),
    }
    raw = read_saved(stream(files, {"b/layer.tar": "../a/layer.tar"}), tmp_path)
    assert [p.read_bytes() for p in raw.layers] == [LAYERS[0], LAYERS[0]]


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"manifest.json": b"no json"},
        {"manifest.json": b"[]"},
        {"manifest.json": manifest("l"), "c.json": CONFIG},
        {"manifest.json": manifest("l", "m"), "c.json": CONFIG, "l": b""},
        {"manifest.json": manifest("l"), "c.json": b"{}", "l": b""},
        {"../out": b"x"},
        {"/out": b"x"},
    ],
)
def test_what_is_no_saved_image_is_refused(tmp_path: Path, files: dict[str, bytes]) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    with pytest.raises(ArtefactUnusable):
        read_saved(stream(files), inside)
    assert list(tmp_path.iterdir()) == [inside]


def test_a_stream_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    files = {"l": b"x" * 5000, "manifest.json": manifest("l"), "c.json": CONFIG}
    with pytest.raises(ArtefactUnusable):
        read_saved(stream(files)[:20], tmp_path)
