"""Looking at this machine: one line for each thing that imagebuilder uses, each with a fix."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from imagebuilder.builders.docker.buildx import find_buildx
from imagebuilder.builders.docker.choose import choose
from imagebuilder.builders.docker.engine import OLDEST_WITH_BUILDKIT, Engine
from imagebuilder.cache import Cache
from imagebuilder.errors import ImagebuilderError, MachineLacks
from imagebuilder.settings import DEFAULT, Settings, redact
from imagebuilder.values import Platform

WANTED_SPACE = 25_000_000_000
"""Bytes free: what a whole SGLang stack takes as wheels and layers, with some room."""
_OLDEST_PYTHON = (3, 10)
_SUITE = "bookworm"
_OFFLINE, _NOT_OFFLINE = "not asked: imagebuilder is offline", "run doctor without --offline"


@dataclass(frozen=True, kw_only=True)
class Line:
    """state: `ok`, `note` (works, with less), or `missing` (building needs it)."""

    subject: str
    state: str
    seen: str
    fix: str = ""


def examine(settings: Settings, cache: Cache, environ: Mapping[str, str]) -> list[Line]:
    """Every line; what asks the network is asked at the same time."""
    looks: list[Callable[[], Line | list[Line]]] = [
        _python,
        _uv,
        _inflater,
        lambda: _cache_folder(cache),
        lambda: _space(cache),
        lambda: _indexes(settings),
        lambda: _debian(settings, cache),
        lambda: _docker(environ),
        _gpus,
    ]
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(_flat(pool.map(lambda look: look(), looks)))


def _flat(results: Iterator[Line | list[Line]]) -> Iterator[Line]:
    for result in results:
        yield from result if isinstance(result, list) else [result]


def _python() -> Line:
    seen = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        return Line(subject="Python", state="missing", seen=seen, fix="install Python 3.10 or newer")
    return Line(subject="Python", state="ok", seen=seen)


def _uv() -> Line:
    from importlib.util import find_spec

    from imagebuilder.lock.uv import resolver

    if find_spec("uv") is None:
        return Line(
            subject="resolver", state="missing", seen="the package uv is not here", fix="pip install uv"
        )
    return Line(subject="resolver", state="ok", seen=resolver())


def _inflater() -> Line:
    from imagebuilder.oci import encode, inflate

    library = inflate.library_name()
    if library == "isal":
        return Line(subject="layers", state="ok", seen=f"inflated by isal, compressed by {encode.IDENTITY}")
    return Line(
        subject="layers",
        state="note",
        seen=f"inflated by {library}: right, and two to three times slower than by isal",
        fix="pip install isal",
    )


def _cache_folder(cache: Cache) -> Line:
    fix = "set IMAGEBUILDER_CACHE_DIR to a folder that you may write"
    try:
        with cache.temporary():
            pass
        with cache.lock("doctor"):
            pass
    except ImagebuilderError as error:
        return Line(subject="cache", state="missing", seen=error.what, fix=fix)
    return Line(subject="cache", state="ok", seen=str(cache.root))


def _space(cache: Cache) -> Line:
    folder = cache.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    seen = f"{free / 1e9:.0f} GB free for the cache"
    if free < WANTED_SPACE:
        wanted = f"a whole SGLang stack takes about {WANTED_SPACE / 1e9:.0f} GB"
        fix = f"{wanted}: free some, or set IMAGEBUILDER_CACHE_DIR"
        return Line(subject="disk", state="note", seen=seen, fix=fix)
    return Line(subject="disk", state="ok", seen=seen)


def _indexes(settings: Settings) -> list[Line]:
    from imagebuilder.index.simple import Indexes

    wanted = {
        DEFAULT: Indexes((), settings, Cache(settings.cache_dir)).url_of(DEFAULT),
        **settings.index_urls,
    }
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(lambda item: _index(settings, *item), wanted.items()))


def _index(settings: Settings, name: str, url: str) -> Line:
    from imagebuilder.index.http import session

    subject = f"index {name}"
    if settings.offline:
        return Line(subject=subject, state="note", seen=_OFFLINE, fix=_NOT_OFFLINE)
    probe = url.rstrip("/") + "/pip/"
    variable = f"IMAGEBUILDER_INDEX_{name.upper().replace('-', '_')}_URL"
    broken = Line(
        subject=subject,
        state="missing" if name == DEFAULT else "note",
        seen="",
        fix=f"set {variable} to a mirror that this machine reaches, or HTTPS_PROXY to its proxy",
    )
    try:
        with session(settings, pause=lambda _: None) as http:
            response = http.request("GET", probe, what=subject, stream=True)
            response.close()
    except MachineLacks as error:  # a certificate: its hint says how to trust it
        return replace(broken, seen=error.seen or error.what, fix=error.hint)
    except ImagebuilderError as error:
        return replace(broken, seen=error.seen or error.what)
    if response.status_code == 429 or response.status_code >= 500:
        return replace(broken, seen=f"HTTP {response.status_code}")
    if response.status_code in (401, 403):
        fix = "give a login in ~/.netrc, in the index's address or in keyring"
        return Line(subject=subject, state="note", seen=f"HTTP {response.status_code}", fix=fix)
    origin = f" ({settings.default_index_origin})" if name == DEFAULT else ""
    return Line(subject=subject, state="ok", seen=f"{redact(url)} answers{origin}")


def _debian(settings: Settings, cache: Cache) -> Line:
    """The archive as a bookworm base would use it: reached, and its signature verified."""
    from imagebuilder.index.debian import Archive
    from imagebuilder.index.http import session

    if settings.offline:
        return Line(subject="Debian archive", state="note", seen=_OFFLINE, fix=_NOT_OFFLINE)
    try:
        with session(settings, pause=lambda _: None) as http:
            archive = Archive(
                suite=_SUITE,
                platform=Platform.parse("linux/amd64"),
                settings=settings,
                session=http,
                cache=cache,
            )
            seen = f"{_SUITE} of {archive.date:%Y-%m-%d}, signature verified"
    except ImagebuilderError as error:
        fix = error.hint or "set IMAGEBUILDER_DEBIAN_MIRRORS"
        return Line(
            subject="Debian archive", state="note", seen=error.what, fix=f"{fix}; for Debian bases only"
        )
    return Line(subject="Debian archive", state="ok", seen=seen)


def _docker(environ: Mapping[str, str]) -> list[Line]:
    """The engine, buildx, and what `--builder auto` makes of them."""
    optional = "only needed for --builder docker, --load, accept and deploy docker"
    lines = []
    try:
        with Engine.connect(environ) as engine:
            facts = engine.facts
        seen = f"{facts.version or 'a version that it does not say'}, {facts.store} store" + (
            ", NVIDIA runtime" if facts.nvidia else ""
        )
        fix = "" if facts.builds else f"--builder docker needs Docker {OLDEST_WITH_BUILDKIT} or newer"
        lines.append(Line(subject="Docker Engine", state="note" if fix else "ok", seen=seen, fix=fix))
    except MachineLacks as error:
        seen = f"{error.what} ({error.seen[:120]})"
        lines.append(Line(subject="Docker Engine", state="note", seen=seen, fix=f"{error.hint}; {optional}"))
    try:
        lines.append(Line(subject="buildx", state="ok", seen=find_buildx(environ).version))
    except MachineLacks as error:
        lines.append(Line(subject="buildx", state="note", seen=error.what, fix=error.hint))
    choice = choose(environ)
    lines.append(Line(subject="builder auto", state="ok", seen=f"{choice.builder}: {choice.reason}"))
    return lines


def _gpus() -> Line:
    program = shutil.which("nvidia-smi")
    fix = "only needed for accept and deploy: install NVIDIA's driver and container toolkit"
    if program is None:
        return Line(subject="GPUs", state="note", seen="nvidia-smi is not installed", fix=fix)
    query = [program, "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return Line(
            subject="GPUs",
            state="note",
            seen="nvidia-smi does not answer",
            fix="look at dmesg for Xid errors",
        )
    lines = found.stdout.strip().splitlines()
    if found.returncode or not lines:
        words = [*lines, *found.stderr.strip().splitlines(), f"nvidia-smi ends with {found.returncode}"]
        return Line(subject="GPUs", state="note", seen=words[0], fix=fix)
    return Line(subject="GPUs", state="ok", seen="; ".join(lines))
