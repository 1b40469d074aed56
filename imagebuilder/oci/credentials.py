"""Registry logins as Docker has them: DOCKER_AUTH_CONFIG, config.json and its credential helpers.

imagebuilder stores none of its own and prints none. Source: docker/cli docs (config.json, environment
variables), docker/docker-credential-helpers README.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagebuilder.errors import MachineLacks

if TYPE_CHECKING:
    from imagebuilder.settings import Settings

DOCKER_HUB = "docker.io"
_HUB_KEY = "https://index.docker.io/v1/"  # under which Docker keeps the login of Docker Hub
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPER_SECONDS = 60
_MAX_CONFIG = 4 << 20

Runner = Callable[[Sequence[str], bytes], "subprocess.CompletedProcess[bytes]"]
"""Runs a program with these bytes on its stdin. OSError: it cannot be started; TimeoutExpired."""


@dataclass(frozen=True, kw_only=True)
class Credential:
    """A login for one registry: user and secret, or an identity token. Its repr shows neither."""

    username: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)


def run_helper(command: Sequence[str], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    """The Runner that really runs the program."""
    return subprocess.run(command, input=stdin, capture_output=True, timeout=_HELPER_SECONDS, check=False)


class DockerCredentials:
    """Finds the login for a registry: in `given`, the JSON of DOCKER_AUTH_CONFIG, else in config.json.

    folder: where config.json lies (None: nowhere).
    """

    def __init__(self, folder: Path | None, run: Runner = run_helper, *, given: str = "") -> None:
        self._file = folder / "config.json" if folder else None
        self._run = run
        self._given = given

    @classmethod
    def of(cls, settings: Settings) -> DockerCredentials:
        """This user's."""
        return cls(settings.docker_config, given=settings.docker_auth)

    def find(self, registry: str) -> Credential | None:
        """The login for `registry` (host, with port if any); None: there is none.

        The environment's wins; then `credHelpers` for this registry over `credsStore`, and that over `auths`.
        MachineLacks: the variable, the file or the helper cannot be used.
        """
        if self._given:
            given = _parsed(self._given, "DOCKER_AUTH_CONFIG", 'set it to {"auths": {…}}, or unset it')
            if isinstance(entry := _find(_table(given, "auths"), registry), dict):
                return self._parse(entry, registry, "DOCKER_AUTH_CONFIG")
        config = self._read()
        helper = _find(_table(config, "credHelpers"), registry) or config.get("credsStore")
        if helper:
            found = self._ask(helper, _server(registry))
            if found:
                return found
        entry = _find(_table(config, "auths"), registry)
        return self._parse(entry, registry, str(self._file)) if isinstance(entry, dict) else None

    def _read(self) -> dict[str, Any]:
        if self._file is None:
            return {}
        try:
            with self._file.open("rb") as file:
                data = file.read(_MAX_CONFIG)
        except FileNotFoundError:
            return {}
        except OSError as exc:
            raise MachineLacks(
                f"{self._file} cannot be read", seen=exc.strerror or "", hint=f"chmod u+r {self._file}"
            ) from exc
        return _parsed(data, str(self._file), "repair it, or remove it and run `docker login`")

    @staticmethod
    def _parse(entry: dict[str, Any], registry: str, place: str) -> Credential | None:
        token = entry.get("identitytoken")
        username, secret = entry.get("username"), entry.get("password")
        packed = entry.get("auth")
        if isinstance(packed, str) and packed:
            try:
                pair = base64.b64decode(packed, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                pair = ""
            username, colon, secret = pair.partition(":")
            if not colon:
                raise MachineLacks(
                    f"the login for {registry} in {place} is damaged",
                    wanted="`auth` is base64 of user:password",
                    hint=f"docker login {registry}",
                )
            secret = secret.rstrip("\0")
        if isinstance(token, str) and token:
            return Credential(username=username or "", identity_token=token)
        if isinstance(username, str) and isinstance(secret, str) and username:
            return Credential(username=username, secret=secret)
        return None

    def _ask(self, helper: object, server: str) -> Credential | None:
        if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
            raise MachineLacks(f"{self._file} names a credential helper that is no program name")
        program = f"docker-credential-{helper}"
        try:
            result = self._run([program, "get"], server.encode())
        except FileNotFoundError:
            raise MachineLacks(
                f"{program}, which {self._file} names for {server}, is not installed",
                hint=f"install {program}, or remove it from {self._file}",
            ) from None
        except subprocess.TimeoutExpired:
            raise MachineLacks(
                f"{program} gave no answer in {_HELPER_SECONDS} s",
                hint=f"unlock its store: echo {server} | {program} get",
            ) from None
        except OSError as exc:
            raise MachineLacks(f"{program} cannot be run", seen=exc.strerror or "") from exc
        if result.returncode != 0:
            said = result.stdout.decode(errors="replace").strip()
            if "credentials not found" in said:
                return None
            raise MachineLacks(
                f"{program} failed for {server}",
                seen=f"exit status {result.returncode}",
                hint=f"echo {server} | {program} get",
            )
        return _from_helper(result.stdout, program)


def _parsed(data: bytes | str, place: str, hint: str) -> dict[str, Any]:
    try:
        config = json.loads(data)
    except (ValueError, RecursionError):  # their text would quote what holds secrets
        config = None
    if not isinstance(config, dict):
        raise MachineLacks(f"{place} is not a JSON object", hint=hint)
    return config


def _from_helper(output: bytes, program: str) -> Credential | None:
    try:
        answer = json.loads(output)
        username, secret = answer["Username"], answer["Secret"]
    except (ValueError, RecursionError, KeyError, TypeError):
        username = secret = None
    if not isinstance(username, str) or not isinstance(secret, str):
        raise MachineLacks(f"{program} gave no answer that can be read", wanted="JSON, Username and Secret")
    if username == "<token>":
        return Credential(identity_token=secret)
    return Credential(username=username, secret=secret) if username or secret else None


def _server(registry: str) -> str:
    return _HUB_KEY if registry == DOCKER_HUB else registry


def _table(config: dict[str, Any], key: str) -> dict[str, Any]:
    table = config.get(key)
    return table if isinstance(table, dict) else {}


def _find(table: dict[str, Any], registry: str) -> Any:
    """The entry for this registry: by its own name first, then under the addresses that older logins used."""
    wanted = _names(registry)
    for name in wanted:
        if name in table:
            return table[name]
    for key, value in table.items():
        host = re.sub(r"^https?://", "", key).partition("/")[0]
        if host in wanted:
            return value
    return None


def _names(registry: str) -> tuple[str, ...]:
    if registry == DOCKER_HUB:
        return (_HUB_KEY, "index.docker.io", DOCKER_HUB, "registry-1.docker.io")
    return (registry,)
