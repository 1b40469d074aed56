"""Against Debian's docker-registry: plain, TLS, Basic and Bearer; skopeo is the other client."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, MachineLacks, PushFailed
from imagebuilder.oci.archive import write_archive
from imagebuilder.oci.base import BaseImage, fetch_layers, read_base, resolve_base
from imagebuilder.oci.descriptor import OCI_INDEX, OCI_LAYER_GZIP, Descriptor
from imagebuilder.oci.image import Image
from imagebuilder.oci.layout import write_layout
from imagebuilder.oci.model import ImageIndex
from imagebuilder.oci.push import push_image
from imagebuilder.oci.registry import Registry
from imagebuilder.oci.upload import FileBody
from imagebuilder.progress import Silent
from imagebuilder.settings import Settings
from imagebuilder.values import Digest, ImageRef, Platform
from tests.support.registry import PASSWORD, TestRegistry, find_program, run_registry

AMD64 = Platform("linux", "amd64")
ARM64 = Platform("linux", "arm64")


def connect(real: TestRegistry, settings: Settings) -> Registry:
    return Registry(real.host, settings, pause=lambda seconds: None)


@pytest.fixture
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A repository for this test alone."""
    return f"test/{Digest.of(str(tmp_path).encode()).short}"


def test_push_and_pull(
    real_registry: TestRegistry, settings: Settings, cache: Cache, image: Image, repository: str
) -> None:
    registry = connect(real_registry, settings)
    pushed = push_image(registry, repository, image, ["1.0", "latest"])
    assert (pushed.digest, pushed.sent) == (image.digest, 3)
    assert sorted(registry.tags(repository)) == ["1.0", "latest"]
    for reference in ("1.0", image.digest):
        assert registry.manifest(repository, reference).data == image.manifest_bytes
    for layer in image.layers:
        assert layer.path
        pulled = registry.blob(repository, layer.descriptor, cache)
        assert pulled.read_bytes() == layer.path.read_bytes()
    again = push_image(connect(real_registry, settings), repository, image, ["1.0"])
    assert (again.sent, again.existing) == (0, 3)


def test_blobs_are_mounted_from_another_repository(
    real_registry: TestRegistry, settings: Settings, image: Image, repository: str
) -> None:
    registry = connect(real_registry, settings)
    push_image(registry, repository, image, ["x"])
    away = replace(image, layers=tuple(replace(layer, path=None) for layer in image.layers))
    pushed = push_image(registry, f"{repository}-other", away, ["x"], mount_from=[repository])
    assert (pushed.sent, pushed.mounted) == (1, 2)  # the config is sent
    assert registry.manifest(f"{repository}-other", "x").digest == image.digest


def test_a_large_blob_in_flat_memory(
    real_registry: TestRegistry, settings: Settings, cache: Cache, tmp_path: Path, repository: str
) -> None:
    import resource

    path = tmp_path / "large"
    piece = bytes(range(256)) * 4096
    with path.open("wb") as file:
        for _ in range(96):
            file.write(piece)
    size = path.stat().st_size
    digest = Digest.from_hex(subprocess.check_output(["sha256sum", str(path)], text=True).split()[0])
    registry = connect(real_registry, settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert registry.push_blob(repository, digest, FileBody(path, size)) == "pushed"
    wanted = Descriptor(media_type=OCI_LAYER_GZIP, digest=digest, size=size)
    pulled = registry.blob(repository, wanted, cache)
    assert pulled.stat().st_size == size
    path.unlink()
    pulled.unlink()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50 << 10, f"{grown} KiB more than before"


def test_what_is_not_there(
    real_registry: TestRegistry, settings: Settings, cache: Cache, repository: str
) -> None:
    registry = connect(real_registry, settings)
    with pytest.raises(ArtefactUnusable, match="HTTP 404, MANIFEST_UNKNOWN"):
        registry.manifest(repository, "none")
    with pytest.raises(ArtefactUnusable, match="HTTP 404, BLOB_UNKNOWN"):
        registry.blob(repository, Descriptor.of(OCI_LAYER_GZIP, b"nowhere"), cache)
    with pytest.raises(ArtefactUnusable, match="HTTP 404, NAME_UNKNOWN"):
        registry.tags(repository)
    assert not registry.blob_exists(repository, Digest.of(b"nowhere"))


def test_what_the_registry_refuses(
    real_registry: TestRegistry, settings: Settings, image: Image, repository: str
) -> None:
    registry = connect(real_registry, settings)
    with pytest.raises(PushFailed, match="HTTP 400, DIGEST_INVALID"):
        registry.push_blob(repository, Digest.of(b"one"), b"another")
    with pytest.raises(PushFailed, match="HTTP 400, MANIFEST_BLOB_UNKNOWN"):
        registry.push_manifest(repository, image.manifest_bytes, image.manifest.media_type)


def test_a_blob_that_the_registrys_disk_lost_half_of(
    real_registry: TestRegistry, settings: Settings, cache: Cache, repository: str
) -> None:
    registry = connect(real_registry, settings)
    data = b"precious" * 1000
    registry.push_blob(repository, Digest.of(data), data)
    (stored,) = real_registry.storage.rglob(f"{Digest.of(data).hex}/data")
    stored.write_bytes(data[:-1] + b"?")
    with pytest.raises(ArtefactUnusable, match=r"sha256|something else"):
        registry.blob(repository, Descriptor.of(OCI_LAYER_GZIP, data), cache)
    assert cache.artefact(Digest.of(data)) is None


# ---------------------------------------------------------------- logins


@pytest.fixture(scope="module", params=["basic", "token"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestRegistry]:
    with run_registry(tmp_path_factory.mktemp("guarded"), login=request.param) as registry:
        yield registry


@pytest.mark.parametrize("place", ["config.json", "DOCKER_AUTH_CONFIG"])
def test_with_the_login_of_docker(
    place: str, guarded: TestRegistry, settings: Settings, image: Image, tmp_path: Path
) -> None:
    repository, folder = f"logins/{place.lower()}", guarded.docker_config(tmp_path / "docker")
    given = (folder / "config.json").read_text()
    changes = {"docker_config": folder} if place == "config.json" else {"docker_auth": given}
    settings = replace(settings, **changes)  # type: ignore[arg-type]
    registry = connect(guarded, settings)
    push_image(registry, repository, image, ["1.0"])
    assert connect(guarded, settings).manifest(repository, "1.0").digest == image.digest
    pushed = push_image(registry, f"{repository}-2", image, ["1.0"], mount_from=[repository])
    assert pushed.mounted == 2


def test_without_a_login(guarded: TestRegistry, settings: Settings, image: Image, repository: str) -> None:
    with pytest.raises(PushFailed, match=f"docker login {guarded.host}"):
        push_image(connect(guarded, settings), repository, image, ["1.0"])


def test_with_a_wrong_login(
    guarded: TestRegistry, settings: Settings, repository: str, tmp_path: Path
) -> None:
    guarded = replace(guarded, password=f"{PASSWORD}-canary")
    settings = replace(settings, docker_config=guarded.docker_config(tmp_path / "docker"))
    with pytest.raises(ArtefactUnusable, match=r"(?s)login.*not valid.*docker login") as caught:
        connect(guarded, settings).manifest(repository, "1.0")
    assert "canary" not in str(caught.value)


def test_anonymous_pulls_and_identity_tokens(tmp_path: Path, settings: Settings, image: Image) -> None:
    with run_registry(tmp_path / "registry", login="token") as guarded:
        folder = tmp_path / "docker"
        folder.mkdir()
        login = {"auths": {guarded.host: {"auth": "", "identitytoken": PASSWORD}}}
        (folder / "config.json").write_text(json.dumps(login))
        push_image(connect(guarded, replace(settings, docker_config=folder)), "demo", image, ["1.0"])
        assert any("form" in request for request in guarded.token_requests)
        assert connect(guarded, settings).manifest("demo", "1.0").digest == image.digest
        assert guarded.token_requests[-1] == {"scope": ["repository:demo:pull"], "login": False}


def test_tls(tmp_path: Path, settings: Settings, image: Image) -> None:
    with run_registry(tmp_path / "registry", tls=True, login="basic") as real:
        trusting = replace(settings, ca_bundle=real.ca, docker_config=real.docker_config(tmp_path / "docker"))
        push_image(connect(real, trusting), "demo", image, ["1.0"])
        assert connect(real, trusting).manifest("demo", "1.0").digest == image.digest
        with pytest.raises(MachineLacks, match=r"(?s)not trusted.*IMAGEBUILDER_CA_BUNDLE"):
            connect(real, replace(trusting, ca_bundle=None)).manifest("demo", "1.0")


# ---------------------------------------------------------------- bases


@pytest.fixture
def base_ref(
    real_registry: TestRegistry, settings: Settings, make_image: Callable[..., Image], repository: str
) -> ImageRef:
    """An image for two platforms under the tag `base`."""
    registry = connect(real_registry, settings)
    images = [make_image(b"amd", b"two"), make_image(b"arm", b"two", platform=ARM64)]
    for image in images:
        push_image(registry, repository, image)
    index = ImageIndex(manifests=tuple(image.descriptor for image in images))
    registry.push_manifest(repository, index.to_bytes(), OCI_INDEX, tag="base")
    return ImageRef.parse(f"{real_registry.host}/{repository}:base")


@pytest.mark.parametrize("platform", [AMD64, ARM64])
def test_a_base_is_found_for_the_platform_and_fetched_when_needed(
    platform: Platform, base_ref: ImageRef, settings: Settings, cache: Cache
) -> None:
    base = resolve_base(base_ref, platform, settings=settings, cache=cache)
    assert base.image.config.platform.runs(platform)
    assert base.index is not None and base.index_digest == base.index != base.manifest_digest
    assert all(cache.artefact(layer.descriptor.digest) is None for layer in base.image.layers)
    fetched = fetch_layers(base, settings=settings, cache=cache, reporter=Silent())
    for layer in fetched.image.layers:
        assert layer.path and Digest.of(layer.path.read_bytes()) == layer.descriptor.digest
    assert fetched.image.digest == base.image.digest


def test_a_pinned_base_needs_no_network_the_second_time(
    base_ref: ImageRef, settings: Settings, cache: Cache
) -> None:
    first = resolve_base(base_ref, AMD64, settings=settings, cache=cache)
    fetch_layers(first, settings=settings, cache=cache, reporter=Silent())
    offline = replace(settings, offline=True)
    for digest in (first.index_digest, first.manifest_digest):
        pinned = replace(base_ref, tag="moved", digest=digest)
        again = resolve_base(pinned, AMD64, settings=offline, cache=cache)
        assert again.image == first.image
        fetched = fetch_layers(again, settings=offline, cache=cache, reporter=Silent())
        assert all(layer.path for layer in fetched.image.layers)
    with pytest.raises(ArtefactUnusable, match="offline"):
        resolve_base(base_ref, AMD64, settings=offline, cache=cache)


def test_a_base_for_another_platform(
    real_registry: TestRegistry, settings: Settings, cache: Cache, image: Image, repository: str
) -> None:
    push_image(connect(real_registry, settings), repository, image, ["amd"])
    ref = ImageRef.parse(f"{real_registry.host}/{repository}:amd")
    assert resolve_base(ref, AMD64, settings=settings, cache=cache).index is None
    with pytest.raises(ArtefactUnusable, match="the image is for linux/amd64, wanted linux/arm64"):
        resolve_base(ref, ARM64, settings=settings, cache=cache)


def test_an_index_without_the_platform(
    real_registry: TestRegistry, settings: Settings, cache: Cache, image: Image, repository: str
) -> None:
    registry = connect(real_registry, settings)
    push_image(registry, repository, image)
    registry.push_manifest(
        repository, ImageIndex(manifests=(image.descriptor,)).to_bytes(), OCI_INDEX, tag="only"
    )
    ref = ImageRef.parse(f"{real_registry.host}/{repository}:only")
    with pytest.raises(ArtefactUnusable, match="no image for linux/arm64, only for: linux/amd64"):
        resolve_base(ref, ARM64, settings=settings, cache=cache)


def test_a_base_on_disk(image: Image, make_image: Callable[..., Image], cache: Cache, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", image, [ImageRef.parse("demo")])
    write_archive(tmp_path / "archive.tar", image)
    for path in (tmp_path / "layout", tmp_path / "archive.tar"):
        base: BaseImage = read_base(path, AMD64, cache)
        assert (base.ref, base.manifest_digest) == (None, image.digest)
        assert all(layer.path for layer in base.image.layers)
        with pytest.raises(ArtefactUnusable, match="does not hold one image for linux/arm64"):
            read_base(path, ARM64, cache)


# ---------------------------------------------------------------- skopeo


def skopeo(*arguments: str) -> bytes:
    program = find_program("skopeo", "skopeo")
    return subprocess.run([program, *arguments], check=True, capture_output=True).stdout


def test_skopeo_copies_the_layout_to_a_registry_and_we_pull_the_same(
    real_registry: TestRegistry,
    settings: Settings,
    image: Image,
    repository: str,
    tmp_path: Path,
) -> None:
    write_layout(tmp_path / "out", image, [ImageRef.parse("demo:1.0")])
    target = f"docker://{real_registry.host}/{repository}:1.0"
    skopeo("copy", "-q", "--dest-tls-verify=false", f"oci:{tmp_path}/out:1.0", target)
    ref = ImageRef.parse(f"{real_registry.host}/{repository}:1.0")
    base = resolve_base(ref, AMD64, settings=settings, cache=Cache(settings.cache_dir))
    assert base.image.manifest_bytes == image.manifest_bytes


def test_skopeo_reads_what_we_pushed(
    real_registry: TestRegistry, settings: Settings, image: Image, repository: str
) -> None:
    push_image(connect(real_registry, settings), repository, image, ["1.0"])
    source = f"docker://{real_registry.host}/{repository}:1.0"
    assert skopeo("inspect", "--raw", "--tls-verify=false", source) == image.manifest_bytes
    seen = json.loads(skopeo("inspect", "--tls-verify=false", source))
    assert seen["Digest"] == image.digest.text and seen["Labels"] == {"org.example.stack": "demo"}


def test_an_image_of_dockers_own_kind_is_a_base(
    real_registry: TestRegistry,
    settings: Settings,
    image: Image,
    repository: str,
    tmp_path: Path,
) -> None:
    write_layout(tmp_path / "out", image, [ImageRef.parse("demo:1.0")])
    target = f"docker://{real_registry.host}/{repository}:docker"
    skopeo("copy", "-q", "-f", "v2s2", "--dest-tls-verify=false", f"oci:{tmp_path}/out:1.0", target)
    ref = ImageRef.parse(f"{real_registry.host}/{repository}:docker")
    base = fetch_layers(
        resolve_base(ref, AMD64, settings=settings, cache=Cache(settings.cache_dir)),
        settings=settings,
        cache=Cache(settings.cache_dir),
        reporter=Silent(),
    )
    assert "docker" in base.image.manifest.media_type
    ours = Image.make(base.image.config, base.image.layers)
    write_layout(tmp_path / "ours", ours, [ImageRef.parse("ours:1")])
    assert b"docker" not in ours.manifest_bytes
    assert ours.config.diff_ids == image.config.diff_ids
