"""Pages of indexes that nobody meant well: a row that says so, never a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement

from imagebuilder.cache import Cache
from imagebuilder.index.http import Session
from imagebuilder.index.simple import Indexes
from imagebuilder.lock.target import TargetFacts
from imagebuilder.progress import Silent
from imagebuilder.recon.ask import ask, places_of
from imagebuilder.settings import Settings
from imagebuilder.values import Platform, Release
from tests.support.http_server import Reply, Server

TARGET = TargetFacts(python=Release("3.12"), platform=Platform("linux", "amd64"), glibc=Release("2.39"))
JSON, HTML = "application/vnd.pypi.simple.v1+json", "text/html; charset=utf-8"
NAMES = st.sampled_from(
    ["made-1.0-py3-none-any.whl", "made-1.0.tar.gz", "made_cp312_cu130.whl", "other-1-py3-none-any.whl",
     "made-1!2.dev20259999-py3-none-any.whl", "made-9" + "9" * 400 + "-py3-none-any.whl", "../../made", ""]
)  # fmt: skip
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.lists(st.integers(), max_size=2),
    st.sampled_from(["2026-99-99T00:00:00Z", "http://[::1", "file:///etc/passwd", "javascript:x"]),
)  # fmt: skip
FILES = st.lists(
    st.builds(
        lambda name, fields: {"filename": name, "url": f"/files/{name}", "hashes": {}, **fields},
        NAMES,
        st.dictionaries(
            st.sampled_from(
                ["filename", "url", "hashes", "size", "yanked", "upload-time", "requires-python"]
            ),
            ODD,
            max_size=3,
        ),
    ),
    max_size=4,
)


class Bench:
    """A server that answers everything with one body."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.reply = Reply()
        self.url = server.url + "/simple/"
        server.route("/", lambda request: self.reply)

    def rows(self, body: bytes, kind: str) -> None:
        self.count += 1
        self.reply = Reply(body=body, headers={"Content-Type": kind})
        settings = Settings(
            cache_dir=self.folder / f"cache{self.count}", default_index=self.url, timeout=240.0
        )
        http = Session(settings, pause=lambda _: None)
        indexes = Indexes((), settings, Cache(settings.cache_dir), http)
        places = list(places_of([Requirement("made")], indexes, None, None))
        now = datetime(2026, 2, 25, tzinfo=timezone.utc)
        (row,) = ask(places, indexes, TARGET, Silent(), now=now, workers=1)
        assert row.stable or row.pre or row.problem or not row.versions
        json.dumps(row.as_json())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Server() as server:
        yield Bench(server, tmp_path_factory.mktemp("pages"))


quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(body=st.binary(max_size=300), kind=st.sampled_from([JSON, HTML, "text/plain", ""]))
def test_bytes_of_any_kind(bench: Bench, body: bytes, kind: str) -> None:
    bench.rows(body, kind)


@quick
@given(files=FILES, odd=ODD)
def test_pages_with_odd_fields(bench: Bench, files: list[dict[str, Any]], odd: Any) -> None:
    page = {"meta": {"api-version": "1.1"}, "name": "made", "versions": [], "files": files}
    bench.rows(json.dumps(page).encode(), JSON)
    bench.rows(json.dumps({**page, "files": odd}).encode(), JSON)
    links = "".join(f'<a href="{f.get("url")}" data-yanked>{f.get("filename")}</a>' for f in files)
    bench.rows(f"<html><body>{links}".encode(errors="replace"), HTML)


def test_a_deep_page(bench: Bench) -> None:
    bench.rows(b"[" * 200_000, JSON)
    bench.rows(b"<div>" * 50_000, HTML)
