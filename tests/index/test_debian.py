"""The Debian archive: what is believed, from where, and what is refused; servers and signatures are real."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, Unresolvable
from imagebuilder.index import debian_release
from imagebuilder.index.debian import Archive
from imagebuilder.index.debian_packages import PackageIndex, installed
from imagebuilder.index.debian_relations import Relation, compare, parse_relations
from imagebuilder.index.debian_sources import read_apt_sources
from imagebuilder.index.http import Session
from imagebuilder.progress import Silent
from imagebuilder.settings import Settings
from imagebuilder.values import Platform
from tests.support.debian import FakeArchive, packages_text, stanza
from tests.support.http_server import Fault, Server

NOW = datetime(2026, 8, 1, tzinfo=timezone.utc)
TEXT = packages_text(
    stanza("base-files", Essential="yes", Priority="required"),
    stanza("mawk", Priority="required", Provides="awk"),
    stanza("gawk", Provides="awk"),
    stanza("python3", "3.11.2-1", Depends="libc6 (>= 2.36)", Pre_Depends="python3-minimal (= 3.11.2-1)"),
)


class Warnings(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def fake(server: Server) -> FakeArchive:
    archive = FakeArchive(server)
    archive.publish("bookworm", TEXT)
    return archive


@dataclasses.dataclass
class Opener:
    fake: FakeArchive
    settings: Settings
    cache: Cache
    http: Session
    folder: Path

    def __call__(self, **changes: object) -> Archive:
        given: dict[str, object] = {
            "suite": "bookworm",
            "platform": Platform.parse("linux/amd64"),
            "settings": dataclasses.replace(self.settings, debian_mirrors=(self.fake.url,)),
            "session": self.http,
            "cache": self.cache,
            "keyring": self.fake.keyring(self.folder),
            "apt_folder": self.folder / "no-apt",
            "now": NOW,
        }
        return Archive(**{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture
def opened(fake: FakeArchive, settings: Settings, cache: Cache, http: Session, tmp_path: Path) -> Opener:
    return Opener(fake, settings, cache, http, tmp_path)


def test_packages_of_a_signed_archive(opened: Opener) -> None:
    archive = opened()
    index = archive.packages()
    (python,) = index.named("python3")
    assert (python.version, python.pocket, python.size) == ("3.11.2-1", "bookworm", 1000)
    assert [deb.name for deb in index.required()] == ["base-files", "mawk"]
    assert [deb.name for deb in index.providers("awk")] == ["mawk", "gawk"]
    assert index.named("nothing") == []
    assert archive.date == datetime(2026, 7, 11, 10, 16, 37, tzinfo=timezone.utc)
    assert archive.addresses(python.path, "bookworm") == [f"{opened.fake.url}/{python.path}"]


def test_the_parsed_list_is_made_once(opened: Opener) -> None:
    opened().packages().close()
    lists = [r for r in opened.fake.server.seen if "by-hash" in r.path]
    opened().packages().close()
    assert len(lists) == 1
    assert [r for r in opened.fake.server.seen if "by-hash" in r.path] == lists


def test_a_list_without_by_hash_is_taken_by_name(opened: Opener) -> None:
    opened.fake.by_hash = False
    opened.fake.publish("bookworm", TEXT)
    assert opened().packages().named("gawk")


def test_by_hash_that_is_missing_falls_back_to_the_name(opened: Opener) -> None:
    opened.fake.by_hash = False
    opened.fake.publish("bookworm", TEXT)
    opened.fake.publish("bookworm", TEXT, Acquire_By_Hash="yes")
    assert opened().packages().named("gawk")


def test_the_security_pocket_only_when_asked(opened: Opener) -> None:
    newer = packages_text(stanza("python3", "3.11.2-1+deb12u1"))
    opened.fake.publish("bookworm-security", newer, Valid_Until="Sat, 08 Aug 2026 00:00:00 UTC")
    assert [deb.version for deb in opened().packages().named("python3")] == ["3.11.2-1"]
    found = opened(security=True).packages().named("python3")
    assert [(deb.version, deb.pocket) for deb in found] == [
        ("3.11.2-1+deb12u1", "bookworm-security"),
        ("3.11.2-1", "bookworm"),
    ]


def _tamper(fake: FakeArchive, old: bytes, new: bytes) -> None:
    signed = fake.sign(fake.release("bookworm", {}))
    assert old in signed
    fake.server.put("/debian/dists/bookworm/InRelease", signed.replace(old, new, 1))


def _other_key(fake: FakeArchive) -> None:
    other = FakeArchive(fake.server)
    other.publish("bookworm", TEXT)


def _list_that_differs(fake: FakeArchive) -> None:
    for request in ("by-hash",):
        path = next(p for p in fake.server._replies if request in p)
        fake.server.put(path, b"something else")


REFUSED = {
    "no signature": (
        lambda fake: fake.server.put(
            "/debian/dists/bookworm/InRelease", fake.release("bookworm", {}).encode()
        ),
        "is not signed",
    ),
    "a changed word": (lambda fake: _tamper(fake, b"Codename: bookworm", b"Codename: bookworn"), "signature"),
    "text before the signed part": (
        lambda fake: _tamper(fake, b"-----BEGIN PGP SIGNED", b"Origin: Debian\n-----BEGIN PGP SIGNED"),
        "is not signed",
    ),
    "a signature cut off": (lambda fake: _tamper(fake, b"-----END PGP SIGNATURE-----", b""), "signature"),
    "a key that is not in the keyring": (_other_key, "signature"),
    "another suite": (lambda fake: fake.publish("bookworm", TEXT, Codename="trixie"), "of another suite"),
    "out of date": (
        lambda fake: fake.publish("bookworm", TEXT, Valid_Until="Fri, 31 Jul 2026 00:00:00 UTC"),
        "out of date",
    ),
    "no date": (lambda fake: fake.publish("bookworm", TEXT, Date=""), "no date"),
    "a date that is none": (lambda fake: fake.publish("bookworm", TEXT, Date="yesterday"), "cannot be read"),
    "another list than its Release says": (_list_that_differs, "not what its signed Release says"),
    "a list that cannot be used": (
        lambda fake: fake.publish("bookworm", packages_text(stanza("a", Filename="../../etc/passwd"))),
        "cannot be used",
    ),
    "a list without sizes": (
        lambda fake: fake.publish("bookworm", packages_text(stanza("a", Size="many"))),
        "cannot be used",
    ),
    "no server": (lambda fake: fake.server.remove("/debian/dists/bookworm/InRelease"), "cannot be reached"),
    "another distribution": (
        lambda fake: fake.publish("bookworm", TEXT, Origin="Ubuntu"),
        "cannot be reached",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_believed(opened: Opener, case: str) -> None:
    make, message = REFUSED[case]
    make(opened.fake)  # type: ignore[no-untyped-call]
    with pytest.raises(ArtefactUnusable) as caught:
        opened().packages()
    assert message in caught.value.what
    assert (
        not list((opened.settings.cache_dir / "debian").glob("*"))
        if opened.settings.cache_dir.exists()
        else True
    )


def test_a_component_or_platform_that_is_not_there(opened: Opener) -> None:
    with pytest.raises(Unresolvable, match="no component 'universe'"):
        opened(components=("universe",)).packages()
    with pytest.raises(Unresolvable, match="no packages for linux/arm64"):
        opened(platform=Platform.parse("linux/arm64")).packages()


def test_a_mirror_that_fails_leads_to_the_next(opened: Opener) -> None:
    settings = dataclasses.replace(
        opened.settings, debian_mirrors=(f"{opened.fake.server.url}/gone", opened.fake.url)
    )
    assert opened(settings=settings).packages().named("gawk")


def test_a_dropped_connection_is_tried_again(opened: Opener) -> None:
    opened.fake.server.fail("/debian/dists/bookworm/InRelease", Fault(drop_after=20), Fault(status=503))
    assert opened().packages().named("gawk")


def test_this_machines_apt_sources(opened: Opener, server: Server) -> None:
    """The third party's source is passed over, as its Release says another Origin."""
    other = FakeArchive(server, root="/other", origin="Somebody")
    other.publish("bookworm", TEXT)
    apt = opened.folder / "apt"
    (apt / "sources.list.d").mkdir(parents=True)
    (apt / "sources.list").write_text(f"# a remark\ndeb [arch=amd64] {other.url}/ bookworm main\n")
    (apt / "sources.list.d" / "debian.sources").write_text(
        f"Types: deb\nURIs: {opened.fake.url}/\nSuites: bookworm bookworm-updates\nComponents: main\n\n"
        "Types: deb\nEnabled: no\nURIs: http://127.0.0.1:9/debian\nSuites: bookworm\nComponents: main\n"
    )
    assert [s.uri for s in read_apt_sources(apt)] == [other.url, opened.fake.url]
    archive = opened(settings=opened.settings, apt_folder=apt)
    assert archive.packages().named("gawk")
    assert archive.addresses("pool/x.deb", "bookworm")[0] == f"{opened.fake.url}/pool/x.deb"


def test_nothing_to_ask(opened: Opener) -> None:
    with pytest.raises(ArtefactUnusable) as caught:
        opened(settings=opened.settings).packages()
    assert "debian.mirrors" in caught.value.hint


def test_a_date_before_the_mirrors_state_uses_the_snapshot(opened: Opener, server: Server) -> None:
    at = datetime(2026, 2, 25, tzinfo=timezone.utc)
    old = FakeArchive(server, root="/snapshot/debian/20260225T000000Z", key=opened.fake.key)
    old.publish(
        "bookworm",
        packages_text(stanza("gawk", "0.9")),
        Date="Sat, 10 Jan 2026 10:00:00 UTC",
        Valid_Until="Sat, 17 Jan 2026 10:00:00 UTC",
    )
    settings = dataclasses.replace(
        opened.settings, debian_mirrors=(opened.fake.url,), snapshot_mirror=f"{server.url}/snapshot"
    )
    archive = opened(settings=settings, at=at)
    assert archive.packages().named("gawk")[0].version == "0.9"
    assert len(archive.addresses("pool/x.deb", "bookworm")) == 2


def test_without_a_snapshot_the_newer_state_is_used_and_said(opened: Opener) -> None:
    reporter = Warnings()
    opened(at=datetime(2026, 2, 25, tzinfo=timezone.utc), reporter=reporter).packages()
    (text,) = reporter.texts
    assert "2026-07-11" in text
    assert "debian.snapshot" in text


def test_a_keyring_that_is_none(opened: Opener, tmp_path: Path) -> None:
    path = tmp_path / "broken.pgp"
    path.write_bytes(b"not a keyring")
    with pytest.raises(ArtefactUnusable, match="keyring"):
        opened(keyring=path).packages()


def test_without_a_keyring_the_pinned_package_is_wanted(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian_release, "local_keyring", lambda: None)
    with pytest.raises(ArtefactUnusable) as caught:
        opened(keyring=None).packages()
    assert "no Debian archive keyring" in caught.value.what


# ---------------------------------------------------------------------- relations and versions


def test_relations() -> None:
    groups = parse_relations("libc6 (>= 2.36), debconf (>= 0.5) | debconf-2.0, python3:any, a (<<1~)")
    assert [[str(one) for one in group] for group in groups] == [
        ["libc6 (>= 2.36)"],
        ["debconf (>= 0.5)", "debconf-2.0"],
        ["python3"],
        ["a (<< 1~)"],
    ]
    assert groups[2][0].qualifier == "any"
    assert parse_relations("") == ()


@pytest.mark.parametrize("text", ["a (>= )", "(b)", "a (~ 1)", "a b"])
def test_relations_that_are_none(text: str) -> None:
    with pytest.raises(ArtefactUnusable):
        parse_relations(text)


@pytest.mark.parametrize(
    ("operator", "version", "holds"),
    [
        ("", "1", True),
        (">=", "1.0~rc1", False),
        ("<<", "1.0~rc1", True),
        ("=", "0:1.0", True),
        (">>", "1:0", True),
        ("<=", "1.0+b1", False),
        ("<", "1.0", True),
        (">", "1.0", True),
    ],
)
def test_a_bound(operator: str, version: str, holds: bool) -> None:
    assert Relation(name="a", operator=operator, version="1.0").holds(version) is holds


def test_an_unversioned_provide_satisfies_no_bound() -> None:
    assert Relation(name="a").holds(None)
    assert not Relation(name="a", operator=">=", version="1").holds(None)


_VERSION = st.from_regex(r"([0-9]:)?[0-9][0-9a-c.~+]{0,6}(-[0-9a-c~+]{1,3})?", fullmatch=True)


@examples(deadline=None)
@given(_VERSION, _VERSION, _VERSION)
def test_versions_are_ordered(a: str, b: str, c: str) -> None:
    assert compare(a, a) == 0
    assert compare(a, b) == -compare(b, a)
    if compare(a, b) <= 0 and compare(b, c) <= 0:
        assert compare(a, c) <= 0


# ---------------------------------------------------------------------- lists


@examples(deadline=None)
@given(st.integers(min_value=1, max_value=200))
def test_a_list_may_come_in_any_pieces(size: int) -> None:
    import sqlite3

    from imagebuilder.index.debian_packages import fill

    connection = sqlite3.connect(":memory:")
    count = fill(connection, [TEXT[at : at + size] for at in range(0, len(TEXT), size)], "test")
    assert count == 4
    assert PackageIndex([("test", connection)]).named("python3")[0].depends == "libc6 (>= 2.36)"


def test_installed_packages_of_a_status_file() -> None:
    status = (
        b"Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\nProvides: b (= 2)\n\n"
        b"Package: c\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert [(deb.name, deb.version, deb.provides) for deb in installed(status)] == [("a", "1", "b (= 2)")]


# ---------------------------------------------------------------------- the real one


@pytest.mark.network
def test_debians_own_archive(settings: Settings, cache: Cache, http: Session) -> None:
    """Over this machine's own apt sources, with its own keyring or the pinned one."""
    archive = Archive(
        suite="bookworm",
        platform=Platform.parse("linux/amd64"),
        settings=settings,
        session=http,
        cache=cache,
    )
    try:
        index = archive.packages()
    except ImagebuilderError as error:
        if "cannot be reached" in str(error):
            pytest.skip(f"no Debian archive in reach: {error}")
        raise
    assert index.named("python3")[0].version.startswith("3.11.")
    assert {"base-files", "dpkg", "libc-bin"} <= {deb.name for deb in index.required()}
    assert "mawk" in {deb.name for deb in index.providers("awk")}
