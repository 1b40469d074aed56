"""Tar headers that were made to harm: refused, whoever reads the archive."""

from __future__ import annotations

import tarfile

_MOST = 1 << 20  # bytes of one extended header
_EXBIBYTE = 1 << 60  # no file system could hold it, and few could seek behind it
_EXTENDED = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip


class SmallHeaders(tarfile.TarInfo):
    """For `tarfile.open(tarinfo=…)`: every fault of a header is a TarError, and none costs memory or hangs.

    tarfile reads extended headers and the maps of sparse files into memory whole, follows headers of headers
    until the stack is full, and believes a size below zero or beyond all disks; these are refused.
    """

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENDED and self.size > _MOST:
            raise tarfile.ReadError(f"an extended header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse()
        try:
            member: tarfile.TarInfo = super()._proc_member(tar)  # type: ignore[misc]
        except (ValueError, RecursionError) as error:
            raise tarfile.ReadError(f"a damaged header ({error})") from None
        if not 0 <= member.size < _EXBIBYTE:
            raise tarfile.ReadError(f"a size of {member.size} bytes")
        return member

    def _refuse(self, *_: object) -> None:
        raise tarfile.ReadError(f"the sparse file {self.name[:100]!r}")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse
