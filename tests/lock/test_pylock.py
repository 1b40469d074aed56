"""The lock file: round trips, what others read in it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
import tomli
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from packaging.pylock import Pylock
from packaging.utils import canonicalize_name

from imagebuilder.errors import LockUnusable
from imagebuilder.lock.model import (
    DebPackage,
    Lock,
    LockedBase,
    LockedOverride,
    LockedPatch,
    PassedOver,
    Wheel,
)
from imagebuilder.lock.pylock import format_lock, parse_lock, read_lock, write_lock
from imagebuilder.values import Digest, ImageRef, Platform, Release

DIGEST = Digest.of(b"")
AS_OF = datetime(2026, 2, 25, tzinfo=timezone.utc)


def wheel(name: str = "app", version: str = "1.0", **more: object) -> Wheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    fields: dict[str, object] = {
        "name": canonicalize_name(name), "version": version, "filename": filename, "size": 3,
        "sha256": Digest.of(filename.encode()), "path": f"wheels/s/{filename}",
    }  # fmt: skip
    return Wheel(**{**fields, **more})  # type: ignore[arg-type]


FULL = Lock(
    stack_name="s",
    stack_hash=DIGEST,
    stack_parts=(("target", DIGEST), ("base", Digest.of(b"1"))),
    resolver="uv 0.13.9",
    python=Release("3.11"),
    platform=Platform.parse("linux/amd64"),
    glibc=Release("2.36"),
    as_of=AS_OF,
    wheels=(
        wheel("app", requires=(canonicalize_name("kernel"),), extras=("fast",), upload_time=AS_OF),
        wheel("kernel", "0.3.21+cu130", index="vendor", hash_origin="computed", metadata_version="0.3.21"),
        wheel("own", index=None, url="https://example.org/own-1.0-py3-none-any.whl"),
    ),
    debs=(
        DebPackage(
            name="libc6", version="2.36-9+deb12u13", architecture="amd64", size=7, sha256=DIGEST,
            path="pool/main/g/glibc/libc6_2.36-9+deb12u13_amd64.deb", pocket="bookworm",
        ),
    ),
    base=LockedBase(ref=ImageRef.parse("nvidia/cuda:13.0.1"), index=DIGEST, manifest=Digest.of(b"2")),
    patches=(LockedPatch(package=canonicalize_name("app"), path="patches/a.patch", sha256=DIGEST),),
    overrides=(LockedOverride(requirement="kernel==1", reason='a "reason" with quotes\nand lines'),),
    passed_over=(PassedOver(name=canonicalize_name("app"), version="2", chosen="1.0", why="yanked"),),
)  # fmt: skip


def test_a_round_trip_of_everything(tmp_path: Path) -> None:
    assert parse_lock(format_lock(FULL)) == FULL
    bare = replace(FULL, as_of=None, wheels=(), debs=(), base=None, patches=(), overrides=(), passed_over=())
    assert parse_lock(format_lock(bare)) == bare
    on_disk = replace(FULL, base=LockedBase(ref=None, index=DIGEST, path="../base"))
    write_lock(tmp_path / "new" / "pylock.s.toml", on_disk)
    assert read_lock(tmp_path / "new" / "pylock.s.toml") == on_disk
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["pylock.s.toml"]


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,8})?", fullmatch=True)
VERSIONS = st.from_regex(r"(0|[1-9][0-9]?)(\.(0|[1-9][0-9]?)){0,3}(\+cu1[23]0)?", fullmatch=True)


@given(
    st.dictionaries(NAMES, VERSIONS, max_size=5),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1),
    st.none() | st.datetimes(timezones=st.just(timezone.utc)),
)
def test_round_trips(packages: dict[str, str], reason: str, as_of: datetime | None) -> None:
    wheels = tuple(wheel(n, v) for n, v in sorted(packages.items()))
    lock = replace(
        FULL, wheels=wheels, as_of=as_of, overrides=(LockedOverride(requirement="a==1", reason=reason),)
    )
    text = format_lock(lock)
    assert parse_lock(text) == lock
    assert format_lock(parse_lock(text)) == text


def test_it_names_no_host_but_a_direct_requirements(tmp_path: Path) -> None:
    assert [line for line in format_lock(FULL).splitlines() if "://" in line] == [
        'url = "https://example.org/own-1.0-py3-none-any.whl"'
    ]


def test_it_is_a_pylock_from_which_packaging_selects() -> None:
    document = Pylock.from_dict(tomli.loads(format_lock(FULL)))
    selected = list(
        document.select(
            tags=None,
            environment={
                "python_version": "3.11",
                "python_full_version": "3.11.2",
                "sys_platform": "linux",
                "platform_machine": "x86_64",
            },
        )
    )  # type: ignore[typeddict-item]
    assert len(selected) == 3


def broken(**changes: object) -> str:
    """The full lock with values put at dotted places (a dot in a key is written as `/`)."""
    document = tomli.loads(format_lock(FULL))
    for place, value in changes.items():
        node = document
        *parents, last = place.split("__")
        for key in parents:
            node = node[int(key)] if isinstance(node, list) else node[key.replace("_", "-")]
        if value is None:
            del node[last.replace("_", "-")]
        else:
            node[last.replace("_", "-")] = value
    return tomli_w.dumps(document)


OURS = "tool__imagebuilder__"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "lock-version"),
        ("lock-version = ", "Invalid value"),
        (broken(lock_version="2.0"), "2.0"),
        (broken(tool=None), "tool.imagebuilder: a table"),
        (broken(**{OURS + "schema": 2}), "another release of imagebuilder"),
        (broken(**{OURS + "stack_hash": "md5:1"}), "stack-hash"),
        (broken(**{OURS + "stack_parts": {"target": "x"}}), "stack-parts.target"),
        (broken(**{OURS + "platform": "windows/amd64"}), "tool.imagebuilder.platform"),
        (broken(**{OURS + "python": 3.11}), "tool.imagebuilder.python"),
        (broken(**{OURS + "as_of": "yesterday"}), "as-of"),
        (broken(**{OURS + "debian__0__path": "../../etc/passwd"}), "not a path below an archive"),
        (broken(**{OURS + "debian__0__path": "https://example.org/x.deb"}), "not a path below an archive"),
        (broken(**{OURS + "debian__0__size": -1}), "debian[0].size"),
        (broken(**{OURS + "debian": 7}), "debian: an array"),
        (broken(**{OURS + "base__image": "NOT AN IMAGE"}), "base.image"),
        (broken(**{OURS + "override__0__reason": None}), "override[0].reason"),
        (broken(packages__0__wheels__0__path="../app-1.0-py3-none-any.whl"), "leads out"),
        (broken(packages__0__wheels__0__path="/tmp/app-1.0-py3-none-any.whl"), "leads out"),
        (broken(packages__0__wheels__0__size=None), "size, sha256 and path"),
        (broken(packages__0__wheels__0__hashes={"md5": "1"}), "size, sha256 and path"),
        (broken(packages__0__wheels__0__hashes={"sha256": "1"}), "digest"),
        (broken(packages__0__wheels=[]), "wheel"),
        (broken(packages__0__version=None), "version"),
        (broken(packages__0__dependencies=[{"name": "nowhere"}]), "nowhere is not in the lock"),
        (broken(packages__1__name="app"), ""),
        (broken(packages__0__tool__imagebuilder__hash="guessed"), "guessed"),
        (broken(packages__0__tool=None), "either an index or an address"),
        (broken(packages__0__wheels__0__name="other-1.0-py3-none-any.whl"), ""),
    ],
)  # fmt: skip
def test_what_is_no_lock_of_ours(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "pylock.s.toml"
    path.write_text(text)
    with pytest.raises(LockUnusable) as caught:
        read_lock(path)
    assert problem in str(caught.value) and str(path) in caught.value.what
    assert caught.value.hint == "imagebuilder lock s" and caught.value.exit_code == 4


def test_no_lock_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(LockUnusable, match="there is no lock for s"):
        read_lock(tmp_path / "pylock.s.toml")
    (tmp_path / "pylock.s.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(LockUnusable, match="cannot be read"):
        read_lock(tmp_path / "pylock.s.toml")


def test_a_lock_of_another_tool(tmp_path: Path) -> None:
    path = tmp_path / "pylock.s.toml"
    path.write_text('lock-version = "1.0"\ncreated-by = "uv"\npackages = []\n')
    with pytest.raises(LockUnusable, match="is not a lock of imagebuilder"):
        read_lock(path)


@pytest.mark.parametrize("seed", range(40))
def test_damaged_locks_never_end_in_a_traceback(tmp_path: Path, seed: int) -> None:
    import random

    chance = random.Random(seed)
    data = bytearray(format_lock(FULL).encode())
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data))
        data[place : place + chance.randint(0, 9)] = bytes(
            chance.choices(b'"[]=\n0az.-', k=chance.randint(0, 4))
        )
    path = tmp_path / "pylock.s.toml"
    path.write_bytes(bytes(data))
    try:
        read_lock(path)
    except LockUnusable as error:
        assert error.hint
