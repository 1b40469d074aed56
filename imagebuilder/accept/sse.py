"""Server-sent events, read incrementally. Pure. Source: WHATWG HTML, section 9.2.6."""

from __future__ import annotations

MAX_EVENT = 16 << 20
"""Bytes of an event that is still believed; cumulative answers of 100,000 tokens are smaller."""


class EventReader:
    """Takes pieces of a stream as they come, and gives the data of every event that is complete.

    Lines may end in LF or CRLF. Comments and fields other than `data` are passed over.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that this piece completes, in order. ValueError where one never ends."""
        if not self._rest and piece[:6] == b"data: " and piece.find(b"\n\n") == len(piece) - 2:
            line = piece[6:-2]  # one whole event, which nearly all pieces are
            if b"\n" not in line and b"\r" not in line:
                return [line]
        *whole, self._rest = (self._rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError(f"an event of more than {MAX_EVENT >> 20} MiB")
        return [data for event in whole if (data := _data(event)) is not None]

    @property
    def inside(self) -> bool:
        """Whether a stream that ended here broke off within an event."""
        return bool(self._rest.strip())


def _data(event: bytes) -> bytes | None:
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
