"""The cache on this machine: artefacts by sha256, small records, locks, temporary files.

    artefacts/sha256/ab/<hex>    whole, verified, read-only files
    partial/<hex>                the beginning of one, to be resumed
    records/KIND/ab/<hex>        small results under a key, each with its own checksum
    layers/                      the direct builder's
    locks/  tmp/

Many processes share it. Nothing has its final name before it is whole and verified, so a kill leaves only
what is in `partial/` and `tmp/`: resumed, or removed by `prune`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from imagebuilder.errors import MORE_FILES, ArtefactUnusable, MachineLacks
from imagebuilder.values import Digest

_CHUNK = 1 << 20
_KIND = re.compile(r"[a-z][a-z0-9-]*")
STALE = 7 * 24 * 3600.0
"""Seconds after which nobody comes back to a partial download or a temporary file."""
_BIRTH = 60.0  # a temporary folder so young may not have its lock yet


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the file system refuses while `path` is written into MachineLacks with advice."""
    try:
        yield
    except OSError as error:
        place = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, hint = (
                f"no space is left for {place}",
                "free some, or set IMAGEBUILDER_CACHE_DIR to another disk",
            )
        elif error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            what, hint = (
                f"{place} cannot be written",
                "set IMAGEBUILDER_CACHE_DIR to a folder that you may write",
            )
        elif error.errno in (errno.ENOTDIR, errno.EEXIST):
            what, hint = f"{place} cannot be written", "set IMAGEBUILDER_CACHE_DIR to a folder"
        elif error.errno in (errno.EMFILE, errno.ENFILE):
            what, hint = f"{place} cannot be opened", MORE_FILES
        elif error.errno in (errno.EFBIG, errno.EIO):
            what, hint = f"{place} cannot be written", ""
        else:
            raise
        raise MachineLacks(what, seen=os.strerror(error.errno), hint=hint) from error


class Cancelled(Exception):
    """Waiting for a lock was given up."""


class Incoming:
    """An artefact that is being written: hashed as it comes, resumed where an earlier try stopped.

    Has a `write` and so can be given to whatever writes to a file. `size`: bytes there so far. `resumed`:
    some of them come from an earlier try. `validator`: the server's name (ETag) for what is being written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = path.with_name(f"{path.name}.validator")
        self.size = 0
        self._hash = hashlib.sha256()
        self._file = path.open("a+b", buffering=0)
        self._file.seek(0)
        while chunk := self._file.read(_CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)
        self.resumed = self.size > 0

    @property
    def digest(self) -> Digest:
        """Of what is there so far."""
        return Digest.from_hex(self._hash.hexdigest())

    def write(self, data: bytes) -> int:
        """Append."""
        view = memoryview(data)
        while view:
            written = self._file.write(view)  # unbuffered: may be short just before the disk is full
            self._hash.update(view[:written])
            self.size += written
            view = view[written:]
        return len(data)

    def restart(self) -> None:
        """Forget what is there and begin again."""
        self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.size = 0
        self.resumed = False
        self._note.unlink(missing_ok=True)

    @property
    def validator(self) -> str:
        """Empty where none is known."""
        try:
            return self._note.read_text(encoding="latin-1")
        except OSError:
            return ""

    @validator.setter
    def validator(self, text: str) -> None:
        if text != self.validator:  # torn by a kill it fits nothing, and the file begins again: no harm
            self._note.write_text(text, encoding="latin-1")

    def sync(self) -> None:
        """Bring it to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Leave it as it is, to be resumed; nothing is left where there is nothing to resume."""
        self._file.close()
        if not self.size or not self.path.exists():
            self.path.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)


class Cache:
    """The cache below one folder, which is made when something is first written."""

    def __init__(self, root: Path) -> None:
        self.root = root

    # ------------------------------------------------------------------ artefacts

    def _artefact_path(self, digest: Digest) -> Path:
        return self.root / "artefacts" / "sha256" / digest.hex[:2] / digest.hex

    def artefact(self, digest: Digest) -> Path | None:
        """The whole, once verified file with that sha256, or None."""
        path = self._artefact_path(digest)
        return path if path.is_file() else None

    @contextlib.contextmanager
    def put_artefact(
        self, digest: Digest, cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[Incoming | None]:
        """Write the artefact with that sha256; None: it is there (perhaps another process just wrote it).

        One process at a time. When the block ends well, the bytes are verified and get their name; wrong ones
        are removed and raise ArtefactUnusable. When it ends badly, they stay, to be resumed.
        """
        with self.lock(f"artefact-{digest.hex}", cancelled):
            if self.artefact(digest):
                yield None
                return
            path = self.root / "partial" / digest.hex
            with storage_errors(path):
                _make_folder(path.parent)
                incoming = Incoming(path)
                try:
                    yield incoming
                    if incoming.digest != digest:
                        seen = str(incoming.digest)
                        incoming.restart()
                        raise ArtefactUnusable(
                            "what was to be cached is something else", seen=seen, wanted=str(digest)
                        )
                    incoming.sync()
                    self._publish(path, digest)
                finally:
                    incoming.close()

    def adopt(self, path: Path, digest: Digest, *, proven: bool = False) -> Path:
        """Move a file made here (in a folder of `temporary`) to the artefacts, verified.

        proven: the caller hashed these bytes while writing them, so they are not read again.
        """
        with storage_errors(path), path.open("rb") as file:
            if not proven and (seen := _digest_of(path)) != digest:
                raise ArtefactUnusable(f"{path.name} has another sha256", seen=str(seen), wanted=str(digest))
            os.fsync(file.fileno())
            self._publish(path, digest)
        return self._artefact_path(digest)

    def partial_bytes(self, digests: Iterable[Digest]) -> int:
        """How much of these is here already, to be resumed."""
        paths = (self.root / "partial" / digest.hex for digest in digests)
        return sum(path.stat().st_size for path in paths if path.is_file())

    def verify(self, digest: Digest) -> Path | None:
        """As `artefact`, but read and hashed again; one that has rotted is removed, and None."""
        path = self.artefact(digest)
        if path and _digest_of(path) != digest:
            path.unlink()
            return None
        return path

    def _publish(self, path: Path, digest: Digest) -> None:
        final = self._artefact_path(digest)
        _make_folder(final.parent)
        path.replace(final)
        final.chmod(0o444)  # after the renaming: a partial file that cannot be opened again helps nobody
        _sync_folder(final.parent)

    # ------------------------------------------------------------------ records

    def _record_path(self, kind: str, key: str) -> Path:
        if not _KIND.fullmatch(kind):
            raise ValueError(f"{kind!r} is not a kind of record: lower-case letters, digits and -")
        name = hashlib.sha256(key.encode()).hexdigest()
        return self.root / "records" / kind / name[:2] / name

    def read_record(self, kind: str, key: str) -> bytes | None:
        """What was last written under that key; None: nothing, or something torn by a power failure."""
        try:
            stored = self._record_path(kind, key).read_bytes()
        except OSError:
            return None
        checksum, _, data = stored.partition(b"\n")
        return data if checksum == hashlib.sha256(data).hexdigest().encode() else None

    def write_record(self, kind: str, key: str, data: bytes) -> None:
        """Keep small data under a key, whole or not at all. Not synced: only what can be made again."""
        path = self._record_path(kind, key)
        with storage_errors(path):
            _make_folder(path.parent)
            with self._temporary_file() as (temporary, file):
                file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
                file.flush()
                temporary.chmod(0o644)
                temporary.replace(path)

    # ------------------------------------------------------------------ locks and temporary files

    @contextlib.contextmanager
    def lock(self, name: str, cancelled: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Exclude other threads and processes that use this name; waits for them.

        `cancelled` is asked twice a second while waiting; when it says yes, Cancelled is raised.
        """
        import filelock

        path = self.root / "locks" / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)[:150]}.lock"
        with storage_errors(path):
            _make_folder(path.parent)
            lock = filelock.FileLock(path)
            while True:
                try:
                    lock.acquire(timeout=0.5)
                    break
                except filelock.Timeout:
                    if cancelled():
                        raise Cancelled from None
                except NotImplementedError:
                    raise MachineLacks(
                        f"the file system of {path.parent} has no file locks",
                        hint="set IMAGEBUILDER_CACHE_DIR to a folder on a local disk",
                    ) from None
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Path]:
        """A folder on the cache's file system, removed at the end; after a kill, by `prune`."""
        folder = self.root / "tmp"
        with storage_errors(folder):
            _make_folder(folder)
            made = Path(tempfile.mkdtemp(dir=folder))
            alive = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: then age alone decides
                fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
            os.close(alive)

    @contextlib.contextmanager
    def _temporary_file(self) -> Iterator[tuple[Path, tempfile._TemporaryFileWrapper[bytes]]]:
        folder = self.root / "tmp"
        _make_folder(folder)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                yield Path(file.name), file
            finally:
                Path(file.name).unlink(missing_ok=True)

    def require_space(self, size: int) -> None:
        """MachineLacks where the cache's disk has less than `size` bytes free."""
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        if free < size:
            raise MachineLacks(
                f"the disk of {folder} is too full",
                seen=f"{free / 1e9:.2f} GB free",
                wanted=f"{size / 1e9:.2f} GB",
                hint="free some, or set IMAGEBUILDER_CACHE_DIR to another disk",
            )

    def prune(self, now: float, older_than: float = STALE) -> int:
        """Remove what killed processes left: temporary folders without an owner, and partial downloads and
        other temporary files untouched for so many seconds. Bytes freed.
        """
        freed = 0
        for path in (*self._entries("partial"), *self._entries("tmp")):
            with contextlib.suppress(OSError):  # in use, or removed by another process
                newest, size = _age_and_size(path)
                age = now - newest
                if age < older_than and not (age > _BIRTH and path.is_dir() and _is_orphan(path)):
                    continue
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                freed += size
        return freed

    def _entries(self, folder: str) -> list[Path]:
        try:
            return sorted((self.root / folder).iterdir())
        except OSError:
            return []


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # as in /proc: what is above is there, and nothing can be made in it
        raise MachineLacks(
            f"{folder} cannot be made",
            seen=error.strerror or "",
            hint="set IMAGEBUILDER_CACHE_DIR to a folder that you may write",
        ) from None


def _digest_of(path: Path) -> Digest:
    hashing = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hashing.update(chunk)
    return Digest.from_hex(hashing.hexdigest())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_orphan(folder: Path) -> bool:
    """Whether the process that made this temporary folder is gone (the kernel has released its lock)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _age_and_size(path: Path) -> tuple[float, int]:
    """(newest mtime, bytes) of a file or of all that is in a folder."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    stats = [file.lstat() for file in files]
    return max(s.st_mtime for s in stats), sum(s.st_size for s in stats)
