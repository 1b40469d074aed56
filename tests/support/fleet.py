"""Docker Engines as nodes of one buildx builder: no image of BuildKit is needed.

dockerd serves BuildKit's own protocol behind an upgraded HTTP request (`POST /grpc`). Each proxy here makes
that request and passes bytes on, so that buildx's `remote` driver finds a BuildKit at a Unix socket.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.engine import TestEngine

_UPGRADE = b"POST /grpc HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"


@contextlib.contextmanager
def fleet(engines: Sequence[TestEngine], folder: Path) -> Iterator[str]:
    """A buildx builder with these engines as nodes; its name. Gone at the end."""
    name = f"fleet-{secrets.token_hex(4)}"
    first = engines[0]
    with contextlib.ExitStack() as stack:
        for number, engine in enumerate(engines):
            path = folder / f"node{number}.sock"
            stack.enter_context(_proxy(path, engine.host.removeprefix("unix://")))
            more = ["--append"] if number else []
            first.docker("buildx", "create", "--name", name, "--driver", "remote", *more, f"unix://{path}")
        stack.callback(first.docker, "buildx", "rm", "--force", name)
        yield name


@contextlib.contextmanager
def _proxy(path: Path, engine: str) -> Iterator[None]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    open_sockets: list[socket.socket] = [listening]

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                server = socket.socket(socket.AF_UNIX)
                open_sockets.extend((client, server))
                server.connect(engine)
                server.sendall(_UPGRADE)
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += server.recv(1) or b"ended\r\n\r\n"
                assert b" 101 " in answer.split(b"\r\n")[0], answer
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        for opened in open_sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        thread.join(10)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
