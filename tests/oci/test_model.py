from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.oci import descriptor as d
from imagebuilder.oci.canonical import Fields, decode, encode
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.model import (
    Descriptor,
    Healthcheck,
    History,
    ImageConfig,
    ImageIndex,
    ImagePlatform,
    Manifest,
    timestamp,
)
from imagebuilder.values import Digest, Platform

AMD64 = Platform("linux", "amd64")
SOME = Digest.of(b"some")

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
pairs = st.dictionaries(words, words, max_size=3).map(lambda m: tuple(sorted(m.items())))
digests = st.binary(max_size=4).map(Digest.of)
platforms = st.builds(ImagePlatform, os=words, architecture=words, variant=words | st.just(""))
descriptors = st.builds(
    Descriptor,
    media_type=st.sampled_from(d.LAYERS),
    digest=digests,
    size=st.integers(0, 2**63 - 1),
    annotations=pairs,
    platform=st.none() | platforms,
    artifact_type=st.just("") | st.just("application/spdx+json"),
)
histories = st.builds(History, created=st.just(""), created_by=st.just("") | words, empty=st.booleans())
configs = st.builds(
    ImageConfig,
    platform=platforms,
    diff_ids=st.lists(digests, max_size=3).map(tuple),
    env=st.dictionaries(words.filter(lambda w: "=" not in w), words, max_size=3).map(
        lambda m: tuple(m.items())
    ),
    entrypoint=st.lists(words, max_size=2).map(tuple),
    command=st.lists(words, max_size=2).map(tuple),
    user=st.just("") | words,
    labels=pairs,
    ports=st.sampled_from([(), ("30000/tcp",), ("53/udp", "8000/tcp")]),
    volumes=st.lists(words, max_size=2, unique=True).map(lambda v: tuple(sorted(v))),
    healthcheck=st.none()
    | st.builds(Healthcheck, test=st.just(("CMD", "true")), interval=st.integers(0, 10**12)),
    history=st.lists(histories, max_size=3).map(tuple),
)


@given(
    st.builds(
        Manifest, config=descriptors, layers=st.lists(descriptors, max_size=3).map(tuple), annotations=pairs
    )
)
def test_manifests_survive_writing_and_reading(manifest: Manifest) -> None:
    assert Manifest.parse(manifest.to_bytes()) == manifest


@given(
    st.builds(
        ImageIndex, manifests=st.lists(descriptors, max_size=3).map(tuple), subject=st.none() | descriptors
    )
)
def test_indexes_survive_writing_and_reading(index: ImageIndex) -> None:
    assert ImageIndex.parse(index.to_bytes()) == index


@given(configs)
def test_configs_survive_writing_and_reading(config: ImageConfig) -> None:
    assert ImageConfig.parse(config.to_bytes()) == config


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_reading_anything_is_a_value_or_a_value_error(data: bytes) -> None:
    for parse in (Manifest.parse, ImageIndex.parse, ImageConfig.parse):
        with pytest.raises(ValueError):
            parse(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "schemaVersion",
        "mediaType",
        "config",
        "layers",
        "manifests",
        "subject",
        "annotations",
        "rootfs",
        "history",
        "os",
    ]
)


@given(st.dictionaries(KEYS, json_values))
def test_any_shape_under_the_right_names_is_a_value_or_a_value_error(value: dict[str, Any]) -> None:
    value["schemaVersion"] = 2
    for parse in (Manifest.parse, ImageIndex.parse, ImageConfig.parse):
        try:
            parse(json.dumps(value).encode())
        except ValueError as exc:
            assert str(exc)


def test_canonical_json_is_sorted_dense_and_unescaped() -> None:
    assert encode({"b": [1, None], "a": "é\n"}) == '{"a":"é\\n","b":[1,null]}'.encode()
    for wrong in (float("nan"), "\ud800"):
        with pytest.raises(ValueError):
            encode({"x": wrong})


def test_a_config_has_these_bytes() -> None:
    """A golden one: a change here changes the digest of every image."""
    config = ImageConfig(
        platform=ImagePlatform.of(AMD64),
        diff_ids=(SOME,),
        created="2026-02-25T00:00:00Z",
        env=(("PATH", "/bin"),),
        entrypoint=("/init",),
        ports=("30000/tcp",),
        history=(History(created_by="x"), History(empty=True)),
    )
    assert config.to_bytes().decode() == (
        '{"architecture":"amd64","config":{"Entrypoint":["/init"],"Env":["PATH=/bin"],'
        '"ExposedPorts":{"30000/tcp":{}}},"created":"2026-02-25T00:00:00Z",'
        '"history":[{"created_by":"x"},{"empty_layer":true}],"os":"linux",'
        f'"rootfs":{{"diff_ids":["{SOME}"],"type":"layers"}}}}'
    )


def test_times_are_utc() -> None:
    moment = datetime(2026, 2, 25, 1, 0, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(moment) == "2026-02-25T00:00:00Z"


# ---------------------------------------------------------------- what others write

DOCKER_CONFIG = {
    "architecture": "amd64",
    "config": {
        "Hostname": "",
        "User": "",
        "Env": ["PATH=/usr/bin", "EMPTY=", "A=b=c"],
        "Cmd": ["/bin/bash"],
        "Entrypoint": None,
        "Volumes": None,
        "OnBuild": None,
        "Labels": {"maintainer": "someone"},
        "ArgsEscaped": True,
    },
    "container": "0123",
    "created": "2025-02-25T12:34:56.123456789Z",
    "docker_version": "20.10",
    "history": [
        {"created": "2025-02-25T12:34:56.1Z", "created_by": "/bin/sh -c #(nop)", "empty_layer": True}
    ],
    "os": "linux",
    "rootfs": {"type": "layers", "diff_ids": [SOME.text]},
    "variant": "v1",
}


def test_a_config_from_docker_is_read() -> None:
    config = ImageConfig.parse(json.dumps(DOCKER_CONFIG).encode())
    assert config.env == (("PATH", "/usr/bin"), ("EMPTY", ""), ("A", "b=c"))
    assert config.command == ("/bin/bash",)
    assert config.entrypoint == () and config.volumes == ()
    assert config.platform.runs(AMD64)
    assert config.history[0].empty


def descriptor_json(**changes: object) -> dict[str, object]:
    return {"mediaType": d.DOCKER_LAYER_GZIP, "digest": SOME.text, "size": 3} | changes


def manifest_json(**changes: object) -> dict[str, object]:
    return {
        "schemaVersion": 2,
        "mediaType": d.DOCKER_MANIFEST,
        "config": descriptor_json(mediaType=d.DOCKER_CONFIG),
        "layers": [descriptor_json(urls=["https://example.org/x"])],
    } | changes


def test_docker_media_types_become_those_of_oci() -> None:
    manifest = Manifest.parse(json.dumps(manifest_json()).encode())
    assert manifest.is_image
    assert manifest.layers[0].as_oci().media_type == d.OCI_LAYER_GZIP
    layer = LayerRef(descriptor=manifest.layers[0], diff_id=SOME)
    image = Image.make(ImageConfig(platform=ImagePlatform.of(AMD64)), (layer,))
    assert image.manifest.media_type == d.OCI_MANIFEST
    assert image.manifest.layers[0].media_type == d.OCI_LAYER_GZIP
    assert image.config.diff_ids == (SOME,)


BAD_MANIFESTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "not UTF-8": (b"\xff{}", "not valid JSON"),
    "a list": (b"[]", "not a JSON object"),
    "NaN": (b'{"schemaVersion": NaN}', "NaN is not JSON"),
    "long number": (b'{"schemaVersion": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "a little deep": (b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", "nested too deeply"),
    "key twice": (b'{"schemaVersion":2,"layers":[],"layers":[1]}', "given twice"),
    "too large": (b" " * (d.MAX_MANIFEST + 1), "at most"),
    "schema 1": (json.dumps({"schemaVersion": 1, "fsLayers": []}).encode(), "schema 1 is not supported"),
    "schema true": (json.dumps(manifest_json(schemaVersion=True)).encode(), "schemaVersion"),
    "manifest and index": (json.dumps(manifest_json(manifests=[])).encode(), "at once"),
    "index type": (json.dumps(manifest_json(mediaType=d.OCI_INDEX)).encode(), "wanted an image manifest"),
    "odd type": (json.dumps(manifest_json(mediaType="a b")).encode(), "media type"),
    "no layers": (json.dumps(manifest_json(layers=None)).encode(), "no config or no layers"),
    "layers text": (json.dumps(manifest_json(layers="x")).encode(), "layers is 'x', wanted a list"),
    "layer text": (json.dumps(manifest_json(layers=["x"])).encode(), r"layers\[0\]"),
    "many layers": (json.dumps(manifest_json(layers=[descriptor_json()] * 513)).encode(), "at most 512"),
    "size negative": (json.dumps(manifest_json(config=descriptor_json(size=-1))).encode(), "config.size"),
    "size huge": (json.dumps(manifest_json(config=descriptor_json(size=2**63))).encode(), "config.size"),
    "size float": (json.dumps(manifest_json(config=descriptor_json(size=1.5))).encode(), "config.size"),
    "digest path": (
        json.dumps(manifest_json(config=descriptor_json(digest="sha256:../../etc/passwd"))).encode(),
        "config.digest",
    ),
    "digest sha512": (
        json.dumps(manifest_json(config=descriptor_json(digest="sha512:" + "0" * 128))).encode(),
        "64 hexadecimal",
    ),
    "annotation number": (json.dumps(manifest_json(annotations={"a": 1})).encode(), "annotations.a is 1"),
    "surrogate": (json.dumps(manifest_json(annotations={"a": "\ud800"})).encode(), "surrogates"),
}


@pytest.mark.parametrize("case", BAD_MANIFESTS, ids=str)
def test_bad_manifests(case: str) -> None:
    data, message = BAD_MANIFESTS[case]
    with pytest.raises(ValueError, match=message):
        Manifest.parse(data)


BAD_CONFIGS: list[tuple[dict[str, object], str]] = [
    ({"os": None}, "os is None"),
    ({"rootfs": {"type": "cows", "diff_ids": []}}, "rootfs.type"),
    ({"rootfs": {"type": "layers", "diff_ids": ["sha256:0"]}}, "rootfs.diff_ids"),
    ({"rootfs": {"type": "layers", "diff_ids": [SOME.text] * 513}}, "at most 512"),
    ({"config": {"Env": ["NOTHING"]}}, "wanted NAME=value"),
    ({"config": {"Env": ["=x"]}}, "wanted NAME=value"),
    ({"config": {"Env": [1]}}, r"config.Env\[0\]"),
    ({"config": {"Env": ["A=\0"]}}, "NUL"),
    ({"config": {"Cmd": "sh"}}, "config.Cmd is 'sh', wanted a list"),
    ({"config": {"ExposedPorts": {"http": {}}}}, "wanted a port"),
    ({"config": []}, "config. is not a JSON object"),
    ({"created": "yesterday"}, "created is 'yesterday'"),
    ({"history": [{"empty_layer": "yes"}]}, "empty_layer"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_CONFIGS)
def test_bad_configs(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageConfig.parse(json.dumps(DOCKER_CONFIG | changes).encode())


def test_an_image_that_contradicts_itself_is_refused() -> None:
    config = ImageConfig(platform=ImagePlatform.of(AMD64), diff_ids=(SOME,)).to_bytes()
    named = Descriptor.of(d.OCI_CONFIG, config)
    layer = Descriptor.of(d.OCI_LAYER_GZIP, b"x")
    for manifest, message in (
        (Manifest(config=Descriptor.of(d.OCI_CONFIG, b"other"), layers=(layer,)), "the manifest wants"),
        (Manifest(config=named, layers=()), "0 layers, the config 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Image.parse(manifest.to_bytes(), config)
    assert Image.parse(Manifest(config=named, layers=(layer,)).to_bytes(), config).layers[0].diff_id == SOME


# ---------------------------------------------------------------- choosing a platform


def entry(os: str, architecture: str, variant: str = "") -> Descriptor:
    platform = ImagePlatform(os=os, architecture=architecture, variant=variant)
    return Descriptor(
        media_type=d.OCI_MANIFEST, digest=Digest.of(str(platform).encode()), size=1, platform=platform
    )


@pytest.mark.parametrize(
    ("there", "wanted", "chosen"),
    [
        (["linux/amd64", "linux/arm64/v8"], "linux/arm64", "linux/arm64/v8"),
        (["linux/amd64/v3", "linux/amd64"], "linux/amd64", "linux/amd64"),
        (["unknown/unknown", "linux/amd64"], "linux/amd64", "linux/amd64"),
        (["linux/amd64/v3"], "linux/amd64", None),
        (["windows/amd64", "linux/arm/v7"], "linux/amd64", None),
        ([], "linux/amd64", None),
    ],
)
def test_choose(there: list[str], wanted: str, chosen: str | None) -> None:
    index = ImageIndex(manifests=tuple(entry(*p.split("/")) for p in there))
    if chosen:
        assert str(index.choose(Platform.parse(wanted)).platform) == chosen
    else:
        with pytest.raises(ValueError, match=there[0] if there else "none"):
            index.choose(Platform.parse(wanted))


def test_fields_read_null_as_absent() -> None:
    fields = decode(b'{"a": null, "b": {"c": null}}', limit=100)
    assert not fields.has("a") and fields.texts("a") == () and fields.mapping("b") == ()
    assert isinstance(fields.object("a"), Fields)
