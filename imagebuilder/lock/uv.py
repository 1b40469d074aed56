"""Asking uv, the resolver, and understanding its answer: which version of each package, from which index.

It runs hermetically: no configuration but ours, in a temporary folder, in an environment made from the
Settings. Of the project file, `uv pip compile --no-config` (0.11 to 0.13) reads dependencies, sources and the
indexes that sources name, nothing else: overrides, default and searched indexes are arguments. Logins are in
the environment.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version as installed_version
from pathlib import Path

import tomli_w
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

from imagebuilder.cache import Cache, storage_errors
from imagebuilder.errors import MachineLacks, Unresolvable
from imagebuilder.lock.explain import PROJECT, explain_failure
from imagebuilder.lock.target import TargetFacts
from imagebuilder.progress import Reporter
from imagebuilder.settings import Login, Settings, redact

_RESOLVED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:==(?P<version>\S+)|@\s*(?P<url>\S+))")
_FROM = re.compile(r"\s+# from (?P<index>\S+)")
_NOISE = re.compile(r"^warning: The requested Python version .* is not available")


@dataclass(frozen=True, kw_only=True)
class AskedIndex:
    """An index as uv is told of it: an address without login, and the login apart."""

    name: str
    url: str
    explicit: bool = False
    login: Login | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be resolved. indexes: the default one last. bindings: package → index name.

    kept: versions to prefer, from the previous lock. as_of: nothing newer counts, but for the packages in
    `cutoffs`, which have their own date or none.
    """

    stack_name: str
    target: TargetFacts
    requirements: tuple[Requirement, ...]
    overrides: tuple[str, ...] = ()
    indexes: tuple[AskedIndex, ...]
    bindings: Mapping[NormalizedName, str]
    kept: Mapping[NormalizedName, str]
    as_of: datetime | None = None
    cutoffs: Mapping[NormalizedName, datetime | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One package: its version and the address of the index it comes from, or its own address."""

    name: NormalizedName
    version: Version | None = None
    index_url: str | None = None
    url: str | None = None


def resolver() -> str:
    """Name and version of the resolver, as locks say it."""
    return f"uv {installed_version('uv')}"


def ask(question: Question, settings: Settings, reporter: Reporter) -> tuple[Answer, ...]:
    """The packages that satisfy the question, by name.

    Raises Unresolvable with uv's explanation, ArtefactUnusable where an index cannot be read,
    MachineLacks where this machine has not what uv needs.
    """
    uv = _uv_binary()
    store = settings.cache_dir / "uv"
    with storage_errors(store), Cache(settings.cache_dir).temporary() as folder:
        store.mkdir(parents=True, exist_ok=True)
        _write_inputs(folder, question)
        done = subprocess.run(
            [uv, *_arguments(question, settings)],
            cwd=folder,
            env=_environment(question, settings, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if done.returncode < 0:
            raise MachineLacks(
                f"uv was ended while it resolved {question.stack_name}",
                seen="; ".join(
                    [signal.strsignal(-done.returncode) or "", *redact(done.stderr).splitlines()[:1]]
                ),
                hint="is memory short? the kernel ends a process then (dmesg)",
            )
        if done.returncode != 0:
            raise explain_failure(redact(done.stderr), question.stack_name, question.target)
        for line in done.stderr.splitlines():
            if line.startswith("warning: ") and not _NOISE.match(line):
                reporter.warn(redact(line.removeprefix("warning: ")))
        return parse_answer((folder / "resolved.txt").read_text(encoding="utf-8"))


def parse_answer(text: str) -> tuple[Answer, ...]:
    """From uv's requirements.txt with index annotations. Pure."""
    answers: list[Answer] = []
    for line in text.splitlines():
        if (m := _FROM.fullmatch(line)) and answers:
            last = answers[-1]
            answers[-1] = Answer(name=last.name, version=last.version, index_url=m["index"])
        elif m := _RESOLVED.match(line):
            answers.append(
                Answer(
                    name=canonicalize_name(m["name"]),
                    version=Version(m["version"]) if m["version"] else None,
                    url=m["url"],
                )
            )
        elif line.strip() and not line.lstrip().startswith("#"):
            raise Unresolvable("uv's answer is not understood", seen=line)
    return tuple(sorted(answers, key=lambda a: a.name))


def project_table(question: Question) -> dict[str, object]:
    """The pyproject.toml for uv. Pure."""
    named = [{"name": i.name, "url": i.url, "explicit": i.explicit} for i in question.indexes[:-1]]
    sources = {name: {"index": index} for name, index in sorted(question.bindings.items())}
    dependencies = [str(requirement) for requirement in question.requirements]
    return {
        "project": {"name": PROJECT, "version": "0", "dependencies": dependencies},
        "tool": {"uv": {"sources": sources, "index": named}},
    }


def _write_inputs(folder: Path, question: Question) -> None:
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project_table(question)), encoding="utf-8")
    (folder / "overrides.txt").write_text("".join(f"{o}\n" for o in question.overrides), encoding="utf-8")
    if question.kept:
        kept = "".join(f"{name}=={version}\n" for name, version in sorted(question.kept.items()))
        (folder / "resolved.txt").write_text(kept, encoding="utf-8")


def _arguments(question: Question, settings: Settings) -> list[str]:
    """uv's arguments: everything that decides the answer, and nothing secret."""
    arguments = [
        *("pip", "compile", "pyproject.toml", "--output-file", "resolved.txt"),
        *("--no-config", "--no-build", "--no-python-downloads", "--python", sys.executable),
        *("--python-version", question.target.python.text),
        *("--python-platform", question.target.uv_platform),
        *("--cache-dir", str(settings.cache_dir / "uv")),
        *("--emit-index-annotation", "--no-annotate", "--no-header"),
        *("--color", "never", "--no-progress"),
    ]
    *named, default = question.indexes
    for index in named:
        if not index.explicit:
            arguments += ["--index", f"{index.name}={index.url}"]
    arguments += ["--default-index", f"{default.name}={default.url}"]
    if question.overrides:
        arguments += ["--overrides", "overrides.txt"]
    if question.as_of is not None:
        arguments += ["--exclude-newer", question.as_of.isoformat()]
    for name, cutoff in sorted(question.cutoffs.items()):
        if cutoff != question.as_of:
            arguments += ["--exclude-newer-package", f"{name}={cutoff.isoformat() if cutoff else 'false'}"]
    if settings.offline:
        arguments.append("--offline")
    return arguments


def _environment(question: Question, settings: Settings, folder: Path) -> dict[str, str]:
    """uv's whole environment: nothing of the caller's gets through but what Settings hold."""
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "UV_HTTP_TIMEOUT": str(max(1, round(settings.timeout))),
        "UV_CONCURRENT_DOWNLOADS": str(settings.connections),
    }
    for name, value in settings.proxies.items():
        environment[f"{name.upper()}_PROXY"] = value
    if settings.proxies:
        without = [settings.proxies.get("no", ""), "localhost", "127.0.0.1", "::1"]
        environment["NO_PROXY"] = ",".join(filter(None, without))
    if settings.ca_bundle is not None:
        environment["SSL_CERT_FILE"] = str(settings.ca_bundle)
    if settings.netrc is not None and settings.netrc.exists():
        environment["NETRC"] = str(settings.netrc)
    for index in question.indexes:
        if index.login is not None:
            key = re.sub(r"[^A-Z0-9]", "_", index.name.upper())
            environment[f"UV_INDEX_{key}_USERNAME"] = index.login.username
            environment[f"UV_INDEX_{key}_PASSWORD"] = index.login.password
    return environment


def _uv_binary() -> str:
    import uv

    try:
        return str(uv.find_uv_bin())
    except FileNotFoundError:
        raise MachineLacks(
            "the program of the Python package uv is not where it was installed",
            hint=f"{sys.executable} -m pip install --force-reinstall uv",
        ) from None
