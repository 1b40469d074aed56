"""The words of a stack file: names, versions, requirements, addresses, paths. Each is a `grammar.Kind`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from imagebuilder.stack.grammar import Array, Either, Place, Schema, Wrong, nearest, not_a, shown
from imagebuilder.stack.kinds import Boolean, Choice, Names, Number, Parsed, Text
from imagebuilder.stack.model import Patch
from imagebuilder.stack.secrets import secret_argument, secret_form, secret_variable
from imagebuilder.values import GpuArch, ImageRef, Platform, Release

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_PATCH_BYTES = 4 << 20
FINDING_KINDS = (
    "abi", "lib", "gpu", "path", "toolchain", "cuda", "version", "require", "index", "driver", "image",
    "stack", "acceptance",
)  # fmt: skip


def _requirement(text: str) -> Requirement:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as problem:
        raise ValueError(f"{shown(text)} is not a requirement: {str(problem).splitlines()[0]}") from None
    if requirement.url:
        url = urlsplit(requirement.url)
        if url.scheme != "https" and url.hostname not in LOOPBACK:
            raise ValueError(f"{requirement.name} comes from {url.scheme}:, wanted is an https: address")
        if url.username or url.password:
            raise ValueError(f"{requirement.name} comes from an address with a user or password in it")
        if not url.path.endswith(".whl"):
            raise ValueError(
                f"{requirement.name} comes from an address that is no wheel: only wheels are taken"
            )
    return requirement


def _index_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("https", "http") or not url.hostname or url.query or url.fragment:
        raise ValueError(f"{shown(text)} is not the https: address of an index")
    if url.username or url.password:
        raise ValueError("an address with a user or password in it: credentials come from netrc or keyring")
    if url.scheme == "http" and url.hostname not in LOOPBACK:
        raise ValueError(f"{shown(text)} is not encrypted, wanted is https: (http: on this machine only)")
    return text.rstrip("/")


def _device(text: str) -> GpuArch:
    arch = GpuArch.parse(text)
    if arch.kind != "sm" or arch.suffix:
        raise ValueError(f"{text!r} names code, not a GPU: write sm_{arch.number}")
    return arch


def _python(text: str) -> Release:
    if not re.fullmatch(r"3\.\d{1,2}", text, re.ASCII):
        raise ValueError(f"{shown(text)} is not a Python version of two parts such as 3.12")
    return Release(text)


def _release(text: str) -> Release:
    if len(text) > 40 or not text.isascii():
        raise ValueError(f"{shown(text)} is not a version of dotted numbers")
    return Release(text)


def _repository(text: str) -> str:
    ref = ImageRef.parse(text)
    if ref.digest or text.endswith(f":{ref.tag}"):
        raise ValueError(f"{shown(text)} has a tag or digest, wanted is a repository alone")
    return text


def _absolute(text: str) -> str | None:
    parts = text[1:].split("/")
    if text != "/" and (not text.startswith("/") or any(part in ("", ".", "..") for part in parts)):
        return f"{shown(text)} is not an absolute path in its plain form (no //, no . or .., no / at the end)"
    return None


def relative_path(text: str) -> str | None:
    """A problem in words when this is not a plain relative path that stays below its folder."""
    if text.startswith(("/", "~")) or "\\" in text or any(p in ("", ".", "..") for p in text.split("/")):
        return f"{shown(text)} is not a plain path below the stack file's folder"
    return None


NAME = Text(pattern=r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?", form="a name of a-z, 0-9, - and _")
DNS_LABEL = Text(pattern=r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", form="a DNS label of a-z, 0-9 and -")
LINE = Text(form="text")
REASON = Text(form="a reason in words", pattern=r".*\S.*")
ABSOLUTE = Text(form="an absolute path", forbid=_absolute)
RELATIVE = Text(form="a path below the stack file's folder", forbid=relative_path)
PLATFORM = Parsed(parse=Platform.parse, form="a platform", values=("linux/amd64", "linux/arm64"))
PYTHON = Parsed(parse=_python, form="a Python version such as 3.12", pattern=r"3\.[0-9]{1,2}")
RELEASE = Parsed(parse=_release, form="a version of dotted numbers", pattern=r"[0-9]+(?:\.[0-9]+)*")
DEVICE = Parsed(parse=_device, form="a GPU such as sm_120", pattern=r"sm_[0-9]{2,3}")
IMAGE = Parsed(parse=ImageRef.parse, form="an image reference such as registry.example/name:tag")
REPOSITORY = Parsed(parse=_repository, form="a repository such as registry.example/name")
REQUIREMENT = Parsed(parse=_requirement, form="a requirement such as torch==2.9.1")
INDEX_URL = Parsed(parse=_index_url, form="the https: address of an index", pattern=r"https?://\S+")
PACKAGE = Text(pattern=r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", form="the name of a package")
DEBIAN_PACKAGE = Text(
    pattern=r"[a-z0-9][a-z0-9+.-]+(?:=[A-Za-z0-9.+~:-]+)?", form="a Debian package, as name or name=version"
)
SUITE = Text(pattern=r"[a-z][a-z0-9-]*", form="a Debian suite such as bookworm")
CODE = Text(
    pattern=rf"(?:{'|'.join(FINDING_KINDS)})\.[a-z0-9-]+(?:\.[a-z0-9-]+)*",
    form="the code of a finding, such as gpu.no-code",
)
VARIABLE = Text(pattern=r"[A-Za-z_][A-Za-z0-9_]*", form="the name of a variable")
ENV = Names(name=VARIABLE, value=Text(form="text", empty=True), forbid=secret_variable)
SECRETS = Array(of=VARIABLE, key=str, noun="variable")
LABELS = Names(
    name=Text(pattern=r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?", form="the name of a label"),
    value=Text(form="text", empty=True, forbid=secret_form),
)
USER = Text(
    pattern=r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?",
    form="a user, as name, uid or uid:gid",
)
ARGUMENTS = Array(of=Text(form="text", forbid=secret_argument))
COMMAND = ARGUMENTS
PORT = Number(at_least=1, at_most=65535, form="a port")
SECONDS = Number(at_least=1, at_most=86400, form="seconds")
COUNT = Number(at_least=1, at_most=1_000_000)
SHARE = Number(at_least=0, at_most=1, real=True, form="a share")
POSITIVE = Number(at_least=0, real=True)
SWITCH = Boolean()
GPUS = Either(
    other=Choice(options=("all", "none")),
    array=Array(of=Number(at_most=1023, form="a GPU's number"), at_least=1, key=str, noun="GPU"),
)


class FileMode:
    """A file's mode, as octal text or as a TOML octal number."""

    def read(self, raw: object, place: Place) -> int | Wrong:
        """The permission bits."""
        if isinstance(raw, str) and re.fullmatch(r"0?[0-7]{3}", raw, re.ASCII):
            return int(raw, 8)
        if isinstance(raw, int) and not isinstance(raw, bool) and 0 <= raw <= 0o777:
            return raw
        return place.wrong(f"{shown(raw)} is not {self.words()}", "write it in octal")

    def write(self, value: int) -> str:
        """Octal, four digits."""
        return f"{value:04o}"

    def schema(self) -> Schema:
        """Text of octal digits, or a number."""
        return {
            "anyOf": [{"type": "string", "pattern": "^0?[0-7]{3}$"}, {"type": "integer", "maximum": 0o777}]
        }

    def words(self) -> str:
        """An example."""
        return 'a mode such as "0755" or 0o755'


class IndexName:
    """The name of an index that the file declares."""

    def read(self, raw: object, place: Place) -> str | Wrong:
        """The name itself."""
        name = NAME.read(raw, place)
        known = place.names.get("index", ())
        if isinstance(name, str) and name not in known:
            return place.wrong(f"no [[index]] is called {name!r}", nearest(name, known) or "add an [[index]]")
        return name

    def schema(self) -> Schema:
        """A name."""
        return NAME.schema()

    def words(self) -> str:
        """A name."""
        return "the name of an [[index]]"


class PatchFiles:
    """Glob patterns for patch files below the stack file's folder, which are read. Each must match."""

    def read(self, raw: object, place: Place) -> tuple[Patch, ...] | Wrong:
        """The patches, in the order of the patterns and, within one, of their paths."""
        patterns = Array(of=RELATIVE, key=str, noun="pattern").read(raw, place)
        if isinstance(patterns, Wrong) or not isinstance(raw, list):
            return Wrong()
        before = len(place.problems)
        found: dict[str, Patch] = {}
        for number, pattern in enumerate(patterns):
            for path, content in _matching(pattern, place.item(number)):
                found.setdefault(path, Patch(path=path, content=content))
        return Wrong() if len(place.problems) > before else tuple(found.values())

    def schema(self) -> Schema:
        """An array of patterns."""
        return {"type": "array", "items": RELATIVE.schema()}

    def words(self) -> str:
        """Patterns."""
        return "array of glob patterns below the stack file's folder"


def _matching(pattern: str, place: Place) -> list[tuple[str, bytes]]:
    """(path, content) of every patch that a pattern matches."""
    assert place.folder is not None
    try:
        paths = place.folder.glob(pattern)
        found = [(path, place.folder.read(path)) for path in paths]
    except ValueError as problem:
        place.wrong(str(problem))
        return []
    if not found:
        place.wrong(f"no file matches {shown(pattern)}", "the pattern is relative to the stack file")
    for path, content in found:
        if len(content) > MAX_PATCH_BYTES or b"\n+++ " not in content or b"\n@@ " not in content:
            place.wrong(f"{path} is not a patch in unified form")
    return found


class FileSource:
    """A file below the stack file's folder, which is read."""

    def read(self, raw: object, place: Place) -> tuple[str, bytes] | Wrong:
        """(path, content)."""
        path = RELATIVE.read(raw, place)
        if isinstance(path, Wrong):
            return path
        assert place.folder is not None
        try:
            return path, place.folder.read(path)
        except ValueError as problem:
            return place.wrong(str(problem))

    def schema(self) -> Schema:
        """A path."""
        return RELATIVE.schema()

    def words(self) -> str:
        """A path."""
        return RELATIVE.words()


class SchemaVersion:
    """The version of the stack file's form: 1."""

    def read(self, raw: object, place: Place) -> Any:
        """1."""
        if isinstance(raw, bool) or not isinstance(raw, int):
            return not_a("the number 1", raw, place)
        return raw if raw == 1 else place.wrong(f"{raw} is not a form that is known here: 1")

    def schema(self) -> Schema:
        """The constant."""
        return {"const": 1}

    def words(self) -> str:
        """The constant."""
        return "1"
