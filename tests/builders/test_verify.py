"""`verify`: equal builds say so; every planted difference is named with layer, file and cause."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.oci.archive import write_archive
from imagebuilder.oci.descriptor import OCI_LAYER_GZIP, Descriptor
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.layout import read_layout, write_layout
from imagebuilder.values import Digest, ImageRef
from tests.support.command import Machine, leftovers
from tests.support.http_server import Server
from tests.support.small import Small

Entry = tuple[tarfile.TarInfo, bytes]
Change = Callable[[list[Entry]], list[Entry]]
SITE = "opt/venv/lib/python3.11/site-packages"
NAME = ImageRef.parse("imagebuilder:s")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def small(server: Server, machine: Machine) -> Small:
    world = Small(machine.work, server)
    world.wheel("one", requires=["two"])
    world.wheel("two")
    world.write("one", tail='[[file]]\npath = "/etc/x"\ncontent = "x"\n')
    machine.environment |= world.environment
    return world


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(root=tmp_path)


@pytest.fixture
def built(small: Small, machine: Machine) -> str:
    """The digest of the image in images/s."""
    return str(machine.build("s")["manifest"])


def repacked(layer: LayerRef, change: Change, path: Path, *, level: int = 6) -> LayerRef:
    """The layer with other entries, compressed by Python's gzip."""
    assert layer.path is not None
    with tarfile.open(layer.path) as tar:
        entries = [(m, f.read() if (f := tar.extractfile(m)) else b"") for m in tar]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in change(entries):
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    blob = gzip.compress(out.getvalue(), level, mtime=0)
    path.write_bytes(blob)
    return LayerRef(
        descriptor=Descriptor.of(OCI_LAYER_GZIP, blob), diff_id=Digest.of(out.getvalue()), path=path
    )


def plant(small: Small, number: int, change: Change) -> None:
    """Put an image into images/s whose layer of that number is another one."""
    (stored,) = read_layout(small.image)
    layers = list(stored.image.layers)
    layers[number] = repacked(layers[number], change, small.folder.parent / "planted")
    write_layout(small.image, Image.make(stored.image.config, tuple(layers)), [NAME])


def on(path: str, **fields: object) -> Change:
    """Other fields of one entry; `data` for its bytes."""

    def change(entries: list[Entry]) -> list[Entry]:
        data = fields.get("data")
        found = [info for info, _ in entries if info.name == path]
        assert found, [info.name for info, _ in entries]
        for key, value in fields.items():
            if key != "data":
                setattr(found[0], key, value)
        return [(info, data if info.name == path and data is not None else old) for info, old in entries]  # type: ignore[misc]

    return change


def without(path: str) -> Change:
    return lambda entries: [entry for entry in entries if entry[0].name != path]


def with_more(path: str, data: bytes) -> Change:
    def change(entries: list[Entry]) -> list[Entry]:
        return [*entries, (tarfile.TarInfo(path), data)]

    return change


FILE = f"{SITE}/one/text.py"
PLANTED: dict[str, tuple[Change, list[str]]] = {
    "time": (on(FILE, mtime=1), [FILE, "time 1 ≠", "time stamp"]),
    "mode": (on(FILE, mode=0o600), [FILE, "mode 0600 ≠ 0644", "umask"]),
    "owner": (on(FILE, uid=1000), [FILE, "owner 1000:0 ≠ 0:0", "another user"]),
    "content": (on(FILE, data=b"other"), [FILE, "content", "5 bytes", "an input changed"]),
    "RECORD": (
        on(f"{SITE}/one-1.0.dist-info/RECORD", data=b"one,,\n"),
        ["one-1.0.dist-info/RECORD", "another order"],
    ),
    "missing": (without(FILE), [FILE, "missing ≠ there"]),
    "bytecode": (
        with_more(f"{SITE}/one/__pycache__/text.cpython-311.pyc", b"x"),
        ["__pycache__/text.cpython-311.pyc", "there ≠ missing", "bytecode"],
    ),
    "pip's cache": (with_more("root/.cache/pip/x", b"x"), ["root/.cache/pip/x", "cache"]),
    "order": (lambda entries: [*entries[1:], entries[0]], ["order", "the file system listed"]),
    "only compressed otherwise": (lambda entries: entries, ["encoding", "another"]),
}


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_difference_is_explained(case: str, built: str, small: Small, machine: Machine) -> None:
    change, words = PLANTED[case]
    plant(small, 2, change)
    outcome = machine.run("verify", "s")
    assert outcome.code == 14, outcome.err
    lines = outcome.out.splitlines()
    assert any(line.startswith("layer0: ") or line.startswith("layer0:") for line in lines), outcome.out
    assert any(all(word in line for word in words) for line in lines), outcome.out
    assert f"wanted: {read_layout(small.image)[0].image.digest}" in outcome.err
    assert built in outcome.err
    assert "Traceback" not in outcome.err
    assert leftovers(machine.cache) == []


def test_equal_builds(built: str, small: Small, machine: Machine) -> None:
    outcome = machine.run("verify", "s")
    assert (outcome.code, outcome.out) == (0, f"{built}\n"), outcome.err
    as_json = machine.run("verify", "s", "--json")
    told = json.loads(as_json.out)
    assert (told["reproducible"], told["first"], told["differences"]) == (True, built, [])
    assert leftovers(machine.cache) == []


def test_layers_are_really_made_again(built: str, small: Small, machine: Machine) -> None:
    """A layer cache that holds something else under the right key is found out."""
    cache = Cache(machine.cache)
    (stored,) = read_layout(small.image)
    wrong = repacked(stored.image.layers[2], on(FILE, data=b"poisoned"), small.folder.parent / "wrong")
    assert wrong.path is not None
    cache.adopt(wrong.path, wrong.descriptor.digest)
    old = stored.image.layers[2]
    for path in [p for p in (machine.cache / "records" / "layer").rglob("*") if p.is_file()]:
        import hashlib

        data = path.read_bytes().partition(b"\n")[2]
        record = json.loads(data)
        if record["digest"] == old.descriptor.digest.text:
            record |= {
                "digest": wrong.descriptor.digest.text,
                "size": wrong.descriptor.size,
                "diff_id": wrong.diff_id.text,
            }
            data = json.dumps(record).encode()
            path.write_bytes(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
    assert machine.build("s")["manifest"] != built
    outcome = machine.run("verify", "s")
    assert outcome.code == 14
    assert FILE in outcome.out and "content" in outcome.out
    shutil.rmtree(machine.work / "images")
    assert machine.run("verify", "s").code == 14  # the image from the cache against the one made anew


def test_a_difference_in_the_settings(built: str, small: Small, machine: Machine) -> None:
    (stored,) = read_layout(small.image)
    config = replace(stored.image.config, env=(("A", "b"),), user="root")
    write_layout(small.image, Image.make(config, stored.image.layers), [NAME])
    outcome = machine.run("verify", "s")
    assert outcome.code == 14
    assert "config: env" in outcome.out and "config: user" in outcome.out


def test_another_number_of_layers_and_many_differences(built: str, small: Small, machine: Machine) -> None:
    (stored,) = read_layout(small.image)
    write_layout(small.image, Image.make(stored.image.config, stored.image.layers[:-1]), [NAME])
    outcome = machine.run("verify", "s")
    assert outcome.code == 14
    assert "files: only in one missing ≠ there" in outcome.out
    plant(small, 2, lambda entries: [])
    outcome = machine.run("verify", "s", "--most", "3")
    assert outcome.code == 14
    assert "more differences" in outcome.out.splitlines()[-1]
    assert len(outcome.out.splitlines()) == 4


def test_layers_of_a_base_are_told_from_ours(built: str, small: Small, machine: Machine) -> None:
    """A base of several layers shifts no name."""
    shutil.copytree(small.image, small.folder / "stacks" / "base-of-four")
    stack = small.write("one", base='oci = "base-of-four"', tail='[[file]]\npath = "/etc/y"\ncontent = "y"\n')
    shutil.rmtree(machine.work / "images")
    assert stack.exists() and machine.run("lock", "s").code == 0
    machine.build("s")
    plant(small, -1, on("etc/y", data=b"z"))
    outcome = machine.run("verify", "s")
    assert outcome.code == 14
    assert outcome.out.startswith("files: /etc/y: content")


def test_against_an_archive(built: str, small: Small, machine: Machine) -> None:
    (stored,) = read_layout(small.image)
    write_archive(machine.work / "good.tar", stored.image, [NAME])
    outcome = machine.run("verify", "s", "--against", "good.tar")
    assert (outcome.code, outcome.out) == (0, f"{built}\n"), outcome.err
    plant(small, 2, on(FILE, mode=0o777))
    assert machine.run("verify", "s", "--against", "good.tar").code == 0
    outcome = machine.run("verify", "s", "--against", "images/s")
    assert outcome.code == 14
    assert "mode 0777" in outcome.out


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "no index"])
def test_a_damaged_image_is_not_compared(damage: str, built: str, small: Small, machine: Machine) -> None:
    (stored,) = read_layout(small.image)
    layer = stored.image.layers[2].path
    assert layer is not None
    data = layer.read_bytes()
    layer.unlink()
    if damage == "cut":
        layer.write_bytes(data[:-20])
    elif damage == "changed":
        layer.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "no index":
        layer.write_bytes(data)
        (small.image / "index.json").unlink()
    outcome = machine.run("verify", "s")
    assert outcome.code == 13, outcome.out + outcome.err
    assert "Traceback" not in outcome.err


def test_cold_downloads_everything_again(built: str, small: Small, machine: Machine, server: Server) -> None:
    wheels = [p for p in server.paths if p.endswith(".whl")]
    shutil.rmtree(machine.work / "stacks" / "wheels", ignore_errors=True)
    before = [server.sent(path) for path in wheels]
    outcome = machine.run("verify", "s", "--cold")
    assert (outcome.code, outcome.out) == (0, f"{built}\n"), outcome.err
    sent = [server.sent(path) - old for path, old in zip(wheels, before, strict=True)]
    assert sent == [len(server.body(path)) for path in wheels]
    server.put(wheels[0], server.body(wheels[0])[:-1] + b"!")
    outcome = machine.run("verify", "s", "--cold")
    assert outcome.code == 13
    assert "sha256" in outcome.err
    assert machine.run("verify", "s").code == 0  # what is in the cache is still right
    assert leftovers(machine.cache) == []


def test_without_a_lock_or_files(small: Small, machine: Machine) -> None:
    outcome = machine.run("verify", "s")
    assert outcome.code == 4
    assert "imagebuilder lock s" in outcome.err
    assert machine.run("lock", "s").code == 0
    outcome = machine.run("verify", "s", "--offline")
    assert outcome.code == 13
    assert "imagebuilder fetch s" in outcome.err
