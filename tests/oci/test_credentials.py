from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagebuilder.errors import MachineLacks
from imagebuilder.oci.credentials import Credential, DockerCredentials, run_helper
from imagebuilder.settings import load

CANARY = "s3cr3t-canary-7f"


def packed(user: str, secret: str = CANARY) -> str:
    return base64.b64encode(f"{user}:{secret}".encode()).decode()


def find(tmp_path: Path, config: object, registry: str = "registry.example") -> Credential | None:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return DockerCredentials(tmp_path, no_helper).find(registry)


def no_helper(command: Sequence[str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    raise AssertionError(f"{command} was run")


@pytest.mark.parametrize(
    ("key", "registry"),
    [
        ("registry.example", "registry.example"),
        ("registry.example:5000", "registry.example:5000"),
        ("https://registry.example", "registry.example"),
        ("https://registry.example/v2/", "registry.example"),
        ("http://registry.example/v1/", "registry.example"),
        ("https://index.docker.io/v1/", "docker.io"),
        ("index.docker.io", "docker.io"),
        ("registry-1.docker.io", "docker.io"),
    ],
)
def test_logins_are_found_under_the_keys_docker_uses(key: str, registry: str, tmp_path: Path) -> None:
    login = find(tmp_path, {"auths": {key: {"auth": packed("anna")}}}, registry)
    assert login == Credential(username="anna", secret=CANARY)


@pytest.mark.parametrize(
    "key", ["registry.example:5000", "evil-registry.example", "registry.example.evil", "docker.io"]
)
def test_another_registrys_login_is_not_used(key: str, tmp_path: Path) -> None:
    assert find(tmp_path, {"auths": {key: {"auth": packed("anna")}}}) is None


def test_the_environment_comes_first(tmp_path: Path) -> None:
    """DOCKER_AUTH_CONFIG has the form of config.json; what it does not name is looked for there."""
    (tmp_path / "config.json").write_text(
        json.dumps({"auths": {h: {"auth": packed("file")} for h in ("registry.example", "other.example")}})
    )
    given = json.dumps({"auths": {"https://registry.example/v2/": {"auth": packed("given", "g")}}})
    settings = load({"HOME": str(tmp_path), "DOCKER_CONFIG": str(tmp_path), "DOCKER_AUTH_CONFIG": given})
    logins = DockerCredentials.of(settings)
    assert logins.find("registry.example") == Credential(username="given", secret="g")
    assert logins.find("other.example") == Credential(username="file", secret=CANARY)
    assert packed("given", "g") not in repr(settings)
    for broken in (f"{{{CANARY}", f'{{"auths": {{"registry.example": {{"auth": "{CANARY}"}}}}}}'):
        with pytest.raises(MachineLacks, match="DOCKER_AUTH_CONFIG") as caught:
            DockerCredentials(None, no_helper, given=broken).find("registry.example")
        assert CANARY not in str(caught.value)


def test_secrets_with_colons_and_old_forms(tmp_path: Path) -> None:
    login = find(tmp_path, {"auths": {"registry.example": {"auth": packed("a", "b:c:d")}}})
    assert login == Credential(username="a", secret="b:c:d")
    login = find(tmp_path, {"auths": {"registry.example": {"username": "a", "password": "p"}}})
    assert login == Credential(username="a", secret="p")
    login = find(
        tmp_path, {"auths": {"registry.example": {"auth": packed("a", ""), "identitytoken": CANARY}}}
    )
    assert login == Credential(username="a", identity_token=CANARY)


@pytest.mark.parametrize(
    "config", [{}, {"auths": None}, {"auths": {"registry.example": {}}}, {"auths": []}, {"credHelpers": []}]
)
def test_no_login(config: object, tmp_path: Path) -> None:
    assert find(tmp_path, config) is None


def test_no_file_is_no_login(tmp_path: Path) -> None:
    assert DockerCredentials(tmp_path / "none", no_helper).find("registry.example") is None
    assert DockerCredentials(None, no_helper).find("registry.example") is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (f'{{"auths": "{CANARY}', "not a JSON object"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ({"auths": {"registry.example": {"auth": f"{CANARY}%"}}}, "is damaged"),
        ({"auths": {"registry.example": {"auth": base64.b64encode(CANARY.encode()).decode()}}}, "is damaged"),
        ({"credsStore": "../../bin/sh"}, "no program name"),
        ({"credHelpers": {"registry.example": 7}}, "no program name"),
    ],
)
def test_a_bad_file_is_said_without_quoting_it(config: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(MachineLacks, match=message) as caught:
        find(tmp_path, config)
    assert CANARY not in str(caught.value)


# ---------------------------------------------------------------- helpers, run for real

HELPER = """#!/bin/sh
[ "$1" = get ] || exit 9
read -r server
echo "$server" >> "$0.log"
case "$server" in
registry.example) echo '{"ServerURL":"registry.example","Username":"helen","Secret":"from-helper"}';;
https://index.docker.io/v1/) echo '{"Username":"<token>","Secret":"an-identity"}';;
broken.example) echo 'not JSON, s3cr3t-canary-7f';;
locked.example) echo 'the store is locked, s3cr3t-canary-7f'; exit 1;;
*) echo 'credentials not found in native keychain'; exit 1;;
esac
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "docker-credential-test"
    program.parent.mkdir()
    program.write_text(HELPER)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


def with_helper(tmp_path: Path, config: object, registry: str) -> Credential | None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return DockerCredentials(tmp_path, run_helper).find(registry)


@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
def test_a_helper_is_asked(key: str, helper: Path, tmp_path: Path) -> None:
    config = {key: "test" if key == "credsStore" else {"registry.example": "test"}}
    login = with_helper(tmp_path, config, "registry.example")
    assert login == Credential(username="helen", secret="from-helper")


def test_a_helper_gives_an_identity_token_for_docker_hub(helper: Path, tmp_path: Path) -> None:
    login = with_helper(tmp_path, {"credsStore": "test"}, "docker.io")
    assert login == Credential(identity_token="an-identity")


def test_the_registrys_own_helper_wins(helper: Path, tmp_path: Path) -> None:
    config = {"credsStore": "absent", "credHelpers": {"registry.example": "test"}}
    assert with_helper(tmp_path, config, "registry.example") is not None


def test_without_an_entry_in_the_store_the_file_counts(helper: Path, tmp_path: Path) -> None:
    config = {"credsStore": "test", "auths": {"other.example": {"auth": packed("anna")}}}
    assert with_helper(tmp_path, config, "other.example") == Credential(username="anna", secret=CANARY)
    assert with_helper(tmp_path, config, "unknown.example") is None


@pytest.mark.parametrize(
    ("helper_name", "registry", "message"),
    [
        ("absent", "registry.example", "docker-credential-absent, which .* is not installed"),
        ("test", "broken.example", "no answer that can be read"),
        ("test", "locked.example", "exit status 1"),
    ],
)
def test_a_helper_that_fails(
    helper_name: str, registry: str, message: str, helper: Path, tmp_path: Path
) -> None:
    with pytest.raises(MachineLacks, match=message) as caught:
        with_helper(tmp_path, {"credsStore": helper_name}, registry)
    assert CANARY not in str(caught.value)


def test_a_helper_that_hangs(tmp_path: Path) -> None:
    def hang(command: Sequence[str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        raise subprocess.TimeoutExpired(list(command), 60)

    (tmp_path / "config.json").write_text('{"credsStore": "x"}')
    with pytest.raises(MachineLacks, match="no answer in 60 s"):
        DockerCredentials(tmp_path, hang).find("registry.example")


def test_a_login_shows_nothing_when_printed() -> None:
    assert CANARY not in repr(Credential(username="u", secret=CANARY, identity_token=CANARY))
