"""SBOM, provenance, reports: valid under their schemas, the same each time, nothing secret, verified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from imagebuilder import __version__
from imagebuilder.checks.registry import codes
from imagebuilder.oci.descriptor import Descriptor
from imagebuilder.oci.image import Image
from imagebuilder.publish.evidence import KINDS, Evidence
from imagebuilder.publish.inspect import CHECKERS, decode_document
from imagebuilder.publish.sbom import Content, make_sbom, packages_of
from imagebuilder.values import Digest
from tests.support.acceptances import accept
from tests.support.command import ROOT, Outcome
from tests.support.engine import TestEngine
from tests.support.fake_registry import FakeRegistry
from tests.support.registry import TestRegistry, find_program
from tests.support.small import Small

Command = Callable[..., Outcome]
PROVENANCE_SCHEMA = json.loads((ROOT / "tests" / "publish" / "in-toto.schema.json").read_text())
PATCH = "--- a/one/text.py\n+++ b/one/text.py\n@@ -1,2 +1,2 @@\n-# text\n+# changed\n # text\n"
CANARY = "c4nary-t0ken"


def check_sbom(data: bytes) -> dict[str, Any]:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode())
    assert error is None, error
    value: dict[str, Any] = json.loads(data)
    return value


@pytest.fixture
def place(real_registry: TestRegistry, tmp_path: Path) -> str:
    return f"{real_registry.host}/evidence/{Digest.of(str(tmp_path).encode()).short}"


@pytest.fixture
def pushed(imagebuilder: Command, small: Small, place: str) -> str:
    """The stack `s` with a patched wheel, built and pushed as PLACE:s."""
    licensed = {
        "two-2.0.dist-info/METADATA": b"Metadata-Version: 2.4\nName: two\nVersion: 2.0\n"
        b"License-Expression: MIT OR Apache-2.0\nRequires-Dist: one\n"
    }
    small.wheel("two", "2.0", files=licensed)
    small.write("one", "two==2.0")
    (small.folder / "stacks" / "p.patch").write_text(PATCH)
    stack = small.folder / "stacks" / "s.toml"
    stack.write_text(
        stack.read_text().replace("requirements = ['one']", 'requirements = ["one"]\npatches = ["p.patch"]')
    )
    for words in (("build", "s", "--builder", "direct"), ("push", "s", "--to", f"{place}:s")):
        done = imagebuilder(*words)
        assert done.code == 0, done.err
    return f"{place}:s"


def evidence(imagebuilder: Command, reference: str, *more: str) -> dict[str, Any]:
    done = imagebuilder("evidence", reference, "--json", *more)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_what_is_attached(imagebuilder: Command, pushed: str) -> None:
    found = evidence(imagebuilder, pushed, "--output", "out", "--require", "sbom", "--require", "provenance")
    kinds = ["sbom", "provenance", "checks"]
    assert [(e["kind"], e["verified"]) for e in found["evidence"]] == [(kind, True) for kind in kinds]
    sbom = check_sbom(Path("out/sbom.cdx.json").read_bytes())
    parts = {c["name"]: c for c in sbom["components"]}
    assert parts["one"]["version"].startswith("1.0+patched.") and parts["two"]["version"] == "2.0"
    assert parts["two"]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert all(len(c["hashes"]) == 1 for c in parts.values())
    assert any(c["type"] == "container" and c["purl"].startswith("pkg:oci/") for c in parts.values())
    edges = {d["ref"]: d.get("dependsOn", []) for d in sbom["dependencies"]}
    assert edges[parts["two"]["bom-ref"]] == [parts["one"]["bom-ref"]]
    assert sbom["metadata"]["component"]["hashes"][0]["content"] == found["manifest"].removeprefix("sha256:")
    provenance = json.loads(Path("out/provenance.intoto.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(PROVENANCE_SCHEMA)
    jsonschema.validate(provenance, PROVENANCE_SCHEMA)
    inputs = {
        d["name"]: d["digest"]["sha256"]
        for d in provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    assert inputs["one: p.patch"] == Digest.of(PATCH.encode()).hex
    assert inputs["pylock.s.toml"] == Digest.of(Path("stacks/pylock.s.toml").read_bytes()).hex
    assert inputs["s.toml"] == Digest.of(Path("stacks/s.toml").read_bytes()).hex


def test_evidence_is_the_same_each_time(imagebuilder: Command, pushed: str) -> None:
    before = evidence(imagebuilder, pushed)
    again = json.loads(imagebuilder("push", "s", "--to", pushed, "--json").out)
    assert again["blobs"]["sent"] == 0
    assert evidence(imagebuilder, pushed) == before


def test_packages_of_an_image_in_a_registry_come_from_its_sbom(imagebuilder: Command, pushed: str) -> None:
    done = imagebuilder("diff", pushed, "s", "--json")
    found = json.loads(done.out)
    assert found["identical"] and found["packages"] == [] and found["layers"] is not None, found


def test_an_image_from_elsewhere_gets_an_sbom_of_what_is_in_it(
    imagebuilder: Command, pushed: str, place: str
) -> None:
    assert imagebuilder("pull", pushed, "--output", "back", "--no-evidence").code == 0
    done = imagebuilder("push", "back", "--to", f"{place}-copy:x", "--json")
    assert [e["kind"] for e in json.loads(done.out)["evidence"]] == ["sbom"]
    assert imagebuilder("evidence", f"{place}-copy:x", "--output", "out").code == 0
    names = {name for _, name, _, _ in packages_of(Path("out/sbom.cdx.json").read_bytes())}
    assert {"one", "two"} <= names
    check_sbom(Path("out/sbom.cdx.json").read_bytes())


def test_nothing_attached_and_what_is_required(imagebuilder: Command, pushed: str, place: str) -> None:
    assert imagebuilder("push", "s", "--to", f"{place}-none:x", "--no-evidence").code == 0
    nothing = imagebuilder("evidence", f"{place}-none:x")
    assert nothing.code == 0 and "nothing is attached" in nothing.out
    for kind, code in (("sbom", 13), ("acceptance", 8)):
        done = imagebuilder("evidence", f"{place}-none:x", "--require", kind)
        assert done.code == code and f"has no {kind} attached" in done.err and "next:" in done.err


def git(folder: Path, *words: str) -> str:
    """Git without this user's configuration."""
    program = find_program("git", "git")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        [program, "-C", str(folder), *who, *words], check=True, capture_output=True, text=True, env=clean
    )
    return done.stdout.strip()


def test_the_commit_of_the_stack_is_in_the_provenance(
    imagebuilder: Command, small: Small, fake: FakeRegistry
) -> None:
    def source(name: str) -> Any:
        for words in (("build", "s", "--builder", "direct"), ("push", "s", "--to", f"{fake.host}/{name}:x")):
            assert imagebuilder(*words).code == 0
        found = evidence(imagebuilder, f"{fake.host}/{name}:x", "--output", name)
        provenance = json.loads(Path(name, "provenance.intoto.json").read_bytes())
        jsonschema.validate(provenance, PROVENANCE_SCHEMA)
        inputs = provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
        summary = next(e["summary"] for e in found["evidence"] if e["kind"] == "provenance")
        return next((d for d in inputs if d["name"] == "source"), None), summary

    assert source("none")[0] is None
    git(small.folder, "init", "-q")
    git(small.folder, "remote", "add", "origin", f"https://user:{CANARY}@example.com/x.git")
    assert source("empty")[0] is None, "there is no commit yet"
    git(small.folder, "add", "stacks/s.toml")
    git(small.folder, "commit", "-q", "-m", "x")
    commit = git(small.folder, "rev-parse", "HEAD")
    found, summary = source("unlocked")
    assert found["digest"] == {"gitCommit": commit} and f"commit {commit[:12]}" in summary
    assert found["annotations"] == {"path": "stacks/s.toml", "dirty": True}, "the lock is not committed"
    git(small.folder, "add", "stacks")
    git(small.folder, "commit", "-q", "-m", "y")
    found, summary = source("clean")
    assert found["annotations"]["dirty"] is False and "not committed" not in summary
    Path("stacks/base/x").write_text("an untracked file counts for nothing")
    assert source("untracked")[0] == found
    (small.folder / "stacks" / "s.toml").open("a").write("# a comment\n")
    found, summary = source("changed")
    assert found["annotations"]["dirty"] is True and "changes that were not committed" in summary
    stored = b"".join(fake.blobs.values())
    assert CANARY.encode() not in stored


def test_nothing_secret_is_attached(
    imagebuilder: Command, small: Small, fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logins of the index, of the registry and of a git remote, a token in a variable, a key's passphrase."""
    git(small.folder, "init", "-q")
    git(small.folder, "remote", "add", "origin", f"https://user:{CANARY}@example.com/x.git")
    git(small.folder, "add", "stacks")
    git(small.folder, "commit", "-q", "-m", f"a message with {CANARY}")
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(CANARY.encode())
    )
    (tmp_path / "key.pem").write_bytes(key)
    monkeypatch.setenv("IMAGEBUILDER_SIGN_PASSWORD", CANARY)
    address = small.index.url.replace("://", f"://user:{CANARY}@")
    monkeypatch.setenv("IMAGEBUILDER_INDEX_DEFAULT_URL", address)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    docker = tmp_path / "docker"
    docker.mkdir()
    (docker / "config.json").write_text(
        json.dumps({"auths": {fake.host: {"username": "u", "password": CANARY}}})
    )
    monkeypatch.setenv("DOCKER_CONFIG", str(docker))
    said = ""
    for words in (
        ("build", "s", "--builder", "direct", "--json"),
        ("push", "s", "--to", f"{fake.host}/a:x", "--json", "--sign-key", str(tmp_path / "key.pem")),
        ("pull", f"{fake.host}/a:x", "--output", "back", "--json"),
        ("evidence", f"{fake.host}/a:x", "--json"),
        ("diff", f"{fake.host}/a:x", "s", "--json"),
    ):
        done = imagebuilder(*words)
        assert done.code == 0, done.err
        said += done.out + done.err
    stored = b"".join([*fake.blobs.values(), *(data for _, data in fake.manifests.values())])
    secrets = (CANARY.encode(), *key.splitlines()[1:-1])
    assert not any(secret in stored or secret.decode() in said for secret in secrets)
    for path in (tmp_path / "work").rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            assert not any(secret in path.read_bytes() for secret in secrets), path


# ---------------------------------------------------------------- what proves nothing


def broken(kind: str, value: object) -> bytes:
    return json.dumps(value).encode()


SOUND_SBOM = {"bomFormat": "CycloneDX", "specVersion": "1.6", "components": [], "metadata": {"component": {}}}
FORGED: dict[str, tuple[str, bytes, str]] = {
    "another image's SBOM": ("sbom", broken("sbom", SOUND_SBOM), "about another image"),
    "an SBOM that is none": ("sbom", b'{"bomFormat":"x"}', "malformed"),
    "no JSON": ("sbom", b"\xff", "malformed"),
    "deep": ("sbom", b"[" * 100_000, "malformed"),
    "a list": ("provenance", b"[]", "malformed"),
    "another statement": ("provenance", b'{"_type":"x","predicateType":"y","subject":[],"predicate":'
                          b'{"buildDefinition":{"internalParameters":{"layers":[]},"resolvedDependencies":[],'
                          b'"externalParameters":{"stack":"s"}},"runDetails":{"builder":{"id":"x"}}}}',
                          "not an SLSA provenance"),
    "another image's acceptance": ("acceptance", b'{"config_digest":"sha256:00","runtime":"docker",'
                                   b'"outcome":"pass","started":"x","headline":"y"}', "about another image"),
    "a rehearsal": ("acceptance", b'{"config_digest":null,"runtime":"process",'
                    b'"outcome":"pass","started":"x","headline":"y"}', "rehearsal"),
    "findings of another": ("checks", b'{"config":"x","findings":[]}', "about another image"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_what_proves_nothing_is_said(
    name: str, imagebuilder: Command, small: Small, fake: FakeRegistry
) -> None:
    from imagebuilder.oci.registry import Registry
    from imagebuilder.publish.evidence import attach
    from imagebuilder.settings import Settings

    kind, data, text = FORGED[name]
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    assert imagebuilder("push", "s", "--to", f"{fake.host}/a:x", "--no-evidence").code == 0
    media_type, manifest = fake.manifests[("a", "x")]
    registry = Registry(fake.host, Settings(cache_dir=Path("unused")), pause=lambda seconds: None)
    attach(registry, "a", Descriptor.of(media_type, manifest), Evidence(kind=kind, data=data))
    done = imagebuilder("evidence", f"{fake.host}/a:x")
    assert done.code == 13 and text in done.err and "Traceback" not in done.err
    assert "next:" in done.err


def test_others_artefacts_are_listed_only(imagebuilder: Command, small: Small, fake: FakeRegistry) -> None:
    from imagebuilder.oci.model import ImageIndex
    from imagebuilder.oci.referrers import fallback_tag

    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    assert imagebuilder("push", "s", "--to", f"{fake.host}/a:x", "--no-evidence").code == 0
    _, manifest = fake.manifests[("a", "x")]
    signature = json.dumps({
        "schemaVersion": 2, "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "config": Descriptor.of("application/vnd.oci.empty.v1+json", b"{}").as_json(), "layers": [],
    }).encode()  # fmt: skip
    kind = "application/vnd.oci.image.manifest.v1+json"
    fake.put_manifest("a", signature, kind)
    index = ImageIndex(manifests=(Descriptor.of(kind, signature),))
    fake.put_manifest("a", index.to_bytes(), index.media_type, fallback_tag(Digest.of(manifest)))
    found = evidence(imagebuilder, f"{fake.host}/a:x")
    assert [(e["kind"], e["verified"]) for e in found["evidence"]] == [("other", False)]


def test_every_kind_has_a_checker() -> None:
    assert set(KINDS) == set(CHECKERS)


def test_an_sbom_of_nothing_is_valid(image: Image) -> None:
    data = make_sbom(Content(stack="s", image=image))
    check_sbom(data)
    assert data == make_sbom(Content(stack="s", image=image))
    problems: list[str] = []
    CHECKERS["sbom"](decode_document(data), image, problems)
    assert not problems


# ---------------------------------------------------------------- other clients


def test_skopeo_reads_the_evidence(pushed: str, place: str) -> None:
    skopeo = find_program("skopeo", "skopeo")
    command = [skopeo, "inspect", "--raw", "--tls-verify=false"]
    digest = Digest.of(
        subprocess.run([*command, f"docker://{pushed}"], check=True, capture_output=True).stdout
    )
    tag = digest.text.replace(":", "-")
    index = json.loads(
        subprocess.run([*command, f"docker://{place}:{tag}"], check=True, capture_output=True).stdout
    )
    assert {m["artifactType"] for m in index["manifests"]} == {
        KINDS["sbom"],
        KINDS["provenance"],
        KINDS["checks"],
    }
    for entry in index["manifests"]:
        raw = subprocess.run(
            [*command, f"docker://{place}@{entry['digest']}"], check=True, capture_output=True
        ).stdout
        assert json.loads(raw)["subject"]["digest"] == digest.text


@pytest.mark.docker
def test_an_engine_pulls_what_has_evidence(pushed: str, engine: TestEngine) -> None:
    engine.docker("pull", pushed)
    try:
        (seen,) = json.loads(engine.docker("image", "inspect", pushed))
        assert seen["Config"]["Labels"]["dev.imagebuilder.stack"] == "s"
    finally:
        engine.docker("rmi", "-f", pushed, check=False)


def test_findings_of_the_build_are_attached(imagebuilder: Command, pushed: str, tmp_path: Path) -> None:
    record = tmp_path / "work" / "images" / "s.build.json"
    fields = json.loads(record.read_text())
    note = {"code": "gpu.partial-code", "severity": "note", "what": "x", "evidence": [], "waived": None}
    fields["findings"] = [note, {**note, "severity": "error", "waived": "on purpose"}]
    record.write_text(json.dumps(fields))
    assert imagebuilder("push", "s", "--to", pushed).code == 0
    found = evidence(imagebuilder, pushed, "--require", "checks")
    checks = [e for e in found["evidence"] if e["kind"] == "checks" and "waived" in e["summary"]]
    assert [e["verified"] for e in checks] == [True]
    assert checks[0]["summary"].startswith("1 notes, 1 errors (waived), ")
    fields["checked"]["codes"] = "many"
    record.write_text(json.dumps(fields))
    refused = imagebuilder("push", "s", "--to", pushed)
    assert refused.code == 13 and "not a build record" in refused.err


def test_checks_that_found_nothing_are_evidence(imagebuilder: Command, pushed: str) -> None:
    found = evidence(imagebuilder, pushed, "--require", "checks", "--output", "out")
    report = json.loads(Path("out/checks.json").read_text())
    assert report["findings"] == [] and report["config"] == found["config"]
    ran = report["checked"]
    assert ran["codes"] == len(codes()) and ran["unseen"] == []
    assert ran["imagebuilder"] == __version__ and ran["code"] != ran["tables"]
    assert (
        found["evidence"][2]["summary"] == f"no findings, {len(codes())} codes of imagebuilder {__version__}"
    )


def test_an_image_that_was_not_checked_has_no_report_of_checks(
    imagebuilder: Command, small: Small, fake: FakeRegistry
) -> None:
    small.wheel("one")
    small.write("one")
    assert imagebuilder("build", "s", "--builder", "direct", "--no-check").code == 0
    assert imagebuilder("push", "s", "--to", f"{fake.host}/a:x").code == 0
    refused = imagebuilder("evidence", f"{fake.host}/a:x", "--require", "checks")
    assert refused.code == 13 and "has no checks attached" in refused.err
    assert "next:   imagebuilder build STACK, without --no-check; then imagebuilder push STACK" in refused.err
    assert imagebuilder("build", "s", "--builder", "direct").code == 0
    assert imagebuilder("push", "s", "--to", f"{fake.host}/a:x").code == 0
    assert imagebuilder("evidence", f"{fake.host}/a:x", "--require", "checks").code == 0


@pytest.mark.skipif(
    shutil.which("oras") is None, reason="oras is not installed (Debian 13: apt-get install oras)"
)
def test_oras_finds_pulls_and_copies_the_evidence(
    imagebuilder: Command, pushed: str, place: str, tmp_path: Path
) -> None:
    def oras(*words: str) -> str:
        return subprocess.run(["oras", *words], check=True, capture_output=True, text=True).stdout

    tree = oras("discover", "--plain-http", "--format", "json", pushed)
    found = json.loads(tree)
    listed = found["manifests"] if "manifests" in found else found["referrers"]  # oras 1.2, 1.3
    entries = {m["artifactType"]: m for m in listed}
    assert set(entries) == {KINDS["sbom"], KINDS["provenance"], KINDS["checks"]}
    out = tmp_path / "pulled"
    oras("pull", "--plain-http", "-o", str(out), entries[KINDS["sbom"]]["reference"])
    check_sbom((out / "sbom.cdx.json").read_bytes())
    oras("copy", "-r", "--from-plain-http", "--to-plain-http", pushed, f"{place}-oras:s")
    assert evidence(imagebuilder, f"{place}-oras:s")["evidence"] == evidence(imagebuilder, pushed)["evidence"]


def test_the_python_client_of_oras_reads_the_evidence(
    imagebuilder: Command, pushed: str, tmp_path: Path
) -> None:
    client = pytest.importorskip("oras.client").OrasClient(insecure=True)
    seen = evidence(imagebuilder, pushed)
    image = client.get_manifest(pushed)
    assert image["config"]["digest"] == seen["config"]
    place = pushed.rpartition(":")[0]
    for item in seen["evidence"]:
        name = f"{place}@{item['manifest']}"
        manifest = client.get_manifest(name)
        assert manifest["subject"]["digest"] == seen["manifest"]
        (file,) = client.pull(target=name, outdir=str(tmp_path / item["kind"]))
        assert Digest.of(Path(file).read_bytes()).text == item["digest"]


# ---------------------------------------------------------------- acceptance


def test_an_acceptance_opens_a_channel_and_is_attached(
    imagebuilder: Command, pushed: str, place: str, tmp_path: Path
) -> None:
    config = Digest(evidence(imagebuilder, pushed)["config"])
    words = ("push", "s", "--to", place, "--channel", "stable")
    refused = imagebuilder(*words)
    assert refused.code == 8 and "no result below" in refused.err
    accept(tmp_path / "work", config, outcome="pass", stamp="20261129T000000Z")
    done = imagebuilder(*words, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["tags"][-1] == "stable"
    found = evidence(imagebuilder, f"{place}:stable", "--require", "acceptance")
    (report,) = [e for e in found["evidence"] if e["kind"] == "acceptance"]
    assert report["verified"] and report["summary"].startswith("pass on 2026-11-30")
    accept(tmp_path / "work", config, outcome="fail")
    later = imagebuilder(*words)
    assert later.code == 8 and "fail on 2026-11-30" in later.err


def test_acceptances_side_by_side(imagebuilder: Command, pushed: str, tmp_path: Path) -> None:
    config = Digest(evidence(imagebuilder, pushed)["config"])
    accept(tmp_path / "work", config, eagle3=54.1, outcome="fail")
    found = json.loads(imagebuilder("diff", "demo", pushed, "--json").out)
    assert found["acceptance"]["old"] is None
    new = found["acceptance"]["new"]
    assert new["verdict"] == "fail" and new["figures"]["EAGLE-3 tok/s at 1"] == "54.1"
    assert "speedup at 1" in imagebuilder("diff", "demo", pushed).out
