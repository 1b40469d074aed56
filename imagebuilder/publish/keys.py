"""Keys that sign evidence: a PEM file, or whatever the `cosign` program can sign with.

ECDSA on P-256 with SHA-256, and Ed25519: what cosign and in-toto's tools verify. A passphrase is given by the
caller, kept out of every message, and passed on only to what decrypts the key.
"""

from __future__ import annotations

import base64
import binascii
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from imagebuilder.errors import MachineLacks, PushFailed, UsageProblem
from imagebuilder.settings import expanded
from imagebuilder.values import Digest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

PROGRAM = "cosign"
TIMEOUT = 120
_MAX_FILE = 1 << 20
_OF_COSIGN = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")
_FORM = "an ECDSA P-256 or Ed25519 key in PEM"


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """Verifies. name: of its file. der: SubjectPublicKeyInfo."""

    name: str
    der: bytes

    @property
    def fingerprint(self) -> Digest:
        """By which the same key is recognised in another file."""
        return Digest.of(self.der)

    @cached_property
    def _key(self) -> PublicKeyTypes:
        from cryptography.hazmat.primitives.serialization import load_der_public_key

        return load_der_public_key(self.der)

    def verifies(self, data: bytes, signature: bytes) -> bool:
        """Whether the owner of this key signed this very data."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        try:
            if isinstance(self._key, ec.EllipticCurvePublicKey):
                self._key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
            else:
                assert isinstance(self._key, ed25519.Ed25519PublicKey), "other kinds were refused"
                self._key.verify(signature, data)
        except InvalidSignature:
            return False
        return True


class Signer(Protocol):
    """Signs with one key."""

    @property
    def public(self) -> PublicKey:
        """What verifies its signatures."""

    def sign(self, data: bytes) -> bytes:
        """The signature. PushFailed, MachineLacks."""


def load_public(path: Path) -> PublicKey:
    """The public key in this file. UsageProblem: there is none; MachineLacks: no `cryptography` here."""
    _require_cryptography()
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    data = _read(path, "public key")
    if b"PRIVATE KEY" in data:
        raise UsageProblem(
            f"{path} is a private key", wanted="its public half",
            hint=f"openssl pkey -in {path} -pubout -out {path.stem}.pub",
        )  # fmt: skip
    try:
        return _public(load_pem_public_key(data), path.name)
    except ValueError:
        raise UsageProblem(f"{path} is not a public key", wanted=_FORM) from None


def load_signer(place: str, *, cwd: Path, password: str | None, environ: Mapping[str, str]) -> Signer:
    """Signs with the key at this place: a PEM file, cosign's own file, or an address that cosign knows.

    password: of an encrypted key. environ: for the cosign program. UsageProblem, MachineLacks.
    """
    _require_cryptography()
    if "://" in place:
        return _cosign(place, password, environ)
    path = cwd / expanded(place)
    data = _read(path, "key")
    if any(words in data for words in _OF_COSIGN):
        return _cosign(str(path), password, environ)
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, password.encode() if password and b"ENCRYPTED" in data else None)
        return FileSigner(key=key, public=_public(key.public_key(), path.name))
    except TypeError:
        raise UsageProblem(
            f"the key {path} is encrypted", hint="put its passphrase into IMAGEBUILDER_SIGN_PASSWORD"
        ) from None
    except ValueError:  # its text may quote the file
        what = "cannot be decrypted with this passphrase" if b"ENCRYPTED" in data else "is not a private key"
        raise UsageProblem(f"the key {path} {what}, or of another kind", wanted=_FORM) from None


@dataclass(frozen=True, kw_only=True)
class FileSigner:
    """Signs with a key in memory."""

    key: Any = field(repr=False)
    public: PublicKey

    def sign(self, data: bytes) -> bytes:
        """The signature: ASN.1 for ECDSA, 64 bytes for Ed25519."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return self.key.sign(data, ec.ECDSA(hashes.SHA256()))
        return bytes(self.key.sign(data))


@dataclass(frozen=True, kw_only=True)
class ProgramSigner:
    """Signs with the cosign program: keys that only it can read, and those of key services."""

    program: str
    key: str
    options: tuple[str, ...]
    variables: Mapping[str, str] = field(repr=False)
    public: PublicKey

    def sign(self, data: bytes) -> bytes:
        """The signature of `cosign sign-blob`."""
        words = ["sign-blob", "--key", self.key, "--yes", "--tlog-upload=false", *self.options, "-"]
        output = _run(self.program, words, self.variables, data)
        try:
            signature = base64.b64decode(output.strip(), validate=True)
        except binascii.Error:
            raise PushFailed("cosign prints no signature", seen=f"{len(output)} bytes") from None
        if not self.public.verifies(data, signature):
            raise PushFailed("what cosign signed does not verify with its own public key")
        return signature


def _cosign(key: str, password: str | None, environ: Mapping[str, str]) -> ProgramSigner:
    program = shutil.which(PROGRAM, path=environ.get("PATH"))
    if program is None:
        raise MachineLacks(
            f"the key {key} needs the program cosign, which is not here",
            hint="install cosign (Debian 13: apt-get install cosign), or use a key in PEM",
        )
    given = {**environ, "COSIGN_PASSWORD": password or environ.get("COSIGN_PASSWORD", "")}
    pem = _run(program, ["public-key", "--key", key], given)
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public = _public(load_pem_public_key(pem), key.rpartition("/")[2])
    except ValueError:
        raise UsageProblem(f"cosign gives no public key of {key}", wanted=_FORM) from None
    about = _run(program, ["sign-blob", "--help"], given).decode(errors="replace")
    # cosign 3 prints bundles unless it is told not to; cosign 2 knows no such options, and prints signatures.
    bundles = "--use-signing-config" in about
    options = ("--use-signing-config=false", "--new-bundle-format=false") if bundles else ()
    return ProgramSigner(program=program, key=key, options=options, variables=given, public=public)


def _run(program: str, words: list[str], environ: Mapping[str, str], data: bytes = b"") -> bytes:
    try:
        done = subprocess.run(
            [program, *words],
            input=data,
            env=dict(environ),
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineLacks(f"cosign {words[0]} does not end well", seen=type(error).__name__) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.returncode}"]
        raise MachineLacks(
            f"cosign {words[0]} fails",
            seen=said[-1][:300],
            hint="its passphrase belongs into IMAGEBUILDER_SIGN_PASSWORD",
        )
    return done.stdout


def _public(key: PublicKeyTypes, name: str) -> PublicKey:
    """ValueError: of another kind."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    elliptic = isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    if not elliptic and not isinstance(key, ed25519.Ed25519PublicKey):
        raise ValueError("another kind of key")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(name=name, der=der)


def _read(path: Path, what: str) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE:
            raise UsageProblem(f"{path} is no {what}", seen="a large file", wanted=_FORM)
        return path.read_bytes()
    except OSError as error:
        raise UsageProblem(f"the {what} {path} cannot be read", seen=error.strerror or "") from None


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise MachineLacks(
            "signing needs the Python package cryptography, which is not here",
            hint="pip install 'imagebuilder[signing]'",
        ) from None
