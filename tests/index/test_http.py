"""The session: retries, errors with advice, certificates, proxies, and logins that go nowhere else."""

from __future__ import annotations

import base64
import dataclasses
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagebuilder.errors import ArtefactUnusable, ImagebuilderError, MachineLacks
from imagebuilder.index.http import (
    ATTEMPTS,
    Denied,
    NotFound,
    Session,
    Unreachable,
    expect,
    fetch,
)
from imagebuilder.settings import Login, Settings
from imagebuilder.values import is_loopback
from tests.index.conftest import Pauses
from tests.support.http_server import Fault, Reply, Request, Server

CANARY = "s3cr3t-canary"


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_fetch(server: Server, http: Session) -> None:
    url = server.put("/page", b"hello", Content_Type="text/plain")
    page = fetch(http, url, "a page")
    assert (page.url, page.status, page.body) == (url, 200, b"hello")
    assert page.headers["content-type"] == "text/plain"
    assert server.seen[0].headers["User-Agent"].startswith("imagebuilder/")


def test_fetch_follows_redirects(server: Server, http: Session) -> None:
    server.put("/new/page", b"hello")
    url = server.redirect("/old", "/new/page")
    assert fetch(http, url, "a page").url == server.url + "/new/page"


def test_fetch_with_a_validator(server: Server, http: Session) -> None:
    url = server.put("/page", b"hello")
    tag = fetch(http, url, "a page").headers["ETag"]
    again = fetch(http, url, "a page", headers={"If-None-Match": tag}, also=(304,))
    assert (again.status, again.body) == (304, b"")


def test_fetch_refuses_what_is_too_large(server: Server, http: Session) -> None:
    url = server.put("/page", b"x" * 100_000)
    with pytest.raises(ArtefactUnusable, match="too large"):
        fetch(http, url, "a page", limit=99_999)


def test_fetch_begins_again_when_the_connection_drops(server: Server, http: Session, pauses: Pauses) -> None:
    url = server.put("/page", b"x" * 100_000)
    server.fail("/page", Fault(drop_after=50_000), Fault(refuse=True), Fault(drop_after=0))
    assert len(fetch(http, url, "a page").body) == 100_000
    assert len(server.requests_for("/page")) == 4
    assert pauses.seconds


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_temporary_troubles_are_asked_again(server: Server, http: Session, status: int) -> None:
    url = server.put("/page", b"hello")
    server.fail("/page", *[Fault(status=status)] * (ATTEMPTS - 1))
    assert fetch(http, url, "a page").body == b"hello"


def test_retry_after_is_followed_up_to_a_limit(server: Server, http: Session, pauses: Pauses) -> None:
    url = server.put("/page", b"hello")
    for after in ("7", "86400", "0"):
        server.fail("/page", Fault(status=429, headers={"Retry-After": after}))
    assert fetch(http, url, "a page").body == b"hello"
    assert pauses.seconds == [7, 60, 0]


BAD_STATUS = [
    (400, Unreachable, "HTTP 200"),
    (401, Denied, "netrc"),
    (403, Denied, "may not read"),
    (404, NotFound, ""),
    (407, Denied, "HTTPS_PROXY"),
    (410, NotFound, ""),
    (429, Unreachable, "fewer requests: wait 3 s"),
    (500, Unreachable, "has a problem"),
    (503, Unreachable, "has a problem"),
    (999, Unreachable, "has a problem"),
]


@pytest.mark.parametrize(("status", "kind", "advice"), BAD_STATUS)
def test_each_status_has_its_error(
    server: Server, http: Session, status: int, kind: type[ArtefactUnusable], advice: str
) -> None:
    server.fail("/page", *[Fault(status=status, headers={"Retry-After": "3"})] * ATTEMPTS)
    with pytest.raises(kind) as caught:
        fetch(http, server.url + f"/page?token={CANARY}", "the page of demo")
    text = str(caught.value)
    assert "the page of demo" in text
    assert str(status) in text
    assert advice in text
    assert CANARY not in text
    assert caught.value.exit_code == 13


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody else can meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/simple/"


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("", "Connection refused"),
        ("http://no-such-host.invalid/", ""),
        ("gopher://a.example/", "not an address"),
        ("http://a.example:port/", "not a well-formed address"),
    ],
)
def test_no_connection(http: Session, nobody: str, url: str, seen: str) -> None:
    with pytest.raises(Unreachable) as caught:
        fetch(http, url or nobody, "the page of demo")
    assert "the page of demo" in str(caught.value)
    assert seen in caught.value.seen


def test_a_server_that_always_drops(server: Server, http: Session) -> None:
    url = server.put("/page", b"x" * 1000)
    server.fail("/page", *[Fault(drop_after=10)] * 20)
    with pytest.raises(Unreachable, match="a page cannot be had"):
        fetch(http, url, "a page")
    server.fail("/gone", *[Fault(refuse=True)] * 20)
    with pytest.raises(Unreachable, match="a page cannot be had"):
        fetch(http, server.url + "/gone", "a page")


def test_a_server_that_says_nothing(settings: Settings, pauses: Pauses) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        Session(dataclasses.replace(settings, timeout=0.05), pause=pauses) as http,
        pytest.raises(Unreachable) as caught,
    ):
        fetch(http, f"http://127.0.0.1:{mute.getsockname()[1]}/", "a page")
    assert "timed out" in caught.value.seen


def test_redirects_in_a_circle(server: Server, http: Session) -> None:
    url = server.redirect("/a", "/a")
    with pytest.raises(Unreachable, match="circle"):
        fetch(http, url, "a page")


def test_offline_asks_nobody(server: Server, settings: Settings) -> None:
    url = server.put("/page", b"hello")
    with (
        Session(dataclasses.replace(settings, offline=True)) as http,
        pytest.raises(Unreachable, match="offline"),
    ):
        fetch(http, url, "a page")
    assert server.seen == []


def test_giving_up_ends_pauses(server: Server, settings: Settings) -> None:
    url = server.put("/page", b"hello")
    server.fail("/page", Fault(status=503, headers={"Retry-After": "60"}))
    with Session(settings) as http:
        http.give_up()
        assert fetch(http, url, "a page").body == b"hello"


def test_no_cookies_are_kept(server: Server, http: Session) -> None:
    url = server.put("/page", b"", Set_Cookie="id=1")
    fetch(http, url, "a page")
    fetch(http, url, "a page")
    assert "Cookie" not in server.seen[1].headers


# ---------------------------------------------------------------- logins


def with_logins(settings: Settings, **logins: str) -> Settings:
    known = {url: Login(username="user", password=password) for url, password in logins.items()}
    return dataclasses.replace(settings, logins=known)


def test_the_login_of_an_index_serves_its_origin(server: Server, settings: Settings) -> None:
    server.login("/", "user", CANARY)
    server.put("/files/a", b"data")
    with Session(with_logins(settings, **{server.url + "/simple": CANARY})) as http:
        assert fetch(http, server.url + "/files/a", "a file").body == b"data"


def test_the_nearest_path_decides_between_logins(server: Server, settings: Settings) -> None:
    server.login("/one", "user", "first")
    server.login("/two", "user", "second")
    server.put("/one/a", b"1")
    server.put("/two/a", b"2")
    logins = {server.url + "/one/simple": "first", server.url + "/two/simple": "second"}
    with Session(with_logins(settings, **logins)) as http:
        assert fetch(http, server.url + "/one/a", "a file").body == b"1"
        assert fetch(http, server.url + "/two/a", "a file").body == b"2"


def test_a_login_is_not_sent_to_another_origin(server: Server, settings: Settings) -> None:
    with Server() as other:
        server.redirect("/a", other.put("/stolen", b"data"))
        with Session(with_logins(settings, **{server.url: CANARY})) as http:
            assert fetch(http, server.url + "/a", "a file").body == b"data"
        assert server.seen[0].headers["Authorization"] == basic("user", CANARY)
        assert "Authorization" not in other.seen[0].headers


def test_after_a_redirect_the_new_origin_gets_its_own_login(server: Server, settings: Settings) -> None:
    with Server() as other:
        other.login("/", "user", "other")
        server.redirect("/a", other.put("/file", b"data"))
        logins = {server.url: CANARY, other.url: "other"}
        with Session(with_logins(settings, **logins)) as http:
            assert fetch(http, server.url + "/a", "a file").body == b"data"


def test_netrc(server: Server, settings: Settings, tmp_path: Path) -> None:
    server.login("/", "user", CANARY)
    url = server.put("/a", b"data")
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login user password {CANARY}\n")
    with Session(dataclasses.replace(settings, netrc=netrc)) as http:
        assert fetch(http, url, "a file").body == b"data"
    with Session(dataclasses.replace(settings, netrc=netrc), logins=False) as http, pytest.raises(Denied):
        fetch(http, url, "a file")


def test_a_broken_netrc_is_named_when_a_login_is_missing(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    server.login("/", "user", CANARY)
    url = server.put("/a", b"data")
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1\nlogin user passwort {CANARY}\n")
    with Session(dataclasses.replace(settings, netrc=netrc)) as http, pytest.raises(Denied) as caught:
        fetch(http, url, "a file")
    assert "netrc cannot be read at line 2" in str(caught.value)
    assert CANARY not in str(caught.value)


def test_a_caller_may_bring_its_own_authorization(server: Server, settings: Settings) -> None:
    url = server.put("/a", b"data")
    with Session(with_logins(settings, **{server.url: CANARY})) as http:
        fetch(http, url, "a file", headers={"Authorization": "Bearer token"})
    assert server.seen[0].headers["Authorization"] == "Bearer token"


def test_a_login_inside_an_address_is_used_and_not_shown(server: Server, http: Session) -> None:
    server.login("/", "user", CANARY)
    server.put("/a", b"data")
    address = server.url.replace("://", f"://user:{CANARY}@")
    assert fetch(http, address + "/a", "a file").body == b"data"
    with pytest.raises(NotFound) as caught:
        fetch(http, address + "/b", "a file")
    assert CANARY not in str(caught.value)


# ---------------------------------------------------------------- proxies


def proxy(server: Server) -> None:
    """Answers absolute-form requests, as a proxy does."""
    server.route("http", lambda request: Reply(body=b"through the proxy"))
    server.route("/", lambda request: Reply(body=b"through the proxy"))


def test_proxy(server: Server, settings: Settings) -> None:
    proxy(server)
    proxies = {"http": server.url, "no": "internal.example, 10.0.0.0/8"}
    with Session(dataclasses.replace(settings, proxies=proxies)) as http:
        assert fetch(http, "http://a.example/page", "a page").body == b"through the proxy"
        for direct in ("http://internal.example/", "http://x.internal.example/", "http://10.1.2.3/"):
            assert http._proxies_for(direct) == {}
        assert http._proxies_for("http://notinternal.example/") != {}
        assert http._proxies_for("http://127.0.0.1:5000/") == {}


def test_a_proxy_that_fails_is_named(settings: Settings, pauses: Pauses, nobody: str) -> None:
    address = nobody.replace("://", f"://user:{CANARY}@")
    with (
        Session(dataclasses.replace(settings, proxies={"all": address}), pause=pauses) as http,
        pytest.raises(Unreachable, match="the proxy fails") as caught,
    ):
        fetch(http, "http://a.example/page", "a page")
    assert CANARY not in str(caught.value)


# ---------------------------------------------------------------- certificates


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    if not shutil.which("openssl"):
        pytest.skip("openssl is not there to make a certificate with")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "cert.pem"


@pytest.fixture
def tls_port(certificate: Path) -> Iterator[int]:
    """A server with that certificate; answers every connection with an empty page."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(65536)
                    secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            except OSError:
                continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(10)


def test_a_private_ca(settings: Settings, certificate: Path, tls_port: int, pauses: Pauses) -> None:
    url = f"https://localhost:{tls_port}/"
    with Session(settings, pause=pauses) as http, pytest.raises(MachineLacks, match="not trusted") as caught:
        fetch(http, url, "a page")
    assert "IMAGEBUILDER_CA_BUNDLE" in caught.value.hint
    with Session(dataclasses.replace(settings, ca_bundle=certificate)) as http:
        assert fetch(http, url, "a page").body == b"ok"


def test_a_missing_ca_bundle_is_named(settings: Settings) -> None:
    missing = dataclasses.replace(settings, ca_bundle=Path("/no/ca.pem"), ca_bundle_origin="SSL_CERT_FILE")
    with pytest.raises(MachineLacks) as caught:
        Session(missing)
    assert "SSL_CERT_FILE" in caught.value.seen


# ---------------------------------------------------------------- no secret in any error


def test_no_error_shows_a_secret(server: Server, settings: Settings, pauses: Pauses, nobody: str) -> None:
    """Every kind of failure, with the canary in user name, password and query."""
    server.put("/page", b"x" * 1000)
    faults: list[list[Fault]] = [[Fault(status=status)] * 20 for status, _, _ in BAD_STATUS]
    faults += [[Fault(drop_after=1)] * 20, [Fault(refuse=True)] * 20]
    urls = [
        server.url,
        nobody,
        "http://no-such-host.invalid",
        "https://localhost:1",
        "ftp://a.example",
        "http://a:b",
    ]
    shown: list[str] = []
    for number, url in enumerate([*urls, *[server.url] * len(faults)]):
        if number >= len(urls):
            server._faults.clear()
            server.fail("/page", *faults[number - len(urls)])
        address = url.replace("://", f"://{CANARY}:{CANARY}@").rstrip("/") + f"/page?sig={CANARY}"
        with Session(settings, pause=pauses) as http:
            try:
                fetch(http, address, "a page", limit=10)
            except ImagebuilderError as error:
                assert error.__suppress_context__ or error.__context__ is None
                shown.append(str(error) + repr(error))
    assert len(shown) == len(urls) + len(faults)
    assert [text for text in shown if CANARY in text] == []


def test_expect_accepts_what_is_asked_for(server: Server, http: Session) -> None:
    def answer(request: Request) -> Reply:
        return Reply(status=int(request.path.rsplit("/", 1)[1]))

    server.route("/status/", answer)
    for status in (200, 202, 206):
        expect(http.get(f"{server.url}/status/{status}"), "it", 200, 202, 206)
    with pytest.raises(Unreachable) as caught:
        expect(http.get(f"{server.url}/status/204"), "it", 200, 202)
    assert caught.value.wanted == "HTTP 200 or 202"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("127.example.com", False),
     ("localhost.example.com", False), ("10.0.0.1", False), ("", False)],
)  # fmt: skip
def test_only_this_machine_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
