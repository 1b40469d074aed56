"""file:// answers as a server does. (Index, download and ranged reads over it: their own tests.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.index.http import Denied, NotFound, Session, Unreachable, expect, fetch
from tests.support.http_server import Server


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "a file.whl").write_bytes(b"0123456789")
    return (tmp_path / "a file.whl").as_uri()


RANGES = {
    "bytes=0-3": (206, b"0123", "bytes 0-3/10"),
    "bytes=8-": (206, b"89", "bytes 8-9/10"),
    "bytes=8-100": (206, b"89", "bytes 8-9/10"),
    "bytes=-3": (206, b"789", "bytes 7-9/10"),
    "bytes=-100": (206, b"0123456789", "bytes 0-9/10"),
    "bytes=10-": (416, b"", "bytes */10"),
    "bytes=5-2": (416, b"", "bytes */10"),
    "": (200, b"0123456789", None),
}


@pytest.mark.parametrize("asked", RANGES)
def test_ranges(http: Session, url: str, asked: str) -> None:
    response = http.get(url, headers={"Range": asked} if asked else None)
    assert (response.status_code, response.content, response.headers.get("Content-Range")) == RANGES[asked]


def test_head_has_no_body(http: Session, url: str) -> None:
    response = http.head(url)
    assert (response.content, response.headers["Content-Length"]) == (b"", "10")


def test_revalidation(http: Session, url: str, tmp_path: Path) -> None:
    tag = fetch(http, url, "it").headers["ETag"]
    assert fetch(http, url, "it", headers={"If-None-Match": tag}, also=(304,)).status == 304
    (tmp_path / "a file.whl").write_bytes(b"other")
    assert fetch(http, url, "it", headers={"If-None-Match": tag}, also=(304,)).body == b"other"


def test_what_is_not_there(http: Session, tmp_path: Path) -> None:
    for missing in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFound, match="it does not exist"):
            fetch(http, missing.as_uri(), "it")


def test_a_folder_beneath_a_file(http: Session, url: str) -> None:
    with pytest.raises((NotFound, Denied)):
        expect(http.get(url + "/below"), "it")


def test_no_server_can_redirect_to_this_machine(http: Session, url: str) -> None:
    with Server() as server, pytest.raises(Unreachable, match="it cannot be had") as caught:
        fetch(http, server.redirect("/a", url), "it")
    assert "no server" in caught.value.seen
