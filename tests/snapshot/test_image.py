"""Images and their layers: read, never run. Layouts made here, of the files of real environments."""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from imagebuilder.index import debian_release
from imagebuilder.lock import read_lock
from imagebuilder.oci.descriptor import OCI_LAYER_GZIP, Descriptor, ImagePlatform
from imagebuilder.oci.image import Image, LayerRef
from imagebuilder.oci.layout import write_layout
from imagebuilder.oci.model import ImageConfig
from imagebuilder.snapshot.system import SUITES
from imagebuilder.stack import load_stack
from imagebuilder.stack.model import DebianBase
from imagebuilder.values import Digest, Platform
from tests.snapshot.conftest import BASE, TEXT, Place
from tests.support.command import Outcome
from tests.support.debian import FakeArchive, packages_text, stanza
from tests.support.registry import run_registry
from tests.support.schemas import validated

PYTHON = f"3.{sys.version_info.minor}"
UBUNTU = b'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n'
Tree = Mapping[str, bytes | str | None]
"""path → bytes, `→target` for a link, `=target` for a hard link, None for a folder."""


def layer(folder: Path, tree: Tree) -> LayerRef:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for path, content in tree.items():
            member = tarfile.TarInfo(path)
            data = b""
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, str):
                member.type = tarfile.SYMTYPE if content[0] == "→" else tarfile.LNKTYPE
                member.linkname = content[1:]
            else:
                data = content
                member.size = len(data)
                member.mode = 0o755 if "/bin/" in path else 0o644
            tar.addfile(member, io.BytesIO(data))
    packed = gzip.compress(plain.getvalue(), 1, mtime=0)
    digest = Digest.of(packed)
    path = folder / digest.hex
    folder.mkdir(exist_ok=True)
    path.write_bytes(packed)
    return LayerRef(
        descriptor=Descriptor(media_type=OCI_LAYER_GZIP, digest=digest, size=len(packed)),
        diff_id=Digest.of(plain.getvalue()),
        path=path,
    )


def write_image(place: Place, *trees: Tree, **config: object) -> str:
    blobs = place.folder / "blobs"
    made = ImageConfig(platform=ImagePlatform.of(Platform("linux", "amd64")), **config)  # type: ignore[arg-type]
    image = Image.make(made, tuple(layer(blobs, tree) for tree in trees))
    write_layout(place.folder / "image", image)
    return str(place.folder / "image")


def venv_tree(place: Place) -> dict[str, bytes | str | None]:
    """The environment as it lies in an image, on a Python below /usr."""
    tree: dict[str, bytes | str | None] = {
        "etc/os-release": UBUNTU,
        "lib": "→usr/lib",
        "usr/lib/x86_64-linux-gnu/libc.so.6": b"\x7fELF\0GNU C Library stable release version 2.39.\0",
        "usr/bin/python3": f"→python{PYTHON}",
        f"usr/bin/python{PYTHON}": b"\x7fELF",
        f"usr/lib/python{PYTHON}/os.py": b"",
    }
    for parent, folders, files in os.walk(place.venv):
        for name in [*folders, *files]:
            path = Path(parent, name)
            inside = "opt/app/" + path.relative_to(place.venv).as_posix()
            if path.is_symlink():
                target = str(path.readlink())
                tree[inside] = f"→{'/usr/bin/python3' if target.startswith('/') else target}"
            elif path.is_file() and path.name != "pyvenv.cfg":
                tree[inside] = path.read_bytes()
    tree["opt/app/pyvenv.cfg"] = f"home = /usr/bin\nversion = {PYTHON}.9\n".encode()
    return tree


def snapshot(place: Place, image: str, *arguments: str) -> Outcome:
    return place.call("snapshot", "--image", image, "--name", "s", "--base", BASE, "--json", *arguments)


ON_PATH = (("PATH", "/opt/app/bin:/usr/bin:/bin"),)


def test_layers_are_merged_and_what_changed_above_is_found(place: Place) -> None:
    place.publish("alpha", files={"alpha/text.py": TEXT, "alpha/old.py": b"old\n", "alpha/same.py": TEXT})
    place.publish("beta")
    place.install("alpha", "beta")
    below = venv_tree(place)
    site = f"opt/app/lib/python{PYTHON}/site-packages"
    below[f"{site}/alpha/same.py"] = f"={site}/alpha/text.py"  # a hard link, below what changes
    above: Tree = {
        f"{site}/alpha/.wh.old.py": b"",
        f"{site}/alpha/text.py": TEXT + b"edited\n",
        f"{site}/alpha/new.py": b"new\n",
    }
    outcome = snapshot(place, write_image(place, below, above, env=ON_PATH))
    assert outcome.code == 0, outcome.err
    assert str(load_stack(place.stacks / "s.toml").target.glibc) == "2.39"
    said = validated("snapshot", outcome.out)
    alpha = next(p for p in said["packages"] if p["name"] == "alpha")
    found = {c["path"].rpartition("/")[2]: (c["what"], c["how"]) for c in alpha["changes"]}
    assert found == {"old.py": ("deleted", "patch"), "text.py": ("changed", "patch")}
    assert [a["path"].rpartition("/")[2] for a in said["added"]] == ["new.py"]
    assert said["python"] == f"{PYTHON}.9"
    assert len(read_lock(place.stacks / "pylock.s.toml").wheels) == 2


def test_the_images_settings_move_along_without_its_secrets(place: Place) -> None:
    place.publish("alpha")
    place.install("alpha")
    site = f"/opt/app/lib/python{PYTHON}/site-packages"
    image = write_image(
        place,
        venv_tree(place),
        env=(*ON_PATH, ("LD_LIBRARY_PATH", f"{site}/alpha"), ("HF_TOKEN", "canary-canary"), ("EMPTY", "")),
        entrypoint=("/opt/app/bin/python", "-m", "alpha"),
        user="1000:1000",
        workdir="/srv",
        labels=(("org.example.team", "serving"), ("org.opencontainers.image.title", "old")),
        ports=("8000/tcp", "53/udp"),
        volumes=("/data",),
    )
    outcome = snapshot(place, image)
    assert outcome.code == 0, outcome.err
    stack = load_stack(place.stacks / "s.toml")
    assert dict(stack.env) == {
        "LD_LIBRARY_PATH": f"/opt/venv/lib/python{PYTHON}/site-packages/alpha",
        "EMPTY": "",
    }
    assert stack.image.entrypoint == ("/opt/venv/bin/python", "-m", "alpha")
    assert (stack.image.user, stack.image.workdir, stack.image.ports) == ("1000:1000", "/srv", (8000,))
    assert dict(stack.image.labels) == {"org.example.team": "serving"}
    said = validated("snapshot", outcome.out)
    assert [w["key"] for w in said["withheld"]] == ["env.HF_TOKEN"]
    assert any("/data" in note for note in said["notes"])
    assert "canary" not in outcome.out + outcome.err + (place.stacks / "s.toml").read_text()


def test_a_python_of_the_system_has_debians_packages_apart(place: Place) -> None:
    place.publish("alpha")
    place.install("alpha")
    tree: dict[str, bytes | str | None] = {
        "etc/os-release": UBUNTU,
        "bin": "→usr/bin",
        "usr/bin/python3": f"→python{PYTHON}",
        f"usr/bin/python{PYTHON}": b"\x7fELF",
        "usr/lib/python3/dist-packages/six-1.16.0.dist-info/METADATA": b"Name: six\nVersion: 1.16.0\n",
        "usr/lib/python3/dist-packages/old-1.0.egg-info/PKG-INFO": b"Name: old\nVersion: 1.0\n",
        "opt/other/lib/python3.9/site-packages/x-1.dist-info/METADATA": b"Name: x\nVersion: 1\n",
        "var/lib/dpkg/status": b"Package: tini\nStatus: install ok installed\nVersion: 0.19\n"
        b"Architecture: amd64\n\nPackage: libc6\nStatus: install ok installed\nPriority: required\n"
        b"Version: 2.39-0ubuntu8\nArchitecture: amd64\n",
    }
    own = f"opt/app/lib/python{PYTHON}/site-packages/"
    for path, content in venv_tree(place).items():
        if path.startswith(own):
            tree[f"usr/local/lib/python{PYTHON}/dist-packages/{path.removeprefix(own)}"] = content
    image = write_image(place, tree)
    outcome = snapshot(place, image)
    assert outcome.code == 0, outcome.err
    said = validated("snapshot", outcome.out)
    assert [p["name"] for p in said["debian-python-packages"]] == ["old", "six"]
    assert [p["name"] for p in said["packages"]] == ["alpha"]
    assert any("/opt/other" in note for note in said["notes"])
    stack = load_stack(place.stacks / "s.toml")
    assert stack.system.packages == ("tini",)
    assert str(stack.target.glibc) == "2.39"
    plain = place.call("snapshot", "--image", image, "--name", "t")
    assert (
        plain.code == 2 and f"Python {PYTHON} on ubuntu" in plain.err and "--base ubuntu:24.04" in plain.err
    )


def test_an_archive_and_a_registry_give_the_same(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    place.publish("alpha")
    place.install("alpha")
    image = write_image(place, venv_tree(place), env=ON_PATH)
    first = validated("snapshot", snapshot(place, image).out)
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        archive.add(image, ".")
    with run_registry(tmp_path / "registry") as registry:
        ref = f"{registry.host}/team/serve:1"
        pushed = place.call("push", image, "--to", ref)
        assert pushed.code == 0, pushed.err
        for source in (str(tmp_path / "image.tar"), ref):
            outcome = snapshot(place, source, "--force")
            assert outcome.code == 0, outcome.err
            said = validated("snapshot", outcome.out)
            assert {**said, "environment": ""} == {**first, "environment": ""}
        named = place.call("snapshot", "--image", ref, "--base", BASE)
        assert named.code == 0, named.err
        assert (place.stacks / "serve-1.toml").is_file()
        gone = snapshot(place, f"{registry.host}/team/none:1")
        assert gone.code == 13, gone.err
        assert "no Docker Engine answers" in gone.err and "in its registry only" in gone.err


@pytest.mark.skipif(PYTHON not in SUITES, reason="Debian has 3.11 and 3.13")
@pytest.mark.parametrize("with_security", [False, True])
def test_debian_packages_are_asked_for_by_the_fewest_names(
    place: Place, monkeypatch: pytest.MonkeyPatch, with_security: bool
) -> None:
    suite = SUITES[PYTHON]
    archive = FakeArchive(place.server)
    keyring = archive.keyring(place.folder)
    monkeypatch.setattr(debian_release, "local_keyring", lambda: keyring)
    monkeypatch.setenv("IMAGEBUILDER_DEBIAN_MIRRORS", archive.url)
    base = stanza("base-files", Essential="yes", Priority="required")
    minimal = f"python{PYTHON}-minimal"
    named = (stanza("python3", Depends=minimal), stanza("tini", Depends="libold"), stanza("libold", "2.0"))
    archive.publish(suite, packages_text(base, *named, stanza(minimal), stanza("extra")))
    if with_security:
        archive.publish(f"{suite}-security", packages_text(stanza("libold", "2.1")))
    place.publish("alpha")
    place.install("alpha")
    installed = {
        "base-files": "1.0",
        "python3": "1.0",
        "tini": "1.0",
        "libold": "2.1",
        minimal: "1.0",
        "cuda-nvcc-13-0": "13.0.88",
    }
    status = [f"Package: {n}\nStatus: install ok installed\nVersion: {v}\n" for n, v in installed.items()]
    status[0] += "Essential: yes\n"
    status[1] += f"Depends: {minimal}\n"
    status[2] += "Depends: libold\n"
    status.append("Package: extra\nStatus: install ok installed\nVersion: 1.0\n")
    tree = {
        **venv_tree(place),
        "etc/os-release": f"ID=debian\nVERSION_CODENAME={suite}\n".encode(),
        "var/lib/dpkg/status": "\n".join(status).encode(),
        "var/lib/apt/extended_states": b"Package: extra\nArchitecture: amd64\nAuto-Installed: 1\n",
    }
    image = write_image(place, tree, env=ON_PATH)
    outcome = place.call("snapshot", "--image", image, "--name", "s", "--json")
    assert outcome.code == 12, outcome.err
    assert "1 Debian package not in Debian's archive" in outcome.err
    said = validated("snapshot", outcome.out)
    debian = said["debian"]
    assert (debian["manual"], debian["recommended"]) == (["python3", "tini"], ["extra"])
    assert debian["not-in-archive"] == [{"name": "cuda-nvcc-13-0", "version": "13.0.88"}]
    moved = [] if with_security else [{"name": "libold", "installed": "2.1", "locked": "2.0"}]
    assert debian["other-version"] == moved
    stack = load_stack(place.stacks / "s.toml")
    assert stack.base == DebianBase(suite=suite, security=with_security)
    assert stack.system.packages == ("extra", "python3", "tini")
    lock = read_lock(place.stacks / "pylock.s.toml")
    assert sorted(d.name for d in lock.debs) == sorted(
        [
            "base-files",
            "extra",
            "libold",
            "python3",
            minimal,
            "tini",
        ]
    )


@pytest.mark.parametrize(
    ("tree", "code", "words"),
    [
        ({"etc/hostname": b"x"}, 12, "there is no Python"),
        ({"lib/ld-musl-x86_64.so.1": b"x", "usr/bin/python3": b"x"}, 2, "musl"),
        ({"usr/bin/python3": b"x"}, 12, "no lib/python3.X"),
        ({"usr/bin/python3": "→/usr/bin/python3"}, 12, "there is no Python"),
        ({"srv/lib/python3.9/site-packages/x-1.dist-info/METADATA": b"x"}, 12, "--prefix /srv"),
        ({"usr/../../etc/passwd": b"x"}, 13, "unsafe path"),
    ],
)
def test_images_without_a_python_that_can_be_rebuilt(place: Place, tree: Tree, code: int, words: str) -> None:
    outcome = snapshot(place, write_image(place, tree))
    assert outcome.code == code, outcome.err
    assert words in outcome.err and "Traceback" not in outcome.err


def test_what_only_debians_python_has_and_what_is_of_no_package_is_named(place: Place) -> None:
    place.publish("alpha", requires=["six"])
    place.install("--no-deps", "alpha")
    tree: dict[str, bytes | str | None] = {}
    own = f"opt/app/lib/python{PYTHON}/site-packages/"
    for path, content in venv_tree(place).items():
        if path.startswith(own):
            tree[f"usr/local/lib/python{PYTHON}/dist-packages/{path.removeprefix(own)}"] = content
        elif not path.startswith("opt/app"):
            tree[path] = content
    tree["usr/lib/python3/dist-packages/six-1.16.0.dist-info/METADATA"] = b"Name: six\nVersion: 1.16.0\n"
    tree |= {"app/serve.py": b"x", "app/lib/util.py": b"x", "app/lib/__pycache__/util.pyc": b"x"}
    outcome = snapshot(place, write_image(place, tree))
    assert outcome.code == 12, outcome.err
    assert "1 requirement met by Debian's Python only" in outcome.err
    said = validated("snapshot", outcome.out)
    assert said["debian-python-packages"] == [{"name": "six", "version": "1.16.0", "needed-by": "alpha"}]
    assert not said["overrides"]
    assert any("[[file]]" in note and "/app (1)" in note and "/app/lib (1)" in note for note in said["notes"])


def test_a_glibc_that_nobody_knows_is_asked_for(place: Place) -> None:
    place.publish("alpha")
    place.install("alpha")
    tree = {path: content for path, content in venv_tree(place).items() if not path.endswith("libc.so.6")}
    image = write_image(place, tree, env=ON_PATH)
    outcome = snapshot(place, image)
    assert outcome.code == 2 and "--glibc" in outcome.err
    assert snapshot(place, image, "--glibc", "2.36").code == 0


def test_what_is_no_image(place: Place, tmp_path: Path) -> None:
    (tmp_path / "work" / "x.tar").write_bytes(b"no tar")
    outcome = snapshot(place, "x.tar")
    assert outcome.code == 13 and "Traceback" not in outcome.err
