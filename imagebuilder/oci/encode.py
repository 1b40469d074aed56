"""The one encoder: every byte that imagebuilder compresses itself is compressed here.

zlib, zlib-ng and isal deflate the same data to different bytes (isal even by CPU), so a digest can only be
the same everywhere if one exactly pinned encoder makes the bytes: libdeflate, through the PyPI package
`deflate`. Its identity goes into content keys, and a known answer proves it before its first use.

Level 3, from measurements on executables and Python source: level 1 takes four fifths of the time and makes
5 % more bytes; each level above saves 1–2 % of the bytes and costs 10–30 % more time.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from functools import lru_cache

from imagebuilder.errors import MachineLacks
from imagebuilder.oci.inflate import Buffer

LEVEL = 3
CHUNK = 1 << 20  # bytes of input to one gzip member, so that memory stays flat

IDENTITY = f"deflate-0.9.0/level-{LEVEL}/chunk-{CHUNK}"
"""Names encoder and settings; part of every content key."""

# RFC 1952: magic, deflate, no flags, no time, no extra flags, OS unknown. libdeflate writes the same.
GZIP_HEADER = bytes.fromhex("1f8b08 00 00000000 00 ff")

_KNOWN_ANSWER = "8b8baeaea5382892a05467959d825861afffb32c7ef6e902837a1cc021c67551"


def gzip_trailer(crc: int, size: int) -> bytes:
    """The end of a gzip member: CRC-32 and size modulo 2**32 of what it holds."""
    return struct.pack("<II", crc, size & 0xFFFFFFFF)


def gzip_member(data: Buffer) -> bytearray:
    """One whole gzip member holding `data` (at most CHUNK bytes, so that memory stays flat)."""
    import deflate

    _prove()
    member: bytearray = deflate.gzip_compress(data, LEVEL)
    return member


def raw_deflate(data: Buffer) -> bytearray:
    """`data` as one raw deflate stream, as zip has it."""
    import deflate

    _prove()
    stream: bytearray = deflate.deflate_compress(data, LEVEL)
    return stream


def gzip_members(data: Buffer) -> Iterator[bytearray]:
    """`data` as gzip members of CHUNK bytes each; none for no data."""
    view = memoryview(data)
    for start in range(0, len(view), CHUNK):
        yield gzip_member(view[start : start + CHUNK])


def _sample() -> bytes:
    """Data that need every part of an encoder: literals, near and far matches, noise, runs."""
    noise = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(2048))
    words = b"".join(b"def name_%d(self): return %d\n" % (n * n % 911, n % 97) for n in range(4096))
    return words + noise + bytes(50_000) + noise[:20_000] + words[::2]


@lru_cache(maxsize=1)
def _prove() -> None:
    import deflate

    answer = hashlib.sha256(deflate.gzip_compress(_sample(), LEVEL)).hexdigest()
    if answer != _KNOWN_ANSWER:
        raise MachineLacks(
            "the installed build of the package 'deflate' compresses to other bytes than it should, so no "
            "image made with it would have the right digest",
            seen=f"version {deflate.__version__}, known answer {answer[:16]}…",
            wanted=f"{IDENTITY}, known answer {_KNOWN_ANSWER[:16]}…",
            hint="pip install --force-reinstall --only-binary :all: deflate==0.9.0",
        )
