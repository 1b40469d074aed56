"""Directories and files that appear whole under their name, or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from imagebuilder.errors import MachineLacks, UsageProblem

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_FICLONE = 0x40049409
_OTHER_PLACE = "choose another place with --output"
YOUR_FOLDER = "run it in a folder that you may write"
"""The advice where what is written goes to the current folder."""
_ATTEMPTS = 100  # others may take a new name for stale; where none can be made, as in /proc, it ends


@contextmanager
def errors_of_writing(path: Path, hint: str = _OTHER_PLACE) -> Iterator[None]:
    """Turns what the file system refuses (full, read-only, not allowed) into MachineLacks."""
    try:
        yield
    except OSError as exc:
        if exc.errno is None:
            raise
        advice = {
            errno.ENOSPC: f"free some space on the file system of {path.parent}",
            errno.EDQUOT: f"free some of your quota on the file system of {path.parent}",
        }
        raise MachineLacks(
            f"{path} cannot be written",
            seen=exc.strerror or str(exc),
            hint=advice.get(exc.errno, hint),
        ) from exc


def check_writable(target: Path, hint: str = _OTHER_PLACE) -> None:
    """MachineLacks where nothing can be made at `target`: asked before long work, so that none of it is lost.

    hint: what helps where it is not allowed.
    """
    folder = target.parent
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        refused = errno.ENOTDIR
    elif os.access(folder, os.W_OK | os.X_OK):
        return
    else:
        refused = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    with errors_of_writing(target, hint):
        raise OSError(refused, os.strerror(refused))


@contextmanager
def new_file(target: Path, hint: str = _OTHER_PLACE) -> Iterator[BinaryIO]:
    """A file to write, renamed to `target` when the block ends well; otherwise nothing is left.

    What stands at `target` is replaced, unless it is a directory. What killed processes left beside it is
    removed. hint: where `target` may not be written. UsageProblem, MachineLacks.
    """
    if target.is_dir():
        raise UsageProblem(f"{target} is a directory, a file was to be written there", hint="name a file")
    with errors_of_writing(target, hint):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target)
        temporary, handle = _claim(
            target, lambda new: os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        )
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(target)  # before its lock is gone
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(target.parent)


@contextmanager
def new_directory(target: Path, *, marker: str, others: Collection[str] = ()) -> Iterator[Path]:
    """A directory to fill, put in the place of `target` when the block ends well; otherwise nothing is left.

    What stands at `target` is replaced as `check_directory` says. Directories that a killed process left
    beside it are removed. UsageProblem, MachineLacks.
    """
    check_directory(target, marker=marker, others=others)
    with errors_of_writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target)
        temporary, lock = _claim(target, _make_directory)
        try:
            yield temporary
            for folder, _, _ in os.walk(temporary):
                sync_directory(Path(folder))
            _put_in_place(temporary, target)
            sync_directory(target.parent)
        finally:
            os.close(lock)
            shutil.rmtree(temporary, ignore_errors=True)  # after success: what stood there before


def check_directory(target: Path, *, marker: str, others: Collection[str] = ()) -> None:
    """UsageProblem where `new_directory` would destroy what is not its own.

    It replaces an empty directory, and one with the file `marker` and nothing but it and `others`.
    MachineLacks where nothing can be written there.
    """
    check_writable(target)
    if not (target.is_symlink() or target.exists()):
        return
    if target.is_symlink() or not target.is_dir():
        raise UsageProblem(f"{target} exists and is not a directory", hint="remove it, or name another place")
    with errors_of_writing(target):
        names = {path.name for path in target.iterdir()}
        whole = (target / marker).is_file()
    strange = sorted(names - {marker, *others})
    if names and (strange or not whole):
        raise UsageProblem(
            f"{target} is not empty and {f'holds {strange[0]}' if whole else f'holds no {marker}'}: "
            "it is not replaced",
            hint="name a new or an empty directory, or remove this one yourself",
        )


def link_or_copy(source: Path, target: Path) -> None:
    """`target` with the bytes of `source`: a hard link, else a clone of its blocks, else a copy."""
    with suppress(OSError):  # another file system, too many links, protected: all end in a copy
        os.link(source, target)
        return
    with source.open("rb") as src, target.open("xb") as dst:
        try:
            fcntl.ioctl(dst.fileno(), _FICLONE, src.fileno())
        except OSError:
            shutil.copyfileobj(src, dst, 1 << 20)
        dst.flush()
        os.fsync(dst.fileno())


def give(source: Path, target: Path, hint: str = _OTHER_PLACE) -> None:
    """`target` is `source` by a hard link, in the place of what stood there; where that cannot be, a copy.

    hint: where `target` may not be written. MachineLacks.
    """
    with suppress(OSError):
        target.unlink(missing_ok=True)
        os.link(source, target)
        return
    with new_file(target, hint) as out, source.open("rb") as data:
        shutil.copyfileobj(data, out, 1 << 20)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_directory(new: Path) -> int:
    new.mkdir()
    return os.open(new, os.O_RDONLY)


def _claim(target: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Something new beside `target`, open and locked, so that nobody takes it for stale."""
    for _ in range(_ATTEMPTS):
        temporary = _beside(target)
        try:
            handle = make(temporary)
        except FileNotFoundError:
            if target.parent.is_dir():  # taken for stale before it was open
                continue
            raise
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if temporary.exists():
            return temporary, handle
        os.close(handle)  # taken for stale before it was locked
    raise FileNotFoundError(errno.ENOENT, "nothing can be made there", str(target.parent))


def _beside(target: Path) -> Path:
    return target.parent / f"{_prefix(target)}{secrets.token_hex(8)}"


def _prefix(target: Path) -> str:
    return f".{target.name}.imagebuilder-"


def _remove_stale(target: Path) -> None:
    for old in target.parent.glob(f"{glob.escape(_prefix(target))}*"):
        if old.is_symlink():
            continue
        with suppress(OSError):  # another process is at work on it, or has removed it
            handle = os.open(old, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if old.is_dir():
                    shutil.rmtree(old, ignore_errors=True)
                else:
                    old.unlink()
            finally:
                os.close(handle)


def _put_in_place(new: Path, target: Path) -> None:
    """Swaps the two in one step where the system can; then `new` is what stood at `target`."""
    try:
        new.rename(target)  # succeeds where nothing or an empty directory stands
        return
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    libc = ctypes.CDLL(None, use_errno=True)
    with suppress(AttributeError):  # a C library without renameat2
        if not libc.renameat2(
            _AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(_RENAME_EXCHANGE)
        ):
            return
    old = _beside(target)
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    old.rename(new)
