"""Ports for servers that cannot choose their own: of containers, of pods, of what is installed in an image.

with ExitStack() as held:
    first = free_ports(3, held)       # first, first + 1 and first + 2 are this test's until the stack ends
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack

from imagebuilder.accept.process import FreePort


def free_ports(count: int, held: ExitStack) -> int:
    """The first of so many ports in a row (at most 4), held until `held` is closed.

    Below those that kernels and engines give to whoever asks for any.
    """
    while True:
        with ExitStack() as taken:
            first = 20000 + 4 * secrets.randbelow(3000)
            try:
                for number in range(first, first + count):
                    taken.callback(FreePort("0.0.0.0", number).close)
            except OSError:  # somebody has it
                continue
            held.push(taken.pop_all())
            return first
