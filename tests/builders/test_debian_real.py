"""A real Debian base from the real archive: looked at, run in a chroot, compared with what mmdebstrap makes.

The chroot and mmdebstrap need root; without it (or without mmdebstrap) those tests say so and are skipped.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.builders.direct.debian import write_debian_layer
from imagebuilder.cache import Cache
from imagebuilder.index.debian import Archive
from imagebuilder.index.debian_sources import read_apt_sources
from imagebuilder.index.http import NotFound, Session, Unreachable, fetch
from imagebuilder.lock.debian import resolve_closure
from imagebuilder.lock.model import DebPackage
from imagebuilder.oci.layer import LayerWriter
from imagebuilder.settings import load
from imagebuilder.values import Platform

pytestmark = pytest.mark.network

PACKAGES = ("python3", "ca-certificates", "apt", "libnuma1", "libgomp1", "libstdc++6")
SUITE = "bookworm"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[DebPackage, ...]]:
    """(the layer, its packages), made once; downloads come from the user's own cache where they are there."""
    folder = tmp_path_factory.mktemp("debian")
    settings = load(os.environ)
    cache = Cache(settings.cache_dir)
    with Session(settings) as http:
        archive = Archive(
            suite=SUITE, platform=Platform.parse("linux/amd64"), settings=settings, session=http, cache=cache
        )
        try:
            index = archive.packages()
        except Unreachable as error:
            pytest.skip(f"no Debian archive in reach: {error}")
        debs = resolve_closure(index, PACKAGES)
        files = [(deb, _fetched(deb, archive, http, cache)) for deb in debs]
    with (folder / "layer.tar.gz").open("wb") as out:
        writer = LayerWriter(out)
        write_debian_layer(writer, files, spool=folder, workers=2)
        writer.finish()
    return folder / "layer.tar.gz", debs


def _fetched(deb: DebPackage, archive: Archive, http: Session, cache: Cache) -> Path:
    for address in archive.addresses(deb.path, deb.pocket):
        with cache.put_artefact(deb.sha256) as incoming:
            if incoming is None:
                break
            try:
                data = fetch(http, address, deb.name).body
            except NotFound:
                continue
            incoming.restart()
            incoming.write(data)
            break
    path = cache.artefact(deb.sha256)
    assert path is not None
    return path


@pytest.fixture(scope="module")
def root(
    real: tuple[Path, tuple[DebPackage, ...]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The layer unpacked, for commands that may change it."""
    folder = _unpacked(real[0], tmp_path_factory.mktemp("root"))
    if os.geteuid() == 0:
        os.mknod(folder / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(folder / "dev/urandom", stat.S_IFCHR | 0o666, os.makedev(1, 9))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _unpacked(layer: Path, folder: Path) -> Path:
    subprocess.run(["tar", "--numeric-owner", "-xzpf", str(layer), "-C", str(folder)], check=True)
    folder.chmod(0o755)
    return folder


def run(root: Path, *command: str) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["chroot", str(root), *command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_closure_is_small_and_whole(real: tuple[Path, tuple[DebPackage, ...]]) -> None:
    names = [deb.name for deb in real[1]]
    assert len(names) == len(set(names)) < 140
    assert {"libc6", "dpkg", "apt", "python3.11-minimal", "usr-is-merged", "mawk"} <= set(names)
    assert "perl" not in names
    assert names.index("libc6") < names.index("dpkg") < names.index("python3")


def test_the_layer(real: tuple[Path, tuple[DebPackage, ...]]) -> None:
    with tarfile.open(real[0]) as tar:
        found = {entry.name: entry for entry in tar}
    assert {name: found[name].linkname for name in ("bin", "lib", "lib64", "sbin")} == {
        name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")
    }
    assert found["usr/bin/su"].mode == 0o4755
    assert found["tmp"].mode == 0o1777
    assert (found["usr/sbin/unix_chkpwd"].mode, found["usr/sbin/unix_chkpwd"].gid) == (0o2755, 42)
    assert found["etc/alternatives/awk"].linkname == "/usr/bin/mawk"
    assert found["usr/bin/perl5.36.0"].islnk() or found["usr/bin/perl"].islnk()
    forbidden = re.compile(r"__pycache__|/log/.*\.log$|apt/lists/[^p]|ld\.so\.cache$|-old$|/shadow-$")
    assert not [name for name in found if forbidden.search(name)]


@AS_ROOT
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ('python3 -c "import sqlite3, lzma, zlib, bz2, ctypes, readline, curses; print(42)"', "42"),
        ('python3 -c "import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 100)"', "True"),
        ("dpkg --audit", ""),
        ("dpkg --verify", ""),
        ("apt-get check", None),
        ("apt-config dump Dir::State", None),
        ("awk 'BEGIN { print 6 * 7 }'", "42"),
        ("update-alternatives --query awk | grep ^Best", "Best: /usr/bin/mawk"),
        ("update-alternatives --auto pager && readlink -f /usr/bin/pager", "/usr/bin/more"),
        ("id -u _apt", "42"),
        ("su _apt -s /bin/sh -c 'id -u'", "42"),
        ("useradd --system service && getent passwd service | cut -d: -f7", "/bin/sh"),
        ("openssl verify -CApath /etc/ssl/certs /etc/ssl/certs/ISRG_Root_X1.pem | grep -c OK", "1"),
        ("dpkg -S /usr/bin/python3.11", "python3.11-minimal: /usr/bin/python3.11"),
        ("date +%Z", "UTC"),
    ],
)  # fmt: skip
def test_in_a_chroot(root: Path, command: str, expected: str | None) -> None:
    answer = run(root, "sh", "-c", command).strip()
    if expected is not None:
        assert answer == expected


@AS_ROOT
def test_dpkg_lists_what_is_locked(root: Path, real: tuple[Path, tuple[DebPackage, ...]]) -> None:
    answer = run(root, "dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package} ${Version} ${Architecture}\n")
    assert sorted(answer.splitlines()) == sorted(
        f"ii {deb.name} {deb.version} {deb.architecture}" for deb in real[1]
    )


# What an installation has besides, and why it is not made: (path, reason)
EXCEPTIONS = (
    (r"etc/(\.pwd\.lock|group-|passwd-|shadow-)", "left behind by the tools that make accounts"),
    (r"etc/(hostname|hosts|resolv\.conf|fstab|networks)", "the container engine's, or for booting"),
    (
        r"etc/(apt/(apt\.conf\.d/99mmdebstrap|sources\.list)|dpkg/dpkg\.cfg\.d/99mmdebstrap)",
        "mmdebstrap's own",
    ),
    (r"etc/ld\.so\.cache|var/cache/ldconfig.*", "ldconfig is not run: its order and times differ by machine"),
    (r"etc/(rc.\.d|systemd)/.*|var/lib/systemd/.*", "services are not started in a container"),
    (r"etc/python3(/debian_config)?|var/lib/python(/.*)?|.*__pycache__.*", "for byte-compilation, not done"),
    (r"etc/(shadow)", "the day of the last change: the newest package's, not today"),
    (r"etc/shells", "the same shells; ours are in the order of a system that was always merged"),
    (r"var/cache/(debconf|apt)/.*|var/lib/apt/.*", "caches, and debconf's answers to questions nobody asked"),
    (
        r"var/lib/dpkg/(arch|available|diversions|statoverride|status|lock.*|.*-old|triggers/Lock)",
        "compared apart",
    ),
    (r"var/log/(btmp|wtmp|lastlog|faillog)", "empty logs"),
    (r"usr/bin/(gunzip|uncompress)", "usrmerge copies where the package has hard links"),
)


@AS_ROOT
@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")
def test_the_tree_is_that_of_an_installation(
    real: tuple[Path, tuple[DebPackage, ...]], tmp_path: Path
) -> None:
    reference, root = tmp_path / "reference", tmp_path / "root"
    root.mkdir()
    _unpacked(real[0], root)
    source = next(s for s in read_apt_sources(Path("/etc/apt")) if SUITE in s.suites)
    command = [
        "mmdebstrap", "--mode=root", "--variant=minbase",
        "--include=" + ",".join((*PACKAGES, "usr-is-merged")),
        "--dpkgopt=force-unsafe-io",
        "--aptopt=APT::Install-Recommends false", SUITE, str(reference), f"deb {source.uri} {SUITE} main",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    try:
        ours, theirs = _stanzas(root), _stanzas(reference)
        assert {name: theirs.get(name) for name in ours} == ours
        more = _paths_of(reference, set(theirs) - set(ours))
        excepted = re.compile("|".join(f"(?:{pattern})" for pattern, _ in EXCEPTIONS))
        left, right = _tree(root), _tree(reference)
        differing = {
            path: (left.get(path), right.get(path))
            for path in sorted({*left, *right})
            if left.get(path) != right.get(path) and not excepted.fullmatch(path) and path not in more
        }
        assert not differing
    finally:
        for folder in (reference, root):
            shutil.rmtree(folder, ignore_errors=True)


def _stanzas(root: Path) -> dict[str, str]:
    text = (root / "var/lib/dpkg/status").read_text()
    return {stanza.splitlines()[0]: stanza for stanza in text.strip().split("\n\n")}


def _paths_of(root: Path, packages: set[str]) -> set[str]:
    """Paths of packages that only the reference has (Perl, which its usrmerge needs)."""
    found: set[str] = set()
    for package in packages:
        name = package.removeprefix("Package: ")
        for path in (root / "var/lib/dpkg/info").glob("*"):
            if re.fullmatch(re.escape(name) + r"(:\w+)?\.\w+", path.name):
                found.add(str(path.relative_to(root)))
                if path.suffix == ".list":
                    lines = path.read_text().splitlines()
                    found |= {re.sub(r"^(bin|sbin|lib)/", r"usr/\1/", line.strip("/")) for line in lines}
    return found


def _tree(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        if Path(folder).relative_to(root).parts[:1] in {("dev",), ("proc",), ("sys",), ("tmp",)}:
            folders.clear()
            continue
        for name in (*folders, *files):
            path = Path(folder) / name
            status = path.lstat()
            what: tuple[object, ...] = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
            if path.is_symlink():
                what = (str(path.readlink()),)
            elif path.is_file():
                what = (*what, hashlib.sha256(path.read_bytes()).hexdigest(), status.st_nlink)
            found[str(path.relative_to(root))] = what
    return found
