"""The peer of a check: two processes that read and unpack the same bytes, and look at none of them.

`python -m benchmarks.unpack STACK`: what a cold `check STACK` must read of wheels and Debian packages in this
user's cache. isal for deflate, nothing hashed. Prints its cost and the bytes as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
import zipfile
from pathlib import Path

from benchmarks import subject
from imagebuilder.cache import Cache
from imagebuilder.facts.collect import reads_whole
from imagebuilder.index.debfile import locate, open_deb, unpacked

STEP = 1 << 18
INPUT = 1 << 16


def wheel(path: str) -> int:
    """Unpack what is read of a wheel; how many bytes that is."""
    from isal import isal_zlib

    total = 0
    with Path(path).open("rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not reads_whole(info.filename):
                continue
            file.seek(info.header_offset + 26)
            lengths = file.read(4)
            file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
            stream = isal_zlib.decompressobj(-15)
            left = info.compress_size
            while left:
                rest = file.read(min(left, INPUT))
                left -= len(rest)
                if info.compress_type == zipfile.ZIP_STORED:
                    total += len(rest)
                    continue
                while rest:
                    total += len(stream.decompress(rest, STEP))
                    rest = stream.unconsumed_tail
    return total


def deb(path: str) -> int:
    """Unpack a package's files; how many bytes they are."""
    with open_deb(Path(path)) as file:
        return sum(map(len, unpacked(file, locate(file, path).data, path, 1 << 34)))


def _either(path: str) -> int:
    with Path(path).open("rb") as file:
        is_wheel = file.read(2) == b"PK"
    return wheel(path) if is_wheel else deb(path)


def main() -> None:
    """Two processes, the largest files first."""
    lock = subject.whole_lock(sys.argv[1])
    cache = Cache(subject.settings().cache_dir)
    digests = [w.sha256 for w in lock.wheels] + [d.sha256 for d in lock.debs]
    paths = [path for digest in digests if (path := cache.artefact(digest))]
    paths.sort(key=lambda path: path.stat().st_size, reverse=True)
    begun = time.perf_counter()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        total = sum(pool.imap_unordered(_either, map(str, paths)))
        pool.close()
        pool.join()
    wall = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({"wall": wall, "cpu": used.ru_utime + used.ru_stime, "bytes": total}))


if __name__ == "__main__":
    main()
