"""From a stack file to a Stack: every problem at once, each with its key, none of them a traceback."""

from __future__ import annotations

import codecs
import dataclasses
from pathlib import Path, PurePosixPath
from typing import Any

import tomli

from imagebuilder.errors import Problem, StackInvalid, UsageProblem
from imagebuilder.stack import rules
from imagebuilder.stack.grammar import Folder, Place, Wrong, shown
from imagebuilder.stack.keys import STACK
from imagebuilder.stack.model import DebianBase, Stack, System

MAX_STACK_BYTES = 1 << 20
MAX_FILE_BYTES = 16 << 20
MAX_MATCHES = 1000


def load_stack(path: Path) -> Stack:
    """The stack in this file, with the patches and files it names beside it.

    Raises StackInvalid with every problem found.
    """
    data = _read_file(path)
    return parse_stack(data, file=str(path), folder=FolderOnDisk(path.parent), path=path)


def parse_stack(data: bytes, *, file: str, folder: Folder, path: Path | None = None) -> Stack:
    """The stack in these bytes; `file` is what errors call it. Raises StackInvalid."""
    raw = _parse_toml(data, file)
    if "lock-version" in raw and "schema" not in raw:
        raise UsageProblem(f"{file} is a lock (PEP 751), not a stack file", hint=_stack_of_lock(path))
    place = Place(folder=folder, names={"index": _declared_indexes(raw), "system": _written(raw, "system")})
    version = raw.get("schema")
    if isinstance(version, int) and not isinstance(version, bool) and version != 1:
        hint = "a newer imagebuilder may know it" if version > 1 else "write schema = 1"
        raise StackInvalid(
            file, [Problem(key="schema", message=f"{version} is not known here, 1 is", hint=hint)]
        )
    fields = STACK.read_fields(raw, place)
    assert not isinstance(fields, Wrong)  # a parsed TOML file is a table
    rules.check(fields, place)
    if place.problems:
        raise StackInvalid(file, place.problems)
    return _assemble(fields, place, path)


def _stack_of_lock(path: Path | None) -> str:
    """Which stack file to give instead: the one that lies beside the lock and whose name it bears."""
    name = path.name.removeprefix("pylock.") if path and path.name != "pylock.toml" else ""
    beside = path.with_name(name) if path and name != path.name and name else None
    if beside and beside.is_file():
        return f"give the stack that it was made from: {beside}"
    return "give the stack that it was made from: its name, or the path of its .toml file"


def _assemble(fields: dict[str, Any], place: Place, path: Path | None) -> Stack:
    deploy = fields.pop("deploy", {})
    system = fields.pop("system", System())
    if isinstance(fields["base"], DebianBase) and "resolve" not in place.names["system"]:
        system = dataclasses.replace(system, resolve="lock")
    return Stack(
        **fields,
        system=system,
        deploy_docker=deploy.get("docker"),
        deploy_kubernetes=deploy.get("kubernetes"),
        path=path,
    )


def _parse_toml(data: bytes, file: str) -> dict[str, Any]:
    if data.startswith(codecs.BOM_UTF8):
        raise StackInvalid(
            file, [Problem(key="line 1", message="begins with a byte order mark: save it as UTF-8")]
        )
    try:
        return tomli.loads(data.decode())
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise StackInvalid(file, [Problem(key=f"line {line}", message="is not UTF-8")]) from None
    except tomli.TOMLDecodeError as problem:
        where = f"line {problem.lineno}, column {problem.colno}"
        raise StackInvalid(file, [Problem(key=where, message=f"is not TOML: {problem.msg}")]) from None
    except (RecursionError, ValueError, OverflowError) as problem:
        message = f"is not TOML that can be read: {shown(str(problem), 100)}"
        raise StackInvalid(file, [Problem(key="the file", message=message)]) from None


def _declared_indexes(raw: dict[str, Any]) -> list[str]:
    indexes = raw.get("index")
    entries = indexes if isinstance(indexes, list) else []
    return [e["name"] for e in entries if isinstance(e, dict) and isinstance(e.get("name"), str)]


def _written(raw: dict[str, Any], table: str) -> list[str]:
    value = raw.get(table)
    return list(value) if isinstance(value, dict) else []


def _read_file(path: Path) -> bytes:
    message = ""
    try:
        if not path.is_file():
            message = "is not a file" if path.exists() else "there is no such file"
        elif path.stat().st_size > MAX_STACK_BYTES:
            message = f"is larger than a stack file can be ({MAX_STACK_BYTES} bytes)"
        else:
            return path.read_bytes()
    except OSError as problem:
        message = f"cannot be read: {problem.strerror}"
    raise StackInvalid(str(path), [Problem(key="the file", message=message)])


class FolderOnDisk:
    """The files below a folder; a link that leads out of it is refused."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def glob(self, pattern: str) -> list[str]:
        """See `grammar.Folder`."""
        try:
            found = [p for p in self._root.glob(pattern) if p.is_file()]
        except (ValueError, NotImplementedError, IndexError, OSError) as problem:
            raise ValueError(f"{shown(pattern)} is not a pattern that can be used: {problem}") from None
        if len(found) > MAX_MATCHES:
            raise ValueError(f"{shown(pattern)} matches {len(found)} files")
        return sorted(p.relative_to(self._root).as_posix() for p in found)

    def read(self, path: str) -> bytes:
        """See `grammar.Folder`."""
        inside = self._root / PurePosixPath(path)
        try:
            real = inside.resolve(strict=True)
            if not real.is_relative_to(self._root.resolve()):
                raise ValueError(f"{path} leads out of the stack file's folder")
            if not real.is_file():
                raise ValueError(f"{path} is not a file")
            if real.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
            return real.read_bytes()
        except (OSError, RuntimeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "links in a circle"
            raise ValueError(f"{path} cannot be read: {reason}") from None
