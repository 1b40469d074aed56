"""The server's side of SPDY/3.1, as far as `kubectl port-forward` speaks it: streams to a local port.

Sources: the SPDY/3 draft (frames, header blocks and their dictionary); client-go,
tools/portforward (for each connection an error stream, which is closed at once, and a data stream).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import zlib
from io import BufferedIOBase

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_FIN = 1
_WORDS = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age
allow authorization cache-control connection content-base content-encoding content-language content-length
content-location content-md5 content-range content-type date etag expect expires from host if-match
if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma
proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade
user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie
keep-alive origin
"""
_TAIL = (
    b"100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    b"203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    b"403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    b"Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    b"chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    b"text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = (
    b"".join(struct.pack(">I", len(w)) + w.replace(b"_", b" ") for w in _WORDS.encode().split()) + _TAIL
)


class Session:
    """One connection of kubectl; `serve` returns when it ends."""

    def __init__(self, reading: BufferedIOBase, connection: socket.socket) -> None:
        self._reading, self._connection = reading, connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj()
        self._targets: dict[int, socket.socket] = {}
        self._errors: set[int] = set()

    def serve(self) -> None:
        with contextlib.suppress(OSError, struct.error):
            while header := self._reading.read(8):
                first, second = struct.unpack(">II", header)
                flags, data = second >> 24, self._reading.read(second & 0xFFFFFF)
                if first >> 31 == 0:
                    self._data(first, flags, data)
                elif not self._control(first & 0xFFFF, data):
                    break
        self.close()

    def close(self) -> None:
        for target in list(self._targets.values()):
            target.close()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _control(self, kind: int, data: bytes) -> bool:
        if kind == _SYN_STREAM:
            (stream,) = struct.unpack(">I", data[:4])
            self._opened(stream, self._headers(data[10:]))
        elif kind == _PING:
            self._send(0x80030000 | _PING, 0, data)
        elif kind == _RST_STREAM:
            target = self._targets.pop(struct.unpack(">I", data[:4])[0], None)
            if target:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_RDWR)
        return kind != _GOAWAY

    def _headers(self, block: bytes) -> dict[str, str]:
        data = self._inflate.decompress(block)
        words, at = [], 4
        while at < len(data):
            (size,) = struct.unpack(">I", data[at : at + 4])
            words.append(data[at + 4 : at + 4 + size].decode().lower())
            at += 4 + size
        return dict(zip(words[::2], words[1::2], strict=True))

    def _opened(self, stream: int, headers: dict[str, str]) -> None:
        none = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._send(0x80030000 | _SYN_REPLY, 0, struct.pack(">I", stream) + none)
        if headers["streamtype"] == "error":
            self._errors.add(stream)
            return
        # Refused: a real one says so on the error stream, and kubectl gives up the whole connection.
        target = socket.create_connection(("127.0.0.1", int(headers["port"])))
        target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._targets[stream] = target
        threading.Thread(target=self._pump, args=(stream, target), daemon=True).start()

    def _data(self, stream: int, flags: int, data: bytes) -> None:
        if stream in self._errors:
            if flags & _FIN:
                self._send(stream, _FIN, b"")
            return
        target = self._targets.get(stream)
        if target is not None:
            with contextlib.suppress(OSError):
                target.sendall(data)
                if flags & _FIN:
                    target.shutdown(socket.SHUT_WR)

    def _pump(self, stream: int, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := target.recv(1 << 16):
                self._send(stream, 0, data)
        with contextlib.suppress(OSError):
            self._send(stream, _FIN, b"")
        target.close()

    def _send(self, first: int, flags: int, data: bytes) -> None:
        with self._lock:
            self._connection.sendall(struct.pack(">II", first, flags << 24 | len(data)) + data)
