"""Debian packages as a layer: dpkg's rules for one tree, and what scripts would have done."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from imagebuilder.builders.direct.debian import write_debian_layer
from imagebuilder.builders.direct.debian.alternatives import Choice, Group, commands, read_state
from imagebuilder.builders.direct.debian.certificates import subject_hash
from imagebuilder.builders.direct.debian.database import relation_text
from imagebuilder.errors import ArtefactUnusable, BuildFailed
from imagebuilder.facts.image_tree import ImageTree
from imagebuilder.oci.layer import LayerWriter
from tests.support.debian import TIME, file, folder, info, link, locked, make_deb


def build(debs: Sequence[Any], tmp_path: Path, **options: Any) -> bytes:
    out = io.BytesIO()
    writer = LayerWriter(out)
    spool = tmp_path / "spool"
    spool.mkdir(exist_ok=True)
    write_debian_layer(writer, debs, spool=spool, **options)
    writer.finish()
    assert not list(spool.iterdir())
    return out.getvalue()


def entries(layer: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:gz") as tar:
        found = tar.getmembers()
    names = [e.name for e in found]
    assert names == sorted(names)
    return {e.name: e for e in found}


def contents(layer: bytes, path: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:gz") as tar:
        extracted = tar.extractfile(path)
        assert extracted is not None
        return extracted.read()


def text(layer: bytes, path: str) -> str:
    return contents(layer, path).decode()


# ---------------------------------------------------------------------- one tree


def test_usr_is_merged(tmp_path: Path) -> None:
    deb = make_deb(
        "a", [file("./bin/a", b"1", 0o755), file("./lib64/ld.so", b"2"), file("./usr/bin/b", b"3")]
    )
    layer = build([locked("a", deb, tmp_path)], tmp_path)
    found = entries(layer)
    assert (found["bin"].linkname, found["lib64"].linkname) == ("usr/bin", "usr/lib64")
    assert "sbin" not in found
    assert (contents(layer, "usr/bin/a"), contents(layer, "usr/bin/b")) == (b"1", b"3")
    assert text(layer, "var/lib/dpkg/info/a.list").splitlines() == [
        "/.", "/bin", "/lib64", "/usr", "/usr/bin", "/bin/a", "/lib64/ld.so", "/usr/bin/b",
    ]  # fmt: skip


def test_links_of_the_usr_merge_may_be_in_a_package(tmp_path: Path) -> None:
    base = make_deb("base-files", [link("./bin", "usr/bin"), folder("./usr/bin"), file("./usr/bin/x")])
    other = make_deb("other", [file("./bin/y")])
    debs = [locked("base-files", base, tmp_path), locked("other", other, tmp_path)]
    for order in (debs, debs[::-1]):
        found = entries(build(order, tmp_path))
        assert found["bin"].issym()
        assert "usr/bin/y" in found


def test_modes_owners_times_and_links_are_kept(tmp_path: Path) -> None:
    deb = make_deb(
        "a",
        [
            folder("./var/mail", 0o2775, gid=8),
            file("./usr/bin/su", b"su", 0o4755, uid=1, gid=42),
            info("./usr/bin/also", tarfile.LNKTYPE, mode=0o4755, target="./usr/bin/su", uid=1, gid=42),
            link("./usr/bin/soft", "/etc/alternatives/x"),
        ],
    )
    found = entries(build([locked("a", deb, tmp_path)], tmp_path))
    assert (found["var/mail"].mode, found["var/mail"].gid) == (0o2775, 8)
    assert (found["usr/bin/also"].type, found["usr/bin/also"].size) == (tarfile.REGTYPE, 2)
    su = found["usr/bin/su"]
    assert (su.type, su.linkname, su.mode, su.uid, su.gid) == (
        tarfile.LNKTYPE,
        "usr/bin/also",
        0o4755,
        1,
        42,
    )
    assert found["usr/bin/soft"].linkname == "/etc/alternatives/x"
    assert {e.mtime for e in found.values()} == {TIME}


def test_a_folder_behind_a_link_of_another_package(tmp_path: Path) -> None:
    a = make_deb("a", [file("./usr/share/real/x"), link("./usr/share/named", "real")])
    b = make_deb("b", [file("./usr/share/named/y")])
    found = entries(build([locked("a", a, tmp_path), locked("b", b, tmp_path)], tmp_path))
    assert found["usr/share/named"].issym()
    assert "usr/share/real/y" in found


def test_replaces(tmp_path: Path) -> None:
    old = make_deb("old", [file("./usr/bin/x", b"old")])
    new = make_deb("new", [file("./usr/bin/x", b"new")], control={"Replaces": "old (<< 2)"})
    for order in ((("old", old), ("new", new)), (("new", new), ("old", old))):
        layer = build([locked(name, deb, tmp_path) for name, deb in order], tmp_path)
        assert contents(layer, "usr/bin/x") == b"new"
        assert "/usr/bin/x" in text(layer, "var/lib/dpkg/info/new.list").splitlines()
        assert "/usr/bin/x" not in text(layer, "var/lib/dpkg/info/old.list").splitlines()


COLLISIONS = {
    "the same file": (([file("./usr/bin/x", b"1")], {}), ([file("./usr/bin/x", b"1")], {})),
    "the same through the usr-merge": (([file("./bin/x")], {}), ([file("./usr/bin/x")], {})),
    "a Replaces of another version": (
        ([file("./x", b"1")], {}),
        ([file("./x", b"2")], {"Replaces": "a (<< 1)"}),
    ),
    "a folder and a file": (([folder("./x")], {}), ([file("./x")], {})),
    "a file and a folder": (([file("./x")], {}), ([folder("./x")], {})),
    "a folder and a link": (([folder("./x")], {}), ([link("./x", "y")], {})),
    "a link that leads nowhere, and a folder": (([link("./x", "gone")], {}), ([folder("./x")], {})),
    "a file instead of the usr-merge": (([file("./bin/x")], {}), ([file("./bin")], {})),
    "a link away from the usr-merge": (([file("./bin/x")], {}), ([link("./bin", "sbin")], {})),
}


@pytest.mark.parametrize("case", COLLISIONS)
def test_packages_that_collide(tmp_path: Path, case: str) -> None:
    a, b = (
        locked(name, make_deb(name, data, control=control), tmp_path)
        for name, (data, control) in zip("ab", COLLISIONS[case], strict=True)
    )
    with pytest.raises(BuildFailed) as caught:
        build([a, b], tmp_path)
    assert "package b" in caught.value.what


REFUSED = {
    "a device": [info("./dev/null", tarfile.CHRTYPE)],
    "a pipe": [info("./run/p", tarfile.FIFOTYPE)],
    "a hard link to nothing": [info("./b", tarfile.LNKTYPE, target="./a")],
    "a hard link out": [info("./b", tarfile.LNKTYPE, target="../../etc/passwd")],
    "an empty link": [link("./b", "")],
    "a root that is a file": [file(".")],
    "a whiteout": [file("./usr/.wh.bin")],
}


@pytest.mark.parametrize("case", REFUSED)
def test_packages_that_are_refused(tmp_path: Path, case: str) -> None:
    deb = make_deb("a", REFUSED[case])
    with pytest.raises(ArtefactUnusable):
        build([locked("a", deb, tmp_path)], tmp_path)


def test_a_file_below_a_link_is_refused(tmp_path: Path) -> None:
    deb = make_deb("a", [folder("./"), link("./a", "/etc"), file("./a/passwd")], whole=True)
    with pytest.raises(BuildFailed, match="no folder"):
        build([locked("a", deb, tmp_path)], tmp_path)


def test_a_path_twice_in_one_package_is_refused(tmp_path: Path) -> None:
    deb = make_deb("a", [file("./a", b"1"), file("./a", b"2")])
    with pytest.raises(BuildFailed):
        build([locked("a", deb, tmp_path)], tmp_path)


def test_another_package_than_the_list_says(tmp_path: Path) -> None:
    with pytest.raises(ArtefactUnusable, match="another package"):
        build([locked("a", make_deb("b"), tmp_path)], tmp_path)


def test_the_bytes_depend_on_the_packages_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debs = [
        locked(n, make_deb(n, [file(f"./usr/bin/{n}", n.encode() * 9999)], pack=p), tmp_path)
        for n, p in (("a", "xz"), ("b", "zst"), ("c", "gz"))
    ]
    first = build(debs, tmp_path)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.chdir(tmp_path)
    seen: list[int] = []
    assert build(debs, tmp_path, workers=4, advance=seen.append) == first
    assert sum(seen) == sum(deb.size for deb, _ in debs)


# ---------------------------------------------------------------------- dpkg's database


def test_dpkgs_database(tmp_path: Path) -> None:
    deb = make_deb(
        "a",
        [file("./etc/a.conf", b"x=1\n"), file("./usr/bin/a", b"a")],
        control={"Multi-Arch": "same", "Depends": "b(>=1)|c ,  d", "Section": "utils", "Homepage": "x"},
        scripts={
            "postinst": "true\n",
            "conffiles": "/etc/a.conf\n",
            "triggers": "# a remark\ninterest-noawait /usr/lib/x\ninterest ldconfig\nactivate y\n",
        },
    )
    layer = build([locked("a", deb, tmp_path)], tmp_path)
    assert text(layer, "var/lib/dpkg/status") == (
        "Package: a\nStatus: install ok installed\nSection: utils\n"
        "Maintainer: Nobody <nobody@example.org>\nArchitecture: amd64\nMulti-Arch: same\nVersion: 1.0\n"
        "Depends: b (>= 1) | c, d\nConffiles:\n /etc/a.conf f968f33f844c98de1d3b4fe70f2e1a0f\n"
        "Description: a\n a package for tests\nHomepage: x\n\n"
    )
    found = entries(layer)
    assert found["var/lib/dpkg/info/a:amd64.postinst"].mode == 0o755
    assert found["var/lib/dpkg/info/a:amd64.conffiles"].mode == 0o644
    assert text(layer, "var/lib/dpkg/info/a:amd64.md5sums") == "0cc175b9c0f1b6a831c399e269772661  usr/bin/a\n"
    assert text(layer, "var/lib/dpkg/triggers/File") == "/usr/lib/x a:amd64/noawait\n"
    assert text(layer, "var/lib/dpkg/triggers/ldconfig") == "a:amd64\n"
    assert "var/lib/dpkg/diversions" in found


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("a", "a"),
        ("a(>=1),b", "a (>= 1), b"),
        ("a (< 1) | b:any (=2)", "a (<= 1) | b:any (= 2)"),
        ("a,\n b", "a, b"),
    ],
)
def test_relations_as_dpkg_writes_them(written: str, kept: str) -> None:
    assert relation_text(written) == kept


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="there is no dpkg here to ask")
def test_dpkg_reads_the_database(tmp_path: Path) -> None:
    deb = make_deb("a", [file("./usr/bin/a", b"a")], control={"Multi-Arch": "same"})
    layer = build([locked("a", deb, tmp_path)], tmp_path)
    root = tmp_path / "root"
    with tarfile.open(fileobj=io.BytesIO(layer), mode="r:gz") as tar:
        tar.extractall(root, members=[m for m in tar if m.name.startswith("var")])
    admin = f"--admindir={root}/var/lib/dpkg"
    answer = subprocess.run(["dpkg-query", admin, "-L", "a"], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["/.", "/usr", "/usr/bin", "/usr/bin/a"]
    assert subprocess.run(["dpkg", admin, "--audit"], capture_output=True, check=True).stdout == b""


# ---------------------------------------------------------------------- what scripts would have done

MASTERS = [
    file(
        "./usr/share/base-passwd/passwd.master", b"root:*:0:0:root:/root:/bin/bash\n_apt:*:42:65534::/x:/y\n"
    ),
    file("./usr/share/base-passwd/group.master", b"root:*:0:\nmail:*:8:\nshadow:*:42:\n"),
]
BASE_FILES = """\
install_from_default() {
  cp -p "$DPKG_ROOT/usr/share/base-files/$1" "$DPKG_ROOT$2"
}
if [ "$1" = "configure" ] && [ "$2" = "" ]; then
  install_from_default profile       /etc/profile
  install_directory var/mail 2775 mail
  ln -s ../mail "$DPKG_ROOT/var/spool/mail"
  migrate_directory /var/run /run
  install_local_dir /usr/local/bin
  ln -sf share/man "$DPKG_ROOT/usr/local/man"
fi
"""


def base(tmp_path: Path) -> list[Any]:
    base_files = make_deb(
        "base-files",
        [
            file("./usr/share/base-files/profile", b"PS1=\n"),
            folder("./var/run"),
            file("./etc/dpkg/origins/debian"),
        ],
        scripts={"postinst": BASE_FILES},
    )
    return [
        locked("base-passwd", make_deb("base-passwd", MASTERS), tmp_path),
        locked("passwd", make_deb("passwd"), tmp_path),
        locked("base-files", base_files, tmp_path),
    ]


def test_accounts_and_base_files(tmp_path: Path) -> None:
    layer = build(base(tmp_path), tmp_path)
    assert text(layer, "etc/passwd") == "root:x:0:0:root:/root:/bin/bash\n_apt:x:42:65534::/x:/y\n"
    assert text(layer, "etc/shadow").splitlines()[0] == f"root:*:{TIME // 86400}:0:99999:7:::"
    assert text(layer, "etc/gshadow").splitlines()[1] == "mail:*::"
    found = entries(layer)
    assert (found["etc/shadow"].mode, found["etc/shadow"].gid) == (0o640, 42)
    assert text(layer, "etc/profile") == "PS1=\n"
    assert (found["var/mail"].mode, found["var/mail"].gid) == (0o2775, 8)
    assert (found["var/run"].linkname, found["var/spool/mail"].linkname) == ("/run", "../mail")
    assert found["etc/dpkg/origins/default"].linkname == "debian"
    assert found["usr/local/bin"].isdir()
    assert found["usr/local/man"].linkname == "share/man"


def test_shells(tmp_path: Path) -> None:
    debianutils = make_deb("debianutils", [file("./usr/share/debianutils/shells", b"# shells\n/bin/sh\n")])
    bash = make_deb(
        "bash", [file("./usr/share/debianutils/shells.d/bash", b"/bin/bash\n"), file("./bin/bash")]
    )
    layer = build([locked("debianutils", debianutils, tmp_path), locked("bash", bash, tmp_path)], tmp_path)
    assert text(layer, "etc/shells") == "# shells\n/bin/sh\n/usr/bin/sh\n/bin/bash\n/usr/bin/bash\n"


def test_apt_gets_the_sources_of_its_own_example(tmp_path: Path) -> None:
    example = b"# a remark\ndeb http://a.example/debian bookworm main contrib non-free\n#deb-src x y z\n"
    apt = make_deb("apt", [file("./usr/share/doc/apt/examples/sources.list", example)])
    layer = build([locked("apt", apt, tmp_path)], tmp_path)
    assert text(layer, "etc/apt/sources.list") == (
        "# a remark\ndeb http://a.example/debian bookworm main\n#deb-src x y z\n"
    )


def test_accounts_that_will_be_missing_are_told(tmp_path: Path) -> None:
    deb = make_deb("sshd", scripts={"postinst": "#!/bin/sh\nadduser --system --quiet sshd\n"})
    told: list[str] = []
    build([locked("sshd", deb, tmp_path)], tmp_path, remark=told.append)
    assert len(told) == 1
    assert "sshd" in told[0]


UNIX = """\
Name: Unix authentication
Default: yes
Priority: 256
Auth-Type: Primary
Auth:
\t[success=end default=ignore]\tpam_unix.so nullok try_first_pass
Auth-Initial:
\t[success=end default=ignore]\tpam_unix.so nullok
Session-Type: Additional
Session:
\trequired\tpam_unix.so
"""


def test_pam(tmp_path: Path) -> None:
    kinds = ("auth", "account", "password", "session", "session-noninteractive")
    files = [
        file(
            f"./usr/share/pam/common-{k}",
            f"# head\n${k.partition('-')[0]}_primary\nmiddle\n${k.partition('-')[0]}_additional\n".encode(),
        )
        for k in kinds
    ]
    deb = make_deb("libpam-runtime", [*files, file("./usr/share/pam-configs/unix", UNIX.encode())])
    layer = build([locked("libpam-runtime", deb, tmp_path)], tmp_path)
    assert text(layer, "etc/pam.d/common-auth") == (
        "# head\nauth\t[success=1 default=ignore]\tpam_unix.so nullok\nmiddle\n"
    )
    assert text(layer, "etc/pam.d/common-session-noninteractive") == (
        "# head\nsession\t[default=1]\t\t\tpam_permit.so\nmiddle\nsession\trequired\tpam_unix.so \n"
    )
    assert text(layer, "var/lib/pam/seen") == "unix\n"


# ---------------------------------------------------------------------- alternatives

MAWK = """\
#!/bin/sh
if [ "$1" = "configure" ]; then
    update-alternatives --install /usr/bin/awk awk /usr/bin/mawk 5 \\
        --slave /usr/share/man/man1/awk.1.gz awk.1.gz /usr/share/man/man1/mawk.1.gz \\
        --slave /usr/bin/nawk nawk /usr/bin/mawk
fi
"""


def test_alternatives(tmp_path: Path) -> None:
    mawk = make_deb("mawk", [file("./usr/bin/mawk")], scripts={"postinst": MAWK})
    gawk = make_deb(
        "gawk",
        [file("./usr/bin/gawk")],
        scripts={
            "postinst": "update-alternatives --quiet --install /usr/bin/awk awk /usr/bin/gawk 10 || true\n"
        },
    )
    debs = [locked("mawk", mawk, tmp_path), locked("gawk", gawk, tmp_path)]
    layer = build(debs, tmp_path)
    found = entries(layer)
    assert found["usr/bin/awk"].linkname == "/etc/alternatives/awk"
    assert found["etc/alternatives/awk"].linkname == "/usr/bin/gawk"
    assert "usr/bin/nawk" not in found  # a slave of the other one
    state = (
        "auto\n/usr/bin/awk\nawk.1.gz\n/usr/share/man/man1/awk.1.gz\nnawk\n/usr/bin/nawk\n\n"
        "/usr/bin/gawk\n10\n\n\n/usr/bin/mawk\n5\n/usr/share/man/man1/mawk.1.gz\n/usr/bin/mawk\n\n"
    )
    assert text(layer, "var/lib/dpkg/alternatives/awk") == state
    alone = entries(build(debs[:1], tmp_path))
    assert alone["usr/bin/nawk"].linkname == "/etc/alternatives/nawk"
    assert alone["etc/alternatives/nawk"].linkname == "/usr/bin/mawk"
    assert "etc/alternatives/awk.1.gz" not in alone  # its manual page is not there


@pytest.mark.parametrize(
    "script",
    [
        "for i in vi ex; do update-alternatives --install /usr/bin/$i $i /usr/bin/vim 1; done",
        "update-alternatives --install /usr/bin/a a relative 1",
        "update-alternatives --install /usr/bin/a a /usr/bin/b many",
        "update-alternatives --install /usr/bin/a",
        "# update-alternatives --install /usr/bin/a a /usr/bin/b 1",
        "update-alternatives --remove a /usr/bin/b",
        'echo "update-alternatives --install',
    ],
)
def test_what_is_no_literal_alternative(script: str) -> None:
    assert list(commands(script)) == []


def test_a_comment_after_a_continued_line() -> None:
    """As in the postinst of g++."""
    (found,) = commands(
        "update-alternatives \\\n  --install /usr/bin/c++ c++ /usr/bin/g++ 20 \\\n  #--slave x y z\n"
    )
    assert found[:2] == ("/usr/bin/c++", "c++")
    assert found[2] == Choice(path="/usr/bin/g++", priority=20, slaves={})


def test_a_state_file_is_read_as_it_is_written() -> None:
    group = Group(name="x", link="/usr/bin/x", slaves={"b": "/b", "a": "/a"})
    group.choices["/1"] = Choice(path="/1", priority=-5, slaves={"a": "/a1"})
    group.choices["/2"] = Choice(path="/2", priority=7, slaves={"a": "/a2", "b": "/b2"})
    read = read_state("x", group.state())
    assert read is not None
    assert read.state() == group.state()
    assert read.best.path == "/2"
    assert read_state("x", b"auto\n/x\n\n/1\nmany\n") is None


# ---------------------------------------------------------------------- certificates


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here to compare with")
@pytest.mark.parametrize(
    "subject",
    [
        "/CN=Simple",
        "/C=DE/O=Two  Spaces /CN=ÄÖ Upper",
        "/O=Ünïcode Ltd./OU=x/CN=日本",
        "/DC=example/DC=org/CN=several+OU=in one+O=set",
    ],
)
def test_the_hash_of_a_subject_is_openssls(tmp_path: Path, subject: str) -> None:
    key, pem = tmp_path / "key", tmp_path / "pem"
    request = ["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-utf8", "-subj"]
    subprocess.run([*request, subject, "-keyout", key, "-out", pem], check=True, capture_output=True)
    wanted = subprocess.run(
        ["openssl", "x509", "-in", str(pem), "-noout", "-subject_hash"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    der = subprocess.run(
        ["openssl", "x509", "-in", str(pem), "-outform", "DER"], check=True, capture_output=True
    ).stdout
    assert subject_hash(der) == wanted


# ---------------------------------------------------------------------- above a base


def test_on_top_of_a_base(tmp_path: Path) -> None:
    mawk = make_deb("mawk", [file("./usr/bin/mawk")], scripts={"postinst": MAWK})
    below = build([*base(tmp_path), locked("mawk", mawk, tmp_path)], tmp_path)
    (tmp_path / "base.tar.gz").write_bytes(below)
    tree = ImageTree.read([tmp_path / "base.tar.gz"])
    gawk = make_deb(
        "gawk",
        [file("./bin/gawk")],
        scripts={"postinst": "update-alternatives --install /usr/bin/awk awk /usr/bin/gawk 10\n"},
    )
    layer = build([locked("gawk", gawk, tmp_path)], tmp_path, lower=tree)
    found = entries(layer)
    assert "usr/bin/gawk" in found
    assert not {"usr", "bin", "usr/bin", "etc/passwd", "usr/bin/mawk"} & set(found)
    assert found["etc/alternatives/awk"].linkname == "/usr/bin/gawk"
    assert "/usr/bin/mawk" in text(layer, "var/lib/dpkg/alternatives/awk")
    status = text(layer, "var/lib/dpkg/status")
    assert [line for line in status.splitlines() if line.startswith("Package:")] == [
        "Package: base-files", "Package: base-passwd", "Package: gawk", "Package: mawk", "Package: passwd",
    ]  # fmt: skip
    thief = make_deb("thief", [file("./usr/bin/mawk")])
    with pytest.raises(BuildFailed, match="of mawk"):
        build([locked("thief", thief, tmp_path)], tmp_path, lower=tree)
    heir = make_deb("heir", [file("./usr/bin/mawk", b"new")], control={"Replaces": "mawk (<= 1.0)"})
    layer = build([locked("heir", heir, tmp_path)], tmp_path, lower=tree)
    assert contents(layer, "usr/bin/mawk") == b"new"


def test_an_image_is_what_its_layers_leave(tmp_path: Path) -> None:
    from tests.support.debian import tar

    layers = [
        tar([folder("a"), file("a/x"), file("a/y"), folder("b"), file("b/z"), link("l", "b")]),
        gzip.compress(
            tar([file("a/.wh.x"), file("b/.wh..wh..opq"), file("b/new"), file("etc/debian_version", b"12")])
        ),
    ]
    paths = []
    for number, data in enumerate(layers):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(data)
    tree = ImageTree.read(paths)
    assert sorted(tree.names("a")) == ["y"]
    assert sorted(tree.names("b")) == ["new"]
    assert (tree.kind("l"), tree.target("l"), tree.kind("gone")) == ("symlink", "b", None)
    assert tree.read_file("etc/debian_version") == b"12"


@pytest.mark.parametrize(
    "data",
    [b"nonsense" * 200, b"\x1f\x8b" + bytes(100), b"\x28\xb5\x2f\xfd" + b"x" * 100],
    ids=["plain", "gz", "zst"],
)
def test_a_layer_that_is_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "layer"
    path.write_bytes(data)
    with pytest.raises(ArtefactUnusable):
        ImageTree.read([path])
