"""What uv, pip, OpenSSL and curl are told on this machine, as far as imagebuilder follows it.

Only pip's `index-url` and `cert` and uv's default index count: extra indexes, find-links and constraints
would make what a stack resolves to depend on the machine.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

Setting = tuple[str, str]  # (value, where it was found)


@dataclass(frozen=True, kw_only=True)
class Given:
    """Where to look. `root`: where /etc is; `prefix`: the Python environment (a site pip.conf lies there)."""

    variables: Mapping[str, str]
    home: Path
    root: Path
    prefix: Path

    @property
    def config_home(self) -> Path:
        """The user's configuration folder (XDG)."""
        return base_folder(self.variables, "XDG_CONFIG_HOME", self.home / ".config")

    @property
    def config_dirs(self) -> list[Path]:
        """The system's configuration folders (XDG), the most important first."""
        named = [Path(p) for p in self.variables.get("XDG_CONFIG_DIRS", "").split(os.pathsep) if p]
        return named or [self.root / "etc/xdg"]


def base_folder(variables: Mapping[str, str], name: str, default: Path) -> Path:
    """What a variable such as XDG_CACHE_HOME names; as XDG specifies, a relative path is void."""
    named = Path(variables.get(name, ""))
    return named if named.is_absolute() else default


def uv_default_index(given: Given) -> Setting | None:
    """uv's default index: environment, the user's uv.toml, the system's. ValueError: a broken file."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if value := given.variables.get(variable):
            return _without_name(value), variable
    for path in _uv_files(given):
        try:
            table = tomli.loads(path.read_text(encoding="utf-8"))
        except OSError:
            continue
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if value := _default_of(table):
            return value, str(path)
    return None


def _uv_files(given: Given) -> list[Path]:
    if given.variables.get("UV_NO_CONFIG", "").lower() in ("1", "true", "yes", "on"):
        return []
    if named := given.variables.get("UV_CONFIG_FILE"):
        return [Path(named)]
    system = [*given.config_dirs, given.root / "etc"]
    return [folder / "uv" / "uv.toml" for folder in (given.config_home, *system)]


def _default_of(table: dict[str, Any]) -> str | None:
    indexes = table.get("index")
    for index in indexes if isinstance(indexes, list) else []:
        if isinstance(index, dict) and index.get("default") is True and isinstance(index.get("url"), str):
            return str(index["url"])
    pip = table.get("pip")
    for place in (table, pip if isinstance(pip, dict) else {}):
        if isinstance(place.get("index-url"), str):
            return str(place["index-url"])
    return None


def _without_name(value: str) -> str:
    """uv takes `name=address` as well as an address."""
    name, equals, url = value.partition("=")
    return url if equals and "/" not in name and ":" not in name else value


def pip_setting(given: Given, option: str) -> Setting | None:
    """pip's value of `option` for installing: environment, site, user, then system file.

    ValueError: a file that pip could not read either. Source: pip's documentation, "Configuration".
    """
    variable = "PIP_" + option.upper().replace("-", "_")
    if value := given.variables.get(variable):
        return value, variable
    for path in _pip_files(given):
        parser = configparser.RawConfigParser()
        try:
            with path.open(encoding="utf-8") as file:
                parser.read_file(file)
        except OSError:
            continue
        except (configparser.Error, UnicodeDecodeError):
            raise ValueError(f"{path}: is not a file that pip can read") from None
        for section in ("install", "global"):
            for spelling in (option, option.replace("-", "_")):
                if value := parser.get(section, spelling, fallback=""):
                    return value.strip(), str(path)
    return None


def _pip_files(given: Given) -> Iterator[Path]:
    """The most important first."""
    named = given.variables.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    if named:
        yield Path(named)
    yield given.prefix / "pip.conf"
    if not (named and Path(named).exists()):
        yield given.config_home / "pip" / "pip.conf"
        yield given.home / ".pip" / "pip.conf"
    yield given.root / "etc/pip.conf"
    yield from (folder / "pip" / "pip.conf" for folder in reversed(given.config_dirs))


def ca_bundle(given: Given) -> Setting | None:
    """The file of certificates that other programs here are told to trust."""
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"):
        if value := given.variables.get(variable):
            return value, variable
    try:
        return pip_setting(given, "cert")
    except ValueError:
        return None


def proxies(environ: Mapping[str, str]) -> dict[str, str]:
    """`http`, `https`, `all`, `no` → value; lower case wins, as with curl."""
    found = {}
    for kind in ("http", "https", "all", "no"):
        # HTTP_PROXY in capitals may come from a request's `Proxy:` header in a CGI; that is no concern here.
        value = environ.get(f"{kind}_proxy") or environ.get(f"{kind}_proxy".upper())
        if value:
            found[kind] = value
    return found
