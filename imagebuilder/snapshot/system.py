"""The base to rebuild an environment on: what it must have. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from imagebuilder.errors import UsageProblem
from imagebuilder.snapshot.model import Environment
from imagebuilder.stack.model import Base, DebianBase, ImageBase
from imagebuilder.values import ImageRef, Release

SUITES = {"3.11": "bookworm", "3.13": "trixie"}
"""Python → the Debian release that has it."""
PLAIN_PACKAGES = ("ca-certificates", "libgomp1", "libstdc++6", "python3")
"""What an environment of this machine gets: its Python, and what manylinux wheels expect of every system."""
_BASE_NAME, _BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"


def os_release(data: bytes) -> dict[str, str]:
    """The fields of an os-release file. Source: os-release(5)."""
    lines = (line.partition("=") for line in data.decode("utf-8", "replace").splitlines() if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in lines}


def choose_base(environment: Environment, system: Mapping[str, str], wanted: str | None) -> Base:
    """The base that has the environment's Python: as wanted, as the image's labels say, or Debian's.

    UsageProblem says what base is needed where none of them is one.
    """
    python = environment.interpreter.python.text
    if wanted:
        return _named(wanted, python)
    labels = dict(environment.run.labels)
    if labels.get(_BASE_NAME):
        digest = labels.get(_BASE_DIGEST, "")
        try:
            return ImageBase(ref=ImageRef.parse(labels[_BASE_NAME] + (f"@{digest}" if digest else "")))
        except ValueError:
            pass
    suite = SUITES.get(python)
    if suite and (not environment.whole or system.get("ID") == "debian"):
        return DebianBase(suite=suite)
    here = " ".join(
        filter(None, (system.get("ID"), system.get("VERSION_CODENAME") or system.get("VERSION_ID")))
    )
    debians = ", ".join(f"{p} ({s})" for p, s in SUITES.items())
    raise UsageProblem(
        f"{environment.label} has Python {python}"
        + (f" on {here}" if environment.whole and here else "")
        + ", and no base with it is known",
        seen=f"Python {python}; Debian has {debians}",
        wanted=f"an image that has /usr/bin/python{python}, by name and digest",
        hint=f"--base {_example(system) if environment.whole else 'NAME'}@sha256:…",
    )


def _example(system: Mapping[str, str]) -> str:
    name, version = system.get("ID", "ubuntu"), system.get("VERSION_ID", "24.04")
    return f"{name}:{version}" if re.fullmatch(r"[a-z]+", name) else "ubuntu:24.04"


def _named(wanted: str, python: str) -> Base:
    if wanted in SUITES.values():
        if SUITES.get(python) != wanted:
            theirs = next(p for p, suite in SUITES.items() if suite == wanted)
            raise UsageProblem(
                f"--base {wanted}: its Python is another one",
                seen=f"Python {theirs}",
                wanted=f"Python {python}",
                hint="an image that has it: --base NAME@sha256:…",
            )  # fmt: skip
        return DebianBase(suite=wanted)
    try:
        return ImageBase(ref=ImageRef.parse(wanted))
    except ValueError as error:
        raise UsageProblem(f"--base {error}", wanted=f"{' or '.join(SUITES.values())}, or an image") from None


def choose_glibc(base: Base, environment: Environment, wanted: Release | None) -> Release | None:
    """The glibc to choose wheels for, as wanted; None: that of the Debian base.

    For an image, which is not looked into, it is the environment's. UsageProblem where nobody knows it.
    """
    found = wanted or (None if isinstance(base, DebianBase) else environment.interpreter.glibc)
    if found is None and not isinstance(base, DebianBase):
        raise UsageProblem(
            f"which glibc {environment.label} has is not known",
            wanted="the base's release of it, as `ldd --version` says",
            hint="--glibc 2.39",
        )
    return found
