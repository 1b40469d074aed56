"""Package indexes with a Simple API: which files a project has, and where one of them is.

Source: the Simple repository API specification (PEP 503, 629, 691, 700, 792), HTML and JSON. Pages are kept
in the cache and asked again with If-None-Match once in a run: an unchanged page costs one short answer.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urldefrag, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from imagebuilder.cache import Cache
from imagebuilder.errors import ArtefactUnusable, UsageProblem
from imagebuilder.index.http import Fetched, NotFound, Session, fetch
from imagebuilder.settings import DEFAULT, Settings, nearest, redact, split_login
from imagebuilder.stack.model import Index
from imagebuilder.values import Digest

if TYPE_CHECKING:
    from pypi_simple import DistributionPackage, ProjectPage

_KIND = "simple-page"


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """A wheel or sdist as an index lists it; `url` without login. yanked: the reason, or None."""

    name: str
    version: Version
    filename: str
    url: str
    sha256: Digest | None
    size: int | None
    requires_python: str | None
    yanked: str | None
    upload_time: datetime | None
    index: str

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel (else an sdist)."""
        return self.filename.endswith(".whl")


@dataclass(frozen=True, kw_only=True, order=True)
class OddFile:
    """A file that was passed over, and why."""

    index: str
    project: str
    filename: str
    why: str


@dataclass(frozen=True, kw_only=True)
class _Page:
    files: tuple[IndexFile, ...]
    odd: tuple[OddFile, ...]


class Indexes:
    """The indexes of a stack as configured on this machine, and the default one. May be shared by threads."""

    def __init__(
        self, stack_indexes: Iterable[Index], settings: Settings, cache: Cache, http: Session | None = None
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._http = http or Session(settings)
        self._lock = threading.Lock()
        self._pages: dict[tuple[str, str], _Page] = {}
        self._urls: dict[str, str] = {}
        for index in stack_indexes:
            self._urls[index.name] = settings.index_url(index.name) or _without_login(index)
        self._urls[DEFAULT] = settings.index_url(DEFAULT) or _public_index()

    @property
    def names(self) -> tuple[str, ...]:
        """The stack's indexes in its order, then `default`."""
        return tuple(self._urls)

    def url_of(self, index_name: str) -> str:
        """The address of that index here, without login (see `settings.logins`)."""
        if index_name not in self._urls:
            near = nearest(index_name, self._urls)
            raise UsageProblem(f"no index is named {index_name!r}{near}", wanted=", ".join(self._urls))
        return self._urls[index_name]

    def project(self, name: str, index_name: str = DEFAULT) -> list[IndexFile]:
        """The wheels and sdists that this index, and no other, lists for a project, in its order.

        Raises NotFound where the index does not know the project, Unreachable and Denied for the index
        itself, ArtefactUnusable for a page that cannot be understood.
        """
        return list(self._page(name, index_name).files)

    def odd_files(self, name: str, index_name: str = DEFAULT) -> list[OddFile]:
        """What `project` passed over: names that are neither wheel nor sdist, other projects' files, …"""
        return list(self._page(name, index_name).odd)

    def address_of(self, name: str, index_name: str, filename: str, digest: Digest) -> str:
        """Where this index has exactly that file.

        Raises ArtefactUnusable where it is gone from the index, or listed with another sha256.
        """
        listed = next((f for f in self._page(name, index_name).files if f.filename == filename), None)
        host = urlsplit(self.url_of(index_name)).hostname or self.url_of(index_name)
        if listed is None:
            raise NotFound(
                f"{filename} is not (or no longer) on the index {index_name!r}",
                seen=f"the page of {name} on {host}",
                hint="imagebuilder lock --upgrade=" + name,
            )
        if listed.sha256 not in (None, digest):
            raise ArtefactUnusable(
                f"{filename} on the index {index_name!r} is another file than the locked one",
                seen=f"{listed.sha256} on {host}",
                wanted=str(digest),
                hint="the file was replaced, or this mirror rebuilds files: find out before locking again",
            )
        return listed.url

    def forget(self, name: str, index_name: str) -> None:
        """Let go of a project's page: of a whole lock, they take hundreds of MB."""
        with self._lock:
            self._pages.pop((index_name, canonicalize_name(name)), None)

    def size_of(self, file: IndexFile) -> int:
        """Bytes, asked from the server where the index does not say."""
        if file.size is not None:
            return file.size
        with self._http.ask(
            file.url,
            f"the size of {file.filename}",
            method="HEAD",
            headers={"Accept-Encoding": "identity"},
            allow_redirects=True,
        ) as response:
            length = response.headers.get("Content-Length", "")
        if not length.isdigit():
            raise ArtefactUnusable(
                f"the size of {file.filename} cannot be found out", seen="the server gives no Content-Length"
            )
        return int(length)

    # ------------------------------------------------------------------ pages

    def _page(self, name: str, index_name: str) -> _Page:
        project = canonicalize_name(name)
        with self._lock:
            known = self._pages.get((index_name, project))
        if known is None:
            url = f"{self.url_of(index_name).rstrip('/')}/{project}/"
            known = self._parse(self._fetch(url, project, index_name), project, index_name)
            with self._lock:
                self._pages[index_name, project] = known
        return known

    def _fetch(self, url: str, project: str, index_name: str) -> Fetched:
        """The page, from the cache where the index says that it has not changed (or we are offline)."""
        what = f"the page of {project} on the index {index_name!r}"
        kept = _unpack(self._cache.read_record(_KIND, url))
        if self._settings.offline and kept:
            return kept
        headers = {"Accept": _accept()}
        if kept and "ETag" in kept.headers:
            headers["If-None-Match"] = kept.headers["ETag"]
        try:
            page = fetch(self._http, url, what, headers=headers, also=(304,) if kept else ())
        except NotFound as error:
            raise NotFound(
                f"the index {index_name!r} has no project {project}",
                seen=error.seen,
                hint="imagebuilder recon shows which index has it; is the index's address right?",
            ) from None
        if page.status == 304 and kept:
            return kept
        self._cache.write_record(_KIND, url, _pack(page))
        return page

    def _parse(self, page: Fetched, project: str, index_name: str) -> _Page:
        files: list[IndexFile] = []
        odd: list[OddFile] = []
        parsed = _parse_page(page, project, index_name)
        if parsed.status == "quarantined":
            why = f"the index has quarantined {project}: {parsed.status_reason or 'no reason given'}"
            odd.append(OddFile(index=index_name, project=project, filename="*", why=why))
        for package in parsed.packages:
            try:
                files.append(_index_file(package, page.url, project, index_name))
            except ValueError as error:
                filename = package.filename[:200]
                odd.append(OddFile(index=index_name, project=project, filename=filename, why=str(error)))
        return _Page(files=tuple(files), odd=tuple(odd))


def _without_login(index: Index) -> str:
    """The address as the stack file has it; UsageProblem where it holds a password."""
    try:
        url, login = split_login(index.url)
    except ValueError as error:
        raise UsageProblem(f"the address of the index {index.name!r} {error}") from None
    if login:
        variable = f"IMAGEBUILDER_INDEX_{re.sub('[^A-Za-z0-9]', '_', index.name).upper()}"
        raise UsageProblem(
            f"the address of the index {index.name!r} in the stack file holds a login",
            hint=f"put it into ~/.netrc, or into {variable}_URL",
        )
    return url


def _public_index() -> str:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


def _accept() -> str:
    from pypi_simple import ACCEPT_JSON_PREFERRED

    return ACCEPT_JSON_PREFERRED


def _parse_page(page: Fetched, project: str, index_name: str) -> ProjectPage:
    """By pypi-simple. ArtefactUnusable where it is no project page, or of a newer Simple API."""
    import pypi_simple

    kind, _, parameters = page.headers.get("Content-Type", "text/html").lower().partition(";")
    kind = kind.strip()
    try:
        if kind == "application/vnd.pypi.simple.v1+json":
            return pypi_simple.ProjectPage.from_json_data(json.loads(page.body), page.url)
        if kind in ("text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
            charset = parameters.partition("charset=")[2].strip(" \"'") or None
            return pypi_simple.ProjectPage.from_html(project, page.body, page.url, charset)
        reason = f"its content type is {kind[:80]!r}"
    except (ValueError, LookupError, RecursionError, pypi_simple.UnsupportedRepoVersionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    raise ArtefactUnusable(
        f"the page of {project} on the index {index_name!r} cannot be understood",
        seen=f"{redact(page.url)}: {redact(reason)}",
        wanted="a page of the Simple API, HTML or JSON",
        hint="is the address of the index right? (it often ends with /simple)",
    )


def _index_file(package: DistributionPackage, page_url: str, project: str, index_name: str) -> IndexFile:
    """The checked value, or ValueError with the reason why the file is passed over."""
    name, version = _name_and_version(package.filename)
    if canonicalize_name(name) != project:
        raise ValueError(f"it belongs to another project, {name}")
    try:
        url, _ = split_login(urldefrag(urljoin(page_url, package.url)).url)
    except ValueError as error:
        raise ValueError(f"its address {error}") from None
    if url.startswith("file:") and not page_url.startswith("file:"):
        raise ValueError("its address is a file on this machine")
    digest = package.digests.get("sha256")
    try:
        sha256 = Digest.from_hex(digest) if digest else None
    except ValueError:
        raise ValueError("its sha256 is not one") from None
    if package.size is not None and package.size < 0:
        raise ValueError("its size is negative")
    return IndexFile(
        name=project,
        version=version,
        filename=package.filename,
        url=url,
        sha256=sha256,
        size=package.size,
        requires_python=package.requires_python,
        yanked=(package.yanked_reason or "") if package.is_yanked else None,
        upload_time=package.upload_time,
        index=index_name,
    )


def _name_and_version(filename: str) -> tuple[str, Version]:
    try:
        if filename.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(filename)
            return name, version
        return parse_sdist_filename(filename)
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        raise ValueError(f"its name is neither a wheel's nor an sdist's: {error}"[:200]) from None


# ---------------------------------------------------------------------- pages as records


def _pack(page: Fetched) -> bytes:
    """One line of JSON, then the body as it came."""
    kept = {name: page.headers[name] for name in ("ETag", "Content-Type") if name in page.headers}
    return json.dumps({"url": page.url, "headers": kept}).encode() + b"\n" + page.body


def _unpack(record: bytes | None) -> Fetched | None:
    if record is None:
        return None
    head, _, body = record.partition(b"\n")
    kept = json.loads(head)
    return Fetched(url=kept["url"], status=200, headers=kept["headers"], body=body)
