"""Stacks, locks and images as sides of a comparison. Pure: they were read before."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from packaging.utils import canonicalize_name

from imagebuilder.builders.direct.derive import patched_version
from imagebuilder.diff.compare import TARGET
from imagebuilder.diff.model import Accepted, LayerRow, Package, Side
from imagebuilder.lock.model import Lock, LockedBase
from imagebuilder.oci.image import Image
from imagebuilder.oci.model import ImageConfig
from imagebuilder.plan import VENV, Plan, make_plan, merged_environment
from imagebuilder.publish.contents import ImageContents
from imagebuilder.publish.sbom import packages_of
from imagebuilder.stack.model import DebianBase, ImageBase, Stack
from imagebuilder.values import Digest

_PATCHED = re.compile(r"^(?P<version>.+?)[+.]patched\.(?P<mark>[0-9a-f]{8})$")
_DERIVED_LABELS = ("dev.imagebuilder.plan",)  # says that something differs, not what
_PYTHON = re.compile(rf"{VENV.strip('/')}/lib/python(\d+\.\d+)/.*")


def of_stack(stack: Stack, lock: Lock | None, *, label: str, acceptance: Accepted | None) -> Side:
    """A stack, with what its lock says where there is one."""
    settings = {
        TARGET: {**_target_of_stack(stack), **(_target_of_lock(lock) if lock else {})},
        "override": {o.package: f"{o.requirement} ({o.reason})" for o in stack.overrides},
        "waiver": {" ".join(filter(None, (w.code, w.package, w.path))): w.reason for w in stack.waivers},
        "index": {i.name: i.url + (" (explicit)" if i.explicit else "") for i in stack.indexes},
        "file": {f.path: f"{f.mode:04o} {Digest.of(f.content).short}" for f in stack.files},
        "system": dict.fromkeys(stack.system.packages, "wanted"),
        "patch": _locked_patches(lock) if lock else _patches(stack),
    }
    if lock is None:
        settings["env"] = dict(stack.env)
        return Side(
            label=label, kind="stack", settings=settings, partial=frozenset({TARGET, "env"}),
            acceptance=acceptance, notes=("it has no lock, so its packages and layers are not known",),
        )  # fmt: skip
    plan = make_plan(stack, lock)
    settings |= _run_settings(plan, whole=isinstance(stack.base, DebianBase))
    partial = {TARGET} if isinstance(stack.base, DebianBase) else {TARGET, "env", "image", "label"}
    return Side(
        label=label,
        kind="stack",
        identity=lock.stack_hash.short,
        packages=_locked(lock),
        settings=settings,
        partial=frozenset(partial),
        layers=_planned_layers(plan),
        acceptance=acceptance,
    )


def of_lock(lock: Lock, *, label: str) -> Side:
    """A lock alone: packages, base, overrides and patches."""
    return Side(
        label=label,
        kind="lock",
        identity=lock.stack_hash.short,
        packages=_locked(lock),
        settings={
            TARGET: _target_of_lock(lock),
            "override": {_name(o.requirement): f"{o.requirement} ({o.reason})" for o in lock.overrides},
            "patch": _locked_patches(lock),
        },
        partial=frozenset({TARGET}),
        notes=("a lock alone knows no environment and no layers; name its stack for these",),
    )


def of_image(
    image: Image,
    *,
    label: str,
    built_layers: Sequence[Mapping[str, Any]] = (),
    contents: ImageContents | None = None,
    packages: tuple[Package, ...] | None = None,
    acceptance: Accepted | None = None,
    notes: Iterable[str] = (),
) -> Side:
    """An image. contents: of its layers, where they were read; packages: else from its SBOM, if any.

    built_layers: what the record or provenance says of those that were built (`digest`, `key`, `title`).
    """
    if contents is not None:
        packages = tuple(_installed(contents))
    return Side(
        label=label,
        kind="image",
        identity=image.digest.short,
        packages=packages,
        settings={
            TARGET: _target_of_image(image.config, contents, packages),
            **_config_settings(image.config),
        },
        partial=frozenset({TARGET}),
        layers=tuple(_image_layers(image, built_layers)),
        files=contents.files if contents else None,
        acceptance=acceptance,
        notes=tuple(notes),
    )


# ---------------------------------------------------------------- targets


def _target_of_stack(stack: Stack) -> dict[str, str]:
    target = stack.target
    found = {
        "base": _stack_base(stack),
        "platform": str(target.platform),
        "python": str(target.python),
        "gpus": ", ".join(map(str, target.gpus)),
        "driver": str(target.driver or ""),
        "glibc": str(target.glibc or ""),
        "as-of": f"{stack.resolve.as_of:%Y-%m-%d}" if stack.resolve.as_of else "",
    }
    return {name: value for name, value in found.items() if value}


def _stack_base(stack: Stack) -> str:
    base = stack.base
    if isinstance(base, DebianBase):
        return f"Debian {base.suite}" + (" with security" if base.security else "")
    return str(base.ref) if isinstance(base, ImageBase) else f"layout {base.path}"


def _target_of_lock(lock: Lock) -> dict[str, str]:
    found = {
        "platform": str(lock.platform),
        "python": str(lock.python),
        "glibc": str(lock.glibc),
        "as-of": f"{lock.as_of:%Y-%m-%d}" if lock.as_of else "",
        "base": _locked_base(lock.base),
    }
    return {name: value for name, value in found.items() if value}


def _locked_base(base: LockedBase | None) -> str:
    if base is None:
        return ""
    name = (
        f"{base.ref.name}{f':{base.ref.tag}' if base.ref.tag else ''}" if base.ref else f"layout {base.path}"
    )
    return f"{name}@{base.index.short}"


def _target_of_image(
    config: ImageConfig, contents: ImageContents | None, packages: tuple[Package, ...] | None
) -> dict[str, str]:
    labels = dict(config.labels)
    found = {"platform": str(config.platform)}
    if base := labels.get("org.opencontainers.image.base.name"):
        digest = labels.get("org.opencontainers.image.base.digest", "")
        found["base"] = f"{base}@{digest[7:19]}" if digest else base
    for path in contents.files if contents else ():
        if match := _PYTHON.fullmatch(path):
            found["python"] = match[1]
            break
    glibc = next((p.version for p in packages or () if p.kind == "deb" and p.name == "libc6"), "")
    if glibc:
        found["glibc"] = glibc.partition("-")[0]
    if created := labels.get("org.opencontainers.image.created"):
        found["as-of"] = created[:10]
    return found


# ---------------------------------------------------------------- packages


def _locked(lock: Lock) -> tuple[Package, ...]:
    wheels = (
        Package(
            kind="wheel",
            name=wheel.name,
            version=wheel.version,
            index=wheel.index or wheel.url,
            filename=wheel.filename,
            sha256=wheel.sha256,
            size=wheel.size,
            patched=_mark(lock, wheel.name, wheel.version, wheel.sha256),
        )
        for wheel in lock.wheels
    )
    debs = (
        Package(
            kind="deb", name=d.name, version=d.version, index=d.pocket, filename=PurePosixPath(d.path).name,
            sha256=d.sha256, size=d.size, patched="",
        )
        for d in lock.debs
    )  # fmt: skip
    return (*wheels, *debs)


def _mark(lock: Lock, name: str, version: str, sha256: Digest) -> str:
    """What patching adds to the version; empty where nothing is patched."""
    patches = [patch.sha256 for patch in lock.patches_of(name)]
    if not patches:
        return ""
    match = _PATCHED.match(patched_version(version, sha256, patches))
    return match["mark"] if match else ""


def _installed(contents: ImageContents) -> Iterator[Package]:
    for wheel in contents.wheels:
        yield installed_wheel(wheel.name, wheel.version)
    for deb in contents.debs:
        yield Package(kind="deb", name=deb.name, version=deb.version, patched="")


def listed_packages(sbom: bytes) -> Iterator[Package]:
    """The packages of an SBOM of ours. ValueError: it is none."""
    for kind, name, version, sha256 in packages_of(sbom):
        digest = Digest.from_hex(sha256) if sha256 else None
        if kind == "pypi":
            yield installed_wheel(name, version, digest)
        elif kind == "deb":
            yield Package(kind="deb", name=name, version=version, sha256=digest, patched="")


def installed_wheel(name: str, version: str, sha256: Digest | None = None) -> Package:
    """A wheel as it is found in an image, where a patched one says so in its version."""
    match = _PATCHED.match(version)
    if match:
        return Package(
            kind="wheel", name=name, version=match["version"], patched=match["mark"], sha256=sha256
        )
    return Package(kind="wheel", name=name, version=version, patched="", sha256=sha256)


def _name(requirement: str) -> str:
    return canonicalize_name(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


# ---------------------------------------------------------------- settings


def _patches(stack: Stack) -> dict[str, str]:
    return {
        f"{layer.name}: {PurePosixPath(p.path).name}": p.digest.short
        for layer in stack.layers
        for p in layer.patches
    }


def _locked_patches(lock: Lock) -> dict[str, str]:
    return {f"{p.package}: {PurePosixPath(p.path).name}": p.sha256.short for p in lock.patches}


def _run_settings(plan: Plan, *, whole: bool) -> dict[str, dict[str, str]]:
    """As the image config will have them; not whole: the base image adds what is not known here."""
    run = plan.run
    env = merged_environment((), run.environment, VENV) if whole else run.environment
    command = run.command or (() if run.entrypoint or not whole else ("python3",))
    return _settings(
        env,
        run.labels,
        run.ports,
        entrypoint=run.entrypoint,
        command=command,
        user=run.user,
        workdir=run.workdir,
    )


def _config_settings(config: ImageConfig) -> dict[str, dict[str, str]]:
    return _settings(
        config.env,
        config.labels,
        config.ports,
        entrypoint=config.entrypoint,
        command=config.command,
        user=config.user,
        workdir=config.workdir,
    )


def _settings(
    env: Iterable[tuple[str, str]],
    labels: Iterable[tuple[str, str]],
    ports: Iterable[str],
    *,
    entrypoint: tuple[str, ...],
    command: tuple[str, ...],
    user: str,
    workdir: str,
) -> dict[str, dict[str, str]]:
    import shlex

    image = {
        "entrypoint": shlex.join(entrypoint),
        "command": shlex.join(command),
        "user": user,
        "workdir": workdir,
        "ports": ", ".join(sorted(ports)),
    }
    return {
        "env": dict(env),
        "image": {name: value for name, value in image.items() if value},
        "label": {name: value for name, value in labels if name not in _DERIVED_LABELS},
    }


# ---------------------------------------------------------------- layers


def _planned_layers(plan: Plan) -> tuple[LayerRow, ...]:
    return tuple(
        LayerRow(title=layer.title, size=layer.size, key=layer.key, base=layer.image is not None)
        for layer in plan.layers
    )


def _image_layers(image: Image, built: Sequence[Mapping[str, Any]]) -> Iterator[LayerRow]:
    named = {str(x["digest"]): x for x in built}
    history = [entry for entry in image.config.history if not entry.empty]
    for number, layer in enumerate(image.layers):
        made = named.get(layer.descriptor.digest.text, {})
        said = history[number].created_by.removeprefix("imagebuilder ") if number < len(history) else ""
        key = str(made["key"]) if "key" in made else ""
        yield LayerRow(
            title=str(made.get("title") or said or f"layer {number}")[:100],
            size=layer.descriptor.size,
            digest=layer.descriptor.digest,
            key=Digest(key) if key else None,
            base=bool(built) and not made,
        )
