"""Keyring, asked only after a 401. (Configuration and netrc: test_http.)"""

from __future__ import annotations

import dataclasses
import sys
import types
from dataclasses import dataclass

import pytest

from imagebuilder.index.http import Denied, Session, fetch
from imagebuilder.settings import Login, Settings
from tests.support.http_server import Server


@dataclass
class Found:
    username: str
    password: str


@dataclass
class Keyring:
    """Stands for the optional library: what it was asked, and what it knows."""

    known: dict[str, Found]
    asked: list[tuple[str, str | None]]
    broken: bool = False


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Keyring:
    state = Keyring({}, [])

    class KeyringError(Exception):
        pass

    def get_credential(service: str, username: str | None) -> Found | None:
        state.asked.append((service, username))
        if state.broken:
            raise KeyringError
        return state.known.get(service)

    module, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")
    module.get_credential = get_credential  # type: ignore[attr-defined]
    module.errors = errors  # type: ignore[attr-defined]
    errors.KeyringError = KeyringError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return state


def test_keyring_is_asked_once_and_only_after_a_401(
    server: Server, settings: Settings, keyring: Keyring
) -> None:
    server.login("/private", "user", "pw")
    public, private = server.put("/public", b"1"), server.put("/private/a", b"2")
    keyring.known[server.url] = Found("user", "pw")
    with Session(settings) as http:
        fetch(http, public, "a file")
        assert keyring.asked == []
        assert fetch(http, private, "a file").body == b"2"
        assert fetch(http, private, "a file").body == b"2"
    assert keyring.asked == [(server.url, None)]


def test_a_user_name_without_password_is_what_keyring_is_asked_for(
    server: Server, settings: Settings, keyring: Keyring
) -> None:
    server.login("/", "user", "pw")
    url = server.put("/a", b"1")
    keyring.known["127.0.0.1"] = Found("user", "pw")
    logins = {server.url: Login(username="user", password="")}
    with Session(dataclasses.replace(settings, logins=logins)) as http:
        assert fetch(http, url, "a file").body == b"1"
    assert keyring.asked == [(server.url, "user"), ("127.0.0.1", "user")]


@pytest.mark.parametrize("broken", [True, False])
def test_without_an_answer_of_keyring_access_is_denied(
    server: Server, settings: Settings, keyring: Keyring, broken: bool
) -> None:
    server.login("/", "user", "pw")
    url = server.put("/a", b"1")
    keyring.broken = broken
    with Session(settings) as http, pytest.raises(Denied):
        fetch(http, url, "a file")
    assert len(server.seen) == 1


def test_a_wrong_password_is_tried_once(server: Server, settings: Settings, keyring: Keyring) -> None:
    server.login("/", "user", "pw")
    url = server.put("/a", b"1")
    keyring.known[server.url] = Found("user", "wrong")
    with Session(settings) as http, pytest.raises(Denied):
        fetch(http, url, "a file")
    assert len(server.seen) == 2
