"""Bringing locked files here, from real loopback servers."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.lock.fetch import fetch, link_wheels, missing
from imagebuilder.lock.model import Lock
from imagebuilder.lock.pylock import write_lock
from imagebuilder.stack import Stack
from imagebuilder.values import Digest
from tests.lock.conftest import World
from tests.support.fake_registry import FakeRegistry
from tests.support.http_server import Fault


@pytest.fixture
def locked(world: World) -> tuple[Stack, Lock]:
    world.put("app", "1.0", requires=["lib"])
    world.put("lib", "1.0", files={"lib/big.bin": bytes(range(256)) * 3000})
    stack = world.stack("app")
    return stack, world.lock(stack)


def test_everything_is_brought_once(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    assert [w.filename for w in missing(lock, world.cache)] == [w.filename for w in lock.wheels]  # type: ignore[union-attr]
    found = fetch(lock, stack, world.settings, world.cache, world.told)
    assert set(found) == {w.sha256 for w in lock.wheels} and missing(lock, world.cache) == []
    before = len(world.server.seen)
    assert fetch(lock, stack, world.settings, world.cache, world.told) == found
    assert len(world.server.seen) == before


def test_another_machine_asks_its_own_index(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    mirror = world.server.index("/mirror", form="html", relative=False)
    for wheel in lock.wheels:
        mirror.add(wheel.name, wheel.filename, world.folder / "made" / wheel.filename)
    other = world.elsewhere(default_index=mirror.url)
    assert len(fetch(lock, stack, other.settings, other.cache, other.told)) == 2
    assert world.server.requests_for("/mirror/app/")


def test_offline_says_what_is_missing(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    offline = world.elsewhere(offline=True)
    with pytest.raises(ArtefactUnusable, match="2 locked files are not in the cache") as caught:
        fetch(lock, stack, offline.settings, offline.cache, offline.told)
    assert caught.value.hint.startswith("imagebuilder fetch s")


def test_a_carried_folder_is_as_good_as_a_network(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    fetch(lock, stack, world.settings, world.cache, world.told)
    link_wheels(lock, world.cache, world.folder / "carried")
    offline = world.elsewhere(offline=True)
    found = fetch(lock, stack, offline.settings, offline.cache, offline.told, folder=world.folder / "carried")
    assert len(found) == 2


def test_a_changed_file_in_the_folder_is_not_believed_and_replaced(
    world: World, locked: tuple[Stack, Lock]
) -> None:
    stack, lock = locked
    wheel = lock.by_name["app"]
    place = world.folder / "out" / wheel.path
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x" * wheel.size)
    found = fetch(lock, stack, world.settings, world.cache, world.told, folder=world.folder / "out")
    link_wheels(lock, world.cache, world.folder / "out")
    assert place.read_bytes() == found[wheel.sha256].read_bytes() != b"x" * wheel.size


def test_a_file_gone_from_the_index(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    world.default.remove("lib")
    world.put("lib", "2.0")
    world = world.elsewhere()
    with pytest.raises(ArtefactUnusable, match="is locked, but gone") as caught:
        fetch(lock, stack, world.settings, world.cache, world.told)
    assert "imagebuilder lock s --upgrade=lib" in caught.value.hint
    assert caught.value.exit_code == 13


def test_a_file_that_was_replaced(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    world.default.remove("lib")
    world.put("lib", "1.0", files={"lib/other.py": b"1"})
    world = world.elsewhere()
    with pytest.raises(ArtefactUnusable, match="is another file than the locked one") as caught:
        fetch(lock, stack, world.settings, world.cache, world.told)
    assert caught.value.wanted == str(lock.by_name["lib"].sha256)


def test_bytes_that_are_not_what_was_locked(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    wheel = lock.by_name["lib"]
    world.server.fail(f"/files/lib/{wheel.filename}", *[Fault(body=b"y" * wheel.size)] * 3)
    world = world.elsewhere()
    with pytest.raises(ArtefactUnusable, match="has not the sha256"):
        fetch(lock, stack, world.settings, world.cache, world.told)
    assert world.cache.artefact(wheel.sha256) is None


def test_links_share_the_disk(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    found = fetch(lock, stack, world.settings, world.cache, world.told)
    for _ in range(2):
        link_wheels(lock, world.cache, world.folder / "out")
    for wheel in lock.wheels:
        assert found[wheel.sha256].samefile(world.folder / "out" / wheel.path)
    assert [p for p in (world.folder / "out").rglob("*") if p.name.startswith(".")] == []


def test_uv_installs_the_lock_as_it_is(world: World, locked: tuple[Stack, Lock], tmp_path: Path) -> None:
    import uv

    stack, lock = locked
    python = ".".join(map(str, sys.version_info[:2]))
    stack = world.stack("app", python=python)
    lock = world.lock(stack)
    fetch(lock, stack, world.settings, world.cache, world.told)
    folder = tmp_path / "stacks"
    write_lock(folder / "pylock.s.toml", lock)
    link_wheels(lock, world.cache, folder)
    done = subprocess.run(
        [uv.find_uv_bin(), "pip", "install", "--no-config", "--offline", "--python", sys.executable,
         "--target", str(tmp_path / "site"), "-r", str(folder / "pylock.s.toml"),
         "--cache-dir", str(tmp_path / "uv")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "lib" / "__init__.py").read_text().startswith("# lib-1.0")


def test_the_layers_of_an_image_base(world: World) -> None:
    config = encode(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [DIFF]}}
    )
    with FakeRegistry() as registry:
        layer = registry.put_blob("cuda", LAYER)
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", LAYER)],
        }
        registry.put_blob("cuda", config)
        digest = registry.put_manifest("cuda", encode(manifest), OCI_MANIFEST, "ubuntu24.04")
        world.put("app", "1.0")
        stack = world.stack("app", base=f'image = "{registry.host}/cuda:ubuntu24.04"')
        lock = world.lock(stack)
        assert lock.base is not None and lock.base.index == lock.base.manifest == digest
        other = world.elsewhere()
        assert layer not in fetch(lock, stack, other.settings, other.cache, other.told)
        assert layer in fetch(lock, stack, other.settings, other.cache, other.told, base=True)
        newer = encode({**manifest, "annotations": {"a": "b"}})
        moved = registry.put_manifest("cuda", newer, OCI_MANIFEST, "ubuntu24.04")
        assert world.lock(stack, previous=lock).base == lock.base
        upgraded = world.lock(stack, previous=lock, upgrade=True).base
        assert upgraded is not None and upgraded.index == moved


def descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": str(Digest.of(data)), "size": len(data)}


def encode(document: object) -> bytes:
    return json.dumps(document).encode()


OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = gzip.compress(bytes(1024), mtime=0)
DIFF = str(Digest.of(bytes(1024)))


def test_an_index_that_the_stack_does_not_have(world: World, locked: tuple[Stack, Lock]) -> None:
    stack, lock = locked
    strange = replace(lock, wheels=tuple(replace(w, index="elsewhere") for w in lock.wheels))
    world = world.elsewhere()
    with pytest.raises(Exception, match="no index is named 'elsewhere'"):
        fetch(strange, stack, world.settings, world.cache, world.told)
