"""The environment of a Python on this machine: the interpreter is asked, its files are read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from imagebuilder.errors import UsageProblem
from imagebuilder.snapshot.model import SHORT, Environment, Interpreter, Unreadable
from imagebuilder.values import Platform, Release

_SECONDS = 60
_CHUNK = 1 << 20
_MACHINES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


def read_python(path: Path, label: str) -> Environment:
    """The environment of this interpreter, or of the virtual environment in this folder. UsageProblem."""
    python = path / "bin" / "python" if path.is_dir() else path
    answer = _ask(python, label)
    interpreter = _interpreter(answer, label)
    name = Path("/", interpreter.prefix).name
    if name in (".venv", "venv", "env"):
        name = Path("/", interpreter.prefix).parent.name
    return Environment(label=label, name=name, files=FolderFiles(Path("/")), interpreter=interpreter)


def _ask(python: Path, label: str) -> dict[str, Any]:
    if not python.is_file():
        raise UsageProblem(
            f"{label} is no Python",
            seen=f"no file {python}",
            wanted="an interpreter, or the folder of a virtual environment",
        )
    code = Path(__file__).with_name("ask.py").read_text(encoding="utf-8")
    environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "HOME": "/nonexistent"}
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_python(label, f"no answer in {_SECONDS} seconds") from None
    except OSError as error:
        raise _no_python(label, error.strerror or str(error)) from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        raise _no_python(label, ": ".join([ended, *said])[:300])
    try:
        answer = json.loads(done.stdout.decode("utf-8").strip().splitlines()[-1])
        if answer["imagebuilder"] != 1:
            raise ValueError
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        raise _no_python(label, f"it answers {done.stdout[:100]!r}") from None
    found: dict[str, Any] = answer
    return found


def _no_python(label: str, seen: str) -> UsageProblem:
    return UsageProblem(
        f"{label} is no Python that works", seen=seen, wanted="CPython 3.8 or newer that starts"
    )


def _interpreter(answer: Mapping[str, Any], label: str) -> Interpreter:
    """From an answer, which may be anybody's."""
    try:
        text = {key: str(answer[key]) for key in ("implementation", "version", "system", "machine", "libc")}
        version = Release(re.match(r"[\d.]*\d", text["version"])[0])  # type: ignore[index]
        prefix, base = (str(answer[key]).strip("/") for key in ("prefix", "base"))
        sites = tuple(dict.fromkeys(str(site).strip("/") for site in answer["sites"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _no_python(label, f"its answer lacks {error}") from None
    if text["implementation"] != "cpython" or text["system"] != "linux" or text["machine"] not in _MACHINES:
        raise UsageProblem(
            f"{label} is another Python than images are built for",
            seen=" ".join(text[key] for key in ("implementation", "version", "system", "machine")),
            wanted="CPython on Linux, x86_64 or aarch64",
        )
    if not text["libc"].startswith("glibc"):
        raise UsageProblem(
            f"{label} runs on another C library than images are built for", seen=text["libc"] or "musl?",
            wanted="glibc",
        )  # fmt: skip
    libc = re.search(r"2\.\d+", text["libc"])
    return Interpreter(
        version=version,
        platform=Platform.parse(_MACHINES[text["machine"]]),
        prefix=prefix,
        base=base,
        sites=sites,
        glibc=Release(libc[0]) if libc else None,
    )


class FolderFiles:
    """`Files` below a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def kind(self, path: str) -> str | None:
        """See `Files`."""
        place = self._root / path
        try:
            return "directory" if place.is_dir() else "file" if place.is_file() else None
        except (OSError, ValueError):
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """See `Files`."""
        try:
            return tuple(sorted(entry.name for entry in (self._root / folder).iterdir()))
        except (OSError, ValueError):
            return ()

    def walk(self, folder: str) -> Iterator[str]:
        """See `Files`."""
        for parent, folders, files in os.walk(self._root / folder):
            folders.sort()
            inside = Path(parent).relative_to(self._root).as_posix()
            paths = (f"{inside}/{name}" for name in sorted(files))
            yield from (path for path in paths if self.kind(path) == "file")  # no pipes, no dead links

    def digest(self, path: str) -> str:
        """See `Files`."""
        hashing = hashlib.sha256()
        try:
            with (self._root / path).open("rb", buffering=0) as file:
                while chunk := file.read(_CHUNK):
                    hashing.update(chunk)
        except (OSError, ValueError) as error:
            raise Unreadable(getattr(error, "strerror", None) or str(error)) from None
        return hashing.hexdigest()[:SHORT]

    def executable(self, path: str) -> bool:
        """See `Files`."""
        try:
            return bool((self._root / path).stat().st_mode & 0o100)
        except OSError:
            return False

    def size(self, path: str) -> int:
        """See `Files`."""
        try:
            return (self._root / path).stat().st_size
        except (OSError, ValueError):
            return 0

    def read(self, paths: Iterable[str], limit: int) -> Mapping[str, bytes]:
        """See `Files`."""
        found: dict[str, bytes] = {}
        for path in paths:
            try:
                with (self._root / path).open("rb") as file:
                    data = file.read(limit + 1)
            except (OSError, ValueError):
                continue
            if len(data) <= limit:
                found[path] = data
        return found
