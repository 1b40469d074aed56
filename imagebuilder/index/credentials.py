"""Which user name and password an address gets: configuration, then netrc, then (after a 401) keyring.

A login given with an index's address serves its whole origin (scheme, host, port), as with pip: files often
lie beside the index. It goes to no other origin, also not after a redirect, and is never printed.
"""

from __future__ import annotations

import base64
import netrc
import threading
from typing import Any
from urllib.parse import SplitResult, urlsplit

import requests
from requests.auth import AuthBase

from imagebuilder.settings import Login, Settings

Origin = tuple[str, str, int | None]


def origin(parts: SplitResult) -> Origin:
    """(scheme, host, port) with the scheme's own port filled in."""
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class Credentials(AuthBase):
    """Gives each request the login of its origin. `problem`: why a source of logins could not be read."""

    def __init__(self, settings: Settings) -> None:
        self.problem = ""
        self._lock = threading.Lock()
        self._logins = [(urlsplit(url), login) for url, login in settings.logins.items()]
        self._from_keyring: dict[Origin, Login | None] = {}
        self._netrc: netrc.netrc | None = None
        try:
            self._netrc = netrc.netrc(str(settings.netrc)) if settings.netrc else None
        except FileNotFoundError:
            pass
        except netrc.NetrcParseError as error:  # its text may repeat a password
            self.problem = f"{settings.netrc} cannot be read at line {error.lineno}"
        except (OSError, UnicodeDecodeError):
            self.problem = f"{settings.netrc} cannot be read"

    def add(self, url: str, login: Login) -> None:
        """Use this login for the origin of `url` (an address without it) too."""
        with self._lock:
            self._logins.insert(0, (urlsplit(url), login))

    def login_for(self, url: str) -> Login | None:
        """The login for that address, where one is known; the one given for the nearest path wins."""
        wanted = urlsplit(url)
        with self._lock:
            known = [(p.path, login) for p, login in self._logins if origin(p) == origin(wanted)]
            if known:
                return max(known, key=lambda item: _shared(item[0], wanted.path))[1]
            if found := self._from_keyring.get(origin(wanted)):
                return found
        entry = self._netrc.authenticators(wanted.hostname or "") if self._netrc else None
        return Login(username=entry[0] or "", password=entry[2] or "") if entry else None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the header, unless the caller set one; ask keyring should the server answer 401."""
        self.apply(request)
        request.register_hook("response", self._after)  # type: ignore[no-untyped-call]
        return request

    def apply(self, request: requests.PreparedRequest) -> None:
        """Add the header, unless there is one."""
        login = self.login_for(request.url or "")
        if login and "Authorization" not in request.headers:
            request.headers["Authorization"] = _basic(login)

    def _after(self, response: requests.Response, **kwargs: Any) -> requests.Response:
        request = response.request
        if response.status_code != 401:
            return response
        login = self._ask_keyring(request.url or "")
        if not login or request.headers.get("Authorization") == _basic(login):
            return response
        response.close()
        again = request.copy()
        again.headers["Authorization"] = _basic(login)
        answer: requests.Response = response.connection.send(again, **kwargs)
        answer.history.append(response)
        answer.request = again
        return answer

    def _ask_keyring(self, url: str) -> Login | None:
        place = origin(urlsplit(url))
        known = self.login_for(url)
        with self._lock:
            if place not in self._from_keyring:
                self._from_keyring[place] = _keyring_login(place, known.username if known else None)
            return self._from_keyring[place]


def _keyring_login(place: Origin, username: str | None) -> Login | None:
    """What keyring, where it is installed, has for this origin (asked as pip asks)."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        return None
    scheme, host, port = place
    default_port = port in (80, 443)
    try:
        for service in (f"{scheme}://{host}" + ("" if default_port else f":{port}"), host):
            if found := keyring.get_credential(service, username):
                return Login(username=found.username, password=found.password)
    except keyring.errors.KeyringError:
        return None
    return None


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.username}:{login.password}".encode()).decode()


def _shared(one: str, other: str) -> int:
    """How many leading parts two paths share."""
    pairs = list(zip(one.strip("/").split("/"), other.strip("/").split("/"), strict=False))
    return next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
