"""Signatures: made with keys of every kind, verified here, by cosign, by OpenSSL and by securesystemslib."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from imagebuilder.oci.descriptor import Descriptor
from imagebuilder.oci.model import Manifest
from imagebuilder.oci.registry import Registry
from imagebuilder.publish import cosign, trust
from imagebuilder.publish.evidence import Evidence, attach
from imagebuilder.publish.keys import ProgramSigner, load_public, load_signer
from imagebuilder.settings import Settings
from imagebuilder.values import Digest
from tests.support.command import Outcome
from tests.support.fake_registry import FakeRegistry
from tests.support.registry import TestRegistry, find_program
from tests.support.small import Small

Command = Callable[..., Outcome]
CANARY = "c4nary-passphrase"


def write_key(folder: Path, name: str, key: Any = None, password: str = "") -> Path:
    """NAME.pem and NAME.pub; P-256 unless another key is given."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    lock = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    place = folder / f"{name}.pem"
    place.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    place.with_suffix(".pub").write_bytes(public)
    return place


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_key(tmp_path, "release")


@pytest.fixture
def built(imagebuilder: Command, small: Small) -> None:
    assert imagebuilder("build", "s", "--builder", "direct").code == 0


@pytest.fixture
def place(each_registry: TestRegistry, tmp_path: Path) -> str:
    return f"{each_registry.host}/signing/{Digest.of(str(tmp_path).encode()).short}"


def push(imagebuilder: Command, reference: str, *more: str, what: str = "s") -> dict[str, Any]:
    done = imagebuilder("push", what, "--to", reference, "--json", *more)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def evidence(imagebuilder: Command, reference: str, *more: str, code: int = 0) -> dict[str, Any]:
    done = imagebuilder("evidence", reference, "--json", *more)
    assert done.code == code, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def states(found: dict[str, Any]) -> list[str]:
    """Of the image and of each document."""
    return [found["signature"], *(e["signature"] for e in found["evidence"])]


# ---------------------------------------------------------------- keys


KINDS = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("password", ["", CANARY])
def test_a_key_signs_and_only_its_own_half_verifies(kind: str, password: str, tmp_path: Path) -> None:
    place = write_key(tmp_path, "a", KINDS[kind](), password)
    other = load_public(write_key(tmp_path, "b", KINDS[kind]()).with_suffix(".pub"))
    signer = load_signer(str(place), cwd=tmp_path, password=password or None, environ={})
    public = load_public(place.with_suffix(".pub"))
    signature = signer.sign(b"text")
    assert public.verifies(b"text", signature) and signer.public == public.__class__(
        name=place.name, der=public.der
    )
    assert not public.verifies(b"texT", signature) and not other.verifies(b"text", signature)
    assert not public.verifies(b"text", b"") and not public.verifies(b"text", signature[:-1])
    assert CANARY not in repr(signer)


BAD_KEYS: dict[str, tuple[Callable[[Path], object], str | None, str]] = {
    "none": (lambda p: None, None, "cannot be read"),
    "no key": (lambda p: p.write_text("x"), None, "is not a private key"),
    "RSA": (lambda p: write_key(p.parent, p.stem, rsa.generate_private_key(65537, 2048)), None,
            "is not a private key"),
    "P-384": (lambda p: write_key(p.parent, p.stem, ec.generate_private_key(ec.SECP384R1())), None,
              "is not a private key"),
    "encrypted": (lambda p: write_key(p.parent, p.stem, password="x"), None, "is encrypted"),
    "another passphrase": (lambda p: write_key(p.parent, p.stem, password="x"), CANARY,
                           "cannot be decrypted with this passphrase"),
    "a public key": (lambda p: write_key(p.parent, "x").with_suffix(".pub").rename(p), None,
                     "is not a private key"),
    "a large file": (lambda p: p.write_bytes(b"x" * (2 << 20)), None, "large file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_KEYS)
def test_keys_that_cannot_sign(
    name: str, *, imagebuilder: Command, built: None, fake: FakeRegistry, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make, password, text = BAD_KEYS[name]
    make(tmp_path / "k.pem")
    if password:
        monkeypatch.setenv("IMAGEBUILDER_SIGN_PASSWORD", password)
    done = imagebuilder("push", "s", "--to", f"{fake.host}/a:x", "--sign-key", str(tmp_path / "k.pem"))
    assert done.code == 2 and text in done.err and "Traceback" not in done.err, done.err
    assert CANARY not in done.err and "BEGIN" not in done.err
    assert not fake.manifests, "nothing is pushed before it is known that it can be signed"


def test_public_keys_that_are_none(imagebuilder: Command, place: str, key: Path, tmp_path: Path) -> None:
    (tmp_path / "x.pub").write_text("x")
    for file, text in ((tmp_path / "x.pub", "is not a public key"), (key, "is a private key")):
        done = imagebuilder("evidence", f"{place}:s", "--key", str(file))
        assert done.code == 2 and text in done.err


def test_the_key_of_the_settings(
    imagebuilder: Command, built: None, fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = write_key(tmp_path, "k", password=CANARY)
    monkeypatch.setenv("IMAGEBUILDER_SIGN_KEY", str(key))
    monkeypatch.setenv("IMAGEBUILDER_SIGN_PASSWORD", CANARY)
    done = imagebuilder("push", "s", "--to", f"{fake.host}/a:x")
    assert done.code == 0 and "4 signatures made" in done.err
    found = evidence(imagebuilder, f"{fake.host}/a:x", "--key", str(key.with_suffix(".pub")))
    assert states(found) == ["signed"] * 4
    stored = b"".join([*fake.blobs.values(), *(data for _, data in fake.manifests.values())])
    said = done.out + done.err + json.dumps(found)
    assert CANARY.encode() not in stored and CANARY not in said and b"PRIVATE KEY" not in stored
    monkeypatch.setenv("IMAGEBUILDER_SIGN_KEY", key.read_text())
    done = imagebuilder("push", "s", "--to", f"{fake.host}/a:x")
    assert done.code == 2 and "put it into a file" in done.err and "BEGIN" not in done.err


# ---------------------------------------------------------------- signing and verifying


def test_signed_once_and_recognised(imagebuilder: Command, built: None, place: str, key: Path) -> None:
    public = str(key.with_suffix(".pub"))
    assert push(imagebuilder, f"{place}:s")["signatures"] == 0
    assert states(evidence(imagebuilder, f"{place}:s")) == ["unsigned"] * 4
    refused = imagebuilder("evidence", f"{place}:s", "--key", public)
    assert refused.code == 13 and "the image is not signed" in refused.err and "--sign-key" in refused.err
    assert push(imagebuilder, f"{place}:s", "--sign-key", str(key))["signatures"] == 4
    assert push(imagebuilder, f"{place}:s", "--sign-key", str(key))["signatures"] == 0
    assert states(evidence(imagebuilder, f"{place}:s")) == ["not checked"] * 4
    found = evidence(imagebuilder, f"{place}:s", "--key", public)
    assert states(found) == ["signed"] * 4 and found["signed"]
    assert found["key"] == load_public(key.with_suffix(".pub")).fingerprint.text
    shown = imagebuilder("evidence", f"{place}:s", "--key", public).out
    assert shown.count("signed with release.pub") == 4


def test_another_key(imagebuilder: Command, built: None, place: str, key: Path, tmp_path: Path) -> None:
    other = write_key(tmp_path, "other")
    push(imagebuilder, f"{place}:s", "--sign-key", str(other))
    public = str(key.with_suffix(".pub"))
    assert states(evidence(imagebuilder, f"{place}:s", "--key", public, code=13)) == ["another key"] * 4
    both = evidence(imagebuilder, f"{place}:s", "--key", public, "--key", str(other.with_suffix(".pub")))
    assert states(both) == ["signed"] * 4
    push(imagebuilder, f"{place}:s", "--sign-key", str(key))
    for file in (key, other):  # both stay
        found = evidence(imagebuilder, f"{place}:s", "--key", str(file.with_suffix(".pub")))
        assert states(found) == ["signed"] * 4


def test_what_was_altered_or_added_later_is_named(
    imagebuilder: Command, built: None, fake: FakeRegistry, key: Path
) -> None:
    push(imagebuilder, f"{fake.host}/a:x", "--sign-key", str(key))
    before = evidence(
        imagebuilder, f"{fake.host}/a:x", "--key", str(key.with_suffix(".pub")), "--output", "o"
    )
    assert states(before) == ["signed"] * 4
    sbom = json.loads(Path("o/sbom.cdx.json").read_text())
    del sbom["components"][0]
    accepted = {"runtime": "docker", "outcome": "pass", "started": "x", "headline": "y"}
    accepted["config_digest"] = before["config"]
    media_type, manifest = fake.manifests[("a", "x")]
    registry = Registry(fake.host, Settings(cache_dir=Path("unused")), pause=lambda seconds: None)
    for kind, value in (("sbom", sbom), ("acceptance", accepted)):
        document = Evidence(kind=kind, data=json.dumps(value).encode())
        attach(registry, "a", Descriptor.of(media_type, manifest), document)
    done = imagebuilder("evidence", f"{fake.host}/a:x", "--key", str(key.with_suffix(".pub")), "--json")
    found = sorted((e["kind"], e["signature"]) for e in json.loads(done.out)["evidence"])
    assert found == [
        ("acceptance", "unsigned"), ("checks", "signed"), ("provenance", "signed"), ("sbom", "altered"),
        ("sbom", "signed"),
    ]  # fmt: skip
    assert done.code == 13
    assert "acceptance: it is not signed" in done.err and "it was altered" in done.err
    assert imagebuilder("evidence", f"{fake.host}/a:x").code == 0, "nobody asked who says so"


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda data: b"\xff",
    "another image": lambda data: _with_payload(data, lambda body: body.replace(b"sha256", b"sha257")),
    "a key twice": lambda data: b'{"critical":{},"payload":"",' + data[1:],
    "deep": lambda data: b"[" * 100_000,
    "a list": lambda data: b"[]",
    "other words": lambda data: data.replace(b"container", b"Container").replace(b"in-toto", b"in-tota"),
    "nothing": lambda data: b"",
}


def _with_payload(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """What is signed, changed: of an envelope, what is packed in it."""
    value = json.loads(data)
    if "payload" not in value:
        return change(data)
    return json.dumps(
        {**value, "payload": base64.b64encode(change(base64.b64decode(value["payload"]))).decode()}
    ).encode()


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("suffix", [cosign.SIGNATURE_SUFFIX, cosign.ATTESTATION_SUFFIX])
def test_damaged_signatures_prove_nothing(
    name: str, suffix: str, *, imagebuilder: Command, built: None, fake: FakeRegistry, key: Path
) -> None:
    digest = Digest(push(imagebuilder, f"{fake.host}/a:x", "--sign-key", str(key))["manifest"])
    tag = cosign.tag_of(digest, suffix)
    media_type, data = fake.manifests[("a", tag)]
    layers = []
    for layer in Manifest.parse(data).layers:
        blob = DAMAGE[name](fake.blobs[("a", layer.digest.text)])
        fake.put_blob("a", blob)
        layers.append(Descriptor.of(layer.media_type, blob, layer.annotations))
    damaged = Manifest(config=Manifest.parse(data).config, layers=tuple(layers))
    fake.put_manifest("a", damaged.to_bytes(), media_type, tag)
    words = ("evidence", f"{fake.host}/a:x", "--key", str(key.with_suffix(".pub")), "--json")
    done = imagebuilder(*words)
    assert done.code == 13 and "Traceback" not in done.err, done.err
    assert "signed" not in states(json.loads(done.out))[0 if suffix == ".sig" else 1 :][:1]
    assert push(imagebuilder, f"{fake.host}/a:x", "--sign-key", str(key))["signatures"] > 0
    assert states(evidence(imagebuilder, *words[1:-1])) == ["signed"] * 4


def test_a_tag_of_somebody_else_is_left_alone(
    imagebuilder: Command, built: None, fake: FakeRegistry, key: Path
) -> None:
    digest = Digest(push(imagebuilder, f"{fake.host}/a:x")["manifest"])
    index = json.dumps({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []
    }).encode()  # fmt: skip
    tag = cosign.tag_of(digest, cosign.SIGNATURE_SUFFIX)
    fake.put_manifest("a", index, "application/vnd.oci.image.index.v1+json", tag)
    done = imagebuilder("push", "s", "--to", f"{fake.host}/a:x", "--sign-key", str(key))
    assert done.code == 9 and "holds no signatures" in done.err
    assert fake.manifests[("a", tag)][1] == index


def test_true_is_not_one() -> None:
    """Documents are compared to the last number: Python finds True, 1 and 1.0 equal."""
    statement = cosign.statement_of(b'{"a": 1}', trust.PREDICATES["checks"], "n", Digest.of(b"x"))
    signed = cosign.Signed(body=b"", signatures=(), statement=statement)
    for document, state in (
        (b'{"a":1}', "not checked"),
        (b'{"a":true}', "unsigned"),
        (b'{"a":1.0}', "unsigned"),
    ):
        assert trust.of_document("checks", document, [signed], []).state == state


# ---------------------------------------------------------------- evidence travels with the image


def test_evidence_and_signatures_come_along(
    imagebuilder: Command, built: None, place: str, key: Path, tmp_path: Path
) -> None:
    public = str(key.with_suffix(".pub"))
    push(imagebuilder, f"{place}:s", "--sign-key", str(key))
    done = imagebuilder("pull", f"{place}:s", "--output", "back", "--json")
    brought = json.loads(done.out)["evidence"]
    assert sorted(brought[:3]) == ["checks", "provenance", "sbom"]
    assert [name.rpartition(".")[2] for name in brought[3:]] == ["sig", "att"]
    copied = push(imagebuilder, f"{place}-copy:s", what="back")
    assert {e["kind"] for e in copied["evidence"]} == {"sbom", "provenance", "checks"}
    here = evidence(imagebuilder, f"{place}:s", "--key", public)
    assert evidence(imagebuilder, f"{place}-copy:s", "--key", public) == {**here, "image": f"{place}-copy"}
    other = write_key(tmp_path, "other")
    again = push(imagebuilder, f"{place}-copy:s", "--sign-key", str(other), what="back")
    assert again["signatures"] == 4
    for file in (key, other):
        found = evidence(imagebuilder, f"{place}-copy:s", "--key", str(file.with_suffix(".pub")))
        assert states(found) == ["signed"] * 4
    assert push(imagebuilder, f"{place}-bare:s", "--no-evidence", what="back")["evidence"] == []


@pytest.mark.parametrize("damage", ["a blob", "the index", "another image"])
def test_damaged_evidence_is_not_carried(
    damage: str, imagebuilder: Command, built: None, fake: FakeRegistry, small: Small
) -> None:
    push(imagebuilder, f"{fake.host}/a:x")
    assert imagebuilder("pull", f"{fake.host}/a:x", "--output", "back").code == 0
    folder = Path("back.evidence")
    index = json.loads((folder / "index.json").read_text())
    entry = index["manifests"][0]["digest"].partition(":")[2]
    if damage == "a blob":
        (folder / "blobs" / "sha256" / entry).write_text("{}")
    elif damage == "the index":
        (folder / "index.json").write_text("{")
    else:
        small.write("one")
        assert imagebuilder("lock", "s").code == 0
        assert imagebuilder("build", "s", "--builder", "direct", "--output", "other").code == 0
        folder.rename("other.evidence")
    what = "other" if damage == "another image" else "back"
    done = imagebuilder("push", what, "--to", f"{fake.host}/b:x")
    assert done.code == 13 and "cannot be used" in done.err and "Traceback" not in done.err, done.err


# ---------------------------------------------------------------- the words of others


def test_openssl_verifies_the_bytes(
    imagebuilder: Command, built: None, fake: FakeRegistry, key: Path, tmp_path: Path
) -> None:
    """By cosign's published format alone: what is signed, and where its signature stands."""
    openssl = find_program("openssl", "openssl")
    digest = push(imagebuilder, f"{fake.host}/team/app:x", "--sign-key", str(key))["manifest"]
    name = digest.replace(":", "-")

    def verified(data: bytes, signature: bytes) -> bool:
        (tmp_path / "data").write_bytes(data)
        (tmp_path / "sig").write_bytes(signature)
        words = [openssl, "dgst", "-sha256", "-verify", str(key.with_suffix(".pub"))]
        words += ["-signature", str(tmp_path / "sig"), str(tmp_path / "data")]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    (layer,) = json.loads(fake.manifests[("team/app", f"{name}.sig")][1])["layers"]
    payload = fake.blobs[("team/app", layer["digest"])]
    signature = base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
    assert verified(payload, signature) and not verified(payload + b" ", signature)
    critical = json.loads(payload)["critical"]
    assert critical["image"] == {"docker-manifest-digest": digest}
    assert critical["identity"] == {"docker-reference": f"{fake.host}/team/app"}
    for layer in json.loads(fake.manifests[("team/app", f"{name}.att")][1])["layers"]:
        envelope = json.loads(fake.blobs[("team/app", layer["digest"])])
        body = base64.b64decode(envelope["payload"])
        kind = envelope["payloadType"].encode()
        signed = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(body)).encode(), body])
        assert verified(signed, base64.b64decode(envelope["signatures"][0]["sig"]))


@pytest.mark.parametrize("kind", KINDS)
def test_securesystemslib_verifies_the_envelopes(kind: str, tmp_path: Path) -> None:
    """DSSE as in-toto's own library reads it."""
    dsse = pytest.importorskip("securesystemslib.dsse")
    signers = pytest.importorskip("securesystemslib.signer")
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    place = write_key(tmp_path, "k", KINDS[kind]())
    signer = load_signer(str(place), cwd=tmp_path, password=None, environ={})
    statement = cosign.statement_of(b'{"a":1}', trust.PREDICATES["sbom"], "app", Digest.of(b"x"))
    entry = cosign.attest(statement, signer)
    public = signers.SSlibKey.from_crypto(load_pem_public_key(place.with_suffix(".pub").read_bytes()))
    value = json.loads(entry.data)
    value["signatures"][0]["keyid"] = public.keyid  # cosign leaves it empty, this library wants it
    envelope = dsse.Envelope.from_dict(value)
    assert envelope.payload == statement and envelope.verify([public], 1)
    envelope.payload += b" "
    with pytest.raises(Exception, match=r"(?i)valid signatures|threshold|accepted"):
        envelope.verify([public], 1)


COSIGN = ("--insecure-ignore-tlog=true", "--allow-http-registry")


@pytest.mark.parametrize("kind", KINDS)
def test_cosign_verifies(kind: str, imagebuilder: Command, built: None, place: str, tmp_path: Path) -> None:
    program = find_program("cosign", "cosign")
    key = write_key(tmp_path, "k", KINDS[kind]())
    digest = push(imagebuilder, f"{place}:s", "--sign-key", str(key))["manifest"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *words], capture_output=True, text=True, check=False, env=environment)

    public = ("--key", str(key.with_suffix(".pub")))
    seen = run("verify", *public, *COSIGN, f"{place}@{digest}")
    assert seen.returncode == 0, seen.stderr
    assert json.loads(seen.stdout)[0]["critical"]["image"]["docker-manifest-digest"] == digest
    for predicate, document in (
        ("cyclonedx", "sbom.cdx.json"),
        ("slsaprovenance1", "provenance.intoto.json"),
    ):
        seen = run("verify-attestation", "--type", predicate, *public, *COSIGN, f"{place}@{digest}")
        assert seen.returncode == 0, seen.stderr
        statement = json.loads(base64.b64decode(json.loads(seen.stdout.splitlines()[0])["payload"]))
        assert imagebuilder("evidence", f"{place}:s", "--output", "out").code == 0
        told = json.loads(Path("out", document).read_text())
        assert told in (statement, statement["predicate"])
    other = write_key(tmp_path, "other")
    assert (
        run("verify", "--key", str(other.with_suffix(".pub")), *COSIGN, f"{place}@{digest}").returncode != 0
    )


def test_keys_of_cosign(
    imagebuilder: Command, built: None, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made, encrypted and used by cosign itself; verified here. And what cosign signs beside ours, stays."""
    program = find_program("cosign", "cosign")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COSIGN_PASSWORD": CANARY}
    subprocess.run(
        [program, "generate-key-pair"], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    private, public = str(tmp_path / "cosign.key"), str(tmp_path / "cosign.pub")
    refused = imagebuilder("push", "s", "--to", f"{place}:s", "--sign-key", private)
    assert refused.code == 6 and "IMAGEBUILDER_SIGN_PASSWORD" in refused.err
    monkeypatch.setenv("IMAGEBUILDER_SIGN_PASSWORD", CANARY)
    done = push(imagebuilder, f"{place}:s", "--sign-key", private)
    assert done["signatures"] == 4 and CANARY not in json.dumps(done)
    assert states(evidence(imagebuilder, f"{place}:s", "--key", public)) == ["signed"] * 4
    theirs = write_key(tmp_path, "theirs")
    name = f"{place}@{done['manifest']}"
    theirs_own = load_signer(private, cwd=tmp_path, password=CANARY, environ=environment)
    assert isinstance(theirs_own, ProgramSigner)
    words = [
        "sign",
        "--key",
        private,
        "--tlog-upload=false",
        "--allow-http-registry",
        "--yes",
        *theirs_own.options,
    ]
    subprocess.run([program, *words, name], env=environment, check=True, capture_output=True)
    push(imagebuilder, f"{place}:s", "--sign-key", str(theirs))
    seen = subprocess.run(
        [program, "verify", "--key", public, *COSIGN, name], env=environment, capture_output=True, check=False
    )
    assert seen.returncode == 0, seen.stderr.decode()


def test_cosign_that_is_not_here(
    imagebuilder: Command, built: None, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = imagebuilder("push", "s", "--to", f"{fake.host}/a:x", "--sign-key", "awskms:///alias/x")
    assert done.code == 6 and "needs the program cosign" in done.err and "next:" in done.err
