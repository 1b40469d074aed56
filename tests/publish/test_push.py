"""Pushing images: what moves, in which order, what is proven afterwards, and what each refusal says."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, NotAccepted, PushFailed
from imagebuilder.oci.image import Image
from imagebuilder.oci.layout import write_layout
from imagebuilder.oci.registry import Registry
from imagebuilder.progress import Silent
from imagebuilder.publish.built import read_built
from imagebuilder.publish.push import Published, preview, publish, require_acceptance
from imagebuilder.values import Digest, ImageRef
from tests.support.command import Outcome
from tests.support.cutting import cutting
from tests.support.fake_registry import Answer, FakeRegistry, drop, status
from tests.support.registry import TestRegistry
from tests.support.small import Small

Connect = Callable[[str], Registry]
Command = Callable[..., Outcome]
ADVICE = re.compile(r"next: {3}\S.*\S")


def push(registry: Registry, repository: str, image: Image, cache: Cache, *tags: str) -> Published:
    return publish(registry, repository, image, tags, cache=cache, reporter=Silent())


@pytest.fixture
def repository(tmp_path: Path) -> str:
    return f"publish/{Digest.of(str(tmp_path).encode()).short}"


# ---------------------------------------------------------------- what moves


def test_the_second_push_moves_no_blob(
    real_registry: TestRegistry, connect: Connect, image: Image, cache: Cache, repository: str
) -> None:
    registry = connect(real_registry.host)
    assert len(preview(registry, repository, image).missing) == 3
    first = push(registry, repository, image, cache, "1.0")
    assert (first.blobs.sent, first.reference.digest) == (3, image.digest)
    second = push(registry, repository, image, cache, "1.0", "1.1")
    assert (second.blobs.sent, second.blobs.sent_bytes, second.blobs.existing) == (0, 0, 3)
    assert preview(registry, repository, image).bytes_to_send == 0
    for tag in ("1.0", "1.1"):
        assert registry.manifest(repository, tag).data == image.manifest_bytes


def test_blobs_are_linked_from_where_they_were_pushed_before(
    real_registry: TestRegistry, connect: Connect, image: Image, cache: Cache, repository: str
) -> None:
    registry = connect(real_registry.host)
    push(registry, repository, image, cache, "1.0")
    moved = push(registry, f"{repository}-2", image, cache, "1.0")
    assert (moved.blobs.sent, moved.blobs.mounted) == (1, 2)  # the config is sent


def test_tags_are_set_when_everything_is_there(
    fake: FakeRegistry, connect: Connect, image: Image, cache: Cache
) -> None:
    push(connect(fake.host), "a", image, cache, "1.0", "latest")
    puts = [s.path for s in fake.seen if s.method == "PUT" and "/manifests/" in s.path]
    assert [p.rpartition("/")[2] for p in puts] == [image.digest.text, "1.0", "latest"]
    order = [f"{s.method} {s.path}" for s in fake.seen]
    by_digest = order.index(f"PUT /v2/a/manifests/{image.digest}")
    assert all("/blobs/uploads/" not in line for line in order[by_digest:])


@pytest.mark.parametrize("seed", range(6))
def test_a_connection_cut_at_random_points_ends_in_the_right_image(
    seed: int, fake: FakeRegistry, connect: Connect, image: Image, cache: Cache
) -> None:
    chance = random.Random(seed)
    for _ in range(4):
        fake.on("PUT /v2/a/blobs/uploads/", drop(chance.randrange(300_000)), times=1)
        fake.on(chance.choice(["POST", "HEAD", "PUT /v2/a/manifests", "GET"]), drop(), times=1)
    push(connect(fake.host), "a", image, cache, "1.0")
    assert fake.manifests[("a", "1.0")][1] == image.manifest_bytes
    for layer in image.layers:
        assert layer.path
        assert fake.blobs[("a", layer.descriptor.digest.text)] == layer.path.read_bytes()


@pytest.mark.parametrize("seed", range(4))
def test_a_wire_that_breaks_leads_to_the_right_image_in_a_real_registry(
    seed: int, each_registry: TestRegistry, connect: Connect, make_image: Callable[..., Image], cache: Cache
) -> None:
    """Pushed and pulled through a proxy that cuts four connections somewhere: a blob may break that often."""
    chance, repository = random.Random(seed), f"wire/{seed}"
    image = make_image(*(chance.randbytes(size) for size in (900_000, 700_000, 500_000)))
    with cutting(each_registry.host, [chance.randrange(1_000_000) for _ in range(4)]) as host:
        push(connect(host), repository, image, cache, "1.0")
    assert connect(each_registry.host).manifest(repository, "1.0").data == image.manifest_bytes
    with cutting(each_registry.host, [chance.randrange(1_000_000) for _ in range(4)]) as host:
        broken = connect(host)
        for layer in image.layers:
            assert layer.path
            got = broken.blob(repository, layer.descriptor, Cache(cache.root / f"of a reader {seed}"))
            assert got.read_bytes() == layer.path.read_bytes()


# ---------------------------------------------------------------- what is proven


def test_a_registry_that_loses_a_blob_is_found_out(
    fake: FakeRegistry, connect: Connect, image: Image, cache: Cache
) -> None:
    lost = image.layers[1].descriptor.digest.text

    def forget(handler: object) -> None:
        fake.blobs.pop(("a", lost), None)
        handler.serve()  # type: ignore[attr-defined]

    fake.on("PUT /v2/a/manifests/", forget)
    with pytest.raises(PushFailed, match=rf"(?s)1 blobs of .* are not there.*{lost}.*next:"):
        push(connect(fake.host), "a", image, cache, "1.0")
    assert ("a", "1.0") not in fake.manifests


def test_a_tag_that_does_not_move_is_found_out(
    fake: FakeRegistry, connect: Connect, make_image: Callable[..., Image], cache: Cache
) -> None:
    registry = connect(fake.host)
    push(registry, "a", make_image(b"old"), cache, "1.0")
    fake.on("PUT /v2/a/manifests/1.0", status(201))
    with pytest.raises(PushFailed, match="is another image after it was set"):
        push(registry, "a", make_image(b"new"), cache, "1.0")


FAULTS: dict[str, tuple[str, Answer, str]] = {
    "no login": ("POST", status(401, WWW_Authenticate='Basic realm="x"'), "docker login"),
    "no right": ("POST", status(403), "right to push"),
    "no project": ("POST", status(404), "create the repository"),
    "a mirror": ("POST", status(405), "read-only, or a mirror"),
    "too large": ("PUT /v2/a/blobs", status(413), "client_max_body_size"),
    "too many": ("PUT /v2/a/blobs", status(429), "wait and try again"),
    "its fault": ("PUT /v2/a/blobs", status(500), "the fault is in the registry"),
    "its disk": ("PUT /v2/a/blobs", status(507), "the fault is in the registry"),
    "a manifest it does not take": ("PUT /v2/a/manifests", status(400), "too old for it"),
    "cut": ("PUT /v2/a/blobs", drop(10), "a proxy cuts long uploads"),
    "cannot be read back": ("GET /v2/a/manifests", status(404), "check repository"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_refusal_says_what_to_do(
    name: str, fake: FakeRegistry, connect: Connect, image: Image, cache: Cache
) -> None:
    pattern, answer, advice = FAULTS[name]
    fake.on(pattern, answer)
    with pytest.raises(PushFailed) as caught:
        push(connect(fake.host), "a", image, cache, "1.0")
    assert advice in str(caught.value) and ADVICE.search(str(caught.value))
    assert ("a", "1.0") not in fake.manifests


# ---------------------------------------------------------------- what may be pushed


def test_a_channel_wants_an_acceptance_of_this_very_image(image: Image) -> None:
    asked: list[Digest] = []

    def why_not(config: Digest) -> str | None:
        asked.append(config)
        return "the verdict is inconclusive" if len(asked) > 1 else None

    require_acceptance(image, "stable", why_not, stack="cu130")
    with pytest.raises(NotAccepted, match=r"(?s)stable.*inconclusive.*imagebuilder accept cu130"):
        require_acceptance(image, "stable", why_not, stack="cu130")
    assert asked == [image.config_digest] * 2


def test_a_record_of_another_image_is_refused(
    make_image: Callable[..., Image], cache: Cache, tmp_path: Path
) -> None:
    one, other = make_image(b"one"), make_image(b"other")
    record = {
        "stack": "s", "lock": Digest.of(b"lock").text, "manifest": other.digest.text,
        "config": other.config_digest.text, "names": ["demo:s"], "builder": {"name": "direct"},
        "layers": [], "findings": [],
    }  # fmt: skip
    write_layout(tmp_path / "s", one, [ImageRef.parse("demo:s")])
    assert read_built(tmp_path / "s", cache).record is None
    (tmp_path / "s.build.json").write_text(json.dumps(record))
    with pytest.raises(ArtefactUnusable, match=r"is not the image that s\.build\.json tells of"):
        read_built(tmp_path / "s", cache)
    write_layout(tmp_path / "s", other, [ImageRef.parse("demo:s")])
    built = read_built(tmp_path / "s", cache)
    assert built.record and built.record.tags == ("s",)


@pytest.mark.parametrize(
    "record",
    [b"", b"{}", b"[]", b"\xff", b'{"stack": 1}', b"[" * 100_000,
     b'{"stack":"s","lock":"x","manifest":"y","config":"z","names":[],"builder":{},"layers":[],"findings":[]}'],
)  # fmt: skip
def test_a_record_that_is_none(record: bytes, image: Image, cache: Cache, tmp_path: Path) -> None:
    write_layout(tmp_path / "s", image, [ImageRef.parse("demo:s")])
    (tmp_path / "s.build.json").write_bytes(record)
    with pytest.raises(ArtefactUnusable, match="not a build record"):
        read_built(tmp_path / "s", cache)


# ---------------------------------------------------------------- the command


def test_build_push_pull_and_push_again(
    imagebuilder: Command, small: Small, real_registry: TestRegistry, repository: str
) -> None:
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    place = f"{real_registry.host}/{repository}"
    would = json.loads(imagebuilder("push", "s", "--to", place, "--dry-run", "--json").out)
    assert would["bytes-to-send"] > 80_000 and not would["present"]
    done = imagebuilder("push", "s", "--to", place)
    assert done.code == 0, done.err
    reference = done.out.strip()
    assert reference.startswith(f"{place}@sha256:") and "tags s, s-" in done.err
    again = json.loads(imagebuilder("push", "s", "--to", f"{place}:mine", "--json").out)
    assert (again["blobs"]["sent"], again["tags"]) == (0, ["mine"])
    pulled = imagebuilder("pull", reference, "--output", "images/back")
    assert reference.endswith(pulled.out.strip())
    copied = imagebuilder("push", "images/back", "--to", f"{place}-copy", "--tag", "x", "--json")
    assert json.loads(copied.out)["manifest"] == pulled.out.strip()


def test_a_tag_that_is_not_there_names_those_that_are(
    imagebuilder: Command, small: Small, fake: FakeRegistry, tmp_path: Path
) -> None:
    small.wheel("one")
    small.write("one")
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    place = f"{fake.host}/team/s"
    assert imagebuilder("push", "s", "--to", place, "--tag", "s-1", "--tag", "stable").code == 0
    for verb in ("evidence", "pull"):
        lost = imagebuilder(verb, place)
        assert lost.code == 13 and "HTTP 404" in lost.err
        assert f"next:   name a tag that is there ({place}:s-1): s-1, stable\n" in lost.err
        near = imagebuilder(verb, f"{place}:stabel")
        assert f"({place}:stable): stable, s-1\n" in near.err, "the nearest first"
    assert "name a tag" not in imagebuilder("pull", f"{fake.host}/team/other").err
    for number in range(30):
        fake.manifests[("team/s", f"v{number}")] = fake.manifests[("team/s", "s-1")]
    fake.manifests[("team/s", "sha256-" + "0" * 64)] = fake.manifests[("team/s", "s-1")]
    assert "and 20 more" in imagebuilder("evidence", place).err, "bounded, and without tags of digests"
    fake.on("GET /v2/team/s/tags", status(403))
    assert "check repository, tag and digest" in imagebuilder("evidence", place).err


def test_another_registry_takes_all_of_it(
    imagebuilder: Command, small: Small, each_registry: TestRegistry, repository: str
) -> None:
    """Push, evidence, tags, pull and copy.

    crane keeps one store for all repositories, so that what another test has sent is there already.
    """
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    place = f"{each_registry.host}/{repository}-each"
    done = imagebuilder("push", "s", "--to", place, "--tag", "a", "--tag", "b", "--json")
    assert done.code == 0, done.err
    pushed = json.loads(done.out)
    assert pushed["tags"] == ["a", "b"] and len(pushed["evidence"]) == 3
    again = json.loads(imagebuilder("push", "s", "--to", f"{place}:b", "--json").out)
    assert again["blobs"]["sent"] == 0 and again["evidence"] == pushed["evidence"]
    seen = json.loads(imagebuilder("evidence", f"{place}:a", "--require", "sbom", "--json").out)
    assert [e["verified"] for e in seen["evidence"]] == [True] * 3
    pulled = imagebuilder("pull", f"{place}:b", "--output", "images/back")
    assert pulled.out.strip() == pushed["manifest"]
    copied = imagebuilder("push", "images/back", "--to", f"{place}-copy", "--tag", "x", "--json")
    assert json.loads(copied.out)["manifest"] == pushed["manifest"]


def test_a_changed_line_of_a_patch_moves_one_layer(
    imagebuilder: Command, small: Small, real_registry: TestRegistry, repository: str
) -> None:
    folder = small.folder / "stacks"

    def build_and_push(line: str) -> dict[str, int]:
        patch = f"--- a/two/text.py\n+++ b/two/text.py\n@@ -1,2 +1,3 @@\n # text\n+{line}\n # text\n"
        (folder / "p.patch").write_text(patch)
        small.write("one", "two", tail='patches = ["p.patch"]\n')
        for verb in ("lock", "build"):
            more = ("--builder", "direct") if verb == "build" else ()
            done = imagebuilder(verb, "s", *more)
            assert done.code == 0, done.err
        pushed = imagebuilder("push", "s", "--to", f"{real_registry.host}/{repository}", "--json")
        assert pushed.code == 0, pushed.err
        blobs: dict[str, int] = json.loads(pushed.out)["blobs"]
        return blobs

    first = build_and_push("# one")
    second = build_and_push("# two")
    assert second["sent"] == 2 and second["existing"] == first["sent"] - 2  # that layer, and the config


def test_an_image_of_another_lock_is_not_pushed(
    imagebuilder: Command, small: Small, fake: FakeRegistry
) -> None:
    nothing = imagebuilder("push", "s", "--to", f"{fake.host}/a")
    assert nothing.code == 4
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    small.wheel("three")
    small.write("one", "three")
    assert imagebuilder("lock", "s").code == 0
    stale = imagebuilder("push", "s", "--to", f"{fake.host}/a")
    assert stale.code == 4 and "built from another lock" in stale.err and "imagebuilder build s" in stale.err
    assert not fake.seen


def test_channels(imagebuilder: Command, small: Small, fake: FakeRegistry) -> None:
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    refused = imagebuilder("push", "s", "--to", f"{fake.host}/a", "--channel", "stable")
    assert refused.code == 8 and "imagebuilder accept s" in refused.err
    assert not fake.seen
    allowed = imagebuilder("push", "s", "--to", f"{fake.host}/a", "--channel", "stable", "--unaccepted")
    assert allowed.code == 0, allowed.err
    assert ("a", "stable") in fake.manifests


BAD_ARGUMENTS = {
    "no place": ([], 2, "where to?"),
    "a digest": (["--to", f"x.example/a@{Digest.of(b'')}"], 2, "not a digest"),
    "a bad place": (["--to", "x.example/UPPER"], 2, "is not an image reference"),
    "a bad tag": (["--to", "x.example/a", "--tag", "a b"], 2, "is not a tag"),
    "a bad channel": (["--to", "x.example/a", "--channel", "-"], 2, "is not a tag"),
    "nobody there": (["--to", "127.0.0.1:1/a"], 9, "no connection to 127.0.0.1:1"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name: str, imagebuilder: Command, small: Small) -> None:
    more, code, text = BAD_ARGUMENTS[name]
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    done = imagebuilder("push", "s", *more)
    assert (done.code, text in done.err) == (code, True), done.err
    assert "Traceback" not in done.err


def test_a_stack_that_is_not_built(imagebuilder: Command, small: Small) -> None:
    assert imagebuilder("lock", "s").code == 0
    done = imagebuilder("push", "s", "--to", "x.example/a")
    assert done.code == 2 and "s is not built" in done.err and "imagebuilder build s" in done.err


def test_no_secret_is_shown_or_kept(
    imagebuilder: Command, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeRegistry
) -> None:
    canary = "c4nary-t0ken"
    config = tmp_path / "docker"
    config.mkdir()
    (config / "config.json").write_text(
        json.dumps({"auths": {fake.host: {"username": "u", "password": canary}}})
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(config))
    fake.on("POST", status(401, WWW_Authenticate='Basic realm="x"'))
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    done = imagebuilder("push", "s", "--to", f"{fake.host}/a")
    assert done.code == 9 and "docker login" in done.err
    assert canary not in done.out + done.err
    for path in (*tmp_path.joinpath("work").rglob("*"), *tmp_path.joinpath("cache").rglob("*")):
        assert not path.is_file() or canary.encode() not in path.read_bytes(), path


def test_layers_that_vanished_from_a_layout(image: Image, cache: Cache, tmp_path: Path) -> None:
    write_layout(tmp_path / "s", replace(image), [ImageRef.parse("demo:s")])
    blob = tmp_path / "s" / "blobs" / "sha256" / image.layers[0].descriptor.digest.hex
    blob.unlink()
    with pytest.raises(ArtefactUnusable, match="is not at"):
        read_built(tmp_path / "s", cache)
