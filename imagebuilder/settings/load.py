"""Settings from the environment passed in and from files.

Order: `IMAGEBUILDER_*`, then our configuration file, then what uv, pip and OpenSSL are told on this machine,
then defaults. Both of ours are read into the same dotted keys (`debian.mirrors`, `index.pytorch-cu130`), so
each key has one parser.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli
from packaging.utils import canonicalize_name

from imagebuilder.errors import UsageProblem
from imagebuilder.settings import foreign
from imagebuilder.settings.model import DEFAULT, Login, Settings, split_login

_PREFIX = "IMAGEBUILDER_"
_OURS = "imagebuilder's configuration"

Found = list[tuple[str, object, str]]  # (dotted key, value, where it stands)


def load(
    environ: Mapping[str, str],
    config_file: Path | None = None,
    *,
    root: Path = Path("/"),
    prefix: Path | None = None,
) -> Settings:
    """Settings from this environment and the files it points to.

    config_file: instead of `IMAGEBUILDER_CONFIG` or the user's `imagebuilder/config.toml`; it must exist.
    root: where `/etc` is; prefix: the Python environment, which may hold a pip.conf (tests pass other ones).
    Raises UsageProblem with every problem found.
    """
    home = _home(environ)
    reading = _Reading(home=home)
    path = reading.config(environ, config_file)
    reading.environment(environ)
    values = reading.values
    given = foreign.Given(variables=environ, home=home, root=root, prefix=prefix or Path(sys.prefix))
    values["default_index_origin"] = _OURS if "default_index" in values else "built in"
    if "default_index" not in values:
        reading.foreign_index(given)
    values["ca_bundle_origin"] = _OURS if "ca_bundle" in values else ""
    if "ca_bundle" not in values and (bundle := foreign.ca_bundle(given)):
        values["ca_bundle"], values["ca_bundle_origin"] = expanded(bundle[0]), bundle[1]
    reading.join_logins()
    if reading.problems:
        lines = "\n  ".join(reading.problems)
        raise UsageProblem(f"the configuration cannot be used:\n  {lines}", hint="see docs/30-index.md")
    cache_home = foreign.base_folder(environ, "XDG_CACHE_HOME", home / ".cache")
    defaults = {"cache_dir": cache_home / "imagebuilder", "workers": len(os.sched_getaffinity(0))}
    return Settings(
        **{**defaults, **values},
        proxies=foreign.proxies(environ),
        logins=reading.logins,
        netrc=Path(environ.get("NETRC") or home / ".netrc"),
        docker_config=Path(environ.get("DOCKER_CONFIG") or home / ".docker"),
        docker_auth=environ.get("DOCKER_AUTH_CONFIG", ""),
        config_file=path,
    )


def _home(environ: Mapping[str, str]) -> Path:
    home = expanded(environ.get("HOME") or "~")
    if str(home).startswith("~"):  # neither the environment nor the list of users names one
        raise UsageProblem("this user has no home folder", hint="set HOME to a folder of yours")
    if not home.is_absolute():
        raise UsageProblem(
            "HOME is not an absolute path", seen=str(home), hint="set HOME to a folder of yours"
        )
    return home


def expanded(place: str) -> Path:
    """A path that somebody wrote, with `~` and `~user` replaced where there is such a user."""
    return Path(os.path.expanduser(place))  # noqa: PTH111 - Path.expanduser fails where there is none


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`; did you mean …?` where a known word is near, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


# ------------------------------------------------- one value each: text or TOML → value, or ValueError


def _path(raw: object) -> Path:
    if not isinstance(raw, str) or not raw:
        raise ValueError("is not a path")
    if not raw.startswith("/"):
        raise ValueError(f"{raw!r} is not an absolute path")
    return Path(raw)


def _count(raw: object) -> int:
    if isinstance(raw, bool) or not re.fullmatch(r"[1-9]\d{0,3}", str(raw)):
        raise ValueError(f"{raw!r} is not a whole number from 1 to 9999")
    return int(str(raw))


def _seconds(raw: object) -> float:
    if isinstance(raw, bool) or not re.fullmatch(r"\d{1,5}(\.\d+)?", str(raw)) or not float(str(raw)):
        raise ValueError(f"{raw!r} is not a number of seconds above 0")
    return float(str(raw))


def _flag(raw: object) -> bool:
    text = str(raw).lower()
    if text not in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        raise ValueError(f"{raw!r} is not true or false")
    return text in ("true", "1", "yes", "on")


def _mirror(raw: object) -> str:
    if not isinstance(raw, str) or not raw or re.search(r"\s", raw):
        raise ValueError("is not a registry such as mirror.example:5000")
    if "@" in raw:
        raise ValueError("holds a login; those of registries belong to Docker's configuration (docker login)")
    return raw.rstrip("/")


def _key(raw: object) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError("is not the path of a key, nor an address of one that cosign knows")
    if "PRIVATE KEY" in raw:
        raise ValueError("is a key itself; put it into a file and name that")
    return raw if "://" in raw else str(_path(raw))


_SCALARS: dict[str, tuple[str, Callable[[object], object]]] = {
    "cache-dir": ("cache_dir", _path),
    "workers": ("workers", _count),
    "connections": ("connections", _count),
    "timeout": ("timeout", _seconds),
    "offline": ("offline", _flag),
    "ca-bundle": ("ca_bundle", _path),
    "sign-key": ("sign_key", _key),
}
_ADDRESSES = ("debian.mirrors", "debian.snapshot")
_TABLES = ("index", "registry", "debian")
_KNOWN = (*_SCALARS, *_ADDRESSES, *_TABLES)
_VARIABLES = {_PREFIX + re.sub(r"[.-]", "_", key).upper(): key for key in (*_SCALARS, *_ADDRESSES)}
_OTHER_VARIABLES = (f"{_PREFIX}CONFIG", f"{_PREFIX}REGISTRY_MIRRORS", f"{_PREFIX}SIGN_PASSWORD")


@dataclass(kw_only=True)
class _Reading:
    """What has been read so far. `values`: by field of Settings."""

    home: Path
    values: dict[str, Any] = field(default_factory=dict)
    logins: dict[str, Login] = field(default_factory=dict)
    apart: dict[str, Login] = field(default_factory=dict)  # logins by name of index, address not yet known
    problems: list[str] = field(default_factory=list)

    def store_all(self, found: Found) -> None:
        for key, raw, origin in found:
            try:
                self.store(key, raw)
            except ValueError as error:
                self.problems.append(f"{origin}: {error}")

    def store(self, key: str, raw: object) -> None:
        """Parse one value and keep it as `Settings` wants it. ValueError: the value, or the key, is wrong."""
        table, _, name = key.partition(".")
        canonical = canonicalize_name(name)
        if key in _SCALARS:
            attribute, parse = _SCALARS[key]
            if isinstance(raw, str) and raw.startswith("~/"):
                raw = str(self.home / raw[2:])
            self.values[attribute] = parse(raw)
        elif key == "debian.mirrors":
            items = raw.split() if isinstance(raw, str) else raw
            if not isinstance(items, list):
                raise ValueError("is not a list of addresses")
            self.values["debian_mirrors"] = tuple(self.url(item) for item in items)
        elif key == "debian.snapshot":
            self.values["snapshot_mirror"] = self.url(raw)
        elif table == "registry" and name:
            self.values.setdefault("registry_mirrors", {})[name] = _mirror(raw)
        elif table == "index" and canonical == DEFAULT:
            self.values["default_index"] = self.url(raw)
        elif table == "index" and name:
            self.values.setdefault("index_urls", {})[canonical] = self.url(raw)
        elif key in _TABLES:
            raise ValueError(f"is not a table, [{key}]")
        else:
            raise ValueError("is not a setting" + nearest(key, _KNOWN))

    def url(self, raw: object) -> str:
        """An address; the login in it is put aside."""
        if not isinstance(raw, str):
            raise ValueError("is not an address")
        url, login = split_login(raw.strip())
        if login:
            self.logins[url] = login
        return url

    def config(self, environ: Mapping[str, str], given: Path | None) -> Path | None:
        """Read our configuration file; its path, None where there is none."""
        variable = environ.get(f"{_PREFIX}CONFIG")
        named = given or (Path(variable) if variable else None)
        folder = foreign.base_folder(environ, "XDG_CONFIG_HOME", self.home / ".config")
        path = named or folder / "imagebuilder" / "config.toml"
        try:
            table = tomli.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.problems += [f"{path} does not exist"] if named else []
            return None
        except OSError as error:
            self.problems.append(f"{path} cannot be read: {error.strerror}")
            return None
        except ValueError as error:  # TOML or UTF-8: neither message repeats the file's text
            self.problems.append(f"{path}: {error}")
            return None
        for key, value in table.items():
            if isinstance(value, dict) and key not in _SCALARS:
                self.store_all([(f"{key}.{k}", v, f"{path}: {key}.{k}") for k, v in value.items()])
            else:
                self.store_all([(key, value, f"{path}: {key}")])
        return path

    def environment(self, environ: Mapping[str, str]) -> None:
        """Read `IMAGEBUILDER_*`. A variable that only looks like one of ours is a problem."""
        for variable, value in environ.items():
            if not variable.startswith(_PREFIX) or not value:
                continue
            index = re.fullmatch(_PREFIX + r"INDEX_(\w+)_(URL|USERNAME|PASSWORD)", variable)
            if key := _VARIABLES.get(variable):
                self.store_all([(key, value, variable)])
            elif variable == f"{_PREFIX}REGISTRY_MIRRORS":
                pairs = [item.partition("=") for item in value.split()]
                self.store_all([(f"registry.{name or '?'}", mirror, variable) for name, _, mirror in pairs])
            elif index and index[2] == "URL":
                self.store_all([(f"index.{index[1]}", value, variable)])
            elif index and index[2] == "USERNAME":
                password = environ.get(f"{_PREFIX}INDEX_{index[1]}_PASSWORD", "")
                self.apart[canonicalize_name(index[1])] = Login(username=value, password=password)
            elif not index and variable not in _OTHER_VARIABLES:
                near = nearest(variable, (*_VARIABLES, *_OTHER_VARIABLES), 0.85)
                self.problems += [f"{variable} is not a setting{near}"] if near else []

    def foreign_index(self, given: foreign.Given) -> None:
        """The default index as uv is told, else pip."""
        try:
            found = foreign.uv_default_index(given) or foreign.pip_setting(given, "index-url")
        except ValueError as error:
            self.problems.append(str(error))
            return
        if found:
            self.values["default_index_origin"] = found[1]
            self.store_all([(f"index.{DEFAULT}", found[0], found[1])])

    def join_logins(self) -> None:
        """Put logins that came apart from their address to that address."""
        for name, login in self.apart.items():
            urls = self.values.get("index_urls", {})
            url = self.values.get("default_index") if name == DEFAULT else urls.get(name)
            if url:
                self.logins[url] = login
            else:
                self.problems.append(
                    f"there is a user name for the index {name!r} in the environment, but no address: "
                    f"set {_PREFIX}INDEX_{re.sub('-', '_', name).upper()}_URL too"
                )
