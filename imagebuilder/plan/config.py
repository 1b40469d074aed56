"""How the image is started: environment, entry point, user, labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_COMMAND = ("python3",)
"""What an image on a Debian base runs when its stack says nothing; another base has its own command."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The part of an OCI image config that the stack decides.

    environment: the stack's own entries, in its order. labels: sorted by key. ports: as `30000/tcp`.
    An empty entrypoint or command keeps the base image's.
    """

    environment: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    ports: tuple[str, ...] = ()


def merged_environment(
    base: Iterable[tuple[str, str]], own: Iterable[tuple[str, str]], venv: str
) -> tuple[tuple[str, str], ...]:
    """The image's `Env`: the base's entries, the virtual environment first on PATH, then the stack's entries.

    An entry of the stack replaces the base's in its place; PATH named by the stack is taken as it is.
    """
    entries = dict(base)
    entries["PATH"] = f"{venv}/bin:{entries.get('PATH', DEFAULT_PATH)}"
    entries["VIRTUAL_ENV"] = venv
    entries.update(own)
    return tuple(entries.items())
