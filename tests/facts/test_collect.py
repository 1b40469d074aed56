"""Facts of a whole wheel from afar: what fails there is said, and never taken for a fault of the wheel."""

from __future__ import annotations

import io
import zipfile

import pytest

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.collect import collect, collect_front
from imagebuilder.index.http import Unreachable
from imagebuilder.index.ranged import FileChanged

NAME = "made-1.0-cp39-abi3-linux_x86_64.whl"


class _Failing(io.BytesIO):
    """A wheel of which the bytes of its library cannot be had."""

    def __init__(self, error: ArtefactUnusable) -> None:
        super().__init__()
        info = "made-1.0.dist-info"
        with zipfile.ZipFile(self, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("made/_x.abi3.so", b"\x7fELF\x02\x01" + bytes(range(256)) * 400)
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: cp39-abi3-linux_x86_64\n")
            archive.writestr(f"{info}/RECORD", "")
            library = archive.getinfo("made/_x.abi3.so")
        self._error = error
        self._from, self._to = 30 + len(library.filename), 30 + len(library.filename) + library.compress_size

    def read(self, size: int | None = -1, /) -> bytes:
        if self._from <= self.tell() < self._to:
            raise self._error
        return super().read(size)


@pytest.mark.parametrize("kind", [Unreachable, FileChanged])
def test_a_server_that_fails_is_no_problem_of_the_library(kind: type[ArtefactUnusable]) -> None:
    with pytest.raises(kind):
        collect(_Failing(kind("gone")), NAME)
    with pytest.raises(kind):
        collect_front(_Failing(kind("gone")), NAME)


def test_a_library_that_cannot_be_unpacked_is_its_own_problem() -> None:
    facts = collect(_Failing(ArtefactUnusable("made/_x.abi3.so cannot be unpacked", seen="this")), NAME)
    assert facts.problems == (("made/_x.abi3.so", "made/_x.abi3.so cannot be unpacked: this"),)
