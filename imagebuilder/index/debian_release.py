"""`InRelease`: the signed list of everything in a suite, verified before a word of it is believed.

Sources: the Debian repository format; RFC 9580 for the signature, which pysequoia checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.values import Digest

KEYRING_NAMES = (
    "debian-archive-keyring.pgp",
    "debian-archive-keyring.gpg",
    "debian-archive-keyring.asc",
)
KEYRING_FOLDER = Path("/usr/share/keyrings")

# Where a machine has no keyring (it is not a Debian), it comes from one of these packages, known by sha256.
_KEYRING_POOL = "pool/main/d/debian-archive-keyring/"
PINNED_KEYRINGS: tuple[tuple[str, Digest], ...] = (
    (
        f"{_KEYRING_POOL}debian-archive-keyring_2025.1_all.deb",  # trixie's
        Digest.from_hex("9ea7778e443144ca490668737a8ab22dd3e748bb99e805e22ec055abeb3c7fac"),
    ),
    (
        f"{_KEYRING_POOL}debian-archive-keyring_2023.3+deb12u2_all.deb",  # bookworm's
        Digest.from_hex("f699e2f88dca05212f2a452b58475f2993cb6993dfbafb1d0205a3291eb8b4b8"),
    ),
)

_HASH = re.compile(r"^ ([0-9a-f]{64}) +(\d+) +(\S+)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Release:
    """What a verified InRelease says. files: path below the suite's folder → (sha256, bytes)."""

    origin: str
    suite: str
    codename: str
    date: datetime
    valid_until: datetime | None
    by_hash: bool
    components: tuple[str, ...]
    files: Mapping[str, tuple[Digest, int]]


def claimed_origin(inrelease: bytes) -> str:
    """The Origin that an InRelease says it is of, before any verification: to tell whose it should be."""
    match = re.search(rb"^Origin: *(.*?) *$", inrelease[:4096], re.MULTILINE)
    return match[1].decode("utf-8", "replace") if match else ""


def read_keyring(data: bytes, name: str) -> list[Any]:
    """The certificates of a keyring, binary or armored."""
    from pysequoia import Cert

    try:
        certificates = Cert.split_bytes(data)
    except Exception as error:  # pysequoia raises bare Exception
        raise ArtefactUnusable(f"the keyring {name} cannot be read: {error}") from None
    if not certificates:
        raise ArtefactUnusable(f"the keyring {name} holds no certificate")
    return list(certificates)


def local_keyring(folder: Path = KEYRING_FOLDER) -> Path | None:
    """This machine's Debian archive keyring, if it has one."""
    return next((folder / name for name in KEYRING_NAMES if (folder / name).is_file()), None)


def verified_release(inrelease: bytes, certificates: Sequence[Any], where: str) -> Release:
    """The release, if one of the certificates signed it. `where` is for messages.

    A signature counts if its key was alive when it was made: an old release (a dated snapshot) stays
    verifiable after its keys have expired. Raises ArtefactUnusable.
    """
    text = _signed_text(inrelease, lambda _ids: list(certificates), where)
    fields = _fields(text)
    date = _instant(fields.get("date"), where)
    if date is None:
        raise ArtefactUnusable(f"{where} has no date")
    return Release(
        origin=fields.get("origin", ""),
        suite=fields.get("suite", ""),
        codename=fields.get("codename", ""),
        date=date,
        valid_until=_instant(fields.get("valid-until"), where),
        by_hash=fields.get("acquire-by-hash", "").lower() == "yes",
        components=tuple(name.rpartition("/")[2] for name in fields.get("components", "").split()),
        files={
            path: (Digest.from_hex(sha256), int(size))
            for sha256, size, path in _HASH.findall(fields.get("sha256", ""))
        },
    )


def _signed_text(inrelease: bytes, store: Callable[[list[str]], list[Any]], where: str) -> str:
    from pysequoia import verify

    hint = "use another mirror (debian.mirrors in the configuration), or install debian-archive-keyring"
    # Bytes outside of the signed part would be ignored; nothing honest has any (CVE-2013-1051).
    if not inrelease.startswith(b"-----BEGIN PGP SIGNED MESSAGE-----"):
        raise ArtefactUnusable(f"{where} is not signed", hint=hint)
    try:
        data = verify(bytes=inrelease, store=store).bytes
        if data is None:
            raise ValueError("nothing is signed")
        return bytes(data).decode("utf-8")
    except Exception as error:  # pysequoia raises bare Exception
        raise ArtefactUnusable(
            f"the signature of {where} does not hold",
            seen=str(error).splitlines()[0][:200] if str(error) else type(error).__name__,
            wanted="a signature by a key of the Debian archive keyring",
            hint=hint,
        ) from None


def _fields(text: str) -> dict[str, str]:
    """The one paragraph's fields, lower-cased; python-debian takes 50 times as long for these 5000 lines."""
    fields: dict[str, str] = {}
    for name, value in re.findall(r"^([A-Za-z0-9-]+):[ \t]*((?:.*)(?:\n[ \t].*)*)", text, re.MULTILINE):
        fields.setdefault(name.lower(), value)
    return {name: value if name == "sha256" else value.strip() for name, value in fields.items()}


def _instant(text: str | None, where: str) -> datetime | None:
    if not text:
        return None
    try:
        found = parsedate_to_datetime(text.replace("UTC", "+0000"))
    except (ValueError, TypeError):
        raise ArtefactUnusable(f"{where} has a date that cannot be read", seen=text) from None
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
