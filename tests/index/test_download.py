"""Downloads over a network that misbehaves: resumed, verified, never wrong, never left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, MachineLacks
from imagebuilder.index.download import Wanted, fetch_all
from imagebuilder.index.http import ATTEMPTS, Denied, NotFound, Unreachable
from imagebuilder.progress import Silent, Task
from imagebuilder.settings import Settings
from imagebuilder.values import Digest
from tests.index.conftest import Pauses
from tests.support.command import WAIT
from tests.support.http_server import Fault, Server

DATA = random.Random(1).randbytes(3 << 20)
DIGEST = Digest.of(DATA)
PATH = "/files/big.whl"
HALF = len(DATA) // 2


@dataclasses.dataclass
class World:
    server: Server
    cache: Cache
    settings: Settings
    pauses: Pauses

    def wanted(self, size: int | None = len(DATA), digest: Digest = DIGEST, path: str = PATH) -> Wanted:
        return Wanted(
            name=path.rsplit("/", 1)[1], digest=digest, size=size, url_lookup=lambda: self.server.url + path
        )

    def fetch(self, *wanted: Wanted) -> dict[Digest, Path]:
        return fetch_all(wanted, self.cache, self.settings, Silent(), pause=self.pauses)

    def gets(self, path: str = PATH) -> list[str | None]:
        """The Range of each GET so far."""
        return [r.headers.get("Range") for r in self.server.requests_for(path)]

    def leftovers(self) -> list[str]:
        folders = [self.cache.root / "partial", self.cache.root / "tmp"]
        return [str(p) for folder in folders if folder.exists() for p in folder.iterdir()]


@pytest.fixture
def world(server: Server, cache: Cache, settings: Settings, pauses: Pauses) -> World:
    server.put(PATH, DATA)
    return World(server, cache, settings, pauses)


def test_a_file_comes_into_the_cache_once(world: World) -> None:
    found = world.fetch(world.wanted(), world.wanted())
    assert found == {DIGEST: world.cache.artefact(DIGEST)}
    assert found[DIGEST].read_bytes() == DATA
    assert world.fetch(world.wanted()) == found
    assert world.gets() == [None]
    assert world.leftovers() == []


def test_nothing_is_looked_up_for_what_is_there(world: World) -> None:
    world.fetch(world.wanted())

    def never() -> str:
        raise AssertionError

    assert world.fetch(dataclasses.replace(world.wanted(), url_lookup=never))


def test_many_files_at_once(world: World) -> None:
    rng = random.Random(2)
    blobs = [rng.randbytes(rng.randrange(200_000)) for _ in range(40)]
    wanted = []
    for number, blob in enumerate(blobs):
        world.server.put(f"/files/{number}", blob)
        wanted.append(world.wanted(len(blob), Digest.of(blob), f"/files/{number}"))
    found = world.fetch(*wanted)
    assert {digest: path.read_bytes() for digest, path in found.items()} == {Digest.of(b): b for b in blobs}


def test_downloads_run_side_by_side(world: World) -> None:
    """Both bodies are halfway before either may end."""
    other = DATA[::-1]
    world.server.put("/files/other", other)
    gates = [world.server.hold(PATH), world.server.hold("/files/other")]

    def open_both() -> None:
        for gate in gates:
            assert gate.reached.wait(WAIT)
        for gate in gates:
            gate.open()

    opener = threading.Thread(target=open_both)
    opener.start()
    found = world.fetch(world.wanted(), world.wanted(len(other), Digest.of(other), "/files/other"))
    opener.join()
    assert len(found) == 2


@pytest.mark.parametrize("size", [len(DATA), None])
def test_a_dropped_connection_is_resumed(world: World, size: int | None) -> None:
    world.server.fail(PATH, Fault(drop_after=HALF), Fault(drop_after=1000), Fault(refuse=True))
    world.fetch(world.wanted(size))
    assert world.gets()[0] is None
    assert all(asked for asked in world.gets()[1:])
    assert len(world.gets()) == 4
    assert world.server.sent(PATH) < len(DATA) + (1 << 19)  # what was lost in buffers


def test_resumed_across_runs(world: World) -> None:
    world.server.fail(PATH, *[Fault(drop_after=HALF)], *[Fault(status=503)] * 20)
    with pytest.raises(Unreachable):
        world.fetch(world.wanted())
    kept = world.cache.partial_bytes([DIGEST])
    assert 0 < kept <= HALF
    world.server._faults.clear()
    world.fetch(world.wanted())
    assert world.gets()[-1] == f"bytes={kept}-"
    assert world.server.requests_for(PATH)[-1].headers["If-Range"].startswith('"')
    assert world.leftovers() == []


def partial(world: World, data: bytes, validator: str = "") -> None:
    """As if an earlier run had been killed."""
    with pytest.raises(KeyError), world.cache.put_artefact(DIGEST) as incoming:
        assert incoming
        incoming.write(data)
        incoming.validator = validator
        raise KeyError


@pytest.mark.parametrize(
    ("data", "validator", "whole"),
    [
        (DATA[:HALF], "", False),
        (DATA[:HALF], '"another"', True),  # the file has changed since: If-Range gives all of it
        (b"x" * HALF, "", True),  # wrong bytes: found by the hash, then once more from the start
        (b"x" * len(DATA), "", True),
        (DATA + b"more", "", True),
        (DATA, "", None),  # killed just before the renaming
    ],
)
def test_what_an_earlier_run_left(world: World, data: bytes, validator: str, whole: bool | None) -> None:
    partial(world, data, validator)
    assert world.fetch(world.wanted())[DIGEST].read_bytes() == DATA
    if whole is None:
        assert world.gets() == []
    elif whole:
        assert world.server.sent(PATH) >= len(DATA)
    else:
        assert world.server.sent(PATH) == len(DATA) - HALF


def test_a_server_without_ranges(world: World) -> None:
    world.server.ranges = False
    partial(world, DATA[:HALF])
    assert world.fetch(world.wanted())[DIGEST].read_bytes() == DATA
    assert world.server.sent(PATH) == len(DATA)


def test_a_server_without_ranges_that_drops(world: World) -> None:
    world.server.ranges = False
    world.server.fail(PATH, Fault(drop_after=HALF))
    assert world.fetch(world.wanted())[DIGEST].read_bytes() == DATA


def test_a_partial_longer_than_the_file_of_unknown_size(world: World) -> None:
    partial(world, DATA + b"more")
    assert world.fetch(world.wanted(None))[DIGEST].read_bytes() == DATA
    assert world.gets()[0] == f"bytes={len(DATA) + 4}-"


def test_another_range_than_asked_for(world: World) -> None:
    partial(world, DATA[:HALF])
    headers = {"Content-Range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}"}
    world.server.fail(PATH, Fault(status=206, headers=headers, body=DATA))
    assert world.fetch(world.wanted())[DIGEST].read_bytes() == DATA


def test_an_empty_file(world: World) -> None:
    world.server.put("/files/empty", b"")
    digest = Digest.of(b"")
    for size in (None, 0):
        found = world.fetch(world.wanted(size, digest, "/files/empty"))
        assert found[digest].read_bytes() == b""


# ---------------------------------------------------------------- errors


def test_wrong_bytes(world: World) -> None:
    wrong = bytes(len(DATA))
    world.server.put(PATH, wrong)
    with pytest.raises(ArtefactUnusable) as caught:
        world.fetch(world.wanted())
    assert "big.whl" in caught.value.what
    assert Digest.of(wrong).text in caught.value.seen
    assert PATH in caught.value.seen
    assert DIGEST.text in caught.value.wanted
    assert caught.value.exit_code == 13
    assert world.gets() == [None]
    assert world.leftovers() == []
    assert world.cache.artefact(DIGEST) is None


def test_wrong_bytes_after_resuming_are_tried_twice_and_no_more(world: World) -> None:
    world.server.put(PATH, bytes(len(DATA)))
    partial(world, DATA[:HALF])
    with pytest.raises(ArtefactUnusable, match="has not the sha256"):
        world.fetch(world.wanted())
    assert world.gets() == [f"bytes={HALF}-", None]
    assert world.leftovers() == []


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1, 1])
def test_wrong_size(world: World, size: int) -> None:
    with pytest.raises(ArtefactUnusable, match="has not the size") as caught:
        world.fetch(world.wanted(size))
    assert str(len(DATA)) in caught.value.seen
    assert str(size) in caught.value.wanted
    assert world.leftovers() == []


@pytest.mark.parametrize("length", [HALF, 0])
def test_a_content_length_that_is_too_small(world: World, length: int) -> None:
    """That much is what HTTP gives us."""
    world.server.fail(PATH, *[Fault(length=length)] * 20)
    with pytest.raises(ArtefactUnusable, match="has not the sha256"):
        world.fetch(world.wanted(None))
    assert world.leftovers() == []


def test_a_content_length_that_is_too_large(world: World) -> None:
    """The connection ends early; asked for the rest, the server says that there is none."""
    world.server.fail(PATH, Fault(length=len(DATA) + 1000))
    assert world.fetch(world.wanted(None))[DIGEST].read_bytes() == DATA
    assert world.gets() == [None, f"bytes={len(DATA)}-"]


def test_a_content_length_that_is_always_too_large(world: World) -> None:
    world.server.ranges = False
    world.server.fail(PATH, *[Fault(length=len(DATA) + 1000)] * 50)
    with pytest.raises(Unreachable, match=r"big\.whl"):
        world.fetch(world.wanted(None))
    assert len(world.gets()) <= ATTEMPTS + 1


def test_a_truncated_file_with_a_consistent_length(world: World) -> None:
    world.server.put(PATH, DATA[:-1])
    with pytest.raises(ArtefactUnusable, match="has not the size"):
        world.fetch(world.wanted())
    with pytest.raises(ArtefactUnusable, match="has not the sha256"):
        world.fetch(world.wanted(None))
    assert world.leftovers() == []


def test_more_bytes_than_wanted_without_a_length(world: World) -> None:
    """An endless body ends where the size says."""
    raw = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + DATA * 3
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                with contextlib.suppress(OSError):
                    connection.sendall(raw)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/x"
        with pytest.raises(ArtefactUnusable, match="has not the size"):
            world.fetch(dataclasses.replace(world.wanted(), url_lookup=lambda: url))
        thread.join()


ERRORS: list[tuple[list[Fault], type[ImagebuilderError], str]] = [
    ([Fault(status=401)], Denied, "login"),
    ([Fault(status=403)], Denied, "may not read"),
    ([Fault(status=404)], NotFound, "does not exist"),
    ([Fault(status=429, headers={"Retry-After": "0"})] * ATTEMPTS, Unreachable, "fewer requests"),
    ([Fault(status=500)] * ATTEMPTS, Unreachable, "has a problem"),
    ([Fault(status=502)] * ATTEMPTS, Unreachable, "has a problem"),
    ([Fault(refuse=True)] * 20, Unreachable, "doctor"),
    ([Fault(drop_after=0)] * 20, Unreachable, "doctor"),
]


@pytest.mark.parametrize(("faults", "kind", "advice"), ERRORS)
def test_each_error_names_the_file_and_gives_advice(
    world: World, faults: list[Fault], kind: type[ImagebuilderError], advice: str
) -> None:
    world.server.fail(PATH, *faults)
    with pytest.raises(kind) as caught:
        world.fetch(world.wanted())
    assert "big.whl" in str(caught.value)
    assert advice in str(caught.value)
    assert world.leftovers() == []
    world.server._faults.clear()
    assert world.fetch(world.wanted())


def test_retry_after_zero_then_well(world: World) -> None:
    world.server.fail(PATH, Fault(status=429, headers={"Retry-After": "0"}), Fault(status=503))
    assert world.fetch(world.wanted())
    assert world.pauses.seconds[0] == 0


def test_drops_without_progress_are_given_up(world: World) -> None:
    world.server.fail(PATH, *[Fault(drop_after=10)] * 100)
    with pytest.raises(Unreachable, match=r"big\.whl"):
        world.fetch(world.wanted())
    assert len(world.gets()) == ATTEMPTS


def test_drops_with_progress_are_not(world: World) -> None:
    data = random.Random(3).randbytes(20 << 20)
    world.server.put("/files/huge", data)
    world.server.fail("/files/huge", *[Fault(drop_after=2 << 20)] * (ATTEMPTS + 3))
    assert world.fetch(world.wanted(len(data), Digest.of(data), "/files/huge"))


def test_an_error_of_the_lookup_is_passed_on(world: World) -> None:
    def lookup() -> str:
        raise NotFound("big.whl is not on the index")

    with pytest.raises(NotFound, match="is not on the index"):
        world.fetch(dataclasses.replace(world.wanted(), url_lookup=lookup))
    assert world.leftovers() == []


def test_the_first_error_ends_the_others(world: World) -> None:
    gate = world.server.hold(PATH)  # halfway, and never opened
    world.server.put("/files/none", b"")
    missing = world.wanted(5, Digest.of(b"never"), "/files/missing")

    def lookup() -> str:
        assert gate.reached.wait(WAIT)
        return world.server.url + "/files/missing"

    with pytest.raises(NotFound):
        world.fetch(world.wanted(), dataclasses.replace(missing, url_lookup=lookup))
    assert world.cache.artefact(DIGEST) is None


def test_offline(world: World) -> None:
    offline = dataclasses.replace(world.settings, offline=True)
    with pytest.raises(Unreachable, match="offline"):
        fetch_all([world.wanted()], world.cache, offline, Silent())
    assert world.server.seen == []


def test_from_a_folder(world: World, tmp_path: Path) -> None:
    (tmp_path / "big.whl").write_bytes(DATA)
    partial(world, DATA[:HALF])
    url = (tmp_path / "big.whl").as_uri()
    assert world.fetch(dataclasses.replace(world.wanted(), url_lookup=lambda: url))
    with pytest.raises(NotFound):
        world.fetch(dataclasses.replace(world.wanted(digest=Digest.of(b"x")), url_lookup=lambda: url + "x"))


def test_too_little_space_is_known_before(world: World) -> None:
    with pytest.raises(MachineLacks, match="too full"):
        world.fetch(world.wanted(1 << 60))
    assert world.server.seen == []


def test_a_disk_that_fills_up(world: World, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here (not root, or a container without the capability)")
    try:
        cache = Cache(disk / "cache")
        with pytest.raises(MachineLacks, match="no space is left"):
            fetch_all([world.wanted(None)], cache, world.settings, Silent())
        assert cache.artefact(DIGEST) is None
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# ---------------------------------------------------------------- progress


class Counting(Silent):
    """Sums up what is reported."""

    def __init__(self) -> None:
        self.total: int | None = -1
        self.label = ""
        self.sum = 0
        self._lock = threading.Lock()

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        self.label, self.total = label, total
        outer = self

        class Counter:
            def advance(self, amount: int) -> None:
                with outer._lock:
                    outer.sum += amount

            def __enter__(self) -> Task:
                return self

            def __exit__(self, *exception: object) -> None:
                pass

        return Counter()


def test_progress_ends_at_its_total(world: World) -> None:
    partial(world, b"wrong" * 100)
    world.server.fail(PATH, Fault(drop_after=HALF))
    reporter = Counting()
    fetch_all([world.wanted()], world.cache, world.settings, reporter, pause=world.pauses)
    assert (reporter.label, reporter.total, reporter.sum) == ("downloading 1 file", len(DATA), len(DATA))


# ---------------------------------------------------------------- several processes, signals

FETCHER = """
import json, sys
from pathlib import Path
from imagebuilder.cache import Cache
from imagebuilder.index.download import Wanted, fetch_all
from imagebuilder.progress import Silent
from imagebuilder.settings import Settings
from imagebuilder.values import Digest
root, wanted = Path(sys.argv[1]), json.loads(sys.argv[2])
print("started", flush=True)
fetch_all([Wanted(name=w["name"], digest=Digest(w["digest"]), size=w["size"], url_lookup=lambda w=w: w["url"])
           for w in wanted], Cache(root), Settings(cache_dir=root), Silent())
"""


def start(world: World, *wanted: Wanted) -> subprocess.Popen[bytes]:
    items = [{"name": w.name, "digest": w.digest.text, "size": w.size, "url": w.url_lookup()} for w in wanted]
    command = [sys.executable, "-c", FETCHER, str(world.cache.root), json.dumps(items)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    return process


def test_two_processes_share_one_download(world: World) -> None:
    gate = world.server.hold(PATH)
    processes = [start(world, world.wanted()) for _ in range(2)]
    assert gate.reached.wait(WAIT)
    gate.open()
    for process in processes:
        assert process.communicate(timeout=WAIT)[1] == b""
        assert process.returncode == 0
    assert world.gets() == [None]
    assert world.cache.verify(DIGEST)


def test_ctrl_c_ends_at_once_and_leaves_what_can_be_resumed(world: World) -> None:
    gate = world.server.hold(PATH)
    process = start(world, world.wanted())
    assert gate.reached.wait(WAIT)
    while not world.cache.partial_bytes([DIGEST]):
        assert process.poll() is None
        time.sleep(0.01)  # until something has arrived
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=WAIT)[1]
    assert b"KeyboardInterrupt" in error
    assert world.cache.artefact(DIGEST) is None
    gate.open()
    world.fetch(world.wanted())
    assert world.cache.verify(DIGEST)
    assert world.gets()[-1] is not None


def test_kills_at_random_moments(world: World) -> None:
    rng = random.Random(os.urandom(8))
    blobs = [rng.randbytes(1 << 20) for _ in range(6)]
    wanted = [world.wanted(len(b), Digest.of(b), f"/files/{n}") for n, b in enumerate(blobs)]
    for number, blob in enumerate(blobs):
        world.server.put(f"/files/{number}", blob)
        world.server.fail(f"/files/{number}", *[Fault(drop_after=rng.randrange(1 << 20)) for _ in range(4)])
    for _ in range(5):
        process = start(world, *wanted)
        try:
            process.wait(rng.uniform(0.05, 0.5))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        for path in (world.cache.root / "artefacts").rglob("*/*/*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    found = world.fetch(*wanted)
    assert [found[Digest.of(blob)].read_bytes() == blob for blob in blobs] == [True] * len(blobs)
    assert world.leftovers() == []


@pytest.mark.network
def test_a_real_wheel(tmp_path: Path) -> None:
    from imagebuilder.index.simple import Indexes
    from imagebuilder.settings import load

    settings = load({**os.environ, "IMAGEBUILDER_CACHE_DIR": str(tmp_path)})
    cache = Cache(tmp_path)
    indexes = Indexes((), settings, cache)
    names = {
        "packaging": "packaging-24.0-py3-none-any.whl",
        "numpy": "numpy-2.0.0-cp312-cp312-musllinux_1_1_x86_64.whl",
    }
    wanted = []
    for project, filename in names.items():
        file = next(f for f in indexes.project(project) if f.filename == filename)
        assert file.sha256

        def lookup(file: object = file, project: str = project, filename: str = filename) -> str:
            return indexes.address_of(project, "default", filename, file.sha256)  # type: ignore[attr-defined]

        wanted.append(
            Wanted(name=filename, digest=file.sha256, size=indexes.size_of(file), url_lookup=lookup)
        )
    with pytest.raises(KeyError), cache.put_artefact(wanted[1].digest) as incoming:
        assert incoming
        from imagebuilder.index.http import Session

        url: Callable[[], str] = wanted[1].url_lookup
        with Session(settings).get(url(), headers={"Range": "bytes=0-99999"}) as response:
            incoming.write(response.content)
        raise KeyError
    found = fetch_all(wanted, cache, settings, Silent())
    assert all(cache.verify(digest) for digest in found)
