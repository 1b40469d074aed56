"""Where in an ELF file the tables lie that are read after the rest of it."""

from __future__ import annotations

import struct

from imagebuilder.facts.elf import Seekable


def late_tables(file: Seekable) -> tuple[int, ...]:
    """Where the segment with PT_DYNAMIC begins, and where the section headers do; nothing for other files.

    Tools that move a library's tables (patchelf) append them as one segment, in any order; linkers put the
    section headers last. The numbers are the file's own, and may lie.
    """
    file.seek(0)
    head = file.read(64)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return ()
    phoff, shoff = struct.unpack_from("<QQ", head, 32)
    size, number = struct.unpack_from("<HH", head, 54)
    if size != 56 or phoff > 1 << 20:
        return (shoff,)
    file.seek(phoff)
    table = file.read(56 * min(number, 64))
    segments = list(struct.iter_unpack("<IIQQQQQQ", table[: len(table) // 56 * 56]))
    dynamic = next((offset for kind, _, offset, *_ in segments if kind == 2), None)
    around = [o for kind, _, o, _, _, n, *_ in segments if kind == 1 and dynamic and o <= dynamic < o + n]
    return (shoff, *around)
