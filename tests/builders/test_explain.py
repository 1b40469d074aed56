"""A difference between two builds is named with its layer, file and cause."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from imagebuilder.builders.explain import LayerFile, differences
from imagebuilder.errors import ArtefactUnusable


def layer(folder: Path, name: str, files: dict[str, bytes], *, level: int = 6, **changes: int) -> LayerFile:
    """A layer blob; `changes` are fields of every entry (mode, uid, mtime)."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            for field, value in changes.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(data))
    blob = gzip.compress(tar.getvalue(), level, mtime=0)
    path = folder / hashlib.sha256(blob).hexdigest()
    path.write_bytes(blob)
    return LayerFile(name=name, diff_id=hashlib.sha256(tar.getvalue()).hexdigest(), blob=path.name, path=path)


def told(first: LayerFile, second: LayerFile) -> list[tuple[str, str, str]]:
    return [(d.path, d.aspect, d.cause) for d in differences([first], [second])]


def test_equal_layers_have_no_difference(tmp_path: Path) -> None:
    one = layer(tmp_path, "a", {"x": b"1"})
    assert told(one, one) == []


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("opt/venv/lib/a/__pycache__/a.cpython-311.pyc", "bytecode"),
        ("opt/venv/lib/a-1.dist-info/RECORD", "installer lists"),
        ("opt/venv/lib/a-1.dist-info/direct_url.json", "install by path"),
        ("opt/venv/lib/a-1.dist-info/uv_cache.json", "uv records"),
        ("var/cache/ldconfig/aux-cache", "inode"),
        ("var/log/apt/term.log", "log"),
        ("var/lib/apt/lists/Packages", "package lists"),
        ("var/lib/dpkg/status-old", "backup"),
        ("etc/shadow-", "backup"),
        ("etc/ld.so.cache", "orders its cache"),
        ("root/.cache/x", "a cache"),
        ("etc/motd", "other bytes"),
    ],
)
def test_the_cause_is_told_by_the_path(tmp_path: Path, path: str, cause: str) -> None:
    [(where, aspect, why)] = told(layer(tmp_path, "a", {path: b"1"}), layer(tmp_path, "a", {path: b"2"}))
    assert (where, aspect) == (path, "content")
    assert cause in why


@pytest.mark.parametrize(
    ("field", "value", "aspect", "cause"),
    [
        ("mtime", 5, "time", "SOURCE_DATE_EPOCH"),
        ("mode", 0o600, "mode", "umask"),
        ("uid", 7, "owner", "another user"),
    ],
)
def test_the_cause_is_told_by_the_aspect(
    tmp_path: Path, field: str, value: int, aspect: str, cause: str
) -> None:
    [(_, seen, why)] = told(
        layer(tmp_path, "a", {"x": b"1"}), layer(tmp_path, "a", {"x": b"1"}, **{field: value})
    )
    assert seen == aspect
    assert cause in why


def test_order_encoding_and_missing_files(tmp_path: Path) -> None:
    both = {"x": b"1" * 999, "y": b"2"}
    one = layer(tmp_path, "a", both)
    assert [t[:2] for t in told(one, layer(tmp_path, "a", dict(reversed(both.items()))))] == [("x", "order")]
    assert [t[:2] for t in told(one, layer(tmp_path, "a", both, level=0))] == [("", "encoding")]
    assert [t[:2] for t in told(one, layer(tmp_path, "a", {"x": b"1" * 999}))] == [("y", "only in one")]


def test_a_missing_layer_is_named(tmp_path: Path) -> None:
    one = layer(tmp_path, "torch", {"x": b"1"})
    [found] = differences([one], [])
    assert str(found).startswith("torch: only in one there ≠ missing")


def test_a_damaged_blob_is_an_error_not_a_crash(tmp_path: Path) -> None:
    one = layer(tmp_path, "a", {"x": b"1" * 9999})
    for damage in (one.path.read_bytes()[:40], b"", b"no gzip", one.path.read_bytes()[:-9]):
        broken = tmp_path / "broken"
        broken.write_bytes(damage)
        with pytest.raises(ArtefactUnusable):
            list(differences([one], [LayerFile(name="a", diff_id="0", blob="broken", path=broken)]))
