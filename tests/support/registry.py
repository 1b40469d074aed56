"""A real registry for tests: Debian's `docker-registry` on a free port of 127.0.0.1, with its own storage.

    with run_registry(tmp_path) as registry:
        registry.host          # "127.0.0.1:40123"

`login="basic"` asks for user and password, `login="token"` for a Bearer token from a token server that runs
in this process, `tls=True` speaks TLS under a CA of its own. The process is stopped by its pid.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

USER = "tester"
PASSWORD = "correct horse: battery"
_START_SECONDS = 300  # it is there in a moment, but not on a machine that has much else to do
_LISTENS = re.compile(r"(?:listening on 127\.0\.0\.1:|serving on port )(\d+)(?=\D)")


@dataclass(kw_only=True)
class TestRegistry:
    """A running registry. `host`: as in an image reference. `ca`: where it speaks TLS."""

    __test__ = False

    host: str
    storage: Path
    log: Path
    ca: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    token_requests: list[dict[str, Any]] = field(default_factory=list)

    def docker_config(self, folder: Path) -> Path:
        """A folder with a config.json that holds the login for this registry."""
        folder.mkdir(parents=True, exist_ok=True)
        packed = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        (folder / "config.json").write_text(json.dumps({"auths": {self.host: {"auth": packed}}}))
        return folder


def find_program(name: str, package: str) -> str:
    """The program on PATH; without it the test skips, or fails where IMAGEBUILDER_REQUIRE_TOOLS=1 (CI)."""
    found = shutil.which(name)
    if found:
        return found
    reason = f"{name} is not installed (Debian: apt-get install {package})"
    if os.environ.get("IMAGEBUILDER_REQUIRE_TOOLS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def run_registry(folder: Path, *, login: str = "", tls: bool = False) -> Iterator[TestRegistry]:
    """A registry with storage below `folder`, stopped at the end."""
    program = find_program("docker-registry", "docker-registry")
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        registry = TestRegistry(host="", storage=folder / "storage", log=folder / "registry.log")
        config: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(registry.storage)}, "delete": {"enabled": True}},
            "http": {"secret": "only for tests"},
        }
        if tls:
            certificate, key = make_certificate(folder / "tls")
            registry.ca = certificate
            config["http"]["tls"] = {"certificate": str(certificate), "key": str(key)}
        if login:
            registry.user, registry.password = USER, PASSWORD
            config["auth"] = _auth(folder, registry, login, stack)

        config["http"]["addr"] = "127.0.0.1:0"
        (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
        with _running(registry, [program, "serve", str(folder / "config.yml")]):
            yield registry


@contextlib.contextmanager
def run_crane(folder: Path) -> Iterator[TestRegistry]:
    """The registry of go-containerregistry, another implementation, with its storage on disk.

    Only a newer Debian has it (scripts/debian-tools); without it the test skips.
    """
    program = shutil.which("crane")
    if (
        program is None
        or b"registry" not in subprocess.run([program, "--help"], capture_output=True, check=False).stdout
    ):
        pytest.skip("crane is not installed (scripts/debian-tools FOLDER crane)")
    registry = TestRegistry(host="", storage=folder / "storage", log=folder / "registry.log")
    registry.storage.mkdir(parents=True)
    serve = [program, "registry", "serve", "--disk", str(registry.storage), "--address", "127.0.0.1:0"]
    with _running(registry, serve):
        yield registry


@contextlib.contextmanager
def _running(registry: TestRegistry, words: list[str]) -> Iterator[None]:
    """Started by this command, on a port that it chooses itself and tells in its log; stopped at the end."""
    with registry.log.open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        end = time.monotonic() + _START_SECONDS
        while not (told := _LISTENS.search(registry.log.read_text())):
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"the registry does not start:\n{registry.log.read_text()[-3000:]}")
            time.sleep(0.05)
        registry.host = f"127.0.0.1:{told[1]}"
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        shutil.rmtree(registry.storage, ignore_errors=True)


def _auth(folder: Path, registry: TestRegistry, login: str, stack: contextlib.ExitStack) -> dict[str, Any]:
    if login == "basic":
        htpasswd = find_program("htpasswd", "apache2-utils")
        made = subprocess.run(
            [htpasswd, "-nbB", USER, PASSWORD], check=True, capture_output=True, text=True
        ).stdout
        (folder / "htpasswd").write_text(made)
        return {"htpasswd": {"realm": "test registry", "path": str(folder / "htpasswd")}}
    server = stack.enter_context(_token_server(folder / "token", registry))
    return {
        "token": {
            "realm": f"http://127.0.0.1:{server.server_port}/token",
            "service": "test registry",
            "issuer": "imagebuilder tests",
            "rootcertbundle": str(server.certificate),
        }
    }


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, signed by itself."""
    openssl = find_program("openssl", "openssl")
    folder.mkdir(parents=True, exist_ok=True)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1".split()
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return certificate, key


class _TokenServer(ThreadingHTTPServer):
    """Gives signed tokens to USER, and read-only ones to nobody in particular."""

    daemon_threads = True
    certificate: Path
    key: Path
    registry: TestRegistry

    def token(self, service: str, scopes: list[str], *, known: bool) -> str:
        access = []
        for scope in scopes:
            kind, _, rest = scope.partition(":")
            name, _, actions = rest.rpartition(":")
            allowed = [a for a in actions.split(",") if known or a == "pull"]
            access.append({"type": kind, "name": name, "actions": allowed})
        now = int(time.time())
        pem = self.certificate.read_text().splitlines()
        header = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(line for line in pem if "-----" not in line)]}
        claims = {
            "iss": "imagebuilder tests",
            "sub": USER if known else "",
            "aud": service,
            "exp": now + 300,
            "nbf": now - 10,
            "iat": now,
            "jti": str(len(self.registry.token_requests)),
            "access": access,
        }
        signed = b".".join(_base64url(json.dumps(part).encode()) for part in (header, claims))
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.key)]
        signature = subprocess.run(command, input=signed, check=True, capture_output=True).stdout
        return (signed + b"." + _base64url(signature)).decode()


class _TokenHandler(BaseHTTPRequestHandler):
    server: _TokenServer

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        given = self.headers.get("Authorization", "")
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        self.server.registry.token_requests.append({"scope": query.get("scope", []), "login": bool(given)})
        if given and given != wanted:
            self._answer(401, {"details": "incorrect username or password"})
            return
        token = self.server.token(query["service"][0], query.get("scope", []), known=bool(given))
        self._answer(200, {"token": token, "expires_in": 300})

    def do_POST(self) -> None:
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        scopes = form.get("scope", [""])[0].split()
        self.server.registry.token_requests.append({"scope": scopes, "login": True, "form": True})
        if form.get("refresh_token") != [PASSWORD]:
            self._answer(401, {"details": "no such refresh token"})
            return
        self._answer(200, {"access_token": self.server.token(form["service"][0], scopes, known=True)})

    def _answer(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@contextlib.contextmanager
def _token_server(folder: Path, registry: TestRegistry) -> Iterator[_TokenServer]:
    server = _TokenServer(("127.0.0.1", 0), _TokenHandler)
    server.certificate, server.key = make_certificate(folder)
    server.registry = registry
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
