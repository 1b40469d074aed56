"""The settings as values, and the one rule about secrets: an address that is kept or shown holds none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.utils import canonicalize_name

DEFAULT = "default"
"""The name of the default index, in locks and here."""

_SCHEMES = ("http", "https", "file")


@dataclass(frozen=True, kw_only=True)
class Login:
    """A user name and a password or token; never printed."""

    username: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `load` found. `index_urls` and `registry_mirrors` override what a stack file says.

    workers: how many threads or processes use the CPU; connections: how many downloads run at once.
    timeout: seconds without an answer or a byte. index_urls: by canonical name, `default_index` apart
    (None: PyPI). registry_mirrors: `docker.io` → `mirror.example:5000`, or an address. proxies: `http`,
    `https`, `all`, `no`. logins: by the address they were taken out of. docker_config: folder of config.json.
    docker_auth: the JSON of DOCKER_AUTH_CONFIG, whose logins come first.
    sign_key: what pushes are signed with (`publish.keys.load_signer`); its passphrase is never kept here.
    """

    cache_dir: Path
    workers: int = 4
    connections: int = 8
    timeout: float = 60.0
    offline: bool = False
    default_index: str | None = None
    default_index_origin: str = "built in"
    index_urls: Mapping[str, str] = field(default_factory=dict)
    debian_mirrors: tuple[str, ...] = ()
    snapshot_mirror: str | None = None
    registry_mirrors: Mapping[str, str] = field(default_factory=dict)
    ca_bundle: Path | None = None
    ca_bundle_origin: str = ""
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    logins: Mapping[str, Login] = field(default_factory=dict, repr=False)
    netrc: Path | None = None
    docker_config: Path | None = None
    docker_auth: str = field(default="", repr=False)
    sign_key: str | None = None
    config_file: Path | None = None

    def index_url(self, name: str) -> str | None:
        """The configured address of the index of that name; None: what the stack file says, or PyPI."""
        return self.default_index if name == DEFAULT else self.index_urls.get(canonicalize_name(name))


def redact(text: str) -> str:
    """The text with all that may be secret taken out of its addresses: user, password, query."""
    return re.sub(r"(?<=://)\S*@", "***@", re.sub(r"(://[^\s?]*)\?[^\s'\")]*", r"\1?…", text))


def split_login(url: str) -> tuple[str, Login | None]:
    """(address without user and password, the login that was in it). ValueError never shows the address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a well-formed address (has it a password that needs %-encoding?)") from None
    if parts.scheme not in _SCHEMES or (parts.scheme != "file" and not parts.hostname):
        raise ValueError("is not an address that begins with https://, http:// or file://")
    if parts.username is None and parts.password is None:
        return url, None
    host = parts.hostname or ""
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    login = Login(username=unquote(parts.username or ""), password=unquote(parts.password or ""))
    return urlunsplit(parts._replace(netloc=netloc)), login
