"""A wire that breaks: a proxy on loopback that cuts its first connections after so many bytes.

with cutting(registry.host, [1000, 250_000]) as host:
    ...                        # the first two connections break, every later one holds
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence

_PIECE = 1 << 14


@contextlib.contextmanager
def cutting(target: str, limits: Sequence[int]) -> Iterator[str]:
    """limits: bytes that each of the first connections carries, both ways together. Yields `host:port`."""
    address, _, port = target.partition(":")
    left = list(reversed(limits))
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []
    listening = socket.create_server(("127.0.0.1", 0))
    opened.append(listening)

    def start(work: threading.Thread) -> None:
        threads.append(work)
        work.start()

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            server = socket.create_connection((address, int(port)))
            opened.extend((client, server))
            wire = _Wire(client, server, left.pop() if left else None)
            for source, sink in ((client, server), (server, client)):
                start(threading.Thread(target=wire.carry, args=(source, sink), daemon=True))

    start(threading.Thread(target=serve, daemon=True))
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        for one in list(opened):
            _close(one)
        for thread in list(threads):
            thread.join(10)


class _Wire:
    """One connection through the proxy. left: bytes until it breaks; None: it holds."""

    def __init__(self, client: socket.socket, server: socket.socket, left: int | None) -> None:
        self.ends, self.left = (client, server), left
        self.lock = threading.Lock()

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                with self.lock:
                    kept = data if self.left is None else data[: self.left]
                    if self.left is not None:
                        self.left -= len(kept)
                sink.sendall(kept)
                if len(kept) < len(data):
                    break
            else:
                sink.shutdown(socket.SHUT_WR)
                return
        for end in self.ends:
            _close(end)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
