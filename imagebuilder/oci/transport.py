"""Requests to one registry: scheme, login, redirects, and errors that say what to do.

Plain HTTP is spoken to this machine only. `Authorization` goes to the registry's own origin and to nobody
else, wherever a redirect or an upload's address leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode, urljoin, urlsplit

from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, PushFailed
from imagebuilder.oci import problems
from imagebuilder.oci.auth import Authorizer, AuthProblem, Scopes, TokenReply
from imagebuilder.oci.credentials import Credential
from imagebuilder.oci.problems import Errand, Secrets
from imagebuilder.values import is_loopback

if TYPE_CHECKING:
    import requests

    from imagebuilder.index.http import Session

MAX_REDIRECTS = 5
_ANSWER = 1 << 20  # bytes of an error or of a token server's answer that are read
_CHUNK = 1 << 18
_REDIRECTS = (301, 302, 303, 307, 308)


class Broken(Exception):
    """The connection broke while an answer was read."""


class Stream(Protocol):
    """A body of known length that can be sent more than once."""

    def __len__(self) -> int:
        """Bytes."""

    def __iter__(self) -> Iterator[bytes]:
        """The bytes, from the beginning."""


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. ValueError: a port that is no number."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"https": 443, "http": 80}.get(parts.scheme, 0)


def read_chunks(response: requests.Response) -> Iterator[bytes]:
    """The bytes of a streamed answer as they were sent. Broken: the connection broke."""
    import urllib3

    try:
        yield from response.raw.stream(_CHUNK, decode_content=False)
    except (urllib3.exceptions.HTTPError, OSError) as exc:
        raise Broken(str(exc.args[0] if exc.args else exc)[:200]) from exc


def read_all(response: requests.Response, limit: int) -> bytes:
    """The whole answer; of a longer one, its first `limit` + 1 bytes. Broken."""
    data = bytearray()
    with response:
        for chunk in read_chunks(response):
            data += chunk
            if len(data) > limit:
                break
    return bytes(data[: limit + 1])


class Transport:
    """Speaks to the registry at `host` (as in image references), for many threads."""

    def __init__(self, host: str, http: Session, find_login: Callable[[], Credential | None]) -> None:
        self.host = host
        self.http = http
        self.secrets = Secrets()
        self._find_login = find_login
        self._address = "registry-1.docker.io" if host == "docker.io" else host
        self._base = "" if is_loopback(host) else f"https://{self._address}"
        self._auth = Authorizer(self._login, self._ask_token_server, trusted=self._may_know_login)

    def request(
        self,
        method: str,
        path: str,
        errand: Errand,
        *,
        scopes: Scopes,
        ok: tuple[int, ...] = (200,),
        headers: Mapping[str, str] | None = None,
        body: bytes | Stream | None = None,
        follow: bool = True,
    ) -> requests.Response:
        """The streamed answer, with a status in `ok`. path: below the registry's root, or an address it gave.

        follow: redirects too. Any other end is the error that fits `errand`: ArtefactUnusable or PushFailed.
        """
        url = urljoin(self._root(errand) + "/", path)
        sent: str | None = None
        for last in (False, True):
            try:
                sent = self._auth.header(scopes)
                self._remember(sent)
                response = self._send(
                    method, url, errand, headers=headers, body=body, authorization=sent, follow=follow
                )
                if response.status_code != 401 or last or not self._own(response.url):
                    break
                response.close()
                self._auth.challenged(response.headers.get("WWW-Authenticate", ""), scopes, sent)
            except AuthProblem as exc:
                raise problems.no_way_in(
                    errand, self.host, self.secrets.hide(str(exc)), login_refused=exc.refused
                ) from None
            except Broken as exc:
                raise self.broken(errand, str(exc)) from None
        if response.status_code not in ok:
            raise self._refused(errand, response)
        return response

    def absolute(self, location: str, base: str, errand: Errand) -> str:
        """The address that a `Location` means, seen from `base`: http(s), and never from https to http."""
        try:
            url = urljoin(base, location)
            scheme, host, _ = origin(url)
        except ValueError:
            scheme, host, url = "", "", ""
        if scheme not in ("http", "https") or not host:
            raise self._leads_astray(errand)
        if scheme == "http" and not (is_loopback(host) and urlsplit(base).scheme == "http"):
            raise problems.misbehaves(
                errand,
                self.host,
                f"it leads to http://{host}, without TLS",
                wanted="https",
                hint="its proxy must set X-Forwarded-Proto (docker-registry: or http.relativeurls: true)",
            )
        return url

    def broken(self, errand: Errand, reason: str) -> ImagebuilderError:
        """The error for a connection that broke."""
        return problems.broken(errand, self.host, self.secrets.hide(reason))

    def _root(self, errand: Errand) -> str:
        """https, except for a registry on this machine that speaks plain HTTP, which is tried first."""
        if not self._base:
            errand = Errand(thing=f"the registry {self.host}", pushing=errand.pushing)
            url = f"http://{self._address}"
            try:
                with self._exchange("GET", f"{url}/v2/", errand) as response:
                    plain = response.status_code != 400  # "Client sent an HTTP request to an HTTPS server"
            except (ArtefactUnusable, PushFailed):
                plain = False
            if not plain:
                url = f"https://{self._address}"
                self._exchange("GET", f"{url}/v2/", errand).close()
            self._base = url
        return self._base

    def _own(self, url: str) -> bool:
        return origin(url) == origin(self._base)

    def _send(
        self,
        method: str,
        url: str,
        errand: Errand,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Stream | None = None,
        authorization: str | None = None,
        home: str = "",
        follow: bool = True,
    ) -> requests.Response:
        """Follows redirects; only the origin of `home` (the registry) is told the login."""
        for _ in range(MAX_REDIRECTS + 1):
            own = origin(url) == origin(home or self._base)
            login = {"Authorization": authorization} if authorization and own else {}
            response = self._exchange(method, url, errand, headers={**(headers or {}), **login}, body=body)
            location = response.headers.get("Location", "")
            if not follow or response.status_code not in _REDIRECTS or not location:
                return response
            if method not in ("GET", "HEAD") and response.status_code < 307:
                return response
            response.close()
            url = self.absolute(location, url, errand)
        raise problems.misbehaves(errand, self.host, f"more than {MAX_REDIRECTS} redirects")

    def _exchange(
        self,
        method: str,
        url: str,
        errand: Errand,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Stream | None = None,
    ) -> requests.Response:
        from imagebuilder.index.http import Unreachable

        if self.http.settings.offline and errand.pushing:
            raise PushFailed(
                f"{errand.thing} cannot be pushed: imagebuilder is offline", hint="run it without --offline"
            )
        headers = {"Accept-Encoding": "identity", **(headers or {})}
        data: bytes | Iterable[bytes] | None = body
        try:
            return self.http.request(
                method,
                url,
                what=errand.thing,
                headers=headers,
                data=data,
                stream=True,
                allow_redirects=False,
            )
        except Unreachable as exc:
            if self.http.settings.offline:
                raise
            raise self.broken(errand, exc.seen) from None
        except ValueError:  # requests parses a Location even where it does not follow it
            raise self._leads_astray(errand) from None
        except (ConnectionError, TimeoutError) as exc:  # from the socket, past requests, while a body is sent
            raise self.broken(errand, exc.strerror or str(exc)) from None

    def _leads_astray(self, errand: Errand) -> ImagebuilderError:
        return problems.misbehaves(errand, self.host, "it leads to an address that is not http or https")

    def _refused(self, errand: Errand, response: requests.Response) -> ImagebuilderError:
        try:
            said = problems.words_of(read_all(response, _ANSWER))
        except Broken:
            said = ""
        finally:
            response.close()
        after = response.headers.get("Retry-After", "")
        return problems.refused(
            errand,
            self.host,
            response.status_code,
            self.secrets.hide(said),
            has_login=self._auth.has_login,
            wait=float(after) if after.isascii() and after.isdigit() else None,
        )

    def _login(self) -> Credential | None:
        credential = self._find_login()
        if credential:
            self.secrets.add(credential.secret, credential.identity_token)
        return credential

    def _remember(self, header: str | None) -> None:
        if header:
            self.secrets.add(header.partition(" ")[2])

    def _may_know_login(self, realm: str) -> bool:
        scheme, host, _ = origin(realm)
        return scheme == "https" or (scheme == "http" and is_loopback(host) and is_loopback(self.host))

    def _ask_token_server(
        self, url: str, *, authorization: str | None, form: Mapping[str, str] | None
    ) -> TokenReply:
        self._remember(authorization)
        errand = Errand(thing=f"a token for {self.host}")
        try:
            if form is None:
                response = self._send("GET", url, errand, authorization=authorization, home=url)
            else:
                kind = {"Content-Type": "application/x-www-form-urlencoded"}
                data = urlencode(form).encode()
                response = self._exchange("POST", url, errand, headers=kind, body=data)
            return TokenReply(status=response.status_code, body=read_all(response, _ANSWER))
        except ArtefactUnusable as exc:
            raise Broken(f"its token server {urlsplit(url).hostname}: {exc.seen}") from None
