"""The Simple API, HTML and JSON, from real servers: what is listed, what is odd, what is down."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from packaging.version import Version

from imagebuilder.accept.process import FreePort
from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, UsageProblem
from imagebuilder.index.http import Denied, NotFound, Session, Unreachable
from imagebuilder.index.simple import Indexes
from imagebuilder.settings import Login, Settings
from imagebuilder.stack.model import Index
from imagebuilder.values import Digest
from tests.index.conftest import Pauses
from tests.support.http_server import Fault, Reply, Server, SimpleIndex

WHEEL = "demo-1.0-py3-none-any.whl"
DATA = b"the bytes of a wheel"
FORMS = ["json", "html", "both"]


@dataclasses.dataclass
class World:
    """An index on a server, and clients that are configured with it as the default one."""

    server: Server
    settings: Settings
    cache: Cache
    pauses: Pauses

    def indexes(self, url: str, *stack_indexes: Index, **settings: object) -> Indexes:
        """A fresh client, as in a new run."""
        changed = dataclasses.replace(self.settings, default_index=url, **settings)  # type: ignore[arg-type]
        return Indexes(stack_indexes, changed, self.cache, Session(changed, pause=self.pauses))


@pytest.fixture
def world(server: Server, settings: Settings, cache: Cache, pauses: Pauses) -> World:
    return World(server, settings, cache, pauses)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_files_of_a_project(world: World, form: str, relative: bool) -> None:
    index = world.server.index("/simple", form=form, relative=relative)
    index.add("demo-x", "demo_x-1.0.tar.gz", b"sdist", requires_python=">=3.9", yanked="broken")
    index.add("demo-x", "Demo_X-2.0+cu130-1-cp312-cp312-linux_x86_64.whl", DATA, yanked="")
    sdist, wheel = world.indexes(index.url).project("Demo.X")
    assert (sdist.version, wheel.version) == (Version("1.0"), Version("2.0+cu130"))
    assert (sdist.is_wheel, wheel.is_wheel) == (False, True)
    assert (sdist.yanked, wheel.yanked) == ("broken", "")
    assert (sdist.requires_python, wheel.requires_python) == (">=3.9", None)
    assert wheel.sha256 == Digest.of(DATA)
    assert wheel.size == (None if form == "html" else len(DATA))
    assert wheel.url == f"{world.server.url}/files/demo-x/{wheel.filename}"
    assert (wheel.name, wheel.index) == ("demo-x", "default")


def test_upload_time_and_no_yank(world: World) -> None:
    index = world.server.index(form="json")
    index.add("demo", WHEEL, DATA, upload_time="2026-02-25T10:00:00.5Z")
    (file,) = world.indexes(index.url).project("demo")
    assert file.upload_time == datetime(2026, 2, 25, 10, 0, 0, 500_000, tzinfo=timezone.utc)
    assert file.yanked is None


@pytest.mark.parametrize("form", FORMS)
def test_without_hash_and_size(world: World, form: str) -> None:
    index = world.server.index(form=form)
    index.add("demo", WHEEL, DATA, hashed=False, sized=False)
    indexes = world.indexes(index.url)
    (file,) = indexes.project("demo")
    assert (file.sha256, file.size) == (None, None)
    assert indexes.size_of(file) == len(DATA)
    assert len(world.server.requests_for("/files/demo/" + WHEEL, "HEAD")) == 1
    assert world.server.sent("/files/demo/" + WHEEL) == 0


def test_a_known_size_is_not_asked_for(world: World) -> None:
    index = world.server.index(form="json")
    index.add("demo", WHEEL, DATA)
    indexes = world.indexes(index.url)
    assert indexes.size_of(indexes.project("demo")[0]) == len(DATA)
    assert len(world.server.seen) == 1


ODD = [
    ("demo-1.0-py3-none.whl", "neither a wheel's nor an sdist's"),
    ("demo-1.0-py3.11.egg", "neither a wheel's nor an sdist's"),
    ("demo-1.0.exe", "neither a wheel's nor an sdist's"),
    ("demo-not.a.version-py3-none-any.whl", "neither a wheel's nor an sdist's"),
    ("demo-1.0.tar.bz2", "neither a wheel's nor an sdist's"),
    ("other-1.0-py3-none-any.whl", "belongs to another project, other"),
    ("../../etc/passwd-1.0-py3-none-any.whl", "neither a wheel's nor an sdist's"),
    ("", "neither a wheel's nor an sdist's"),
]


@pytest.mark.parametrize("form", FORMS)
def test_odd_files_are_reported_and_passed_over(world: World, form: str) -> None:
    index = world.server.index(form=form)
    for name, _ in ODD:
        index.add("demo", name, b"x", url="https://a.example/x")
    index.add("demo", WHEEL, DATA)
    indexes = world.indexes(index.url)
    assert [file.filename for file in indexes.project("demo")] == [WHEEL]
    odd = indexes.odd_files("demo")
    assert len(odd) == len(ODD)
    for found, (name, why) in zip(odd, ODD, strict=True):
        assert found.filename == name
        assert why in found.why
        assert (found.project, found.index) == ("demo", "default")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"digest": "abc"}, "its sha256 is not one"),
        ({"url": "file:///etc/passwd"}, "a file on this machine"),
        ({"url": "ftp://a.example/x.whl"}, "its address is not an address"),
        ({"url": "https://a.example:port/x.whl"}, "its address is not a well-formed address"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_odd_links(world: World, form: str, changes: dict[str, str], why: str) -> None:
    index = world.server.index(form=form)
    index.add("demo", WHEEL, DATA, **changes)  # type: ignore[arg-type]
    indexes = world.indexes(index.url)
    assert indexes.project("demo") == []
    assert why in indexes.odd_files("demo")[0].why


def test_a_login_in_a_link_is_dropped(world: World) -> None:
    index = world.server.index(form="json")
    index.add("demo", WHEEL, DATA, url="https://user:canary@a.example/x.whl#egg=x")
    assert world.indexes(index.url).project("demo")[0].url == "https://a.example/x.whl"


def test_base_href(world: World) -> None:
    body = f'<html><head><base href="/elsewhere/"></head><body><a href="{WHEEL}">{WHEEL}</a></body></html>'
    world.server.put("/simple/demo/", body.encode(), Content_Type="text/html")
    (file,) = world.indexes(world.server.url + "/simple").project("demo")
    assert file.url == f"{world.server.url}/elsewhere/{WHEEL}"


def test_links_are_relative_to_where_a_redirect_led(world: World) -> None:
    index = world.server.index("/real/simple", form="html", relative=True)
    index.add("demo", WHEEL, DATA, url="../x.whl")
    world.server.redirect("/simple/demo/", "/real/simple/demo/")
    (file,) = world.indexes(world.server.url + "/simple/").project("demo")
    assert file.url == f"{world.server.url}/real/simple/x.whl"


def test_a_quarantined_project_says_so(world: World) -> None:
    page = {
        "meta": {"api-version": "1.4"},
        "name": "demo",
        "files": [],
        "versions": [],
        "project-status": {"status": "quarantined", "reason": "malware"},
    }
    kind = "application/vnd.pypi.simple.v1+json"
    world.server.put("/simple/demo/", json.dumps(page).encode(), Content_Type=kind)
    indexes = world.indexes(world.server.url + "/simple/")
    assert indexes.project("demo") == []
    assert "quarantined demo: malware" in indexes.odd_files("demo")[0].why


# ---------------------------------------------------------------- which index


def test_a_project_comes_from_the_named_index_only(world: World) -> None:
    default, vendor = world.server.index("/simple"), world.server.index("/vendor")
    default.add("demo", "demo-9.0-py3-none-any.whl", b"from the default index")
    vendor.add("demo", WHEEL, DATA)
    default.add("only-there", "only_there-1.0-py3-none-any.whl", DATA)
    indexes = world.indexes(default.url, Index(name="vendor", url=vendor.url, explicit=True))
    assert indexes.names == ("vendor", "default")
    assert [f.version for f in indexes.project("demo", "vendor")] == [Version("1.0")]
    assert [f.version for f in indexes.project("demo")] == [Version("9.0")]
    with pytest.raises(NotFound, match="the index 'vendor' has no project only-there"):
        indexes.project("only-there", "vendor")


def test_the_configuration_overrides_the_stack(world: World) -> None:
    mirror = world.server.index("/mirror")
    mirror.add("demo", WHEEL, DATA)
    stack_index = Index(name="PyTorch.cu130", url="https://vendor.invalid/whl")
    indexes = world.indexes(mirror.url, stack_index, index_urls={"pytorch-cu130": mirror.url})
    assert indexes.url_of("PyTorch.cu130") == mirror.url
    assert indexes.project("demo", "PyTorch.cu130")


def test_an_unknown_index_is_the_callers_mistake(world: World) -> None:
    with pytest.raises(UsageProblem, match="did you mean vendor"):
        world.indexes(world.server.url, Index(name="vendor", url="https://a.example")).project(
            "demo", "vender"
        )


def test_a_stack_file_holds_no_password(world: World) -> None:
    with pytest.raises(UsageProblem) as caught:
        world.indexes(world.server.url, Index(name="a-b", url="https://user:canary@a.example"))
    assert "IMAGEBUILDER_INDEX_A_B_URL" in caught.value.hint
    assert "canary" not in str(caught.value)


def test_a_private_index(world: World) -> None:
    index = world.server.index()
    index.add("demo", WHEEL, DATA)
    world.server.login("/simple", "user", "canary")
    logins = {index.url: Login(username="user", password="canary")}
    assert world.indexes(index.url, logins=logins).project("demo")
    with pytest.raises(Denied):
        world.indexes(index.url).project("demo")


def test_an_index_in_a_folder(world: World, tmp_path: Path) -> None:
    page = tmp_path / "simple" / "demo" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{WHEEL}">{WHEEL}</a>')
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / WHEEL).write_bytes(DATA)
    indexes = world.indexes((tmp_path / "simple").as_uri(), offline=True)
    (file,) = indexes.project("demo")
    assert indexes.size_of(file) == len(DATA)
    with pytest.raises(NotFound):
        indexes.project("other")


# ---------------------------------------------------------------- addresses


@pytest.fixture
def listed(world: World) -> SimpleIndex:
    index = world.server.index()
    index.add("demo", WHEEL, DATA)
    return index


def test_address_of(world: World, listed: SimpleIndex) -> None:
    url = world.indexes(listed.url).address_of("demo", "default", WHEEL, Digest.of(DATA))
    assert url == f"{world.server.url}/files/demo/{WHEEL}"


def test_a_file_that_is_gone(world: World, listed: SimpleIndex) -> None:
    with pytest.raises(NotFound, match="no longer") as caught:
        world.indexes(listed.url).address_of("demo", "default", "demo-0.9-py3-none-any.whl", Digest.of(DATA))
    assert caught.value.hint == "imagebuilder lock --upgrade=demo"


def test_a_file_that_was_replaced(world: World, listed: SimpleIndex) -> None:
    wanted = Digest.of(b"locked")
    with pytest.raises(ArtefactUnusable) as caught:
        world.indexes(listed.url).address_of("demo", "default", WHEEL, wanted)
    assert Digest.of(DATA).text in caught.value.seen
    assert caught.value.wanted == wanted.text


# ---------------------------------------------------------------- pages in the cache


def test_a_page_is_asked_once_a_run_and_revalidated_in_the_next(world: World, listed: SimpleIndex) -> None:
    indexes = world.indexes(listed.url)
    assert indexes.project("demo") == indexes.project("DEMO")
    assert len(world.server.seen) == 1
    sent = world.server.sent("/simple/demo/")
    assert world.indexes(listed.url).project("demo") == indexes.project("demo")
    assert len(world.server.seen) == 2
    assert "If-None-Match" in world.server.seen[1].headers
    assert world.server.sent("/simple/demo/") == sent


def test_a_changed_page_is_seen(world: World, listed: SimpleIndex) -> None:
    world.indexes(listed.url).project("demo")
    listed.add("demo", "demo-2.0-py3-none-any.whl", DATA)
    assert len(world.indexes(listed.url).project("demo")) == 2


def test_without_etag_the_page_is_fetched_again(world: World, listed: SimpleIndex) -> None:
    world.server.etags = False
    world.indexes(listed.url).project("demo")
    listed.add("demo", "demo-2.0-py3-none-any.whl", DATA)
    assert len(world.indexes(listed.url).project("demo")) == 2


def test_offline(world: World, listed: SimpleIndex) -> None:
    files = world.indexes(listed.url).project("demo")
    world.server.close()
    assert world.indexes(listed.url, offline=True).project("demo") == files
    with pytest.raises(Unreachable, match="offline"):
        world.indexes(listed.url, offline=True).project("other")


# ---------------------------------------------------------------- what is down, what is nonsense


def test_no_project_and_no_index_are_different_errors(world: World, listed: SimpleIndex) -> None:
    with pytest.raises(NotFound, match="the index 'default' has no project other"):
        world.indexes(listed.url).project("other")
    with (
        closing(FreePort()) as nobodys,
        pytest.raises(Unreachable, match="the page of demo on the index 'default' cannot be had"),
    ):
        world.indexes(f"http://127.0.0.1:{nobodys.number}/simple/").project("demo")


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Denied), (403, Denied), (500, Unreachable), (429, Unreachable)]
)
def test_an_index_that_refuses(
    world: World, listed: SimpleIndex, status: int, kind: type[ArtefactUnusable]
) -> None:
    world.server.fail("/simple/demo/", *[Fault(status=status, headers={"Retry-After": "0"})] * 10)
    with pytest.raises(kind, match="the page of demo on the index 'default'"):
        world.indexes(listed.url).project("demo")


JSON = "application/vnd.pypi.simple.v1+json"
NONSENSE = {
    "not JSON": (b"{", JSON),
    "another JSON": (b"[]", JSON),
    "no files": (b'{"meta": {"api-version": "1.0"}, "name": "demo"}', JSON),
    "file without name": (b'{"meta": {"api-version": "1.0"}, "name": "demo", "files": [{"url": "x"}]}', JSON),
    "newer API": (b'{"meta": {"api-version": "2.0"}, "name": "demo", "files": []}', JSON),
    "newer HTML API": (b'<meta name="pypi:repository-version" content="2.0">', "text/html"),
    "deep JSON": (b"[" * 100_000, JSON),
    "binary": (b"\x00\xff" * 100, JSON),
    "a picture": (b"...", "image/png"),
    "unknown charset": (b"<a>", "text/html; charset=klingon"),
}


@pytest.mark.parametrize(("body", "kind"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_an_error_that_names_project_and_index(world: World, body: bytes, kind: str) -> None:
    world.server.put("/simple/demo/", body, Content_Type=kind)
    indexes = world.indexes(world.server.url + "/simple/")
    if kind.endswith("klingon"):  # browsers and Beautiful Soup guess
        assert indexes.project("demo") == []
        return
    with pytest.raises(
        ArtefactUnusable, match="the page of demo on the index 'default' cannot be understood"
    ):
        indexes.project("demo")


def test_a_page_is_whole_or_an_error(world: World, listed: SimpleIndex) -> None:
    world.server.fail("/simple/demo/", Fault(drop_after=20), Fault(drop_after=20))
    assert len(world.indexes(listed.url).project("demo")) == 1


def test_a_html_page_without_links_lists_nothing(world: World) -> None:
    world.server.route(
        "/simple/", lambda request: Reply(headers={"Content-Type": "text/html"}, body=b"<p>hi")
    )
    assert world.indexes(world.server.url + "/simple/").project("demo") == []


# ---------------------------------------------------------------- PyPI itself


@pytest.mark.network
def test_pypi(tmp_path: Path) -> None:
    import os

    from imagebuilder.settings import load

    settings = load({**os.environ, "IMAGEBUILDER_CACHE_DIR": str(tmp_path)})
    indexes = Indexes((), settings, Cache(tmp_path))
    files = indexes.project("packaging")
    wheel = next(f for f in files if f.filename == "packaging-24.0-py3-none-any.whl")
    assert wheel.sha256 == Digest.from_hex("2ddfb553fdf02fb784c234c7ba6ccc288296ceabec964ad2eae3777778130bc5")
    assert indexes.size_of(wheel) == 53_488
    assert Indexes((), settings, Cache(tmp_path)).project("packaging") == files
    with pytest.raises(NotFound):
        indexes.project("no-such-project-imagebuilder-test")
