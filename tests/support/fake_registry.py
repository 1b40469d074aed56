"""A registry in this process, over real HTTP on 127.0.0.1, that can be told to misbehave.

    with FakeRegistry() as registry:
        registry.put_blob("name", data)
        registry.on("GET /v2/name/blobs/", status(503), times=2)

What no rule matches is answered as the distribution specification wants it.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from imagebuilder.values import Digest

Answer = Callable[["Handler"], None]


@dataclass(kw_only=True)
class Rule:
    pattern: re.Pattern[str]
    answer: Answer
    times: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A request that came; names of headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(kw_only=True)
class FakeRegistry:
    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    manifests: dict[tuple[str, str], tuple[str, bytes]] = field(default_factory=dict)
    uploads: set[str] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    absolute: bool = True  # upload addresses
    kept: dict[str, bytes] = field(default_factory=dict)  # of broken uploads, by name
    goes_on: bool = True  # whether it takes what a kept upload lacks
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> FakeRegistry:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.fake = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def on(self, pattern: str, answer: Answer, times: int = 10**6) -> None:
        """Answer requests whose `METHOD /path?query` begins with the pattern in this way, so many times."""
        self.rules.append(Rule(pattern=re.compile(pattern), answer=answer, times=times))

    def rule_for(self, request: str) -> Rule | None:
        """The first that matches, used up once more; uploads come over several connections at a time."""
        with self._lock:
            found = next((rule for rule in self.rules if rule.times and rule.pattern.match(request)), None)
            if found:
                found.times -= 1
        return found

    def put_blob(self, repository: str, data: bytes) -> Digest:
        digest = Digest.of(data)
        self.blobs[(repository, digest.text)] = data
        return digest

    def put_manifest(self, repository: str, data: bytes, media_type: str, tag: str = "") -> Digest:
        digest = Digest.of(data)
        self.manifests[(repository, digest.text)] = (media_type, data)
        if tag:
            self.manifests[(repository, tag)] = (media_type, data)
        return digest

    def requests(self, pattern: str) -> list[Seen]:
        return [s for s in self.seen if re.match(pattern, f"{s.method} {s.path}")]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def fake(self) -> FakeRegistry:
        return self.server.fake  # type: ignore[attr-defined, no-any-return]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ValueError):
            self.close_connection = True

    def body(self, limit: int | None = None) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length if limit is None else min(limit, length))

    def reply(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def drop(self) -> None:
        """Close the connection without another word."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self) -> None:
        fake = self.fake
        fake.seen.append(
            Seen(
                method=self.command,
                path=self.path,
                headers={k.lower(): v for k, v in self.headers.items()},
            )
        )
        if rule := fake.rule_for(f"{self.command} {self.path}"):
            rule.answer(self)
        else:
            self.serve()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def serve(self) -> None:
        """As a sound registry does."""
        parts = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(parts.query)
        if parts.path == "/v2/":
            self.reply(200, b"{}")
        elif m := re.fullmatch(r"/v2/(.+)/blobs/uploads/(.*)", parts.path):
            self._upload(m[1], m[2], query)
        elif m := re.fullmatch(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})", parts.path):
            self.serve_blob(self.fake.blobs.get((m[1], m[2])))
        elif m := re.fullmatch(r"/v2/(.+)/manifests/(.+)", parts.path):
            self._manifest(m[1], m[2])
        elif m := re.fullmatch(r"/v2/(.+)/tags/list", parts.path):
            tags = [t for r, t in self.fake.manifests if r == m[1] and ":" not in t]
            self.reply(200, json.dumps({"name": m[1], "tags": tags}).encode())
        else:
            self.error(404, "NAME_UNKNOWN", "no such place")

    def error(self, status: int, code: str, message: str) -> None:
        self.reply(status, json.dumps({"errors": [{"code": code, "message": message}]}).encode())

    def serve_blob(self, data: bytes | None) -> None:
        if data is None:
            self.error(404, "BLOB_UNKNOWN", "blob unknown to registry")
            return
        asked = re.fullmatch(r"bytes=(\d+)-\d+", self.headers.get("Range", ""))
        if asked:
            start = int(asked[1])
            part = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.reply(206, data[start:], Content_Range=part)
        else:
            self.reply(200, data)

    def _upload(self, repository: str, session: str, query: dict[str, list[str]]) -> None:
        fake = self.fake
        if self.command == "POST":
            source = (query.get("from", [""])[0], query.get("mount", [""])[0])
            if source in fake.blobs:
                fake.blobs[(repository, source[1])] = fake.blobs[source]
                self.reply(201, Location=f"/v2/{repository}/blobs/{source[1]}")
                return
            name = secrets.token_hex(8)
            fake.uploads.add(name)
            path = f"/v2/{repository}/blobs/uploads/{name}?_state=opaque"
            self.reply(202, Location=(fake.url if fake.absolute else "") + path)
        elif self.command == "GET" and session in fake.kept:
            came = f"0-{max(0, len(fake.kept[session]) - 1)}"
            self.reply(204, Range=came, Location=f"/v2/{repository}/blobs/uploads/{session}?_state=opaque")
        elif self.command == "PUT":
            data, digest = self.body(), query.get("digest", [""])[0]
            if asked := self.headers.get("Content-Range"):
                kept = fake.kept.pop(session, b"")
                if not fake.goes_on or asked != f"{len(kept)}-{len(kept) + len(data) - 1}":
                    self.error(416, "RANGE_INVALID", "invalid content range")
                    return
                data = kept + data
            if session not in fake.uploads or query.get("_state") != ["opaque"]:
                self.error(404, "BLOB_UPLOAD_UNKNOWN", "no such upload")
            elif Digest.of(data).text != digest:
                self.error(400, "DIGEST_INVALID", "provided digest did not match uploaded content")
            else:
                fake.blobs[(repository, digest)] = data
                self.reply(201, Docker_Content_Digest=digest)
        else:
            self.reply(405)

    def _manifest(self, repository: str, reference: str) -> None:
        if self.command == "PUT":
            data = self.body()
            kind = self.headers.get("Content-Type", "")
            digest = self.fake.put_manifest(repository, data, kind, "" if ":" in reference else reference)
            self.reply(201, Docker_Content_Digest=digest.text)
            return
        kind, data = self.fake.manifests.get((repository, reference), ("", b""))
        if not kind:
            self.error(404, "MANIFEST_UNKNOWN", "manifest unknown")
        else:
            self.reply(200, data, Content_Type=kind, Docker_Content_Digest=Digest.of(data).text)


# ---------------------------------------------------------------- ways to misbehave


def status(code: int, body: bytes = b"", **headers: str) -> Answer:
    """This status; the request's body is read first."""

    def answer(handler: Handler) -> None:
        handler.body()
        handler.reply(code, body, **headers)

    return answer


def drop(after: int = 0) -> Answer:
    """Read so many bytes of the request's body, then close the connection."""

    def answer(handler: Handler) -> None:
        handler.body(after)
        handler.drop()

    return answer


def keep(amount: int) -> Answer:
    """Break an upload, but keep that many bytes of it for the client to go on with."""

    def answer(handler: Handler) -> None:
        kept, session = handler.fake.kept, handler.path.partition("?")[0].rpartition("/")[2]
        kept[session] = kept.get(session, b"") + handler.body(amount)
        handler.drop()

    return answer


def cut(data: bytes, after: int) -> Answer:
    """Promise `data` (or the range that was asked for), send `after` bytes of it, close the connection."""

    def answer(handler: Handler) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-\d+", handler.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        handler.send_response(206 if asked else 200)
        handler.send_header("Content-Length", str(len(data) - start))
        if asked:
            handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.end_headers()
        handler.wfile.write(data[start : start + after])
        handler.drop()

    return answer
