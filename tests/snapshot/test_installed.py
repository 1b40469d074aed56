"""Reading .dist-info folders: whatever is in them, there is an answer, and nothing in it leads astray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import is_normalized_name

from imagebuilder.snapshot.guess import VendorIndex, guess_indexes, indexed_version
from imagebuilder.snapshot.installed import find_installed
from imagebuilder.snapshot.model import Environment, Installed, Interpreter
from imagebuilder.values import Platform, Release

SITE = "opt/app/lib/python3.11/site-packages"


class Memory:
    """`Files` of a few paths."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def kind(self, path: str) -> str | None:
        if path in self.files:
            return "file"
        return "directory" if any(p.startswith(f"{path}/") for p in self.files) else None

    def names(self, folder: str) -> tuple[str, ...]:
        return tuple(
            sorted({p[len(folder) + 1 :].partition("/")[0] for p in self.files if p.startswith(f"{folder}/")})
        )

    def walk(self, folder: str) -> Iterator[str]:
        return (p for p in self.files if p.startswith(f"{folder}/"))

    def digest(self, path: str) -> str:
        return "0" * 32

    def executable(self, path: str) -> bool:
        return False

    def size(self, path: str) -> int:
        return len(self.files.get(path, b""))

    def read(self, paths: Iterable[str], limit: int) -> Mapping[str, bytes]:
        return {p: self.files[p] for p in paths if p in self.files}


def environment(files: Mapping[str, bytes]) -> Environment:
    interpreter = Interpreter(
        version=Release("3.11"),
        platform=Platform("linux", "amd64"),
        prefix="opt/app",
        base="usr",
        sites=(SITE,),
    )
    return Environment(label="it", name="it", files=Memory(files), interpreter=interpreter)


def only(**files: bytes) -> Installed:
    names = {"metadata": "METADATA", "record": "RECORD", "wheel": "WHEEL", "url": "direct_url.json"}
    paths = {f"{SITE}/thing-1.0.dist-info/{names[key]}": data for key, data in files.items()}
    (item,), _ = find_installed(environment(paths))
    return item


BYTES = st.binary(max_size=200) | st.text(max_size=80).map(lambda t: t.encode("utf-8", "surrogatepass"))
NAMED = st.builds(lambda n, v: b"Name: " + n + b"\nVersion: " + v + b"\n", BYTES, BYTES)


@given(NAMED | BYTES, BYTES, BYTES, BYTES)
def test_whatever_is_in_them(metadata: bytes, record: bytes, wheel: bytes, url: bytes) -> None:
    item = only(metadata=metadata, record=record, wheel=wheel, url=url)
    assert item.problem or is_normalized_name(item.name)
    assert item.name.isprintable() and item.version.isprintable()
    assert all(path.startswith(("opt/app/", "usr/")) for path in item.record or ())
    assert all(".." not in path.split("/") for path in item.record or ())


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", " ", "a b", "é"])
def test_a_name_that_is_none_is_asked_of_no_index(name: str) -> None:
    item = only(metadata=f"Name: {name}\nVersion: 1.0\n".encode(), record=b"")
    assert item.problem or item.name == "thing"


@pytest.mark.parametrize(
    ("name", "version", "wanted"),
    [
        ("torch", "2.9.1", ["default"]),
        ("torch", "2.9.1+cu130", ["pytorch-cu130", "default"]),
        ("torch", "2.11.0.dev20260101+cu130", ["pytorch-nightly-cu130", "default"]),
        ("torch", "2.4.0+rocm6.2", ["pytorch-rocm6-2", "default"]),
        ("torch", "2.9.1+cpu", ["pytorch-cpu", "default"]),
        ("sgl-kernel", "0.3.21+cu130", ["sglang-cu130", "pytorch-cu130", "default"]),
        ("flashinfer-jit-cache", "0.6.4+cu130", ["flashinfer-cu130", "pytorch-cu130", "default"]),
        ("flashinfer-python", "0.2.5+cu124torch2.6", ["flashinfer-cu124", "pytorch-cu124", "default"]),
        ("torch", "2.9.1+cu130.patched.0123abcd", ["pytorch-cu130", "default"]),
        ("torch", "2.9.1+patched.0123abcd", ["default"]),
        ("torch", "2.9.1+local.build", ["default"]),
        ("torch", "no version", []),
    ],
)
def test_the_indexes_that_a_version_means(name: str, version: str, wanted: list[str]) -> None:
    from imagebuilder.facts.tables import table

    vendors = [VendorIndex.of(row) for row in table("indexes")["index"]]
    item = only(metadata=f"Name: {name}\nVersion: {version}\n".encode())
    assert [index.name for index in guess_indexes(item, vendors, ())] == wanted


def test_the_version_that_an_index_knows() -> None:
    assert indexed_version("0.5.9+patched.0123abcd") == "0.5.9"
    assert indexed_version("2.9.1+cu130.patched.0123abcd") == "2.9.1+cu130"
    assert indexed_version("2.9.1+cu130") == "2.9.1+cu130"
