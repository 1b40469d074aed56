"""`deploy`: which image, what is refused, and what is never shown. No engine or cluster is needed."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagebuilder.accept import codec
from imagebuilder.accept.scenario import make_scenario
from imagebuilder.oci.image import Image
from imagebuilder.oci.model import ImageConfig, ImagePlatform
from imagebuilder.oci.push import push_image
from imagebuilder.oci.registry import Registry
from imagebuilder.settings import Settings
from imagebuilder.stack import load_stack
from imagebuilder.values import Digest, Platform
from tests.accept.samples import a_run
from tests.support.acceptances import accept
from tests.support.command import Outcome
from tests.support.fake_registry import FakeRegistry

Run = Callable[..., Outcome]
REF = "registry.example/team/demo@sha256:" + "7" * 64
CANARY = "hf_canaryCanaryCanaryCanary123"


@pytest.fixture
def run(imagebuilder: Run) -> Run:
    """With the demo stack in the current folder, as one's own."""
    assert imagebuilder("init", "demo").code == 0
    return imagebuilder


def change(old: str, new: str) -> None:
    """In one's own demo stack."""
    path = Path("stacks/demo.toml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def record(lock: str | None = None, **fields: Any) -> None:
    """As `build` leaves it, without the image."""
    lock = lock or Digest.of(Path("stacks/pylock.demo.toml").read_bytes()).text
    names = ["docker.io/library/imagebuilder:demo", "docker.io/library/imagebuilder:demo-0"]
    known = {
        "stack": "demo", "lock": lock, "names": names, "builder": {}, "layers": [], "findings": [],
        "manifest": "sha256:" + "7" * 64, "config": "sha256:" + "8" * 64,
    }  # fmt: skip
    Path("images").mkdir(exist_ok=True)
    Path("images/demo.build.json").write_text(json.dumps(known | fields))


def test_docker_line_and_compose(run: Run) -> None:
    line = run("deploy", "docker", "demo", "--dry-run")
    assert line.code == 0, line.err
    words = shlex.split(line.out)
    assert words[:2] == ["docker", "run"]
    (image,) = (word for word in words if word.startswith("docker.io/library/imagebuilder:demo-"))
    assert json.loads(run("deploy", "docker", "demo", "--dry-run", "--json").out)["command"] == words
    compose = yaml.safe_load(run("deploy", "docker", "demo", "--format", "compose").out)
    assert compose["services"]["demo"]["image"] == image
    other = run("deploy", "docker", "demo", "--dry-run", "--image", REF)
    assert REF in shlex.split(other.out) and image not in other.out


@pytest.mark.parametrize("words", [("--dry-run",), ("--format", "compose")], ids=" ".join)
def test_what_would_be_refused_is_forewarned(run: Run, words: tuple[str, ...]) -> None:
    told = run("deploy", "docker", "demo", *words)
    assert told.code == 0 and told.out
    assert "would be refused (exit code 2): demo is not built" in told.err
    record()
    told = run("deploy", "docker", "demo", *words)
    assert told.code == 0 and told.out
    assert "would be refused (exit code 8)" in told.err and "no result below" in told.err
    assert "imagebuilder accept demo" in told.err
    quiet = run("deploy", "docker", "demo", *words, "--unaccepted")
    assert quiet.code == 0 and "refused" not in quiet.err
    accept(Path.cwd(), Digest("sha256:" + "8" * 64), stack="demo")
    told = run("deploy", "docker", "demo", *words)
    assert told.code == 0 and "refused" not in told.err, told.err


def test_kubernetes_to_standard_output(run: Run) -> None:
    done = run("deploy", "kubernetes", "demo", "--image", REF, "--unaccepted")
    assert done.code == 0, done.err
    documents = list(yaml.safe_load_all(done.out))
    assert [d["kind"] for d in documents] == ["ConfigMap", "Service", "Deployment", "PodDisruptionBudget"]
    again = run("deploy", "kubernetes", "demo", "--image", REF, "--unaccepted", "--json", "--service-monitor")
    assert json.loads(again.out)["documents"][: len(documents)] == documents


def test_the_built_image_in_the_stacks_repository(run: Run) -> None:
    change("[image]\n", '[image]\nrepository = "registry.example/team/demo"\n')
    assert run("deploy", "kubernetes", "demo", "--unaccepted").code == 2, "not built"
    record()
    done = run("deploy", "kubernetes", "demo", "--unaccepted")
    assert done.code == 0, done.err
    (deployment,) = (d for d in yaml.safe_load_all(done.out) if d["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == REF
    record(lock="sha256:" + "0" * 64)
    stale = run("deploy", "kubernetes", "demo", "--unaccepted")
    assert stale.code == 4
    assert "another lock" in stale.err


@pytest.mark.parametrize("words", [("docker", "demo", "--dry-run"), ("kubernetes", "demo", "--image", REF)])
def test_another_server_than_the_accepted_one_is_named(run: Run, words: tuple[str, ...]) -> None:
    """What serves is held against the run that accepted the image."""
    record()
    stack = load_stack(Path("stacks/demo.toml"))
    assert stack.acceptance is not None
    accepted = accept(Path.cwd(), Digest("sha256:" + "8" * 64), stack="demo").parent
    measured = replace(a_run(), scenario=make_scenario(stack, stack.acceptance, ()))
    (accepted / "run.json.gz").write_bytes(gzip.compress(codec.dumps(measured).encode()))
    told = run("deploy", *words)
    assert told.code == 0 and "another server" not in told.err, told.err
    change('"--speculative-num-steps", "3", ', '"--speculative-num-steps", "5", ')
    told = run("deploy", *words)
    assert told.code == 0, told.err
    assert "--speculative-num-steps 5, accepted --speculative-num-steps 3" in told.err


def test_an_acceptance_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the config digest of the build record, where the image is that one."""
    record()
    refused = run("deploy", "kubernetes", "demo", "--image", REF)
    assert refused.code == 8, refused.err
    assert refused.out == ""
    assert "--unaccepted" in refused.err
    asked: list[Digest] = []

    def accepted(folder: Path, config: Digest) -> None:
        asked.append(config)

    monkeypatch.setattr("imagebuilder.cli.acceptance.why_not_accepted", accepted)
    assert run("deploy", "kubernetes", "demo", "--image", REF).code == 0
    assert asked == [Digest("sha256:" + "8" * 64)]


def test_an_acceptance_of_an_image_that_lies_elsewhere(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its registry is asked what its config is."""
    image = Image.make(ImageConfig(platform=ImagePlatform.of(Platform("linux", "amd64"))), ())
    asked: list[Digest] = []
    monkeypatch.setattr(
        "imagebuilder.cli.acceptance.why_not_accepted", lambda folder, config: asked.append(config)
    )
    with FakeRegistry() as fake:
        push_image(_registry(fake), "team/demo", image, ["1"])
        done = run("deploy", "kubernetes", "demo", "--image", f"{fake.host}/team/demo@{image.digest}")
    assert done.code == 0, done.err
    assert asked == [image.config_digest]


def _registry(fake: FakeRegistry) -> Registry:
    return Registry(fake.host, Settings(cache_dir=Path("cache")))


WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("kubernetes", "demo"), 2, "which image?"),
    (("kubernetes", "demo", "--image", "registry.example/demo:1"), 2, "names no digest"),
    (("kubernetes", "demo", "--image", "A B"), 2, "--image:"),
    (("kubernetes", "demo", "--image", REF, "--wait"), 2, "--wait: only with --apply"),
    (("kubernetes", "demo", "--image", REF, "--context", "c"), 2, "--context: only with"),
    (("kubernetes", "nothing"), 2, "nothing"),
    (("docker", "demo", "--rollback", "--dry-run"), 2, "goes alone"),
    (("docker", "demo", "--image", "a@sha256:1"), 2, "--image:"),
    (("swarm", "demo"), 2, "No such command"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "said"), WRONG, ids=[" ".join(w[0])[:60] for w in WRONG])
def test_usage(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    done = run("deploy", *words)
    assert (done.code, done.out) == (code, ""), done.err
    assert said in done.err
    assert "Traceback" not in done.err


def test_tables_that_are_missing_or_wrong(run: Run) -> None:
    change("[deploy.kubernetes]\n", '[deploy.kubernetes]\nname = "demo"\n')
    change('memory = "256MiB"', 'memory = "16MiB"')
    wrong = run("deploy", "kubernetes", "demo", "--image", REF, "--unaccepted")
    assert wrong.code == 3
    assert "deploy.kubernetes.memory" in wrong.err
    text = Path("stacks/demo.toml").read_text()
    Path("stacks/demo.toml").write_text(text[: text.index("[deploy.docker]")])
    for form in ("docker", "kubernetes"):
        done = run("deploy", form, "demo", "--image", REF, "--unaccepted")
        assert done.code == 2
        assert f"wanted: a section [deploy.{form}]" in done.err and "docs/20-stack.md" in done.err
    done = run("accept", "demo", "--dry-run")
    assert done.code == 0, "it has [acceptance]"
    Path("stacks/demo.toml").write_text(text[: text.index("[acceptance]")])
    done = run("accept", "demo", "--dry-run")
    assert done.code == 2 and "wanted: a section [acceptance]" in done.err, done.err
    assert "imagebuilder init demo" in done.err


def test_secrets_are_asked_for_and_never_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    change("[deploy.docker]\n", '[deploy.docker]\nsecrets = ["HF_TOKEN"]\n')
    change(
        "[deploy.kubernetes]\n",
        '[deploy.kubernetes]\nsecrets = [{ env = "HF_TOKEN", secret = "hub", key = "token" }]\n',
    )
    missing = run("deploy", "docker", "demo", "--unaccepted")
    assert missing.code == 2
    assert "HF_TOKEN" in missing.err
    monkeypatch.setenv("HF_TOKEN", CANARY)
    for words in (
        ("docker", "demo", "--dry-run"),
        ("docker", "demo", "--dry-run", "--json"),
        ("docker", "demo", "--format", "compose"),
        ("kubernetes", "demo", "--image", REF, "--unaccepted"),
    ):
        done = run("deploy", *words)
        assert done.code == 0, done.err
        assert "HF_TOKEN" in done.out
        assert CANARY not in done.out + done.err


def test_no_engine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    done = run("deploy", "docker", "demo", "--unaccepted")
    assert done.code == 6
    assert "no Docker Engine answers" in done.err
