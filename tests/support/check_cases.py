"""Cases of the checks as data (tests/checks/cases/*.toml): a shipped set, changed, and what must be found.

about = "what happened to somebody, with the reference"
like = "cu128-debian"            the stack file, the lock and the system to begin with (without its waivers)
keep = ["torch", "nvidia-*"]     packages of its lock that stay; left out: all
wheels = ["torch-2.8.0-….whl"]   recorded wheels that are added, or take the place of a package's own
edit = [["old", "new"]]          changes of the text of the stack file; each `old` must be in it
glibc, without, without-overrides, previous    see `subject_of`
[[locked]]                       locked wheels of which nothing is recorded: name, version, …
[[expect]]                       code, and any of severity, package, path (a glob), key, what, evidence, fix
quiet = ["code [package [path]]"]    globs of what must not be found
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import tomli
from packaging.utils import canonicalize_name, parse_wheel_filename

from imagebuilder.checks.model import Finding
from imagebuilder.checks.subject import Subject
from imagebuilder.checks.system import assumed_system
from imagebuilder.checks.tables import Tables, load_tables
from imagebuilder.facts.environment import SystemFacts
from imagebuilder.facts.record import WheelFacts
from imagebuilder.lock.model import Lock, Wheel
from imagebuilder.lock.pylock import read_lock
from imagebuilder.lock.target import target_facts
from imagebuilder.plan import make_plan
from imagebuilder.stack import load_stack
from imagebuilder.stack.model import Stack
from imagebuilder.values import Digest, Release
from tests.support.check_facts import recorded

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests" / "checks" / "cases").glob("*.toml"))
STACKS = ("cu128-debian", "cu130-debian", "cu128", "demo")


@cache
def tables() -> Tables:
    """As shipped."""
    return load_tables()


@cache
def shipped(name: str) -> tuple[Stack, Lock]:
    """A shipped stack and its lock."""
    stack = load_stack(ROOT / "stacks" / f"{name}.toml")
    return stack, read_lock(ROOT / "stacks" / f"pylock.{name}.toml")


def shipped_subject(name: str) -> Subject:
    """A shipped stack with everything that was recorded for its lock."""
    return _subject(*shipped(name), recorded().system(name))


def subject_of(case: dict[str, Any], folder: Path) -> Subject:
    """What a case describes; its stack file is written into the folder.

    glibc: of the target. without: libraries that the system does not have. without-overrides: the stack
    declares none. previous: the shipped lock to compare with.
    """
    name = case["like"]
    stack = _stack(name, case.get("edit", ()), folder)
    if case.get("without-overrides"):
        stack = replace(stack, overrides=())
    _, lock = shipped(name)
    wheels = {w.name: w for w in lock.wheels if _kept(w.name, case.get("keep", ["*"]))}
    for other, patterns in case.get("also", {}).items():
        wheels.update({w.name: w for w in shipped(other)[1].wheels if _kept(w.name, patterns)})
    wheels.update({w.name: w for w in map(_recorded_wheel, case.get("wheels", ()))})
    wheels.update({w.name: w for w in map(_plain_wheel, case.get("locked", ()))})
    lock = replace(lock, wheels=tuple(sorted(wheels.values(), key=lambda w: w.name)))
    system = recorded().system(name)
    if system is not None and "without" in case:
        gone = set(case["without"])
        system = replace(
            system,
            libraries={p: e for p, e in system.libraries.items() if e.soname not in gone},
            links={a: b for a, b in system.links.items() if Path(a).name not in gone},
        )
    subject = _subject(stack, lock, system)
    if "glibc" in case:
        subject = replace(subject, target=replace(subject.target, glibc=Release(case["glibc"])))
    if "previous" in case:
        subject = replace(subject, previous=shipped(case["previous"])[1])
    return subject


def made_subject(
    facts: Mapping[str, WheelFacts], folder: Path, *, versions: Mapping[str, str] | None = None, **case: Any
) -> Subject:
    """A case with made-up wheels beside what it keeps; their version is 1.0 unless told otherwise."""
    said = versions or {}
    locked = [{"name": name, "version": said.get(name, "1.0")} for name in facts]
    subject = subject_of({"like": "cu128-debian", "keep": [], **case, "locked": locked}, folder)
    return replace(subject, facts={**subject.facts, **facts})


def problems(case: dict[str, Any], found: Iterable[Finding]) -> Iterator[str]:
    """What is not as the case expects it."""
    findings = list(found)
    for expected in case.get("expect", ()):
        if not any(_is(expected, finding) for finding in findings):
            same = [f for f in findings if f.code == expected["code"]] or findings
            seen = "\n".join(
                f"    {f.severity} {f.code} {f.place}: {f.what} {f.evidence} {f.fix}" for f in same[:12]
            )
            yield f"not found: {expected}\n  but:\n{seen}"
    for pattern in case.get("quiet", ()):
        code, package, path = [*pattern.split(), "*", "*"][:3]
        for f in findings:
            if fnmatchcase(f.code, code) and fnmatchcase(f.package, package) and fnmatchcase(f.path, path):
                yield f"found, although {pattern!r} is to be quiet: {f.code} {f.place}: {f.what} {f.evidence}"


def _is(expected: dict[str, str], finding: Finding) -> bool:
    exact = all(
        getattr(finding, k) == expected[k] for k in ("code", "severity", "package", "key") if k in expected
    )
    texts = {"what": finding.what, "fix": finding.fix, "evidence": "\n".join(finding.evidence)}
    within = all(expected[k] in text for k, text in texts.items() if k in expected)
    return exact and within and fnmatchcase(finding.path, expected.get("path", "*"))


def _stack(name: str, edits: Iterable[tuple[str, str]], folder: Path) -> Stack:
    text = (ROOT / "stacks" / f"{name}.toml").read_text()
    for old, new in edits:
        before = old.replace("\\n", "\n")
        assert before in text, f"{before!r} is not in the stack file of {name}"
        text = text.replace(before, new.replace("\\n", "\n"))
    if not (folder / "patches").exists():
        shutil.copytree(ROOT / "stacks" / "patches", folder / "patches")
    (folder / f"{name}.toml").write_text(text)
    return replace(load_stack(folder / f"{name}.toml"), waivers=())


def _subject(stack: Stack, lock: Lock, system: SystemFacts | None) -> Subject:
    names = set(recorded().filenames)
    return Subject(
        stack=stack,
        lock=lock,
        plan=make_plan(stack, lock),
        target=target_facts(stack),
        tables=tables(),
        facts={w.name: recorded().wheel(w.filename) for w in lock.wheels if w.filename in names},
        system=system or assumed_system(stack, tables()),
        system_is_assumed=system is None,
    )


def _kept(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _recorded_wheel(filename: str) -> Wheel:
    name, version, _, _ = parse_wheel_filename(filename)
    return _plain_wheel({"name": name, "version": str(version), "filename": filename})


def _plain_wheel(fields: dict[str, Any]) -> Wheel:
    name = canonicalize_name(fields["name"])
    filename = f"{name.replace('-', '_')}-{fields['version']}-py3-none-any.whl"
    return Wheel(
        **{
            "filename": filename,
            "size": 1,
            "sha256": Digest.of(filename.encode()),
            "path": filename,
            **fields,
            "name": name,
        }
    )


def read_case(path: Path) -> dict[str, Any]:
    """One case."""
    return tomli.loads(path.read_text())
