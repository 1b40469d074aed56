"""file:// addresses in the same session: an index in a folder (a disk carried in, a mirror on NFS).

A folder is answered with its index.html or index.json; ranges work as over HTTP.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import requests
from requests.adapters import BaseAdapter
from urllib3 import HTTPResponse

_PAGES = (("index.json", "application/vnd.pypi.simple.v1+json"), ("index.html", "text/html"))
_REASONS = {
    200: "OK",
    206: "Partial Content",
    403: "Forbidden",
    404: "Not Found",
    416: "Range Not Satisfiable",
}


class FileAdapter(BaseAdapter):
    """Answers GET and HEAD for file:// addresses as an HTTP server would."""

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """The file, a range of it, or 404."""
        path, kind = _find(Path(unquote(urlsplit(request.url or "").path)))
        try:
            if not path.is_file():
                return _answer(request, 404)
            size, modified = path.stat().st_size, path.stat().st_mtime_ns
            headers = {"Content-Type": kind, "ETag": f'"{modified:x}-{size:x}"', "Accept-Ranges": "bytes"}
            if request.headers.get("If-None-Match") == headers["ETag"]:
                return _answer(request, 304, headers)
            asked = request.headers.get("Range", "")
            start, end = _range(asked, size) if asked else (0, size)
            if asked and start >= end:
                return _answer(request, 416, headers | {"Content-Range": f"bytes */{size}"})
            if asked:
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
            headers["Content-Length"] = str(end - start)
            body = _Part(path, start, end) if request.method == "GET" else io.BytesIO()
            return _answer(request, 206 if asked else 200, headers, body)
        except OSError:
            return _answer(request, 403)

    def close(self) -> None:
        """Nothing is kept open."""


class _Part(io.RawIOBase):
    """The bytes from `start` to `end` of a file."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        super().__init__()
        self._file = path.open("rb")
        self._file.seek(start)
        self._left = end - start

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()
        super().close()


def _find(path: Path) -> tuple[Path, str]:
    if path.is_dir():
        for name, kind in _PAGES:
            if (path / name).is_file():
                return path / name, kind
    return path, "text/html" if path.suffix == ".html" else "application/octet-stream"


def _range(text: str, size: int) -> tuple[int, int]:
    """(start, end) of a Range header with one range, cut to the file. Source: RFC 9110, section 14."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not match or not (match[1] or match[2]):
        return 0, size
    if not match[1]:
        return max(0, size - int(match[2])), size
    return int(match[1]), min(size, int(match[2]) + 1) if match[2] else size


def _answer(
    request: requests.PreparedRequest, status: int, headers: dict[str, str] | None = None, body: Any = None
) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response.reason = _REASONS.get(status, "")
    response.request = request
    response.url = request.url or ""
    response.headers.update(headers or {})
    response.raw = HTTPResponse(
        body or io.BytesIO(),
        headers=headers,
        status=status,
        preload_content=False,
        request_method=request.method,
    )
    return response
