"""Ranged reads: any bytes of a remote file, little traffic, and never bytes of two versions."""

from __future__ import annotations

import io
import os
import random
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.index.http import ATTEMPTS, Denied, NotFound, Session, Unreachable
from imagebuilder.index.ranged import BLOCK, RangedFile, RangesUnsupported
from imagebuilder.settings import Settings
from tests.index.conftest import Pauses
from tests.support.http_server import Fault, Reply, Request, Server

DATA = random.Random(5).randbytes(10 * BLOCK + 1234)


@pytest.fixture
def url(server: Server) -> str:
    return server.put("/big", DATA)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[str, Session]]:
    """A file and a session for many examples."""
    with (
        Server() as server,
        tempfile.TemporaryDirectory() as folder,
        Session(Settings(cache_dir=Path(folder))) as http,
    ):
        yield server.put("/big", DATA), http


_OFFSETS = st.one_of(
    st.integers(0, len(DATA) + 10),
    st.integers(0, 11).map(lambda n: n * BLOCK),
    st.integers(1, 11).map(lambda n: n * BLOCK - 1),
)
_STEPS = st.lists(st.tuples(st.sampled_from(["seek", "read", "end", "at"]), _OFFSETS), max_size=12)


@hypothesis_settings(deadline=None, max_examples=60)
@given(steps=_STEPS)
def test_it_reads_as_a_file_reads(shared: tuple[str, Session], steps: list[tuple[str, int]]) -> None:
    remote, local = RangedFile(*shared), io.BytesIO(DATA)
    for step, number in steps:
        if step == "seek":
            assert remote.seek(number) == local.seek(number)
        elif step == "end":
            assert remote.seek(-min(number, len(DATA)), io.SEEK_END) == local.seek(
                -min(number, len(DATA)), io.SEEK_END
            )
        elif step == "read":
            assert remote.read(number) == local.read(number)
        else:
            assert remote.read_at(number, 1000) == DATA[number : number + 1000]
        assert remote.tell() == local.tell()
    assert remote.read() == local.read()


def test_opening_costs_one_request(server: Server, http: Session, url: str) -> None:
    file = RangedFile(url, http)
    assert (file.size, file.requests) == (len(DATA), 1)
    assert file.read_at(len(DATA) - 100, 100) == DATA[-100:]
    assert file.requests == 1
    assert server.sent("/big") == file.received == 2 * BLOCK


@pytest.mark.parametrize("size", [1, 100, BLOCK, BLOCK + 1, 2 * BLOCK])
def test_a_small_file_is_there_at_once(server: Server, http: Session, size: int) -> None:
    file = RangedFile(server.put("/small", DATA[:size]), http)
    assert file.read() == DATA[:size]
    assert file.requests == 1


def test_nothing_is_fetched_twice(http: Session, url: str) -> None:
    file = RangedFile(url, http)
    for _ in range(3):
        for offset in range(0, len(DATA), 7919):
            assert file.read_at(offset, 100) == DATA[offset : offset + 100]
    assert file.received <= len(DATA) + 2 * BLOCK


def test_reading_on_takes_larger_and_larger_steps(server: Server, http: Session) -> None:
    data = DATA * 40
    file = RangedFile(server.put("/long", data), http)
    parts = []
    while part := file.read(10_000):
        parts.append(part)
    assert b"".join(parts) == data
    assert file.requests < 20


def test_many_threads(server: Server, http: Session) -> None:
    data = DATA * 8
    file = RangedFile(server.put("/long", data), http)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            offset, size = rng.randrange(len(data)), rng.randrange(3 * BLOCK)
            if file.read_at(offset, size) != data[offset : offset + size]:
                wrong.append(offset)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_is_bounded(server: Server, http: Session) -> None:
    data = bytes(24 << 20)
    file = RangedFile(server.put("/huge", data), http)
    while file.read(1 << 20):
        pass
    assert sum(len(block) for block in file._kept.values()) <= 6 << 20
    assert {*file._where.values()} == {*file._kept}


def test_a_zip_file(server: Server, http: Session, tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("big", random.Random(6).randbytes(5 << 20))
        made.writestr("small", b"hello")
    file = RangedFile(server.put("/a.zip", archive), http)
    with zipfile.ZipFile(file) as read:
        assert read.read("small") == b"hello"
        assert file.received <= 3 * BLOCK
        assert read.testzip() is None


def test_a_folder(http: Session, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(DATA)
    file = RangedFile((tmp_path / "big").as_uri(), http)
    assert file.read_at(5, BLOCK) == DATA[5 : BLOCK + 5]
    with pytest.raises(NotFound):
        RangedFile((tmp_path / "none").as_uri(), http)


def test_positions_before_the_beginning(http: Session, url: str) -> None:
    file = RangedFile(url, http)
    with pytest.raises(ValueError, match="before the beginning"):
        file.seek(-1)
    assert file.readable()
    assert file.seekable()
    assert not file.writable()


# ---------------------------------------------------------------- servers and their ways


def test_a_server_without_ranges(server: Server, http: Session, url: str) -> None:
    server.ranges = False
    with pytest.raises(RangesUnsupported, match="in parts"):
        RangedFile(url, http)
    assert server.sent("/big") <= len(DATA)


@pytest.mark.parametrize("refusal", [200, 416, 501])
def test_a_server_without_ranges_from_the_end(server: Server, http: Session, url: str, refusal: int) -> None:
    server.fail("/big", Fault(status=refusal))
    file = RangedFile(url, http)
    assert server.requests_for("/big", "HEAD")
    assert file.read() == DATA


def test_a_broken_connection_is_asked_again(server: Server, http: Session, url: str) -> None:
    server.fail("/big", Fault(drop_after=10), Fault(refuse=True), Fault(status=503))
    file = RangedFile(url, http)
    server.fail("/big", Fault(drop_after=BLOCK // 2))
    assert file.read(2 * BLOCK) == DATA[: 2 * BLOCK]


def test_a_connection_that_always_breaks(server: Server, http: Session, url: str, pauses: Pauses) -> None:
    file = RangedFile(url, http, name="a wheel")
    server.fail("/big", *[Fault(drop_after=10)] * 20)
    with pytest.raises(Unreachable, match="a wheel cannot be had"):
        file.read(10)
    assert len(server.requests_for("/big")) == 1 + ATTEMPTS


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (401, Denied), (403, Denied)])
def test_errors(server: Server, http: Session, url: str, status: int, kind: type[ArtefactUnusable]) -> None:
    server.fail("/big", Fault(status=status))
    with pytest.raises(kind):
        RangedFile(url, http)


@pytest.mark.parametrize(
    "content_range",
    [
        "",
        "bytes */100",
        f"bytes 0-{len(DATA) - 1}/{len(DATA)}",  # far more than asked for
        f"bytes 5-2/{len(DATA)}",
        "bytes 0-99/50",
        "bytes 0-99/*",
        "items 0-99/100",
    ],
)
def test_a_content_range_that_lies(server: Server, http: Session, content_range: str) -> None:
    def answer(request: Request) -> Reply:
        if request.method == "HEAD":
            return Reply(headers={"Accept-Ranges": "bytes"}, body=DATA)
        return Reply(status=206, headers={"Content-Range": content_range}, body=b"x" * 100)

    server.route("/lie", answer)
    with pytest.raises(RangesUnsupported, match="cannot be read in parts"):
        RangedFile(server.url + "/lie", http)


@pytest.mark.parametrize("data", [DATA[::-1], DATA[:-1], DATA + b"x"])
def test_a_file_that_changes_while_it_is_read(server: Server, http: Session, url: str, data: bytes) -> None:
    file = RangedFile(url, http)
    server.put("/big", data)
    with pytest.raises(ArtefactUnusable, match="changed while it was read"):
        file.read(10)


def test_a_file_that_becomes_another_range(server: Server, http: Session, url: str) -> None:
    file = RangedFile(url, http)
    tag = server.requests_for("/big") and http.get(url).headers["ETag"]
    headers = {"Content-Range": f"bytes 1-{BLOCK}/{len(DATA)}", "ETag": str(tag)}
    server.fail("/big", Fault(status=206, headers=headers, body=DATA[1 : BLOCK + 1]))
    with pytest.raises(ArtefactUnusable, match="changed while it was read"):
        file.read(10)


@pytest.mark.network
def test_a_real_wheel(tmp_path: Path) -> None:
    """METADATA of a 55 MB wheel for less than 200 KB."""
    from imagebuilder.cache import Cache
    from imagebuilder.index.metadata import wheel_metadata
    from imagebuilder.index.simple import Indexes
    from imagebuilder.settings import load

    settings = load({**os.environ, "IMAGEBUILDER_CACHE_DIR": str(tmp_path)})
    name = "scipy-1.13.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    files = Indexes((), settings, Cache(tmp_path)).project("scipy")
    wheel = next(f for f in files if f.filename == name)
    with Session(settings) as http:
        file = RangedFile(wheel.url, http)
        assert file.size == wheel.size
        short = wheel_metadata(file)
        assert short is not None
        assert short.startswith(b"Metadata-Version")
        assert file.received < 200_000
        with zipfile.ZipFile(file) as archive:
            assert archive.read("scipy-1.13.0.dist-info/METADATA") == short
