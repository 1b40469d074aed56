"""How a registry wants to be told who asks: Basic, or Bearer tokens from its token server.

Source: distribution/distribution docs/content/spec/auth/{token,oauth,jwt}.md; RFC 9110 §11.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from imagebuilder.oci.credentials import Credential

MIN_SECONDS = 60  # how long a token holds that says nothing, or less
_MARGIN = 10  # seconds before its end at which a token is not used any more
_PARAMETER = re.compile(r'\s*,?\s*([A-Za-z][\w-]*)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME = re.compile(r"\s*,?\s*([A-Za-z][\w-]*)(?=\s|$|,)(?!\s*=)")
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")

Scopes = tuple[str, ...]


class AuthProblem(Exception):
    """No way in. refused: a login was there, and the registry or its token server did not take it."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """One scheme of a `WWW-Authenticate` header, in lower case, with its parameters."""

    scheme: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class TokenReply:
    """What a token server answered: HTTP status, and the first megabyte of the body."""

    status: int
    body: bytes = field(repr=False)


class AskTokenServer(Protocol):
    """Sends a request to a token server. `form` makes it a POST. Raises what the transport raises."""

    def __call__(self, url: str, *, authorization: str | None, form: Mapping[str, str] | None) -> TokenReply:
        """The answer."""


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """The challenges in a `WWW-Authenticate` header; what is malformed is left out."""
    found: list[Challenge] = []
    position = 0
    while match := _SCHEME.match(header, position):
        position = match.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(header, position):
            quoted, plain = parameter[2], parameter[3]
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
            parameters[parameter[1].lower()] = value
            position = parameter.end()
        found.append(Challenge(scheme=match[1].lower(), parameters=parameters))
    return tuple(found)


def pull_scope(repository: str) -> str:
    """To read a repository."""
    return f"repository:{repository}:pull"


def push_scope(repository: str) -> str:
    """To write a repository."""
    return f"repository:{repository}:pull,push"


class Authorizer:
    """Knows what to put into `Authorization` for one registry; may be used by many threads.

    Nothing is sent, and no login looked up, before the registry asks. Tokens are kept per set of scopes until
    they run out. trusted: whether the token server at an address may be told a login.
    """

    def __init__(
        self,
        find_login: Callable[[], Credential | None],
        ask: AskTokenServer,
        *,
        trusted: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_login = find_login
        self._ask = ask
        self._trusted = trusted
        self._clock = clock
        self._lock = threading.Lock()
        self._credential: Credential | None = None
        self._challenge: Challenge | None = None
        self._asked: dict[frozenset[str], str] = {}  # the scope that the registry named for a request
        self._tokens: dict[frozenset[str], tuple[str, float]] = {}

    @property
    def has_login(self) -> bool:
        """Whether a login was needed so far, and is there."""
        return self._credential is not None

    def header(self, scopes: Scopes) -> str | None:
        """What to send as `Authorization` for these scopes; None while nobody has asked. AuthProblem."""
        with self._lock:
            if self._challenge is None:
                return None
            if self._challenge.scheme == "basic":
                return self._basic()
            key = frozenset(scopes)
            token, until = self._tokens.get(key, ("", 0.0))
            if not token or self._clock() >= until:
                token, until = self._fetch(self._challenge, scopes)
                self._tokens[key] = (token, until)
            return f"Bearer {token}"

    def challenged(self, www_authenticate: str, scopes: Scopes, sent: str | None) -> None:
        """The registry answered 401 to a request with the header `sent`. AuthProblem: no use to try again.

        A Bearer token that was sent is forgotten, so that the next `header` fetches a new one.
        """
        known = {c.scheme: c for c in reversed(parse_challenges(www_authenticate))}
        challenge = known.get("bearer") or known.get("basic")
        if challenge is None:
            raise AuthProblem("it asks for a login and names no way that is known (Basic, Bearer)")
        if challenge.scheme == "basic" and sent is not None and sent.startswith("Basic "):
            raise AuthProblem("it does not take the login", refused=True)
        with self._lock:
            key = frozenset(scopes)
            if self._challenge is None:
                self._credential = self._find_login()
            self._challenge = challenge
            self._asked[key] = challenge.parameters.get("scope", "")
            stale, _ = self._tokens.get(key, ("", 0.0))
            if sent == f"Bearer {stale}":  # another thread may have fetched a newer one already
                del self._tokens[key]

    def _basic(self) -> str:
        if self._credential is None:
            raise AuthProblem("it asks for a login")
        if self._credential.identity_token:
            raise AuthProblem("it asks for user and password, the login stored is an identity token")
        return _basic_header(self._credential)

    def _fetch(self, challenge: Challenge, scopes: Scopes) -> tuple[str, float]:
        realm, service = challenge.parameters.get("realm", ""), challenge.parameters.get("service", "")
        if urlsplit(realm).scheme not in ("http", "https") or not urlsplit(realm).hostname:
            raise AuthProblem("it names a token server without a usable address")
        if not self._trusted(realm):
            raise AuthProblem("its token server is not reached over https, so no login is sent to it")
        wanted = sorted({*scopes, *self._asked.get(frozenset(scopes), "").split()} - {""})
        started = self._clock()
        reply = self._ask_for(realm, service, wanted)
        if reply.status in (400, 401, 403) and self._credential is not None:
            raise AuthProblem(
                f"its token server does not take the login (status {reply.status})", refused=True
            )
        if reply.status in (401, 403):
            raise AuthProblem(f"its token server asks for a login (status {reply.status})")
        if reply.status != 200:
            raise AuthProblem(f"its token server answers with status {reply.status}")
        token, seconds = _read_token(reply.body)
        return token, started + max(seconds, MIN_SECONDS) - _MARGIN

    def _ask_for(self, realm: str, service: str, scopes: list[str]) -> TokenReply:
        login = self._credential
        if login is not None and login.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "service": service,
                "client_id": "imagebuilder",
                "scope": " ".join(scopes),
            }
            return self._ask(realm, authorization=None, form=form)
        query = [("service", service)] if service else []
        query += [("scope", scope) for scope in scopes]
        url = realm + ("&" if urlsplit(realm).query else "?") + urlencode(query)
        return self._ask(url, authorization=_basic_header(login) if login else None, form=None)


def _basic_header(login: Credential) -> str:
    return "Basic " + base64.b64encode(f"{login.username}:{login.secret}".encode()).decode()


def _read_token(body: bytes) -> tuple[str, float]:
    """(token, seconds that it holds)."""
    try:
        answer: Any = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise AuthProblem("its token server's answer cannot be read")
    token = answer.get("token") or answer.get("access_token")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise AuthProblem("its token server's answer holds no token")
    seconds = answer.get("expires_in", 0)
    return token, float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 1e7 else 0.0
