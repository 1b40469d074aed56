from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, MachineLacks, UsageProblem
from imagebuilder.oci.archive import check_place, read_archive, write_archive, write_image
from imagebuilder.oci.descriptor import OCI_INDEX, Descriptor, ImagePlatform
from imagebuilder.oci.image import Image
from imagebuilder.oci.layout import blob_path, documents, read_layout, write_layout
from imagebuilder.oci.model import ImageIndex
from imagebuilder.values import Digest, ImageRef, Platform
from tests.support.registry import find_program

NAME = ImageRef.parse("registry.example/team/demo:1.0")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def without_files(image: Image) -> Image:
    return replace(image, layers=tuple(replace(layer, path=None) for layer in image.layers))


def test_layout_is_read_back_with_names_and_files(image: Image, tmp_path: Path) -> None:
    write_layout(tmp_path / "out", image, [NAME])
    (stored,) = read_layout(tmp_path / "out")
    assert stored.names == ("registry.example/team/demo:1.0",)
    assert without_files(stored.image) == without_files(image)
    for layer, original in zip(stored.image.layers, image.layers, strict=True):
        assert layer.path and original.path and layer.path.read_bytes() == original.path.read_bytes()


def test_layout_holds_what_docker_save_holds(image: Image, tmp_path: Path) -> None:
    write_layout(tmp_path / "out", image, [NAME, ImageRef.parse("demo")])
    (saved,) = json.loads((tmp_path / "out/manifest.json").read_bytes())
    assert saved["RepoTags"] == ["docker.io/library/demo:latest", "registry.example/team/demo:1.0"]
    for path in (saved["Config"], *saved["Layers"]):
        assert Digest.of((tmp_path / "out" / path).read_bytes()).hex == Path(path).name
    index = json.loads((tmp_path / "out/index.json").read_bytes())
    assert [m["annotations"]["org.opencontainers.image.ref.name"] for m in index["manifests"]] == [
        "latest",
        "1.0",
    ]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "blobs",
        "index.json",
        "manifest.json",
        "oci-layout",
    ]


def test_blobs_are_hard_links(image: Image, tmp_path: Path) -> None:
    write_layout(tmp_path / "out", image, [NAME])
    for layer in image.layers:
        assert layer.path
        assert (tmp_path / "out" / blob_path(layer.descriptor.digest)).samefile(layer.path)


def test_equal_layers_are_one_blob(make_image: Callable[..., Image], tmp_path: Path) -> None:
    one = make_image(b"same")
    twice = Image.make(one.config, one.layers * 2)
    write_layout(tmp_path / "out", twice)
    write_archive(tmp_path / "out.tar", twice)
    assert read_layout(tmp_path / "out")[0].image.digest == twice.digest
    with tarfile.open(tmp_path / "out.tar") as tar:
        names = tar.getnames()
    assert len(names) == len(set(names)) == 2 + 3 + 3


def test_written_twice_is_the_same_bytes(image: Image, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_layout(tmp_path / name, image, [NAME])
        write_archive(tmp_path / f"{name}.tar", image, [NAME])
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_archive_is_a_tar_of_the_layout(image: Image, tmp_path: Path) -> None:
    write_layout(tmp_path / "out", image, [NAME])
    write_archive(tmp_path / "out.tar", image, [NAME])
    with tarfile.open(tmp_path / "out.tar") as tar:
        members = {m.name: m for m in tar}
        unpacked = {n: tar.extractfile(m).read() for n, m in members.items() if m.isreg()}  # type: ignore[union-attr]
    assert unpacked == tree(tmp_path / "out")
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members.values()} == {(0, 0, 0, "", "")}
    assert {m.mode for m in members.values()} == {0o644, 0o755}


def test_archive_is_read_back_through_the_cache(image: Image, cache: Cache, tmp_path: Path) -> None:
    write_archive(tmp_path / "out.tar", image, [NAME])
    (stored,) = read_archive(tmp_path / "out.tar", cache)
    assert without_files(stored.image) == without_files(image)
    assert stored.names == (str(NAME),)
    assert all(layer.path == cache.artefact(layer.descriptor.digest) for layer in stored.image.layers)


def test_a_layout_is_replaced_and_nothing_is_left_beside_it(
    make_image: Callable[..., Image], tmp_path: Path
) -> None:
    out = tmp_path / "images" / "out"
    for content in (b"one", b"two", b"three"):
        image = make_image(content)
        write_layout(out, image, [NAME])
        assert [s.image.digest for s in read_layout(out)] == [image.digest]
        assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_layout_is_replaced_without_renameat2(
    make_image: Callable[..., Image], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: object())
    for content in (b"one", b"two"):
        image = make_image(content)
        write_layout(tmp_path / "images/out", image)
        assert read_layout(tmp_path / "images/out")[0].image.digest == image.digest
    assert [p.name for p in (tmp_path / "images").iterdir()] == ["out"]


def test_an_empty_directory_is_filled(image: Image, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_layout(tmp_path / "out", image)
    assert read_layout(tmp_path / "out")[0].names == ()


def make_foreign(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")


def make_project(folder: Path) -> None:
    """An image that somebody keeps other things beside."""
    make_others(folder)
    (folder / "manifest.json").write_text("[]")
    (folder / "notes.txt").write_text("what I saw")


def make_others(folder: Path) -> None:
    """A layout as other programs write it, perhaps with many images."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text("{}")


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (make_foreign, "not empty and holds no manifest.json"),
        (make_project, "not empty and holds notes.txt"),
        (make_others, "not empty and holds no manifest.json"),
        (lambda p: p.write_text("file"), "not a directory"),
        (lambda p: p.symlink_to(p.parent), "not a directory"),
    ],
)
def test_what_is_no_layout_is_not_replaced(
    prepare: Callable[[Path], object], message: str, image: Image, tmp_path: Path
) -> None:
    prepare(tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(UsageProblem, match=message):
        write_layout(tmp_path / "out", image)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "prepare",
    [
        lambda p: p.write_text("years of work"),
        lambda p: p.write_text("x" * 5000),
        lambda p: tarfile.open(p, "w").close(),
        lambda p: p.symlink_to("nowhere"),
        lambda p: p.mkdir(),
        os.mkfifo,
    ],
    ids=["text", "long text", "another tar", "a link to nowhere", "a folder", "a pipe"],
)
def test_what_is_no_archive_is_not_replaced(
    prepare: Callable[[Path], object], image: Image, tmp_path: Path
) -> None:
    out = tmp_path / "out.tar"
    prepare(out)
    before = (out.lstat(), out.read_bytes() if out.is_file() else b"")
    for refuse in (lambda: check_place(out), lambda: write_image(out, image)):
        with pytest.raises(UsageProblem, match="not replaced"):
            refuse()
    after = out.lstat()
    assert (after.st_ino, after.st_mtime, after.st_mode) == (
        before[0].st_ino,
        before[0].st_mtime,
        before[0].st_mode,
    )
    assert (out.read_bytes() if out.is_file() else b"") == before[1]


def test_an_archive_of_ours_or_an_empty_file_is_replaced(
    make_image: Callable[..., Image], cache: Cache, tmp_path: Path
) -> None:
    out = tmp_path / "out.tar"
    out.touch()
    for content in (b"one", b"two"):
        image = make_image(content)
        check_place(out)
        write_image(out, image)
        assert read_archive(out, cache)[0].image.digest == image.digest


@pytest.mark.parametrize("name", ["x", "x.tar", "self/x"])
def test_where_the_system_makes_no_files_it_ends_with_an_error(name: str, image: Image) -> None:
    with pytest.raises(MachineLacks, match="cannot be written"):
        write_image(Path("/proc") / name, image)


def test_a_failure_keeps_the_old_layout(make_image: Callable[..., Image], tmp_path: Path) -> None:
    old, new = make_image(b"old"), make_image(b"new", b"second")
    write_layout(tmp_path / "out/layout", old, [NAME])
    assert new.layers[1].path
    new.layers[1].path.write_bytes(b"short")
    with pytest.raises(ArtefactUnusable, match="is not blob"):
        write_layout(tmp_path / "out/layout", new, [NAME])
    with pytest.raises(ArtefactUnusable, match="is not blob"):
        write_archive(tmp_path / "out/archive.tar", new, [NAME])
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["layout"]
    assert read_layout(tmp_path / "out/layout")[0].image.digest == old.digest


def test_a_layer_that_is_not_here_is_an_error(image: Image, tmp_path: Path) -> None:
    with pytest.raises(ArtefactUnusable, match="is not on this machine"):
        write_layout(tmp_path / "out", without_files(image))
    assert not (tmp_path / "out").exists()


def test_a_name_needs_a_tag(image: Image) -> None:
    with pytest.raises(ValueError, match="cannot name an image on disk"):
        documents(image, [ImageRef("docker.io", "library/demo", None, image.digest)])


KILLED = """
import os, signal, sys
from pathlib import Path
from imagebuilder import files
others = ("oci-layout", "index.json", "blobs")
with files.new_directory(Path(sys.argv[1]), marker="manifest.json", others=others) as new:
    (new / "oci-layout").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_the_old_layout_and_the_next_one_cleans_up(
    image: Image, tmp_path: Path
) -> None:
    out = tmp_path / "images" / "out"
    write_layout(out, image, [NAME])
    assert subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False).returncode == -9
    assert len(list(out.parent.iterdir())) == 2
    assert read_layout(out)[0].image.digest == image.digest
    write_layout(out, image, [NAME])
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_no_space_is_said_and_leaves_nothing(
    image: Image, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import errno

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("imagebuilder.oci.layout.link_or_copy", full)
    with pytest.raises(MachineLacks, match=r"(?s)cannot be written.*No space left.*free some space"):
        write_layout(tmp_path / "out", image)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith((".out", "out"))]


def test_umask_is_obeyed(image: Image, tmp_path: Path) -> None:
    write_layout(tmp_path / "out", image)
    assert (tmp_path / "out").stat().st_mode & 0o777 == (tmp_path / "made").stat().st_mode & 0o777


# ---------------------------------------------------------------- hostile layouts


def edit(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def replace_file(path: Path, data: bytes) -> None:
    path.unlink()  # not through a hard link
    path.write_bytes(data)


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def blob_of(folder: Path, image: Image, number: int) -> Path:
    return folder / blob_path(image.layers[number].descriptor.digest)


Damage = Callable[[Path, Image], object]

DAMAGES: dict[str, tuple[Damage, str]] = {
    "no marker": (lambda f, i: (f / "oci-layout").unlink(), "cannot be read"),
    "marker of the future": (
        lambda f, i: (f / "oci-layout").write_text('{"imageLayoutVersion":"9"}'),
        "unknown version",
    ),
    "marker is not JSON": (lambda f, i: (f / "oci-layout").write_text("OCI"), "malformed"),
    "no index": (lambda f, i: (f / "index.json").unlink(), "cannot be read"),
    "index is a directory": (
        lambda f, i: instead(f / "index.json", Path.mkdir),
        "is not a file",
    ),
    "index is a pipe": (
        lambda f, i: instead(f / "index.json", os.mkfifo),
        "is not a file",
    ),
    "index is huge": (lambda f, i: (f / "index.json").write_bytes(b" " * (5 << 20)), "too large"),
    "index is a list": (lambda f, i: (f / "index.json").write_text("[]"), "not a JSON object"),
    "size that lies": (
        lambda f, i: edit(f / "index.json", lambda v: v["manifests"][0].update(size=1)),  # type: ignore[index]
        "not what its name says",
    ),
    "digest out of the layout": (
        lambda f, i: edit(
            f / "index.json",
            lambda v: v["manifests"][0].update(digest="sha256:../../../etc/passwd"),  # type: ignore[index]
        ),
        "hexadecimal",
    ),
    "manifest changed": (
        lambda f, i: replace_file(
            f / blob_path(i.digest), i.manifest_bytes.replace(b"tar+gzip", b"tar+gzap")
        ),
        "not what its name says",
    ),
    "config missing": (lambda f, i: (f / blob_path(i.config_digest)).unlink(), "cannot be read"),
    "layer missing": (lambda f, i: blob_of(f, i, 0).unlink(), "is not at"),
    "layer short": (lambda f, i: replace_file(blob_of(f, i, 0), b"x"), "is not blob"),
    "layer changed": (
        lambda f, i: replace_file(blob_of(f, i, 1), bytes(i.layers[1].descriptor.size)),
        "not what its name says",
    ),
    "layer is a directory": (
        lambda f, i: instead(blob_of(f, i, 0), Path.mkdir),
        "is not blob",
    ),
}


@pytest.mark.parametrize("case", DAMAGES, ids=str)
def test_a_damaged_layout_is_refused(case: str, image: Image, tmp_path: Path) -> None:
    damage, message = DAMAGES[case]
    write_layout(tmp_path / "out", image, [NAME])
    damage(tmp_path / "out", image)
    with pytest.raises(ArtefactUnusable, match=message):
        read_layout(tmp_path / "out")


ARCHIVES: dict[str, tuple[Damage, str]] = {
    "layer changed": DAMAGES["layer changed"],
    "layer missing": (DAMAGES["layer missing"][0], "is not in it"),
    "no index": (DAMAGES["no index"][0], "no index.json"),
    "index is a list": DAMAGES["index is a list"],
}


@pytest.mark.parametrize("case", ARCHIVES, ids=str)
def test_a_damaged_archive_is_refused(case: str, image: Image, cache: Cache, tmp_path: Path) -> None:
    damage, message = ARCHIVES[case]
    write_layout(tmp_path / "out", image, [NAME])
    damage(tmp_path / "out", image)
    with tarfile.open(tmp_path / "out.tar", "w") as tar:
        tar.add(tmp_path / "out", arcname=".")
    with pytest.raises(ArtefactUnusable, match=message):
        read_archive(tmp_path / "out.tar", cache)


@pytest.mark.parametrize("data", [b"", b"not a tar at all" * 100, b"\x1f\x8b" + bytes(600)])
def test_no_archive_is_refused(data: bytes, cache: Cache, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ArtefactUnusable):
        read_archive(tmp_path / "x.tar", cache)
    with pytest.raises(ArtefactUnusable):
        read_archive(tmp_path / "missing.tar", cache)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_huge_headers_are_not_read(kind: bytes, cache: Cache, tmp_path: Path) -> None:
    with (tmp_path / "x.tar").open("wb") as out:
        member = tarfile.TarInfo("x")
        member.type, member.size = kind, 5 << 30
        out.write(member.tobuf(tarfile.GNU_FORMAT))
        out.truncate(6 << 30)  # sparse on disk
    with pytest.raises(ArtefactUnusable, match="an extended header of 5368709120 bytes"):
        read_archive(tmp_path / "x.tar", cache)


def test_links_in_an_archive_are_not_followed(image: Image, cache: Cache, tmp_path: Path) -> None:
    """A blob that is a symbolic link to a file of this machine is not a blob."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"{}")
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        link = tarfile.TarInfo("index.json")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
    with pytest.raises(ArtefactUnusable, match=r"no index\.json"):
        read_archive(tmp_path / "x.tar", cache)


# ---------------------------------------------------------------- several images


def test_an_image_is_found_through_an_index_and_attestations_are_left_out(
    make_image: Callable[..., Image], tmp_path: Path
) -> None:
    amd, arm = make_image(b"amd"), make_image(b"arm", platform=Platform("linux", "arm64"))
    write_layout(tmp_path / "out", amd)
    write_layout(tmp_path / "arm", arm)
    for path in (tmp_path / "arm/blobs/sha256").iterdir():
        (tmp_path / "out/blobs/sha256" / path.name).write_bytes(path.read_bytes())
    attestation = replace(
        Descriptor.of(
            amd.manifest.media_type, b"{}", (("vnd.docker.reference.type", "attestation-manifest"),)
        ),
        platform=ImagePlatform(os="unknown", architecture="unknown"),
    )
    inner = ImageIndex(manifests=(amd.descriptor, attestation, arm.descriptor)).to_bytes()
    (tmp_path / "out" / blob_path(Digest.of(inner))).write_bytes(inner)
    outer = ImageIndex(
        manifests=(Descriptor.of(OCI_INDEX, inner, (("org.opencontainers.image.ref.name", "v1"),)),)
    )
    (tmp_path / "out/index.json").write_bytes(outer.to_bytes())
    stored = read_layout(tmp_path / "out")
    assert [s.image.digest for s in stored] == [amd.digest, arm.digest]
    assert {(s.index, s.names) for s in stored} == {(Digest.of(inner), ("v1",))}


# ---------------------------------------------------------------- other people's tools


@pytest.mark.parametrize("transport", ["oci", "oci-archive", "docker-archive"])
def test_skopeo_reads_it(transport: str, image: Image, tmp_path: Path) -> None:
    skopeo = find_program("skopeo", "skopeo")
    if transport == "oci":
        write_layout(tmp_path / "out", image, [NAME])
        source = f"oci:{tmp_path}/out:1.0"
    else:
        write_archive(tmp_path / "out.tar", image, [NAME])
        source = f"{transport}:{tmp_path}/out.tar" + (":1.0" if transport == "oci-archive" else f":{NAME}")
    raw = subprocess.run(
        [skopeo, "inspect", "--config", "--raw", source], check=True, capture_output=True
    ).stdout
    assert raw == image.config_bytes
    copy = tmp_path / "copy"
    subprocess.run([skopeo, "copy", "-q", source, f"oci:{copy}:x"], check=True, capture_output=True)
    (stored,) = read_layout(copy)
    assert stored.image.config.diff_ids == image.config.diff_ids
    if transport != "docker-archive":  # from there skopeo writes an OCI config of its own
        assert stored.image.digest == image.digest


def test_umoci_unpacks_it(image: Image, tmp_path: Path) -> None:
    umoci = find_program("umoci", "umoci")
    write_layout(tmp_path / "out", image, [NAME])
    command = [umoci, "unpack", "--rootless", "--image", f"{tmp_path}/out:1.0", str(tmp_path / "bundle")]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "bundle/rootfs/opt/file0").read_bytes() == b"hello\n"
    assert (tmp_path / "bundle/rootfs/opt/file1").stat().st_size == 300_000


def test_a_layout_that_skopeo_wrote_is_read(image: Image, tmp_path: Path) -> None:
    skopeo = find_program("skopeo", "skopeo")
    write_layout(tmp_path / "ours", image, [NAME])
    command = [skopeo, "copy", "-q", "-f", "v2s2", f"oci:{tmp_path}/ours:1.0", f"dir:{tmp_path}/docker"]
    subprocess.run(command, check=True, capture_output=True)
    back = [skopeo, "copy", "-q", f"dir:{tmp_path}/docker", f"oci-archive:{tmp_path}/theirs.tar:t"]
    subprocess.run(back, check=True, capture_output=True)
    (stored,) = read_archive(tmp_path / "theirs.tar", Cache(tmp_path / "other"))
    assert stored.image.config.diff_ids == image.config.diff_ids
    assert stored.names == ("t",)
