"""What is wrong with a user's files or with the world: the whole command says it, and leaves nothing behind.

The rooms have tables of their own with every case; here a case of each kind goes through `lock`, `fetch` and
`build` against real servers on loopback.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from imagebuilder.index import debian_release
from imagebuilder.index.http import Session, _Retry
from imagebuilder.values import Digest
from tests.support.command import WAIT, Machine, Outcome, leftovers, outcome_of, wrong_artefacts
from tests.support.debian import FakeArchive, file, make_deb, packages_text, stanza
from tests.support.fake_registry import Answer, FakeRegistry, cut, drop, status
from tests.support.http_server import Fault, Server
from tests.support.mirror import publish_sdist
from tests.support.small import Small, noise
from tests.support.wheels import LINK, Raw, make_wheel, raw_wheel_entries, raw_zip

Call = Callable[..., Outcome]
AS_ROOT = os.geteuid() == 0
BUILD, LOCK, FETCH = ("build", "--builder", "direct"), ("lock",), ("fetch",)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def small(imagebuilder: Call, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    """A world in which nothing waits between attempts."""
    world = Small(tmp_path / "work", server)
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_Retry, "sleep", lambda self, response=None: None)
    monkeypatch.setattr(Session, "back_off", lambda self, attempt: None)
    return world


def check(outcome: Outcome, code: int, message: str, work: Path, *, partial: bool = False) -> None:
    """The error is the right one and says `message`; no image, no temporary file, no wrong artefact is left.

    partial: beginnings of downloads may stay, to be resumed.
    """
    assert outcome.code == code, outcome.err
    assert re.search(message, outcome.err), outcome.err
    assert "Traceback" not in outcome.err and "bug in imagebuilder" not in outcome.err
    assert outcome.out == ""
    cache = work.parent / "cache"
    assert not (work / "images").exists()
    assert [p for p in leftovers(cache) if not (partial and p.startswith("partial/"))] == []
    assert wrong_artefacts(cache) == []
    hidden = [str(p) for p in work.rglob(".*")]
    assert hidden == []


# ---------------------------------------------------------------- the stack file

GOOD = 'schema = 1\nname = "s"\n[target]\nplatform = "linux/amd64"\npython = "3.11"\n[base]\noci = "base"\n'
LAYER = '[[layer]]\nname = "a"\nrequirements = ["one"]\n'

STACKS: dict[str, tuple[bytes, int, str]] = {
    "not TOML": (b'name = "s\n', 3, r"s\.toml.*(line 1|problem)"),
    "not UTF-8": (b'name = "\xff"\n', 3, "UTF-8"),
    "empty": (b"", 3, "name"),
    "binary": (bytes(range(256)) * 10, 3, "problem"),
    "deeply nested": (b"a = " + b"[" * 100_000, 3, "problem"),
    "wrong types": ((GOOD + LAYER).replace('"3.11"', "3.11").encode(), 3, r"target\.python"),
    "unknown key": ((GOOD + LAYER).replace("platform", "platfrom").encode(), 3, "platform"),
    "unknown table": ((GOOD + LAYER + "[enviroment]\nA = 1\n").encode(), 3, "enviroment"),
    "no base": (GOOD.replace('oci = "base"', "").encode() + LAYER.encode(), 3, "base"),
    "a bad requirement": ((GOOD + LAYER).replace('"one"', '"one =="').encode(), 3, "requirements"),
    "a newer schema": ((GOOD + LAYER).replace("schema = 1", "schema = 99").encode(), 3, "schema"),
    "a file from outside": (
        (GOOD + LAYER + '[[file]]\npath = "/etc/x"\nsource = "../../../etc/hostname"\n').encode(),
        3,
        "source",
    ),
    "no glibc": ((GOOD + LAYER).encode(), 3, "glibc"),
}


@pytest.mark.parametrize("verb", [BUILD, LOCK, FETCH], ids="-".join)
@pytest.mark.parametrize("case", STACKS)
def test_a_stack_file(case: str, verb: tuple[str, ...], imagebuilder: Call, small: Small) -> None:
    data, code, message = STACKS[case]
    small.write("one").write_bytes(data)
    check(imagebuilder(*verb, "s"), code, message, small.folder)
    assert not small.lock.exists()


def test_a_stack_that_is_not_there_or_no_file(imagebuilder: Call, small: Small) -> None:
    check(imagebuilder(*BUILD, "nowhere"), 2, "nowhere", small.folder)
    check(imagebuilder(*BUILD, "./nowhere.toml"), 2, "nowhere", small.folder)
    (small.folder / "stacks" / "d.toml").mkdir(parents=True)
    check(imagebuilder(*BUILD, "stacks/d.toml"), 2, "d.toml", small.folder)
    check(imagebuilder(*BUILD, "/dev/null"), 2, "null", small.folder)


# ---------------------------------------------------------------- resolving


def nothing(small: Small) -> None:
    pass


def only_source(small: Small) -> None:
    small.index.remove("one")
    publish_sdist(small.index, "one", "1.0")


def contradiction(small: Small) -> None:
    small.index.remove("one")
    small.wheel("one", requires=["two==1", "three"])
    small.wheel("two", "1.0")
    small.wheel("two", "2.0")
    small.wheel("three", requires=["two==2"])


def other_platform(small: Small) -> None:
    small.index.remove("one")
    small.wheel("one", tag="cp311-cp311-win_amd64")


def newer_glibc(small: Small) -> None:
    small.index.remove("one")
    small.wheel("one", tag="cp311-cp311-manylinux_2_39_x86_64")


def other_python(small: Small) -> None:
    small.index.remove("one")
    small.wheel("one", requires_python=">=3.13")


UNRESOLVABLE: dict[str, tuple[str, Callable[[Small], object], str]] = {
    "no such project": ("missing-project", nothing, "missing-project"),
    "no such version": ("one==9", nothing, "one"),
    "only a source distribution": ("one", only_source, "source distributions"),
    "contradiction": ("one", contradiction, "two"),
    "another platform": ("one", other_platform, "one"),
    "a newer glibc": ("one", newer_glibc, "glibc|manylinux"),
    "another Python": ("one", other_python, "Python"),
    "a dependency that is nowhere": (
        "one==2.0",
        lambda small: small.wheel("one", "2.0", requires=["gone"]),
        "gone",
    ),
}


@pytest.mark.parametrize("case", UNRESOLVABLE)
def test_requirements(case: str, imagebuilder: Call, small: Small) -> None:
    requirement, change, message = UNRESOLVABLE[case]
    small.wheel("one")
    change(small)
    small.write(requirement)
    check(imagebuilder(*BUILD, "s"), 12, message, small.folder)
    assert not small.lock.exists()


# ---------------------------------------------------------------- the lock


def locked(imagebuilder: Call, small: Small) -> None:
    small.wheel("one")
    small.write("one")
    assert imagebuilder("lock", "s").code == 0


LOCKS: dict[str, Callable[[str], str]] = {
    "not TOML": lambda text: text + "\n[[",
    "cut off": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "another tool's": lambda text: text[: text.index("[tool.imagebuilder]")],
    "a newer format": lambda text: text.replace('lock-version = "1.0"', 'lock-version = "9.0"'),
    "a short hash": lambda text: re.sub(r'sha256 = "\w+"', 'sha256 = "abc"', text),
    "a negative size": lambda text: re.sub(r"size = \d+", "size = -1", text),
    "a path outside": lambda text: text.replace('path = "wheels/', 'path = "../../'),
    "an absolute path": lambda text: text.replace('path = "wheels/', 'path = "/tmp/'),
    "of another stack": lambda text: re.sub(
        r'(stack-hash|hash) = "sha256:\w{8}', r'\1 = "sha256:00000000', text
    ),
}


@pytest.mark.parametrize("case", LOCKS)
def test_a_lock(case: str, imagebuilder: Call, small: Small) -> None:
    locked(imagebuilder, small)
    text = small.lock.read_text()
    changed = LOCKS[case](text)
    assert changed != text
    small.lock.write_text(changed)
    for verb in (BUILD, FETCH):
        check(imagebuilder(*verb, "s"), 4, "imagebuilder lock s", small.folder)
    assert small.lock.read_text() == changed


# ---------------------------------------------------------------- wheels

FILE = Raw(name=b"sample/a.py", data=b"some text " * 100)


def good() -> bytes:
    return raw_zip([*raw_wheel_entries(), FILE])


def with_file(**changes: object) -> bytes:
    return raw_zip([*raw_wheel_entries(), replace(FILE, **changes)])  # type: ignore[arg-type]


def link(target: bytes) -> bytes:
    return with_file(data=target, mode=LINK, name=b"sample/link")


def flipped() -> bytes:
    data = bytearray(good())
    data[data.index(b"sample/a.py") + len(b"sample/a.py") + 4] ^= 0xFF
    return bytes(data)


def tar_inside() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("sample-1.0/setup.py", b"print(1)\n")
    return out.getvalue()


WHEELS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "an HTML page": lambda: b"<!doctype html><title>404</title>" * 50,
    "another zip": tar_inside,
    "truncated": lambda: good()[: len(good()) // 2],
    "corrupted": flipped,
    "traversal": lambda: with_file(name=b"../../evil.py"),
    "traversal by a folder": lambda: with_file(name=b"../evil/", data=b""),
    "absolute": lambda: with_file(name=b"/etc/evil"),
    "backslash": lambda: with_file(name=b"..\\evil.py"),
    "a .data path outside": lambda: with_file(name=b"sample-1.0.data/data/../../../../etc/evil"),
    "a symlink out": lambda: link(b"../../../../../../etc/passwd"),
    "an absolute symlink": lambda: link(b"/etc/passwd"),
    "a file twice": lambda: raw_zip([*raw_wheel_entries(), FILE, FILE]),
    "a file that is a folder too": lambda: raw_zip(
        [*raw_wheel_entries(), FILE, Raw(name=b"sample/a.py/b.py", data=b"x")]
    ),
    "a size that lies": lambda: with_file(size=40),
    "a larger size": lambda: with_file(size=4000),
    "a CRC that lies": lambda: with_file(crc=1),
    "a bomb": lambda: with_file(data=bytes(30_000_000), size=60_000),
    "an honest bomb": lambda: raw_zip(
        [
            *raw_wheel_entries(),
            *[Raw(name=b"sample/%d" % n, packed=bytes(2_200_000), size=2**31, crc=0) for n in range(3)],
        ]
    ),
    "shared bodies": lambda: raw_zip(
        [*raw_wheel_entries(), FILE, Raw(name=b"sample/b.py", data=FILE.data, offset=len(raw_zip([])))]
    ),
    "encrypted": lambda: with_file(flags=1),
    "an unknown method": lambda: with_file(method=97, packed=b"xx"),
    "something behind": lambda: good() + b"more",
    "another package inside": lambda: raw_zip([*raw_wheel_entries("other"), FILE]),
    "no metadata": lambda: raw_zip([FILE]),
}


@pytest.mark.parametrize("case", WHEELS)
def test_a_wheel(case: str, imagebuilder: Call, small: Small) -> None:
    """Met while locking or while building: the wheel is named, and nothing of it is kept."""
    small.index.add(
        "sample", "sample-1.0-py3-none-any.whl", WHEELS[case](), upload_time="2025-01-01T00:00:00Z"
    )
    small.write("sample")
    check(imagebuilder(*BUILD, "s"), 13, "sample", small.folder)
    assert not (small.folder.parent / "etc").exists()


@pytest.mark.parametrize("case", WHEELS)
def test_a_wheel_that_somebody_locked(case: str, imagebuilder: Call, small: Small) -> None:
    """The lock names its true size and hash, so that it is opened only when its layer is made."""
    data, sound = WHEELS[case](), make_wheel(small.folder / "sound").read_bytes()
    shutil.rmtree(small.folder / "sound")
    small.index.add("sample", "sample-1.0-py3-none-any.whl", sound)
    small.write("sample")
    assert imagebuilder("lock", "s").code == 0
    text = small.lock.read_text().replace(Digest.of(sound).hex, Digest.of(data).hex)
    small.lock.write_text(text.replace(f"size = {len(sound)}", f"size = {len(data)}"))
    small.index.remove("sample")
    small.index.add("sample", "sample-1.0-py3-none-any.whl", data)
    check(imagebuilder(*BUILD, "s"), 4 if case == "empty" else 13, "s", small.folder)


def replaced(small: Small, path: Path) -> None:
    small.index.remove("one")
    small.index.add("one", path.name, path.read_bytes() + b"x")


def replaced_silently(small: Small, path: Path) -> None:
    """The page still lists the old hash, the file is another one of the same size."""
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    small.server.put(f"/files/one/{path.name}", bytes(data))


def gone(small: Small, path: Path) -> None:
    small.index.remove("one")


def file_gone(small: Small, path: Path) -> None:
    small.server.remove(f"/files/one/{path.name}")


def shorter(small: Small, path: Path) -> None:
    small.server.put(f"/files/one/{path.name}", path.read_bytes()[:-50])


def always(fault: Fault) -> Callable[[Small, Path], None]:
    def fail(small: Small, path: Path) -> None:
        small.server.fail(f"/files/one/{path.name}", *[fault] * 40)

    return fail


SINCE: dict[str, tuple[Callable[[Small, Path], object], str]] = {
    "replaced": (replaced, "another file than the locked one"),
    "replaced without a word": (replaced_silently, "sha256"),
    "shorter": (shorter, "size"),
    "gone from the index": (gone, "imagebuilder lock s"),
    "the file is gone": (file_gone, "404"),
    "no login": (always(Fault(status=401)), "401"),
    "forbidden": (always(Fault(status=403)), "403"),
    "too many requests": (always(Fault(status=429, headers={"Retry-After": "0"})), "429"),
    "a broken server": (always(Fault(status=503)), "503"),
    "connections that drop": (always(Fault(drop_after=1000)), "connection|early|broke"),
    "no answer": (always(Fault(refuse=True)), "connection|broke"),
}


@pytest.mark.parametrize("verb", [BUILD, FETCH], ids="-".join)
@pytest.mark.parametrize("case", SINCE)
def test_since_it_was_locked(case: str, verb: tuple[str, ...], imagebuilder: Call, small: Small) -> None:
    """The world changed between locking and building."""
    change, message = SINCE[case]
    path = small.wheel("one")
    small.write("one")
    assert imagebuilder("lock", "s").code == 0
    change(small, path)
    outcome = imagebuilder(*verb, "s")
    check(outcome, 13, message, small.folder, partial=case == "connections that drop")
    assert "one" in outcome.err
    assert not (small.folder / "stacks" / "wheels").exists()


PAGES: dict[str, tuple[Fault, str]] = {
    "login": (Fault(status=401), "401"),
    "forbidden": (Fault(status=403), "403"),
    "too many requests": (Fault(status=429, headers={"Retry-After": "0"}), "429|too many"),
    "broken": (Fault(status=500), "500"),
    "no answer": (Fault(refuse=True), "index|connection"),
    "not a page": (Fault(body=b"\x00\x01 no page"), "one"),
    "cut off": (Fault(drop_after=10), "one|connection"),
}


@pytest.mark.parametrize("case", PAGES)
def test_an_index(case: str, imagebuilder: Call, small: Small) -> None:
    fault, message = PAGES[case]
    small.wheel("one")
    small.write("one")
    small.server.fail("/simple/one/", *[fault] * 40)
    check(imagebuilder(*BUILD, "s"), 13, message, small.folder)
    assert not small.lock.exists()


def test_an_index_that_is_down(imagebuilder: Call, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", "http://127.0.0.1:9/simple/")
    small.write("one")
    check(imagebuilder(*BUILD, "s"), 13, "127.0.0.1", small.folder)


# ---------------------------------------------------------------- patches


def test_a_patch_that_does_not_apply(imagebuilder: Call, small: Small) -> None:
    small.wheel("one")
    small.write("one", tail='patches = ["*.patch"]\n')
    patch = "--- a/one/text.py\n+++ b/one/text.py\n@@ -1,2 +1,2 @@\n # other\n-# text\n+# new\n"
    (small.folder / "stacks" / "a.patch").write_text(patch)
    check(imagebuilder(*BUILD, "s"), 5, "patch.does-not-apply", small.folder)
    check(imagebuilder(*BUILD, "s", "--no-check"), 13, "a.patch", small.folder)


# ---------------------------------------------------------------- base images


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry() as running:
        yield running


def base_image(registry: FakeRegistry, base: Path) -> str:
    """Put the tiny base into the registry; its reference by digest."""
    (entry,) = json.loads((base / "index.json").read_text())["manifests"]
    blobs = {p.name: p.read_bytes() for p in (base / "blobs" / "sha256").iterdir()}
    manifest = blobs.pop(entry["digest"].removeprefix("sha256:"))
    for data in blobs.values():
        registry.put_blob("base", data)
    registry.put_manifest("base", manifest, entry["mediaType"], "1")
    return f"{registry.host}/base:1@{entry['digest']}"


MANIFEST, BLOB = "GET /v2/base/manifests/", "GET /v2/base/blobs/"
REGISTRY: dict[str, tuple[str, Answer, str]] = {
    "login": (MANIFEST, status(401, WWW_Authenticate='Basic realm="x"'), "login|401"),
    "forbidden": (MANIFEST, status(403), "403|denied|refuses"),
    "no such image": (MANIFEST, status(404), "404|no "),
    "too many requests": (MANIFEST, status(429, Retry_After="0"), "429|too many|limit"),
    "broken": (MANIFEST, status(500), "500"),
    "unavailable": (MANIFEST, status(503), "503"),
    "hangs up": (MANIFEST, drop(), "connection|broke"),
    "another manifest": (MANIFEST, status(200, b'{"schemaVersion": 2}'), "sha256|manifest"),
    "not a manifest": (MANIFEST, status(200, b"<html>"), "sha256|manifest"),
    "no such layer": (BLOB, status(404), "404|no "),
    "a broken layer": (BLOB, status(502), "502"),
    "another layer": (BLOB, status(200, b"x" * 400), "sha256|size|bytes"),
    "a layer that never ends well": (BLOB, cut(b"x" * 400, 5), "connection|broke|early|bytes"),
}


@pytest.mark.parametrize("case", REGISTRY)
def test_a_base_image(case: str, registry: FakeRegistry, imagebuilder: Call, small: Small) -> None:
    pattern, answer, message = REGISTRY[case]
    small.wheel("one")
    small.write("one")
    reference = base_image(registry, small.folder / "stacks" / "base")
    small.write("one", base=f'image = "{reference}"')
    registry.on(pattern, answer)
    outcome = imagebuilder(*BUILD, "s")
    check(outcome, 13, message, small.folder, partial=True)
    assert "base" in outcome.err


def test_a_base_image_for_another_platform_or_of_no_use(
    registry: FakeRegistry, imagebuilder: Call, small: Small
) -> None:
    small.wheel("one")
    small.write("one")
    reference = base_image(registry, small.folder / "stacks" / "base")
    stack = small.write("one", base=f'image = "{reference}"')
    stack.write_text(stack.read_text().replace("linux/amd64", "linux/arm64"))
    check(imagebuilder(*BUILD, "s"), 13, "amd64", small.folder)


def test_a_base_folder_that_is_none_or_changed(imagebuilder: Call, small: Small) -> None:
    small.wheel("one")
    small.write("one", base='oci = "nowhere"')
    check(imagebuilder(*BUILD, "s"), 13, "nowhere", small.folder)
    small.write("one")
    assert imagebuilder("lock", "s").code == 0
    base = small.folder / "stacks" / "base"
    largest = max((base / "blobs" / "sha256").iterdir(), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"!")
    check(imagebuilder(*BUILD, "s"), 13, "base", small.folder)
    shutil.rmtree(base)
    check(imagebuilder(*BUILD, "s"), 13, "base", small.folder)


# ---------------------------------------------------------------- Debian


@pytest.fixture
def archive(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeArchive:
    """A signed archive whose key this machine trusts, with one essential package and Python."""
    fake = FakeArchive(server)
    keyring = fake.keyring(tmp_path)
    monkeypatch.setattr(debian_release, "local_keyring", lambda: keyring)
    monkeypatch.setenv("IMAGEBUILDER_DEBIAN_MIRRORS", fake.url)
    publish_deb(fake, make_deb("base-files", [file("./etc/debian_version", b"12\n")]))
    return fake


DEB = "/debian/pool/main/b/base-files/base-files_1.0_amd64.deb"


def publish_deb(fake: FakeArchive, deb: bytes, **more: str) -> None:
    """This is base-files; beside it lies the Python that every base must have."""
    entries = []
    for name, data, fields in (
        ("base-files", deb, more),
        ("python3.11-minimal", make_deb("python3.11-minimal", [file("./usr/bin/python3.11", b"x")]), {}),
    ):
        fake.server.put(f"/debian/pool/main/{name[0]}/{name}/{name}_1.0_amd64.deb", data)
        known = {"Essential": "yes", "Priority": "required", "Size": str(len(data))}
        entries.append(stanza(name, SHA256=Digest.of(data).hex, **known, **fields))
    fake.publish("bookworm", packages_text(*entries))


def inrelease(fake: FakeArchive) -> bytes:
    return fake.server.body("/debian/dists/bookworm/InRelease")


def put_inrelease(fake: FakeArchive, data: bytes) -> None:
    fake.server.put("/debian/dists/bookworm/InRelease", data)


def unsigned(fake: FakeArchive) -> None:
    text = inrelease(fake).decode()
    body = text.split("\n\n", 1)[1].split("-----BEGIN PGP SIGNATURE")[0]
    put_inrelease(fake, body.encode())


def tampered(fake: FakeArchive) -> None:
    put_inrelease(fake, inrelease(fake).replace(b"Codename: bookworm", b"Codename: bookwork"))


def foreign_key(fake: FakeArchive) -> None:
    other = FakeArchive(fake.server)
    put_inrelease(fake, other.sign(fake.release("bookworm", {})))


def other_list(fake: FakeArchive) -> None:
    for path in [p for p in fake.server.paths if "/by-hash/" in p]:
        fake.server.put(path, b"another list")


def no_release(fake: FakeArchive) -> None:
    fake.server.remove("/debian/dists/bookworm/InRelease")


def other_package(fake: FakeArchive) -> None:
    fake.server.put(DEB, fake.server.body(DEB)[:-1] + b"!")


def truncated_package(fake: FakeArchive) -> None:
    fake.server.put(DEB, fake.server.body(DEB)[:100])


DEBIAN: dict[str, tuple[int, Callable[[FakeArchive], object], str]] = {
    "unsigned": (13, unsigned, "sign"),
    "tampered": (13, tampered, "sign|InRelease"),
    "a key that nobody trusts": (13, foreign_key, "sign|key"),
    "not there": (13, no_release, "bookworm"),
    "another package list": (13, other_list, "package list"),
    "another package": (13, other_package, "sha256"),
    "a truncated package": (13, truncated_package, "size|sha256"),
    "the package is gone": (13, lambda fake: fake.server.remove(DEB), "gone from every mirror"),
    "a package that is none": (13, lambda fake: publish_deb(fake, b"!<arch>\nnothing"), "base-files"),
    "a package with a damaged body": (
        13,
        lambda fake: publish_deb(fake, make_deb("base-files", raw_data=noise("x", 5000))),
        "base-files",
    ),
    "a package that leaves its folder": (
        13,
        lambda fake: publish_deb(fake, make_deb("base-files", [file("./../../evil", b"x")])),
        "base-files",
    ),
    "a dependency that is nowhere": (
        12,
        lambda fake: publish_deb(fake, make_deb("base-files"), Depends="gone (>= 2)"),
        "gone",
    ),
}


@pytest.mark.parametrize("case", DEBIAN)
def test_debian(case: str, archive: FakeArchive, imagebuilder: Call, small: Small) -> None:
    code, change, message = DEBIAN[case]
    small.wheel("one")
    small.write("one", base='debian = { suite = "bookworm" }')
    change(archive)
    check(imagebuilder(*BUILD, "s"), code, message, small.folder)


# ---------------------------------------------------------------- this machine


@pytest.fixture
def machine(server: Server, tmp_path: Path) -> Machine:
    """The command in a process of its own, with a stack of three wheels that is locked."""
    made = Machine(root=tmp_path)
    world = Small(made.work, server)
    made.environment |= world.environment
    for name in ("one", "two", "three"):
        world.wheel(name, files={f"{name}/data.bin": noise(name, 600_000)})
    world.write("one", "two", "three")
    assert made.run("lock", "s").code == 0
    return made


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A file system in memory."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if not AS_ROOT or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def settled(machine: Machine, outcome: Outcome, message: str) -> None:
    assert outcome.code == 6, outcome.err
    assert re.search(message, outcome.err), outcome.err
    assert "Traceback" not in outcome.err
    assert not (machine.work / "images").exists()


@pytest.mark.parametrize("size", ["200k", "1m", "2m", "3m", "4m"])
def test_a_full_disk_under_the_cache(size: str, machine: Machine) -> None:
    """Full from the start, while downloading, while layers are made; more room, and it goes on."""
    with mounted(machine.root / "cache-disk", f"size={size}") as disk:
        machine.environment["IMAGEBUILDER_CACHE_DIR"] = str(disk / "cache")
        outcome = machine.run(*BUILD, "s")
        if outcome.code != 0:  # what a file system in memory takes for itself differs
            settled(machine, outcome, "space|full")
            assert not list((disk / "cache" / "tmp").iterdir()) if (disk / "cache" / "tmp").exists() else True
            assert wrong_artefacts(disk / "cache") == []
            subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        else:
            assert size == "4m"
        assert machine.run(*BUILD, "s").code == 0


def test_a_full_disk_under_the_image(machine: Machine) -> None:
    with mounted(machine.root / "image-disk", "size=300k") as disk:
        target = disk / "deep" / "image"
        outcome = machine.run(*BUILD, "s", "--output", str(target))
        settled(machine, outcome, "space")
        assert not target.exists()
        assert [p for p in disk.rglob("*") if p.is_file()] == []
        outcome = machine.run(*BUILD, "s", "--output", str(disk / "image.tar"))
        settled(machine, outcome, "space")
        assert [p for p in disk.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("limit", [1_000, 300_000, 700_000])
def test_files_that_may_not_grow(limit: int, machine: Machine) -> None:
    """What `ulimit -f` or a quota does."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    outcome = machine.run(*BUILD, "s", preexec_fn=limited)
    if limit > 650_000:
        assert outcome.code == 0, outcome.err
        return
    settled(machine, outcome, "cannot be written|large")
    assert wrong_artefacts(machine.cache) == []
    assert not list((machine.cache / "tmp").iterdir())
    assert machine.run(*BUILD, "s").code == 0


def test_a_cache_that_is_read_only(machine: Machine) -> None:
    with mounted(machine.root / "read-only", "ro,size=1m") as disk:
        machine.environment["IMAGEBUILDER_CACHE_DIR"] = str(disk)
        for verb in (BUILD, FETCH):
            settled(machine, machine.run(*verb, "s"), "IMAGEBUILDER_CACHE_DIR")


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_cache_that_is_a_file(below: str, machine: Machine) -> None:
    blocked = machine.root / "blocked"
    blocked.write_text("")
    machine.environment["IMAGEBUILDER_CACHE_DIR"] = str(blocked / below)
    settled(machine, machine.run(*BUILD, "s"), "blocked")


def test_a_current_folder_that_is_read_only(machine: Machine) -> None:
    with mounted(machine.root / "cwd", "size=1m") as disk:
        shutil.copytree(machine.work / "stacks", disk / "stacks")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        places = {
            BUILD: "images/s",
            (*BUILD, "--output", "new.tar"): "new.tar",
            LOCK: "pylock",
            FETCH: "stacks/wheels",
        }
        for words, place in places.items():  # said before anything is done, not after hours
            outcome = machine.run(*words, "s", "--progress", "plain", cwd=disk)
            settled(
                machine, outcome, f"{place}\\S* cannot be written\n.*Read-only file system\n.*folder|--output"
            )
            assert "done" not in outcome.err and not machine.cache.joinpath("artefacts").exists()


def test_fewer_open_files_than_are_needed(machine: Machine) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))

    outcome = machine.run(*BUILD, "s", preexec_fn=limited)
    settled(machine, outcome, "Too many open files(?s:.*)ulimit -n")
    assert machine.run(*BUILD, "s").code == 0


@pytest.mark.parametrize("verb", [("build", "--output"), ("accept", "--results"), ("snapshot", "--output")])
def test_a_name_that_no_file_may_have(verb: tuple[str, str], machine: Machine) -> None:
    for place in ("x" * 300, "x/" * 3000):
        outcome = machine.run(verb[0], "s", verb[1], place)
        assert outcome.code in (2, 6) and "Traceback" not in outcome.err, outcome.err
    for stack in ("x" * 300, f"./{'x' * 300}.toml"):
        outcome = machine.run("build", stack)
        assert outcome.code == 2 and "Traceback" not in outcome.err, outcome.err


def test_two_builds_at_once_share_the_work(machine: Machine, server: Server) -> None:
    """The second comes while the first downloads: each layer is made once, both images are right."""
    (path,) = [p for p in server.paths if p.endswith("one-1.0-py3-none-any.whl")]
    before = server.sent(path)
    gate = server.hold(path)
    first = machine.start(*BUILD, "s", "--output", "first", "--json")
    assert gate.reached.wait(WAIT)
    second = machine.start(*BUILD, "s", "--output", "second", "--json", "--progress", "json")
    assert second.stderr is not None
    while "downloading" not in second.stderr.readline():
        assert second.poll() is None
    gate.open()
    one, two = outcome_of(first), outcome_of(second)
    assert (one.code, two.code) == (0, 0), one.err + two.err
    made = [re.search(r"(\d) of \d layers made", text) for text in (one.err, two.err)]
    assert all(made)
    assert sum(int(m[1]) for m in made if m) == 4  # the environment and three wheels
    assert server.sent(path) - before == len(server.body(path))
    records = [json.loads(outcome.out) for outcome in (one, two)]
    assert records[0]["manifest"] == records[1]["manifest"]
    assert wrong_artefacts(machine.cache) == [] and leftovers(machine.cache) == []
