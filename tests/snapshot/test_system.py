"""The base and the Debian packages of a snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.errors import UsageProblem
from imagebuilder.index.debian_packages import DebFile, installed
from imagebuilder.snapshot.debs import Roots, automatic, find_roots
from imagebuilder.snapshot.folder import FolderFiles
from imagebuilder.snapshot.model import Environment, Interpreter, Run
from imagebuilder.snapshot.stackfile import moved_text, settings_env
from imagebuilder.snapshot.system import choose_base, os_release
from imagebuilder.stack.model import DebianBase, ImageBase
from imagebuilder.values import Platform, Release

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}


def environment(
    python: str, *, whole: bool = False, run: Run | None = None, prefix: str = "srv/env"
) -> Environment:
    interpreter = Interpreter(
        version=Release(python),
        platform=Platform("linux", "amd64"),
        prefix=prefix,
        base="usr",
        sites=(f"{prefix}/lib/python{python}/site-packages",),
    )
    return Environment(
        label="it",
        name="it",
        files=FolderFiles(Path("/")),
        interpreter=interpreter,
        whole=whole,
        run=run or Run(),
    )


def test_debians_python_is_rebuilt_on_debian() -> None:
    assert choose_base(environment("3.11"), {}, None) == DebianBase(suite="bookworm")
    assert choose_base(environment("3.13", whole=True), DEBIAN, None) == DebianBase(suite="trixie")
    assert choose_base(environment("3.11"), {}, "bookworm") == DebianBase(suite="bookworm")


def test_an_image_says_its_base_by_its_labels() -> None:
    digest = f"sha256:{'1' * 64}"
    labels = (
        ("org.opencontainers.image.base.name", "registry.example/cuda:13"),
        ("org.opencontainers.image.base.digest", digest),
    )
    base = choose_base(environment("3.12", whole=True, run=Run(labels=labels)), {}, None)
    assert isinstance(base, ImageBase)
    assert str(base.ref) == f"registry.example/cuda:13@{digest}"


@pytest.mark.parametrize(
    ("python", "whole", "system", "wanted", "words"),
    [
        ("3.12", False, {}, None, "no base with it is known"),
        ("3.11", True, {"ID": "ubuntu", "VERSION_ID": "24.04"}, None, "on ubuntu 24.04"),
        ("3.12", False, {}, "bookworm", "its Python is another one"),
        ("3.12", False, {}, "UPPER case", "--base"),
    ],
)
def test_otherwise_it_says_what_base_is_needed(
    python: str, whole: bool, system: dict[str, str], wanted: str | None, words: str
) -> None:
    with pytest.raises(UsageProblem) as raised:
        choose_base(environment(python, whole=whole), system, wanted)
    assert words in str(raised.value)


STATUS = b"""\
Package: base-files
Essential: yes
Priority: required
Status: install ok installed
Version: 12
Architecture: amd64

Package: app
Status: install ok installed
Version: 1.0
Architecture: amd64
Depends: liba (>= 1) | libz, mail-server

Package: liba
Status: install ok installed
Version: 1.0
Architecture: amd64

Package: postbox
Status: install ok installed
Version: 1.0
Architecture: amd64
Provides: mail-server

Package: docs
Status: install ok installed
Version: 1.0
Architecture: all

Package: gone
Status: deinstall ok config-files
Version: 1.0
Architecture: all
"""


def test_roots_are_what_nothing_else_needs() -> None:
    auto = automatic(
        b"Package: docs\nArchitecture: all\nAuto-Installed: 1\n\nPackage: app\nAuto-Installed: 0\n"
    )
    assert find_roots(installed(STATUS), auto) == Roots(manual=("app",), recommended=("docs",))


@st.composite
def packages(draw: st.DrawFn) -> list[DebFile]:
    names = [f"p{n}" for n in range(draw(st.integers(1, 8)))]
    some = installed(b"Package: x\nStatus: install ok installed\nVersion: 1\n")[0]
    return [
        DebFile(
            name=name,
            version="1",
            architecture="amd64",
            path="",
            size=0,
            sha256=some.sha256,
            pocket="",
            depends=", ".join(draw(st.lists(st.sampled_from(names), max_size=3))),
        )
        for name in names
    ]


@given(packages())
def test_the_closure_of_roots_is_everything_and_no_root_is_needless(debs: list[DebFile]) -> None:
    needs = {d.name: {r.name for g in d.depends_groups for r in g} for d in debs}

    def closure(names: tuple[str, ...]) -> set[str]:
        done: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name not in done:
                done.add(name)
                pending += needs[name]
        return done

    roots = find_roots(debs, ()).all
    assert closure(roots) == set(needs)
    for root in roots:
        assert root not in closure(tuple(r for r in roots if r != root))


def test_os_release_is_read_as_shells_read_it() -> None:
    assert os_release(b"ID=debian\nVERSION_ID=\"12\"\n# x\nNAME='a b'\n")["VERSION_ID"] == "12"


def test_places_move_with_the_environment() -> None:
    env = environment("3.11")
    site = "/srv/env/lib/python3.11/site-packages"
    assert moved_text(f"{site}/nvidia/lib:/usr/lib", env) == (
        "/opt/venv/lib/python3.11/site-packages/nvidia/lib:/usr/lib"
    )
    assert moved_text("/srv/env/bin/x --at=/srv/envious", env) == "/opt/venv/bin/x --at=/srv/envious"


def test_path_is_said_only_where_it_is_more_than_the_usual() -> None:
    usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    plain = environment("3.11", run=Run(env=(("PATH", f"/srv/env/bin:{usual}"), ("VIRTUAL_ENV", "/srv/env"))))
    assert settings_env(plain) == []
    more = environment("3.11", run=Run(env=(("PATH", f"/srv/env/bin:/usr/local/cuda/bin:{usual}"),)))
    assert settings_env(more) == [("PATH", f"/opt/venv/bin:/usr/local/cuda/bin:{usual}")]
