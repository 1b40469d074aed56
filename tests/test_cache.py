"""The cache: nothing wrong under a final name, whatever happens; shared by threads and processes."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.cache import STALE, Cache, Cancelled, storage_errors
from imagebuilder.errors import ArtefactUnusable, MachineLacks
from imagebuilder.values import Digest

DATA = bytes(range(256)) * 1000
DIGEST = Digest.of(DATA)
OTHER = Digest.of(b"other")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def put(cache: Cache, data: bytes = DATA, digest: Digest = DIGEST) -> None:
    with cache.put_artefact(digest) as incoming:
        assert incoming
        incoming.write(data)


def files(cache: Cache) -> list[str]:
    """All files but locks, relative."""
    found = (p.relative_to(cache.root) for p in cache.root.rglob("*") if p.is_file())
    return sorted(str(p) for p in found if p.parts[0] != "locks")


def test_an_artefact_is_there_when_its_block_has_ended(cache: Cache) -> None:
    assert cache.artefact(DIGEST) is None
    with cache.put_artefact(DIGEST) as incoming:
        assert incoming
        incoming.write(DATA)
        assert cache.artefact(DIGEST) is None
    path = cache.artefact(DIGEST)
    assert path is not None
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o444
    assert files(cache) == [f"artefacts/sha256/{DIGEST.hex[:2]}/{DIGEST.hex}"]


def test_what_is_there_is_not_written_again(cache: Cache) -> None:
    put(cache)
    with cache.put_artefact(DIGEST) as incoming:
        assert incoming is None


def test_wrong_bytes_get_no_name_and_leave_nothing(cache: Cache) -> None:
    with pytest.raises(ArtefactUnusable) as caught:
        put(cache, digest=OTHER)
    assert caught.value.seen == str(DIGEST)
    assert caught.value.wanted == str(OTHER)
    assert files(cache) == []


def test_a_failed_write_is_resumed(cache: Cache) -> None:
    with contextlib.suppress(KeyError), cache.put_artefact(DIGEST) as incoming:
        assert incoming
        incoming.write(DATA[:1000])
        incoming.validator = '"tag"'
        raise KeyError
    assert cache.partial_bytes([DIGEST, OTHER]) == 1000
    with cache.put_artefact(DIGEST) as incoming:
        assert incoming
        assert (incoming.size, incoming.resumed, incoming.validator) == (1000, True, '"tag"')
        incoming.write(DATA[1000:])
    assert cache.artefact(DIGEST)
    assert files(cache) == [f"artefacts/sha256/{DIGEST.hex[:2]}/{DIGEST.hex}"]


def test_restart_forgets(cache: Cache) -> None:
    with cache.put_artefact(DIGEST) as incoming:
        assert incoming
        incoming.write(b"wrong")
        incoming.validator = '"tag"'
        incoming.restart()
        assert (incoming.size, incoming.validator) == (0, "")
        incoming.write(DATA)
    assert cache.artefact(DIGEST)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.binary(max_size=200), max_size=8), st.integers(0, 8))
def test_any_division_into_writes_and_tries_gives_the_same_file(parts: list[bytes], cut: int) -> None:
    import tempfile

    data = b"".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        with contextlib.suppress(KeyError), cache.put_artefact(Digest.of(data)) as incoming:
            assert incoming
            for part in parts[:cut]:
                incoming.write(part)
            raise KeyError
        with cache.put_artefact(Digest.of(data)) as incoming:
            assert incoming
            for part in parts[cut:]:
                incoming.write(part)
        path = cache.artefact(Digest.of(data))
        assert path is not None
        assert path.read_bytes() == data


def test_verify_finds_rot(cache: Cache) -> None:
    put(cache)
    path = cache.verify(DIGEST)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(DATA[:-1] + b"!")
    assert cache.artefact(DIGEST) is not None
    assert cache.verify(DIGEST) is None
    assert cache.artefact(DIGEST) is None
    put(cache)
    assert cache.verify(DIGEST) is not None


def test_adopt(cache: Cache) -> None:
    with cache.temporary() as folder:
        (folder / "made").write_bytes(DATA)
        with pytest.raises(ArtefactUnusable, match="made has another sha256"):
            cache.adopt(folder / "made", OTHER)
        assert cache.adopt(folder / "made", DIGEST) == cache.artefact(DIGEST)
    assert files(cache) == [f"artefacts/sha256/{DIGEST.hex[:2]}/{DIGEST.hex}"]


# ---------------------------------------------------------------- records


@settings(deadline=None, max_examples=40)
@given(key=st.text(max_size=300), data=st.binary(max_size=300))
def test_records(key: str, data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        assert cache.read_record("facts", key) is None
        cache.write_record("facts", key, b"older")
        cache.write_record("facts", key, data)
        assert cache.read_record("facts", key) == data
        assert cache.read_record("layers", key) is None
        assert len(files(cache)) == 1


@pytest.mark.parametrize("torn", [b"", b"\0" * 100, None])
def test_a_torn_record_is_none(cache: Cache, torn: bytes | None) -> None:
    cache.write_record("facts", "key", DATA)
    (path,) = (cache.root / "records").rglob("*/*/*")
    path.write_bytes(path.read_bytes()[:-1] if torn is None else torn)
    assert cache.read_record("facts", "key") is None


def test_a_kind_is_a_word(cache: Cache) -> None:
    with pytest.raises(ValueError, match="not a kind"):
        cache.write_record("../facts", "key", b"")


# ---------------------------------------------------------------- locks


def test_a_lock_excludes_other_threads(cache: Cache) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        with cache.lock("a name / with anything in it"):
            inside.append(1)
            most.append(len(inside))
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_waiting_for_a_lock_can_be_given_up(cache: Cache) -> None:
    with cache.lock("x"), pytest.raises(Cancelled), cache.lock("x", lambda: True):
        pass
    with cache.lock("x"):
        pass


# ---------------------------------------------------------------- kills

WRITER = """
import os, sys
from pathlib import Path
from imagebuilder.cache import Cache
from imagebuilder.values import Digest
data = bytes(range(256)) * 1000
cache = Cache(Path(sys.argv[1]))
with cache.temporary() as folder:
    (folder / "junk").write_bytes(data)
    print("started", flush=True)
    for n in range(100000):
        cache.write_record("facts", "key", b"%d" % n * 1000)
        digest = Digest.of(data[:-1 - n % 1000])
        with cache.put_artefact(digest) as incoming:
            if incoming:
                for start in range(incoming.size, len(data) - 1 - n % 1000, 4096):
                    incoming.write(data[start:min(start + 4096, len(data) - 1 - n % 1000)])
        if n % 7 == 3:
            os.unlink(cache.artefact(digest))
"""


def kill(cache: Cache, after: float) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(cache.root)], stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    time.sleep(after)  # not awaited by anything: any moment will do
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_a_kill_at_any_moment_leaves_nothing_wrong(cache: Cache) -> None:
    for _ in range(8):
        kill(cache, random.uniform(0, 0.15))
        for path in (cache.root / "artefacts").rglob("*/*/*"):
            assert Digest.of(path.read_bytes()).hex == path.name
        record = cache.read_record("facts", "key")
        assert record is None or record == record[: len(record) // 1000] * 1000
        put_again = DATA[:-1]
        with cache.put_artefact(Digest.of(put_again)) as incoming:  # whatever is left is resumed
            if incoming:
                assert put_again.startswith(incoming.path.read_bytes())
                incoming.write(put_again[incoming.size :])
        assert cache.verify(Digest.of(put_again))
    assert len(list((cache.root / "tmp").iterdir())) >= 8
    assert cache.prune(time.time() + 120) >= 8 * len(DATA)  # without waiting for a week
    cache.prune(time.time() + STALE + 120)
    assert not [name for name in files(cache) if name.startswith(("tmp/", "partial/"))]


def test_prune_leaves_what_is_in_use_or_young(cache: Cache) -> None:
    with contextlib.suppress(KeyError), cache.put_artefact(DIGEST) as incoming:
        assert incoming
        incoming.write(DATA[:1000])
        raise KeyError
    with cache.temporary() as folder:
        (folder / "x").write_bytes(DATA)
        assert cache.prune(time.time() + 3600) == 0
        assert (folder / "x").exists()
    assert cache.partial_bytes([DIGEST]) == 1000
    assert cache.prune(time.time() + STALE + 60) == 1000
    assert cache.partial_bytes([DIGEST]) == 0


# ---------------------------------------------------------------- what the machine lacks


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "no space"), (errno.EDQUOT, "no space"), (errno.EROFS, "cannot be written")],
)
def test_storage_errors_have_advice(number: int, message: str) -> None:
    with pytest.raises(MachineLacks, match=message) as caught, storage_errors(Path("/x/cache")):
        raise OSError(number, "…")
    assert "IMAGEBUILDER_CACHE_DIR" in caught.value.hint
    assert caught.value.exit_code == 6


def test_other_errors_pass() -> None:
    with pytest.raises(FileNotFoundError), storage_errors(Path("/x")):
        raise FileNotFoundError(errno.ENOENT, "…")


def test_a_file_where_the_cache_should_be(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(MachineLacks):
        put(Cache(tmp_path / "cache"))


def test_require_space(cache: Cache) -> None:
    cache.require_space(1)
    with pytest.raises(MachineLacks) as caught:
        cache.require_space(1 << 60)
    assert "GB free" in caught.value.seen


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, where one can be mounted here."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no file system can be mounted here (not root, or a container without the capability)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    cache = Cache(small_disk / "cache")
    big = os.urandom(2 << 20)
    with pytest.raises(MachineLacks, match="no space is left"):
        put(cache, big, Digest.of(big))
    assert cache.artefact(Digest.of(big)) is None
    with pytest.raises(MachineLacks, match="no space is left"):
        cache.write_record("facts", "key", big)
    with pytest.raises(MachineLacks, match="too full"):
        cache.require_space(len(big))


def test_a_read_only_cache_is_read_and_not_written(small_disk: Path) -> None:
    cache = Cache(small_disk / "cache")
    put(cache)
    cache.write_record("facts", "key", b"data")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert cache.artefact(DIGEST)
    assert cache.read_record("facts", "key") == b"data"
    with pytest.raises(MachineLacks, match="cannot be written"):
        put(cache, b"other", OTHER)
    with pytest.raises(MachineLacks, match="cannot be written"):
        cache.write_record("facts", "key", b"")
    with pytest.raises(MachineLacks, match="cannot be written"), cache.temporary():
        pass
