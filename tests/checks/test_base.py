"""Base images of a registry: what is wrong in their layers, found by `check`. The images are made here."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.cache import Cache
from imagebuilder.cli.main import run
from imagebuilder.facts.layer import LayerFacts, Links, image_system, layer_facts, parse_cache
from imagebuilder.oci.descriptor import OCI_LAYER_GZIP, Descriptor
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.model import ImageConfig, ImagePlatform
from imagebuilder.values import Digest, Platform
from tests.support.fake_registry import FakeRegistry
from tests.support.http_server import Server
from tests.support.mirror import publish
from tests.support.schemas import validated

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
LIB = "usr/lib/x86_64-linux-gnu"
CUDA = "usr/local/cuda-13.0"
QUIET = {"usr/local/cuda": "cuda-13.0", "lib": "usr/lib", "lib64": "usr/lib64"}


@dataclass
class Library:
    """Compiles tiny libraries, once each."""

    folder: Path
    made: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, soname: str, *needs: str, source: str = "") -> bytes:
        key = f"{soname} {needs} {source}"
        if key not in self.made:
            self.folder.mkdir(exist_ok=True)
            for need in needs:
                self._compile(need, "", ())
            self.made[key] = self._compile(soname, source, needs)
        return self.made[key]

    def _compile(self, soname: str, source: str, needs: tuple[str, ...]) -> bytes:
        code = self.folder / "x.c"
        code.write_text(source or f"int f_{soname.partition('.')[0]}(void) {{ return 1; }}")
        out = self.folder / soname
        libraries = [str(self.folder / need) for need in needs]
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", f"-Wl,-soname,{soname}",
             "-o", str(out), str(code), *libraries],
            check=True,
        )  # fmt: skip
        return out.read_bytes()


def layer(folder: Path, files: Mapping[str, bytes | str], *, removed: tuple[str, ...] = ()) -> LayerRef:
    """A layer: bytes are files, text is where a link leads."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            entry.size = 0 if isinstance(content, str) else len(content)
            tar.addfile(entry, None if isinstance(content, str) else io.BytesIO(content))
        for name in removed:
            tar.addfile(tarfile.TarInfo(str(Path(name).with_name(f".wh.{Path(name).name}"))))
    data = gzip.compress(out.getvalue(), 1)
    folder.mkdir(exist_ok=True)
    place = folder / f"{Digest.of(data).hex}.layer"
    place.write_bytes(data)
    return LayerRef(
        descriptor=Descriptor.of(OCI_LAYER_GZIP, data), diff_id=Digest.of(out.getvalue()), path=place
    )


def loader_cache(entries: Mapping[str, str]) -> bytes:
    """An ld.so.cache in glibc's format."""
    header = 48 + 24 * len(entries)
    strings, rows = bytearray(), bytearray()
    for name, path in entries.items():
        at = header + len(strings)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
        rows += (0x301).to_bytes(4, "little") + at.to_bytes(4, "little")
        rows += (at + len(name) + 1).to_bytes(4, "little") + bytes(12)
    head = b"glibc-ld.so.cache1.1" + len(entries).to_bytes(4, "little") + len(strings).to_bytes(4, "little")
    return head + bytes(48 - len(head)) + bytes(rows) + bytes(strings)


@dataclass
class Bench:
    """A registry, an index, a folder; `check` of a stack on a base that is pushed here."""

    folder: Path
    server: Server
    registry: FakeRegistry
    capsys: pytest.CaptureFixture[str]
    library: Library

    def push(self, *layers: LayerRef, env: Mapping[str, str] | None = None) -> Digest:
        config = ImageConfig(
            platform=ImagePlatform.of(Platform("linux", "amd64")), env=tuple((env or {}).items())
        )
        image = Image.make(config, layers)
        self.registry.put_blob("nvidia/cuda", image.config_bytes)
        for ref in layers:
            assert ref.path is not None
            self.registry.put_blob("nvidia/cuda", ref.path.read_bytes())
        return self.registry.put_manifest("nvidia/cuda", image.manifest_bytes, image.descriptor.media_type)

    def stack(
        self, digest: Digest, *, more: str = "", driver: str = "580.95.05", gpu: str = "sm_120"
    ) -> None:
        self.folder.joinpath("stacks").mkdir(exist_ok=True)
        self.folder.joinpath("stacks", "pylock.s.toml").unlink(missing_ok=True)
        self.folder.joinpath("stacks", "s.toml").write_text(
            f'''schema = 1
name = "s"
[target]
platform = "linux/amd64"
python = "3.11"
glibc = "2.39"
gpus = ["{gpu}"]
driver = "{driver}"
[base]
image = "{self.registry.host}/nvidia/cuda:13.0.1-devel-ubuntu24.04@{digest}"
[[layer]]
name = "all"
requirements = ["kernels"]
{more}
'''
        )

    def wheel(self, data: bytes) -> None:
        """One package with one extension module."""
        index = self.server.index("/simple", form="json")
        publish(index, self.folder / "made", "kernels", "1.0", upload_time="2025-06-01T00:00:00Z",
                files={"kernels/_ops.abi3.so": data})  # fmt: skip

    def check(self, *more: str) -> dict[str, dict[str, Any]]:
        self.capsys.readouterr()
        code = run(["check", "s", "--json", *more])
        captured = self.capsys.readouterr()
        assert code in (0, 5), captured.err
        return {f["code"]: f for f in validated("check", captured.out)["findings"]}


@pytest.fixture
def bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Bench]:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "cache"))
    with Server() as server, FakeRegistry() as registry:
        monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", f"{server.url}/simple/")
        yield Bench(folder, server, registry, capsys, Library(tmp_path / "libraries"))


@needs_gcc
def test_a_base_without_faults(bench: Bench, tmp_path: Path) -> None:
    """As NVIDIA's devel images: stubs beside the path, the toolkit's folder in the loader's cache."""
    libc, stub = bench.library("libc.so.6"), bench.library("libcuda.so.1")
    nvrtc = f"/{CUDA}/lib64/libnvrtc.so.13"
    digest = bench.push(
        layer(tmp_path / "blobs", {f"{LIB}/libc.so.6": libc, **QUIET}),
        layer(
            tmp_path / "blobs",
            {
                f"{CUDA}/lib64/stubs/libcuda.so": stub,
                f"{CUDA}/lib64/libnvrtc.so.13.0.88": bench.library("libnvrtc.so.13"),
                f"{CUDA}/lib64/libnvrtc.so.13": "libnvrtc.so.13.0.88",
                "etc/ld.so.cache": loader_cache({"libnvrtc.so.13": nvrtc, "libc.so.6": f"/{LIB}/libc.so.6"}),
            },
        ),
        env={"NVIDIA_REQUIRE_CUDA": "cuda>=13.0", "LIBRARY_PATH": "/usr/local/cuda/lib64/stubs"},
    )
    bench.wheel(bench.library("_ops.abi3.so", "libnvrtc.so.13", "libc.so.6"))
    bench.stack(digest)
    assert bench.check() == {}
    asked = len(bench.registry.seen)
    assert bench.check() == {} and len(bench.registry.seen) == asked  # kept


@pytest.mark.parametrize("depth", [122, 126])
def test_the_layers_of_the_base_count(bench: Bench, tmp_path: Path, depth: int) -> None:
    """Engines mount 127: what a stack adds to a base of many layers may be too much for them."""
    layers = [layer(tmp_path / "blobs", {f"opt/{n}": b"", **QUIET}) for n in range(depth)]
    bench.wheel(b"no library")
    bench.stack(bench.push(*layers))
    finding = bench.check().get("image.too-many-layers")
    if depth == 122:
        assert finding is None
    else:
        assert finding is not None and f"{depth} of them of its base" in finding["what"]


@needs_gcc
def test_a_library_that_is_in_the_base_but_not_on_the_path(bench: Bench, tmp_path: Path) -> None:
    digest = bench.push(
        layer(
            tmp_path / "blobs",
            {
                f"{CUDA}/lib64/libnvrtc.so.13.0.88": bench.library("libnvrtc.so.13"),
                f"{CUDA}/lib64/libnvrtc.so.13": "libnvrtc.so.13.0.88",
            },
        )
    )
    bench.wheel(bench.library("_ops.abi3.so", "libnvrtc.so.13"))
    bench.stack(digest)
    missing = bench.check()["lib.missing"]
    assert missing["severity"] == "error" and "libnvrtc.so.13" in missing["what"]
    assert f"add /{CUDA}/lib64 to LD_LIBRARY_PATH" in missing["fix"]
    bench.stack(digest, more=f'[env]\nLD_LIBRARY_PATH = "/{CUDA}/lib64"\n')
    assert "lib.missing" not in bench.check()


@needs_gcc
def test_nvml_in_the_image(bench: Bench, tmp_path: Path) -> None:
    """As a package of the distribution's own driver brings it."""
    nvml = {
        f"{LIB}/libnvidia-ml.so.570.124.06": bench.library(
            "libnvidia-ml.so.1", source="int nvmlInit(void) { return 1; }"
        )
    }
    nvml |= {f"{LIB}/libnvidia-ml.so.1": "libnvidia-ml.so.570.124.06"}  # type: ignore[dict-item]
    bench.wheel(bench.library("_ops.abi3.so"))
    bench.stack(bench.push(layer(tmp_path / "blobs", nvml)))
    found = bench.check()["lib.shadows-driver"]
    assert found["severity"] == "error" and "libnvidia-ml" in found["what"]


@needs_gcc
@pytest.mark.parametrize(
    ("path", "env", "cached"),
    [
        (f"{LIB}/libcuda.so.580.65.06", "", ""),
        (f"{CUDA}/compat/libcuda.so.580.65.06", "", f"/{CUDA}/compat/libcuda.so.1"),
        (f"{CUDA}/lib64/stubs/libcuda.so", "/usr/local/cuda/lib64/stubs", ""),
    ],
)
def test_the_driver_in_the_image(bench: Bench, tmp_path: Path, path: str, env: str, cached: str) -> None:
    files: dict[str, bytes | str] = {path: bench.library("libcuda.so.1"), **QUIET}
    if cached:
        files[cached.strip("/")] = Path(path).name
        files["etc/ld.so.cache"] = loader_cache({"libcuda.so.1": cached})
    digest = bench.push(layer(tmp_path / "blobs", files), env={"LD_LIBRARY_PATH": env} if env else {})
    bench.wheel(bench.library("_ops.abi3.so"))
    bench.stack(digest)
    found = bench.check()["lib.shadows-driver"]
    assert found["severity"] == "error"
    removed = layer(tmp_path / "blobs", {}, removed=(path, "etc/ld.so.cache"))
    bench.stack(bench.push(layer(tmp_path / "blobs", files), removed))
    assert "lib.shadows-driver" not in bench.check()  # a later layer takes it away


@needs_gcc
def test_compat_against_the_promised_driver(bench: Bench, tmp_path: Path) -> None:
    """Beside the path, as in NVIDIA's images: it decides where the host's driver is older."""
    compat = {f"{CUDA}/compat/libcuda.so.580.82.07": bench.library("libcuda.so.1")}
    digest = bench.push(layer(tmp_path / "blobs", compat))
    bench.wheel(bench.library("_ops.abi3.so"))
    bench.stack(digest, driver="570.124.06")
    found = bench.check()["driver.compat-only-for-data-centres"]
    assert found["severity"] == "warning" and "580.82.07" in found["what"]
    for driver, gpu in (("580.95.05", "sm_120"), ("570.124.06", "sm_90")):
        bench.stack(digest, driver=driver, gpu=gpu)
        assert "driver.compat-only-for-data-centres" not in bench.check()


@needs_gcc
def test_what_the_base_requires_of_the_host(bench: Bench, tmp_path: Path) -> None:
    digest = bench.push(
        layer(tmp_path / "blobs", {"etc/hostname": b"x"}), env={"NVIDIA_REQUIRE_CUDA": "cuda>=13.0"}
    )
    bench.wheel(bench.library("_ops.abi3.so"))
    bench.stack(digest, driver="570.124.06")
    assert bench.check()["driver.image-refuses"]["severity"] == "error"


@needs_gcc
def test_a_base_that_cannot_be_had_is_not_a_pass(bench: Bench, tmp_path: Path) -> None:
    digest = bench.push(layer(tmp_path / "blobs", {"etc/hostname": b"x"}))
    bench.wheel(bench.library("_ops.abi3.so"))
    bench.stack(digest)
    kept = dict(bench.registry.manifests)
    bench.registry.manifests.clear()
    found = bench.check()["image.base-not-seen"]
    assert found["severity"] == "note" and "--read-base" in found["fix"]
    bench.registry.manifests.update(kept)
    again = bench.check()["image.base-not-seen"]["what"]  # it is not asked again at once
    assert re.fullmatch(re.escape(found["what"]) + r" \(\d+ minutes ago\)", again)
    assert "image.base-not-seen" not in bench.check("--read-base")
    assert "image.base-not-seen" not in bench.check("--offline")


@needs_gcc
def test_a_large_base_is_read_when_told_to(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagebuilder.checks.gather_base._MOST", 10)
    digest = bench.push(layer(tmp_path / "blobs", {f"{LIB}/libcuda.so.1": bench.library("libcuda.so.1")}))
    bench.wheel(bench.library("_ops.abi3.so"))
    bench.stack(digest)
    found = bench.check()
    assert "GB to fetch" in found["image.base-not-seen"]["what"] and "lib.shadows-driver" not in found
    assert "lib.shadows-driver" in bench.check("--read-base")
    assert "lib.shadows-driver" in bench.check()  # from then on


@pytest.mark.parametrize(
    ("env", "path", "where"),
    [
        ('CUDA_HOME = "/usr/local/cuda"', "", "CUDA_HOME = /usr/local/cuda"),
        ('CUDA_PATH = "/usr/local/cuda/"', "", "CUDA_PATH = /usr/local/cuda/"),
        ("", "/usr/bin:/usr/local/cuda/bin", "the first nvcc on PATH is in /usr/local/cuda/bin"),
        ("", "/usr/bin", "by default"),
    ],
)
def test_a_compiler_in_the_base_is_asked_for_its_release(
    bench: Bench, tmp_path: Path, env: str, path: str, where: str
) -> None:
    """Its name says 13.0.1; what lies where packages look for it counts."""
    nvcc = b"#!\0Cuda compilation tools, release 12.8, V12.8.93\0sm_120\0"
    files = {"usr/local/cuda-12.8/bin/nvcc": nvcc, "usr/local/cuda": "cuda-12.8"}
    index = bench.server.index("/simple", form="json")
    more = {"upload_time": "2025-06-01T00:00:00Z", "files": {"x.py": b""}}
    publish(index, bench.folder / "made", "flashinfer-python", "0.6.4", **more)
    publish(index, bench.folder / "made", "kernels", "1.0", requires=["flashinfer-python"], **more)
    base = bench.push(layer(tmp_path / "blobs", files), env={"PATH": path} if path else {})
    bench.stack(base, more=f"[env]\n{env}\n")
    found = bench.check()["toolchain.nvcc-too-old"]
    assert "12.8" in found["what"] and where in found["evidence"][0]


def test_layers_are_merged(tmp_path: Path) -> None:
    """Whiteouts, links through folders, and a library that becomes a link."""
    lower = LayerFacts(links={"/lib": "usr/lib", "/usr/lib/a.so": "b.so", "/opt/x/c.so": "d.so"})
    upper = LayerFacts(hidden=("/usr/lib/a.so",), emptied=("/opt",), links={"/opt/y": "x"})
    system = image_system([lower, upper], "x86_64-linux-gnu", "3.12")
    assert set(system.links) == {"/lib", "/opt/y"}
    assert system.links["/lib/z.so"] == "/usr/lib/z.so" and "/usr/lib/z.so" not in system.links
    assert system.links["/opt/y/c"] == "/opt/x/c"


@given(st.dictionaries(st.text("abc/.", min_size=1, max_size=8), st.text("abc/.", max_size=8), max_size=8))
def test_links_of_any_kind_end(links: dict[str, str]) -> None:
    table = Links({"/" + k.strip("/"): v for k, v in links.items()})
    for path in [*links, "/a/b/c", "/a"]:
        assert isinstance(table.resolve("/" + path.strip("/")), str)


@given(st.binary(max_size=400), st.binary(max_size=200))
def test_a_loader_cache_of_any_bytes(junk: bytes, tail: bytes) -> None:
    made = loader_cache({"libx.so.1": "/usr/lib/libx.so.1"})
    assert parse_cache(made) == {"libx.so.1": "/usr/lib/libx.so.1"}
    for data in (junk, made[: len(junk)], made + tail, b"glibc-ld.so.cache1.1" + junk):
        assert isinstance(parse_cache(data), dict)


@needs_gcc
def test_damaged_libraries_of_a_base_are_passed_over(tmp_path: Path) -> None:
    good = Library(tmp_path / "made")("libgood.so.1")
    ref = layer(tmp_path, {f"{LIB}/libgood.so.1": good, f"{LIB}/libbad.so.1": good[:200] + b"\xff" * 900})
    assert ref.path is not None
    cache = Cache(tmp_path / "cache")
    facts = layer_facts(ref.path, ref.descriptor.digest, cache)
    assert f"/{LIB}/libgood.so.1" in facts.libraries
    assert facts.libraries[f"/{LIB}/libgood.so.1"].soname == "libgood.so.1"
    again = layer_facts(tmp_path / "gone", ref.descriptor.digest, cache)  # by its digest alone
    assert replace(again, libraries=dict(again.libraries)) == replace(facts, libraries=dict(facts.libraries))


@needs_gcc
def test_a_tag_that_is_gone(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock has the digest that the tag meant; without it in the registry, both are named."""
    digest = bench.push(layer(tmp_path / "blobs", {"etc/hostname": b"x"}))
    tag = "13.0.1-devel-ubuntu24.04"
    media_type, manifest = bench.registry.manifests["nvidia/cuda", digest.text]
    bench.registry.put_manifest("nvidia/cuda", manifest, media_type, tag)
    bench.wheel(bench.library("_ops.abi3.so"))
    bench.stack(digest)
    path = bench.folder / "stacks" / "s.toml"
    path.write_text(path.read_text().replace(f"@{digest}", ""))
    assert run(["lock", "s"]) == 0
    assert digest.text in path.with_name("pylock.s.toml").read_text()
    bench.registry.manifests.clear()
    monkeypatch.setenv("IMAGEBUILDER_CACHE_DIR", str(tmp_path / "another cache"))
    bench.capsys.readouterr()
    assert run(["fetch", "s"]) == 13
    said = bench.capsys.readouterr().err
    assert tag in said and digest.text in said, said
