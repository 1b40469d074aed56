"""What a build needs of this user's settings and must not keep, as files for `--secret`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from imagebuilder.settings import DEFAULT, Settings
from imagebuilder.settings.model import Login
from imagebuilder.stack.model import Stack


@contextmanager
def build_secrets(stack: Stack, settings: Settings, folder: Path) -> Iterator[tuple[tuple[str, Path], ...]]:
    """(id, file) of each secret that these settings call for; the files are gone when the block ends."""
    texts = dict(_texts(stack, settings))
    files: list[tuple[str, Path]] = []
    try:
        for name, text in texts.items():
            path = folder / f"secret-{name}"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(text)
            files.append((name, path))
        if settings.ca_bundle:
            files.append(("ca-bundle", settings.ca_bundle))
        if settings.netrc and settings.netrc.is_file():
            files.append(("netrc", settings.netrc))
        yield tuple(files)
    finally:
        for name in texts:
            (folder / f"secret-{name}").unlink(missing_ok=True)


def _texts(stack: Stack, settings: Settings) -> Iterator[tuple[str, str]]:
    proxy = settings.proxies.get("https") or settings.proxies.get("all") or settings.proxies.get("http")
    lines = []
    if address := settings.index_url(DEFAULT):
        lines.append(f"index-url = {with_login(address, settings.logins)}")
    if proxy:
        lines.append(f"proxy = {proxy}")
    if lines:
        yield "pip.conf", "\n".join(("[global]", *lines, ""))  # pip expands no % in it
    for index in stack.indexes:
        address = settings.index_url(index.name)
        logins = settings.logins
        if address or index.url in logins:
            yield f"index-{index.name}", with_login(address or index.url, logins)
    if proxy and stack.system.packages:
        yield "apt.conf", "".join(f'Acquire::{scheme}::Proxy "{proxy}";\n' for scheme in ("http", "https"))


def with_login(address: str, logins: Mapping[str, Login]) -> str:
    """The address with the login that belongs to it, if there is one."""
    login = logins.get(address)
    if login is None:
        return address
    parts = urlsplit(address)
    user = f"{quote(login.username, safe='')}:{quote(login.password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}"))
