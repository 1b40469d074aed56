"""A snapshot as a stack file: its text, and the settings of an image moved to where the new one has its
things. Pure.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import tomli_w
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from imagebuilder.lock.model import DEFAULT_INDEX
from imagebuilder.lock.target import TargetFacts
from imagebuilder.plan import VENV
from imagebuilder.plan.config import DEFAULT_PATH
from imagebuilder.snapshot.model import Change, Environment, Package
from imagebuilder.stack.model import Base, DebianBase, ImageBase, Index
from imagebuilder.values import GpuArch, Release

_OURS = re.compile(
    r"dev\.imagebuilder\..*|org\.opencontainers\.image\.(?:created|title|description|base\.(?:name|digest))"
)
_NEVER = 'python_version < "3"'


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user decides: the rest is read from the environment. env: variables to add. as_of: of the
    stack.
    """

    name: str
    as_of: datetime
    base: str | None = None
    gpus: tuple[GpuArch, ...] = ()
    driver: Release | None = None
    glibc: Release | None = None
    indexes: tuple[Index, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Everything that the stack file will say."""

    environment: Environment
    wishes: Wishes
    base: Base
    glibc: Release | None
    packages: Sequence[Package]
    added: Sequence[Change]
    indexes: Mapping[str, Index]
    overrides: Sequence[tuple[str, str]]
    system: tuple[str, ...]

    @property
    def locked(self) -> list[Package]:
        """Those that a wheel was found for."""
        return [p for p in self.packages if p.candidate is not None]

    def patch_path(self, package: Package) -> str:
        """Where a package's patch is, relative to the stack file."""
        return f"patches/{self.wishes.name}/{package.name}-{package.version}.patch"

    def files(self) -> list[tuple[str, str, Change]]:
        """(path in the image, source relative to the stack file, the change) of extra files, each path
        once.
        """
        found: dict[str, tuple[str, str, Change]] = {}
        whole = [c for p in self.locked for c in p.changes]
        for change in [*whole, *self.added]:
            if change.how == "file":
                place = moved_path(change.path, self.environment)
                found.setdefault(
                    place, (place, f"files/{self.wishes.name}{place.removeprefix(VENV)}", change)
                )
        return [found[place] for place in sorted(found)]

    def document(self, left_out: Iterable[str] = ()) -> dict[str, Any]:
        """The file's tables. left_out: keys that a stack file may not have, as `env.NAME`."""
        environment, wishes = self.environment, self.wishes
        target: dict[str, Any] = {
            "platform": str(environment.interpreter.platform),
            "python": str(environment.interpreter.python),
        }
        if wishes.gpus:
            target["gpus"] = [str(gpu) for gpu in wishes.gpus]
        if wishes.driver:
            target["driver"] = str(wishes.driver)
        if self.glibc:
            target["glibc"] = str(self.glibc)
        document: dict[str, Any] = {
            "schema": 1,
            "name": wishes.name,
            "summary": f"A snapshot of {_line(environment.label)}",
            "target": target,
            "base": _base(self.base),
        }
        if self.system:
            document["system"] = {"packages": list(self.system)}
        document["resolve"] = {"as-of": wishes.as_of}
        used = {p.candidate.measured.file.index for p in self.locked if p.candidate}
        if indexes := [i for i in self.indexes.values() if i.name in used and i.name != DEFAULT_INDEX]:
            document["index"] = [{"name": i.name, "url": i.url, "explicit": True} for i in indexes]
        document["layer"] = self._layers()
        if self.overrides:
            document["override"] = [{"requirement": r, "reason": why} for r, why in self.overrides]
        if env := dict(settings_env(environment)) | dict(wishes.env):
            document["env"] = env
        document["file"] = [
            {"path": place, "mode": "0755" if change.executable else "0644", "source": source}
            for place, source, change in self.files()
        ]
        document["image"] = _image(environment)
        return _without(document, left_out)

    def _layers(self) -> list[dict[str, Any]]:
        """One for each index, then one for each patched package, which so is the only one its patch can
        mean.
        """
        plain: dict[str, list[str]] = {}
        layers: list[dict[str, Any]] = []
        for package in self.locked:
            assert package.candidate is not None, "a locked package has a wheel"
            file = package.candidate.measured.file
            requirement = (
                f"{package.name} @ {file.url}" if not file.index else f"{package.name}=={file.version}"
            )
            if package.patch:
                layer: dict[str, Any] = {
                    "name": f"patched-{package.name}"[:64].rstrip("-"),
                    "requirements": [requirement],
                    "patches": [self.patch_path(package)],
                }
                if file.index not in ("", DEFAULT_INDEX):
                    layer["index"] = file.index
                layers.append(layer)
            else:
                plain.setdefault(file.index, []).append(requirement)
        names = {DEFAULT_INDEX: "packages", "": "addresses"}
        first = []
        for index in sorted(plain, key=lambda name: (name != DEFAULT_INDEX, name)):
            layer = {"name": names.get(index, index), "requirements": plain[index]}
            if index not in names:
                layer["index"] = index
            first.append(layer)
        return [*first, *layers]


def render(draft: Draft, document: Mapping[str, Any], remarks: Sequence[str]) -> str:
    """The file's text. remarks: what it lacks, as comments at its top."""
    when = draft.wishes.as_of.strftime("%Y-%m-%d")
    head = [f"Made by `imagebuilder snapshot` on {when} from {_line(draft.environment.label)}.", *remarks]
    return "".join(f"# {_line(line)}\n" for line in head) + tomli_w.dumps(dict(document))


def find_overrides(
    packages: Sequence[Package],
    extras: Mapping[NormalizedName, tuple[str, ...]],
    target: TargetFacts,
    there: set[str],
) -> list[tuple[str, str]]:
    """(requirement, reason) for what wheels ask of each other and the environment has otherwise.

    there: names that are installed, whether they can be locked or not.
    """
    locked = {p.name: p for p in packages if p.candidate is not None}
    found: dict[str, tuple[str, str]] = {}
    for name in sorted(locked):
        candidate = locked[name].candidate
        assert candidate is not None, "a locked package has a wheel"
        for requirement in candidate.listing.metadata.requires:
            wanted = canonicalize_name(requirement.name)
            if wanted in found or not target.needs(requirement, frozenset(extras.get(name, ()))):
                continue
            text = _asked(requirement)
            if wanted in locked:
                version = locked[wanted].version
                if not requirement.specifier.contains(version, prereleases=True):
                    reason = f"the environment has {version}, although {name} requires {text}"
                    found[wanted] = (f"{wanted}=={version}", reason)
                elif locked[wanted].patch and any("+" in pin.version for pin in requirement.specifier):
                    reason = f"it is patched, which its version says, and {name} requires {text}"
                    found[wanted] = (f"{wanted}=={version}", reason)
            elif wanted not in there:
                found[wanted] = (
                    f"{wanted} ; {_NEVER}",
                    f"the environment has none, although {name} requires it",
                )
    return [found[name] for name in sorted(found)]


def _asked(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


# ---------------------------------------------------------------- moving


def moved_path(path: str, environment: Environment) -> str:
    """Where a file of the environment lies in the new image; absolute."""
    interpreter = environment.interpreter
    for site in interpreter.sites:
        if path.startswith(f"{site}/"):
            return f"{_new_site(environment)}/{path[len(site) + 1 :]}"
    prefix = interpreter.prefix
    return f"{VENV}/{path[len(prefix) + 1 :]}" if path.startswith(f"{prefix}/") else f"/{path}"


def moved_text(text: str, environment: Environment) -> str:
    """A variable's value, with the places of the environment replaced by those of the new image."""
    interpreter = environment.interpreter
    places = {f"/{site}": _new_site(environment) for site in interpreter.sites}
    if interpreter.prefix not in ("usr", "usr/local", ""):
        places[f"/{interpreter.prefix}"] = VENV
    for old in sorted(places, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(old)}(?=[/:;,\s]|$)", places[old], text)
    return text


def _new_site(environment: Environment) -> str:
    return f"{VENV}/lib/python{environment.interpreter.python}/site-packages"


def settings_env(environment: Environment) -> list[tuple[str, str]]:
    """The image's variables as the stack sets them; PATH only where it is more than the usual."""
    found: list[tuple[str, str]] = []
    for name, value in environment.run.env:
        if name == "PATH":
            found += [(name, path) for path in _path_of(value, environment)]
        elif name != "VIRTUAL_ENV":
            found.append((name, moved_text(value, environment)))
    return found


def _path_of(value: str, environment: Environment) -> list[str]:
    """One PATH, or none where a new image has it in any case."""
    usual = {*DEFAULT_PATH.split(":"), f"{VENV}/bin", f"/{environment.interpreter.prefix}/bin"}
    entries = [moved_text(entry, environment) for entry in value.split(":")]
    if all(posixpath.normpath(entry) in usual for entry in entries):
        return []
    return [":".join([f"{VENV}/bin", *(e for e in dict.fromkeys(entries) if e != f"{VENV}/bin")])]


# ---------------------------------------------------------------- tables


def _base(base: Base) -> dict[str, Any]:
    if isinstance(base, DebianBase):
        return {"debian": {"suite": base.suite, **({"security": True} if base.security else {})}}
    assert isinstance(base, ImageBase), "a snapshot has no base on this disk"
    return {"image": str(base.ref)}


def _image(environment: Environment) -> dict[str, Any]:
    run = environment.run
    ports = [int(p.partition("/")[0]) for p in run.ports if re.fullmatch(r"\d+(?:/tcp)?", p)]
    labels = {name: value for name, value in run.labels if not _OURS.fullmatch(name)}
    found = {
        "entrypoint": [moved_text(word, environment) for word in run.entrypoint],
        "command": [moved_text(word, environment) for word in run.command],
        "user": run.user,
        "workdir": run.workdir if run.workdir not in ("", "/") else "",
        "labels": labels,
        "ports": ports,
    }
    return {key: value for key, value in found.items() if value}


def _without(document: dict[str, Any], left_out: Iterable[str]) -> dict[str, Any]:
    for key in left_out:
        table, _, name = key.partition(".")
        name = name.partition("[")[0]
        if table == "image" and name.startswith("labels."):
            document["image"]["labels"].pop(name.removeprefix("labels."), None)
        elif isinstance(document.get(table), dict):
            document[table].pop(name, None)
    if not document.get("image", {}).get("labels", True):
        del document["image"]["labels"]
    return {key: value for key, value in document.items() if value or key == "schema"}


def _line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]
