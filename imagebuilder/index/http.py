"""HTTP as everybody here speaks it: one session with retries, timeouts, certificates, proxies, credentials.

What the world does wrong becomes one of four errors, with advice and without a secret in it: `NotFound`,
`Denied`, `Unreachable` (all ArtefactUnusable, so exit 13), and MachineLacks for missing certificates.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.structures import CaseInsensitiveDict
from urllib3.util.retry import Retry

from imagebuilder import __version__
from imagebuilder.errors import MORE_FILES, ArtefactUnusable, MachineLacks
from imagebuilder.index.credentials import Credentials
from imagebuilder.index.local import FileAdapter
from imagebuilder.settings import Login, Settings, redact, split_login
from imagebuilder.values import is_loopback

ATTEMPTS = 5
LONGEST_PAUSE = 60.0
"""Seconds; a server that asks for more in Retry-After is asked again earlier."""
PAGE_LIMIT = 64 << 20
_RETRIED = (429, 500, 502, 503, 504)

Pause = Callable[[float], object]


class NotFound(ArtefactUnusable):
    """The server is there and has no such thing (404, 410)."""


class Denied(ArtefactUnusable):
    """The server wants a login, or another one (401, 403, 407)."""


class Unreachable(ArtefactUnusable):
    """No usable answer: no connection, timeouts, drops, 429 or 5xx after all attempts; or offline."""


class _Retry(Retry):
    """urllib3's retries, with a pause that can be replaced and a bounded Retry-After."""

    def __init__(self, *args: Any, pause: Pause, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pause = pause

    def new(self, **kwargs: Any) -> _Retry:
        return super().new(pause=self._pause, **kwargs)

    def sleep(self, response: urllib3.BaseHTTPResponse | None = None) -> None:
        asked = self.get_retry_after(response) if response else None
        self._pause(min(self.get_backoff_time() if asked is None else asked, LONGEST_PAUSE))


class Session(requests.Session):
    """A `requests.Session` under these settings; safe to share between threads (it keeps no cookies).

    Raises Denied, NotFound, Unreachable or MachineLacks instead of what requests raises; an answer with an
    error status is returned, see `expect`.
    """

    def __init__(self, settings: Settings, *, logins: bool = True, pause: Pause | None = None) -> None:
        super().__init__()
        self.settings = settings
        self._given_up = threading.Event()
        self.pause: Pause = pause or self._given_up.wait
        self.trust_env = False  # the environment was read once, into `settings`
        self.credentials = Credentials(settings) if logins else None
        self.auth = self.credentials
        self.headers["User-Agent"] = f"imagebuilder/{__version__}"
        self.cookies.set_policy(_NoCookies())
        if settings.ca_bundle and not settings.ca_bundle.exists():
            raise MachineLacks(
                f"the file of trusted certificates {settings.ca_bundle} does not exist",
                seen=f"named by {settings.ca_bundle_origin or 'the settings'}",
                hint="correct it, or set IMAGEBUILDER_CA_BUNDLE to the right one",
            )
        self.verify = str(settings.ca_bundle) if settings.ca_bundle else True
        retry = _Retry(
            total=ATTEMPTS - 1, connect=2, backoff_factor=0.5, backoff_max=30, raise_on_status=False,
            status_forcelist=_RETRIED, allowed_methods=("GET", "HEAD", "OPTIONS"), pause=self.pause,
        )  # fmt: skip
        adapter = HTTPAdapter(pool_connections=32, pool_maxsize=settings.connections + 4, max_retries=retry)
        self.mount("https://", adapter)
        self.mount("http://", adapter)
        self.mount("file://", FileAdapter())

    def request(
        self, method: str | bytes, url: str | bytes, *args: Any, what: str = "", **kwargs: Any
    ) -> requests.Response:
        """As requests', with a default timeout. `what` names what is wanted in errors."""
        address, login = _parse(url.decode() if isinstance(url, bytes) else url, what)
        if login and self.credentials:
            self.credentials.add(address, login)
        if self.settings.offline and not address.startswith("file:"):
            raise Unreachable(
                f"{what or redact(address)} is not asked for: imagebuilder is offline",
                hint="run it once without --offline (IMAGEBUILDER_OFFLINE), or `imagebuilder fetch` before",
            )
        kwargs.setdefault("timeout", (min(10.0, self.settings.timeout), self.settings.timeout))
        try:
            return super().request(method, address, *args, **kwargs)
        except requests.RequestException as error:
            raise failure(error, address, what) from None

    def ask(
        self, url: str, what: str, *statuses: int, method: str = "GET", **kwargs: Any
    ) -> requests.Response:
        """A streamed answer with one of these statuses (200 if none is given), else the error that fits."""
        response = self.request(method, url, what=what, stream=True, **kwargs)
        try:
            expect(response, what, *statuses)
        except Denied as error:
            if self.credentials and self.credentials.problem:
                error.hint += f" ({self.credentials.problem})"
            raise
        return response

    def give_up(self) -> None:
        """End all pauses, these and later ones: nobody waits for the answers any more."""
        self._given_up.set()

    def back_off(self, attempt: int) -> None:
        """Pause before the attempt after the `attempt`-th failure (from 0) of something larger."""
        self.pause(min(0.5 * 2**attempt, 30.0))

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Where the answer sends us: only to other servers, never to files of this machine."""
        target = super().get_redirect_target(resp)
        if target and urlsplit(urljoin(resp.url, target)).scheme not in ("http", "https"):
            raise requests.exceptions.InvalidSchema("it redirects to something that is no server")
        return target

    # ---- what requests would read from os.environ, and where it would send credentials

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """The proxies of the settings, except for hosts that go without."""
        proxies = proxies or self._proxies_for(str(url))
        return super().merge_environment_settings(url, proxies, stream, verify, cert)

    def rebuild_proxies(self, prepared_request: Any, proxies: Any) -> Any:
        """After a redirect, the proxies for the new host."""
        return super().rebuild_proxies(  # type: ignore[no-untyped-call]
            prepared_request, self._proxies_for(prepared_request.url)
        )

    def rebuild_auth(self, prepared_request: Any, response: Any) -> None:
        """After a redirect, the login of the new origin, never the old one's."""
        super().rebuild_auth(prepared_request, response)  # type: ignore[no-untyped-call]
        if self.credentials:
            self.credentials.apply(prepared_request)

    def _proxies_for(self, url: str) -> dict[str, str]:
        host = urlsplit(url).hostname or ""
        known = dict(self.settings.proxies)
        without = known.pop("no", "")
        return {} if is_loopback(host) or _listed(host, without) else known


class _NoCookies(requests.cookies.cookielib.DefaultCookiePolicy):  # type: ignore[name-defined, misc]
    def set_ok(self, cookie: object, request: object) -> bool:
        return False


def session(settings: Settings, *, logins: bool = True, pause: Pause | None = None) -> Session:
    """A session under these settings. logins: from configuration, netrc, keyring (registries have others)."""
    return Session(settings, logins=logins, pause=pause)


def _listed(host: str, no_proxy: str) -> bool:
    """Whether NO_PROXY names this host: itself, a domain above it, its network, or `*`."""
    for item in no_proxy.replace(",", " ").split():
        domain = item.lstrip("*").lstrip(".")
        if not domain or host == domain or host.endswith(f".{domain}"):
            return True
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(item, strict=False):
                return True
    return False


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A whole answer. `url`: where it came from after redirects."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(
    http: Session,
    url: str,
    what: str,
    *,
    headers: Mapping[str, str] | None = None,
    also: tuple[int, ...] = (),
    limit: int = PAGE_LIMIT,
) -> Fetched:
    """GET something small (at most `limit` bytes, unpacked) as a whole; again when the connection drops.

    what: names it in errors, such as "the page of torch". also: statuses that are fine besides 200.
    """
    for attempt in range(ATTEMPTS):
        with http.ask(url, what, 200, *also, headers=headers) as response:
            body = bytearray()
            try:
                for chunk in response.iter_content(1 << 16):
                    body += chunk
                    if len(body) > limit:
                        raise ArtefactUnusable(
                            f"{what} from {redact(response.url)} is too large",
                            seen=f"more than {limit} bytes",
                        )
            except requests.RequestException as error:
                if attempt == ATTEMPTS - 1:
                    raise failure(error, response.url, what) from None
                http.back_off(attempt)
                continue
            return Fetched(
                url=response.url,
                status=response.status_code,
                headers=CaseInsensitiveDict(response.headers),
                body=bytes(body),
            )
    raise AssertionError("unreachable")


def expect(response: requests.Response, what: str, *statuses: int) -> None:
    """Raise Denied, NotFound or Unreachable, naming `what`, unless the status is one of these (or 200)."""
    status = response.status_code
    if status in (statuses or (200,)):
        return
    response.close()
    host = urlsplit(response.url).hostname or "the server"
    seen = f"HTTP {status} {response.reason or ''}".strip() + f" from {redact(response.url)}"
    message = f"{what} cannot be had"
    if status in (404, 410):
        raise NotFound(f"{what} does not exist on {host}", seen=seen)
    if status == 401:
        raise Denied(
            message,
            seen=seen,
            hint=f"give a login for {host} in ~/.netrc, in the index's address or in keyring",
        )
    if status == 403:
        hint = (
            f"the login for {host} may not read this; some indexes also answer 403 for what they do not have"
        )
        raise Denied(message, seen=seen, hint=hint)
    if status == 407:
        raise Denied(message, seen=seen, hint="give the proxy's login in HTTPS_PROXY")
    if status == 429:
        after = response.headers.get("Retry-After", "")
        hint = f"{host} wants fewer requests: wait" + (f" {after} s" if after.isdigit() else "")
        raise Unreachable(
            message, seen=seen, hint=f"{hint}, or set IMAGEBUILDER_CONNECTIONS to a smaller number"
        )
    if status >= 500:
        raise Unreachable(message, seen=seen, hint=f"{host} has a problem; try again later, or use a mirror")
    raise Unreachable(message, seen=seen, wanted="HTTP " + " or ".join(map(str, statuses or (200,))))


def failure(error: Exception, url: str, what: str = "") -> ArtefactUnusable | MachineLacks:
    """What to raise for a failure of the connection itself. `what` names what was wanted."""
    host = urlsplit(url).hostname or "the server"
    seen = redact(_cause(error))
    wanted = what or redact(url)
    if isinstance(error, requests.exceptions.SSLError) and "CERTIFICATE" in str(error):
        return MachineLacks(
            f"{wanted} cannot be had: the certificate of {host} is not trusted here",
            seen=seen,
            hint="name your company's CA bundle in IMAGEBUILDER_CA_BUNDLE or SSL_CERT_FILE",
        )
    if isinstance(error, requests.exceptions.ProxyError):
        return Unreachable(
            f"{wanted} cannot be had: the proxy fails", seen=seen, hint="check HTTPS_PROXY and NO_PROXY"
        )
    if isinstance(error, requests.exceptions.TooManyRedirects):
        return Unreachable(f"{wanted} cannot be had: {host} redirects in a circle")
    if os.strerror(errno.EMFILE) in seen:
        return MachineLacks(f"{wanted} cannot be had", seen=seen, hint=MORE_FILES)
    return Unreachable(
        f"{wanted} cannot be had: no connection to {host}, or it broke",
        seen=seen,
        hint="imagebuilder doctor shows which servers can be reached",
    )


def _parse(url: str, what: str) -> tuple[str, Login | None]:
    try:
        return split_login(url)
    except ValueError as error:
        raise Unreachable(f"the address of {what}" if what else "an address", seen=f"it {error}") from None


def _cause(error: BaseException) -> str:
    """The innermost reason in words: "Connection refused", "timed out"."""
    seen: set[int] = set()
    innermost: BaseException = error
    stack: list[BaseException] = [error]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        innermost = current
        inner = [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
        stack += [e for e in inner if isinstance(e, BaseException)]
    if isinstance(innermost, OSError) and innermost.strerror:
        return innermost.strerror
    return (str(innermost).rsplit(": ", 1)[-1] or type(innermost).__name__)[:200]
