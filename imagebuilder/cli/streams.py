"""Standard output and error of the process, whatever is at their other end."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO


def standard_streams() -> tuple[TextIO, TextIO]:
    """Standard output and standard error, to which writing goes on when nobody reads any more.

    A reader that left (`| head -1`), or a stream that was closed from the start (`2>&-`), changes neither
    what a verb does nor its exit code: what is written is dropped. In a C locale too, an arrow or a name is
    no reason to fail.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:  # else the next file that is opened gets this number, and is written into
            os.open(os.devnull, os.O_RDWR)
    return _stream(1, sys.stdout), _stream(2, sys.stderr)


def _stream(number: int, given: TextIO | None) -> TextIO:
    raw = _Patient(number, "wb", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=given.encoding if given else None,  # None: a closed one has none
        errors="backslashreplace",
        line_buffering=number == 2 or raw.isatty(),
    )


class _Patient(io.FileIO):
    """A file that drops what is written to it once its reader is gone, or once it could not be written."""

    def write(self, data: object, /) -> int:
        """As a file. OSError, once, where the fault is not the reader's leaving."""
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())  # for child processes too
            os.close(nowhere)
            if error.errno != errno.EPIPE:
                raise
            return super().write(data)  # type: ignore[arg-type]
