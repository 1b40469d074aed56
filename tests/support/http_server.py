"""A real HTTP server on loopback for tests: files, ranges, a Simple API, logins, redirects, faults on demand.

    with Server() as server:
        url = server.put("/files/a.whl", b"...")              # bytes or a Path; ETag and Range are served
        server.fail("/files/a.whl", Fault(drop_after=100), Fault(status=503))    # the next two go wrong
        server.redirect("/old", "/files/a.whl")
        server.login("/private", "user", "secret")            # HTTP basic below that path
        server.route("/v2/", answer)                          # answer(Request) -> Reply, for other protocols
        gate = server.hold("/files/a.whl")                    # requests wait in the middle of the body …
        gate.reached.wait(10); gate.open()                    # … until the test lets them go on

        index = server.index("/simple", form="json")          # "json", "html", or "both" (by Accept)
        index.add("demo", "demo-1.0-py3-none-any.whl", data, hashed=False, yanked="broken")
        index.url                                             # what a client is configured with

        server.seen                                           # every request: method, path, headers
        server.sent("/files/a.whl")                           # bytes of bodies sent for that path

Nothing sleeps; `server.close()` (or leaving the block) ends all threads. Knobs: `server.ranges = False`
ignores Range, `server.etags = False` sends none.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How one request goes wrong; it is used up by one request.

    status: answer with this (and `headers`, `body`) instead. drop_after: close the connection after so many
    bytes of the body, with the headers of the whole. body: other bytes. length: a lying Content-Length.
    refuse: close before answering at all.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    drop_after: int | None = None
    body: bytes | None = None
    length: int | None = None
    refuse: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """What came in. `path` without the query, decoded; header names are case-insensitive."""

    method: str
    path: str
    query: str
    headers: Any
    body: bytes = b""


@dataclass(kw_only=True)
class Reply:
    """What goes out."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Path = b""


class Gate:
    """Holds bodies back after their first half. `reached` is set when a request is there."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def wait(self) -> None:
        self.reached.set()
        self._open.wait()  # at the latest until the server is closed


@dataclass
class _Item:
    filename: str
    data: bytes | Path
    fields: dict[str, Any]


class SimpleIndex:
    """A Simple API (PEP 503, 691, 700) below one path of a server; files lie below `/files/`."""

    def __init__(self, server: Server, prefix: str, form: str, relative: bool) -> None:
        self._server, self._prefix, self._relative = server, prefix.rstrip("/"), relative
        self._projects: dict[str, list[_Item]] = defaultdict(list)
        self.form = form
        self.url = server.url + self._prefix + "/"
        server.route(self._prefix + "/", self._answer)

    def add(
        self,
        project: str,
        filename: str,
        data: bytes | Path = b"",
        *,
        hashed: bool = True,
        sized: bool = True,
        yanked: str | None = None,
        requires_python: str | None = None,
        upload_time: str | None = None,
        digest: str | None = None,
        url: str | None = None,
    ) -> str:
        """List a file and serve it; its address. `digest`: a lying sha256; `url`: it lies elsewhere."""
        path = f"/files/{project}/{filename}"
        address = url or self._server.put(path, data)
        body = data if isinstance(data, bytes) else data.read_bytes()
        href = f"../../files/{project}/{filename}" if self._relative and url is None else address
        fields = {
            "url": href,
            "sha256": (digest or hashlib.sha256(body).hexdigest()) if hashed else None,
            "size": len(body) if sized else None,
            "yanked": yanked,
            "requires-python": requires_python,
            "upload-time": upload_time,
        }
        self._projects[project].append(_Item(filename, data, fields))
        return address

    def remove(self, project: str) -> None:
        """The project was never heard of."""
        self._projects.pop(project, None)

    def _answer(self, request: Request) -> Reply:
        project = request.path[len(self._prefix) + 1 :].strip("/")
        if not request.path.endswith("/"):
            return Reply(status=301, headers={"Location": request.path + "/"})
        if project not in self._projects:
            return Reply(status=404, body=b"no such project")
        as_json = self.form == "json" or (
            self.form == "both" and "+json" in request.headers.get("Accept", "")
        )
        kind = "application/vnd.pypi.simple.v1+json" if as_json else "text/html; charset=utf-8"
        body = self._json(project) if as_json else self._html(project)
        return Reply(headers={"Content-Type": kind}, body=body)

    def _json(self, project: str) -> bytes:
        files = []
        for item in self._projects[project]:
            f = item.fields
            entry: dict[str, Any] = {"filename": item.filename, "url": f["url"], "hashes": {}}
            if f["sha256"]:
                entry["hashes"] = {"sha256": f["sha256"]}
            entry |= {k: f[k] for k in ("size", "requires-python", "upload-time") if f[k] is not None}
            entry["yanked"] = False if f["yanked"] is None else (f["yanked"] or True)
            files.append(entry)
        return json.dumps(
            {"meta": {"api-version": "1.1"}, "name": project, "versions": [], "files": files}
        ).encode()

    def _html(self, project: str) -> bytes:
        lines = []
        for item in self._projects[project]:
            f = item.fields
            attributes = f' href="{html.escape(f["url"])}' + (
                f'#sha256={f["sha256"]}"' if f["sha256"] else '"'
            )
            if f["requires-python"]:
                attributes += f' data-requires-python="{html.escape(f["requires-python"])}"'
            if f["yanked"] is not None:
                attributes += f' data-yanked="{html.escape(f["yanked"])}"'
            lines.append(f"<a{attributes}>{html.escape(item.filename)}</a><br/>")
        return ("<!DOCTYPE html><html><body>" + "\n".join(lines) + "</body></html>").encode()


class Server:
    """See the module."""

    def __init__(self) -> None:
        self.ranges = True
        self.etags = True
        self.seen: list[Request] = []
        self._lock = threading.Lock()
        self._replies: dict[str, Reply] = {}
        self._routes: list[tuple[str, Callable[[Request], Reply]]] = []
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._gates: dict[str, Gate] = {}
        self._logins: dict[str, str] = {}
        self._sent: dict[str, int] = defaultdict(int)
        outer = self

        class Handler(_Handler):
            server_state = outer

        self._http = _Threading(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._http.server_address[1]}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for gate in self._gates.values():
            gate.open()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)

    # ---- what is served

    def put(self, path: str, body: bytes | Path, **headers: str) -> str:
        """Serve this; its address. Headers with `_` for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._replies[path] = Reply(headers={"Content-Type": "application/octet-stream", **named}, body=body)
        return self.url + path

    def redirect(self, path: str, to: str, status: int = 302) -> str:
        self._replies[path] = Reply(status=status, headers={"Location": to})
        return self.url + path

    def remove(self, path: str) -> None:
        self._replies.pop(path, None)

    def body(self, path: str) -> bytes:
        """What is served there."""
        body = self._replies[path].body
        return body if isinstance(body, bytes) else body.read_bytes()

    @property
    def paths(self) -> list[str]:
        """Every path that something was put to."""
        return list(self._replies)

    def route(self, prefix: str, answer: Callable[[Request], Reply]) -> None:
        """All below a path is answered by this; the longest prefix wins, `put` beats it."""
        self._routes.append((prefix, answer))
        self._routes.sort(key=lambda item: -len(item[0]))

    def index(self, prefix: str = "/simple", *, form: str = "both", relative: bool = False) -> SimpleIndex:
        return SimpleIndex(self, prefix, form, relative)

    def login(self, prefix: str, user: str, password: str) -> None:
        """Below this path a login is wanted (401 without)."""
        self._logins[prefix] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def fail(self, path: str, *faults: Fault) -> None:
        """The next requests for this path go wrong, one fault each."""
        self._faults[path].extend(faults)

    def hold(self, path: str) -> Gate:
        """Bodies of this path stop halfway until the gate is opened."""
        return self._gates.setdefault(path, Gate())

    # ---- what happened

    def requests_for(self, path: str, method: str = "GET") -> list[Request]:
        with self._lock:
            return [r for r in self.seen if r.path == path and r.method == method]

    def sent(self, path: str) -> int:
        with self._lock:
            return self._sent[path]

    # ---- for the handler

    def _note(self, request: Request) -> Fault | None:
        with self._lock:
            self.seen.append(request)
            faults = self._faults.get(request.path)
            return faults.popleft() if faults else None

    def _count(self, path: str, amount: int) -> None:
        with self._lock:
            self._sent[path] += amount

    def _reply(self, request: Request) -> Reply:
        for prefix, wanted in self._logins.items():
            if request.path.startswith(prefix) and request.headers.get("Authorization") != wanted:
                return Reply(status=401, headers={"WWW-Authenticate": 'Basic realm="test"'})
        if request.path in self._replies:
            return self._replies[request.path]
        for prefix, answer in self._routes:
            if request.path.startswith(prefix):
                return answer(request)
        return Reply(status=404, body=b"not here")


class _Threading(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that go away are what is tested


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        request = Request(
            method=self.command, path=unquote(parts.path), query=parts.query, headers=self.headers, body=body
        )
        fault = self.server_state._note(request)
        if fault and fault.refuse:
            self._hang_up()
            return
        reply = self.server_state._reply(request)
        if fault and fault.status is not None:
            reply = Reply(status=fault.status, headers=dict(fault.headers), body=fault.body or b"")
        elif fault and fault.body is not None:
            reply = Reply(headers=dict(reply.headers), body=fault.body)
        self._send(request, reply, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _send(self, request: Request, reply: Reply, fault: Fault | None) -> None:
        size = reply.body.stat().st_size if isinstance(reply.body, Path) else len(reply.body)
        headers, status, start, end = dict(reply.headers), reply.status, 0, size
        if status == 200 and request.method in ("GET", "HEAD"):
            tag = headers.get("ETag") or (_etag(reply.body) if self.server_state.etags else "")
            if tag:
                headers["ETag"] = tag
                if request.headers.get("If-None-Match") == tag:
                    status, end = 304, 0
            asked = request.headers.get("Range") if self.server_state.ranges and status == 200 else None
            if self.server_state.ranges:
                headers.setdefault("Accept-Ranges", "bytes")
            if asked and request.headers.get("If-Range", tag) == tag:
                status, start, end = _range(asked, size)
                headers["Content-Range"] = (
                    f"bytes {start}-{end - 1}/{size}" if status == 206 else f"bytes */{size}"
                )
        length = fault.length if fault and fault.length is not None else end - start
        self.send_response(status, HTTPStatus(status).phrase if status in set(HTTPStatus) else "")
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if request.method != "HEAD" and status not in (204, 304):
            stop = min(end, start + fault.drop_after) if fault and fault.drop_after is not None else end
            self._body(request.path, reply.body, start, stop)
            if stop - start != length:  # whoever waits for more must see the end
                self.wfile.flush()
                self._hang_up()

    def _body(self, path: str, body: bytes | Path, start: int, stop: int) -> None:
        gate = self.server_state._gates.get(path)
        half = start + (stop - start) // 2
        for position, chunk in _chunks(body, start, stop, half if gate else None):
            if gate and position >= half:
                gate.wait()
            # Counted first: whoever has read it all may ask before this thread goes on.
            self.server_state._count(path, len(chunk))
            try:
                self.wfile.write(chunk)
            except OSError:
                self.server_state._count(path, -len(chunk))
                raise

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


def _chunks(body: bytes | Path, start: int, stop: int, border: int | None) -> Iterator[tuple[int, bytes]]:
    """(position, bytes); a chunk never spans `border`."""
    position = start
    file = body.open("rb") if isinstance(body, Path) else None
    try:
        if file:
            file.seek(start)
        while position < stop:
            limit = border if border is not None and position < border else stop
            size = min(CHUNK, limit - position)
            chunk = file.read(size) if file else bytes(body[position : position + size])  # type: ignore[index]
            yield position, chunk
            position += len(chunk)
    finally:
        if file:
            file.close()


def _etag(body: bytes | Path) -> str:
    if isinstance(body, Path):
        stat = body.stat()
        return f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _range(text: str, size: int) -> tuple[int, int, int]:
    """(status, start, end) of one range. Source: RFC 9110, section 14."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not match or not (match[1] or match[2]):
        return 200, 0, size
    start = int(match[1]) if match[1] else max(0, size - int(match[2]))
    end = min(size, int(match[2]) + 1) if match[1] and match[2] else size
    return (206, start, end) if start < end else (416, 0, 0)
