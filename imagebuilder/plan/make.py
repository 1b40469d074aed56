"""Making the plan. The rules are those of docs/45-plan.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from packaging.utils import canonicalize_name

from imagebuilder.errors import Problem, StackInvalid
from imagebuilder.lock.model import Lock, Wheel
from imagebuilder.plan.config import RunConfig
from imagebuilder.plan.model import VENV, LayerKind, Plan, PlannedLayer, PlannedWheel
from imagebuilder.stack.model import DebianBase, Stack
from imagebuilder.values import Digest

OWN_LAYER_BYTES = 64 * 2**20
"""A wheel of this many packed bytes gets a layer of its own; smaller ones of a group share one."""
MAX_LAYER_BYTES = 10_000_000_000
"""GitHub's registry refuses larger layers; the strictest of those in use."""
MAX_LAYERS = 100
"""overlayfs takes 127, and a base image brings its own."""

_EPOCH_WITHOUT_DATE = datetime(2000, 1, 1, tzinfo=timezone.utc)


def make_plan(stack: Stack, lock: Lock, *, own_layer_bytes: int = OWN_LAYER_BYTES) -> Plan:
    """The plan of `stack` as `lock` pins it.

    Raises StackInvalid where a wheel alone is above what registries take.
    """
    _refuse_giants(stack, lock)
    created = lock.as_of or _EPOCH_WITHOUT_DATE
    head = [*_system_layers(stack, lock), _venv_layer(lock)]
    tail = _files_layers(stack)
    groups = list(assign_groups(stack, lock))
    wheels = _wheel_layers(lock, groups, own_layer_bytes)
    while len(head) + len(wheels) + len(tail) > MAX_LAYERS and own_layer_bytes < MAX_LAYER_BYTES:
        own_layer_bytes *= 2
        wheels = _wheel_layers(lock, groups, own_layer_bytes)
    layers = (*head, *wheels, *tail)
    return Plan(
        stack_name=stack.name,
        platform=lock.platform,
        python=lock.python,
        created=created,
        layers=layers,
        run=_run_config(stack, lock, created, layers),
    )


def assign_groups(stack: Stack, lock: Lock) -> Iterator[tuple[str, list[Wheel]]]:
    """(layer name, its wheels) in the stack's order.

    A package goes to the layer that names it; what no layer names goes to the first layer that needs it.
    """
    named = {canonicalize_name(r.name): layer.name for layer in stack.layers for r in layer.requirements}
    placed: set[str] = set()
    for number, layer in enumerate(stack.layers):
        members: list[Wheel] = []
        pending = [canonicalize_name(r.name) for r in reversed(layer.requirements)]
        while pending:
            name = pending.pop()
            wheel = lock.by_name.get(name)
            if wheel is None or name in placed or named.get(name, layer.name) != layer.name:
                continue
            placed.add(name)
            members.append(wheel)
            pending.extend(reversed(wheel.requires))
        if number == len(stack.layers) - 1:
            members += [wheel for wheel in lock.wheels if wheel.name not in placed]
        yield layer.name, members


def pip_order(wheels: Iterable[Wheel]) -> list[Wheel]:
    """The order in which one `pip install --no-deps` installs: names descending.

    Without dependency edges all weigh the same, and pip sorts by (weight, name) in reverse.
    Source: pip 26.3, resolution/resolvelib/resolver.py, get_installation_order.
    """
    return sorted(wheels, key=lambda wheel: wheel.name, reverse=True)


def _refuse_giants(stack: Stack, lock: Lock) -> None:
    giants = [w for w in lock.wheels if w.size > MAX_LAYER_BYTES]
    if giants:
        raise StackInvalid(
            stack.name,
            [
                Problem(
                    key=f"layer ({w.name})",
                    message=f"{w.filename} has {w.size} bytes; a layer may have {MAX_LAYER_BYTES}",
                    hint="registries refuse larger layers: use a build of it for fewer GPU architectures",
                )
                for w in giants
            ],
        )


def _key(*parts: Any) -> Digest:
    return Digest.of(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode())


def _system_layers(stack: Stack, lock: Lock) -> list[PlannedLayer]:
    layers = []
    if isinstance(stack.base, DebianBase):
        # A Debian base and its system packages are one closure with one dpkg database: one layer.
        layers.append(
            PlannedLayer(
                kind=LayerKind.BASE,
                name="debian",
                group="base",
                key=_key("debian", str(lock.platform), [(d.name, d.sha256.text) for d in lock.debs]),
                size=sum(d.size for d in lock.debs),
                debs=lock.debs,
            )
        )
        return layers
    if lock.base is not None:
        layers.append(
            PlannedLayer(
                kind=LayerKind.BASE,
                name="base",
                group="base",
                key=_key("image", str(lock.platform), lock.base.index.text),
                image=lock.base,
            )
        )
    if stack.system.packages:
        snapshot = stack.system.snapshot.isoformat() if stack.system.snapshot else ""
        layers.append(
            PlannedLayer(
                kind=LayerKind.SYSTEM,
                name="system",
                group="system",
                key=_key(
                    "system", stack.system.packages, snapshot, [(d.name, d.sha256.text) for d in lock.debs]
                ),
                size=sum(d.size for d in lock.debs),
                packages=stack.system.packages,
                debs=lock.debs,
            )
        )
    return layers


def _venv_layer(lock: Lock) -> PlannedLayer:
    return PlannedLayer(
        kind=LayerKind.VENV,
        name="venv",
        group="venv",
        key=_key("venv", VENV, lock.python.text, lock.platform.machine),
    )


def _wheel_layers(
    lock: Lock, groups: list[tuple[str, list[Wheel]]], own_layer_bytes: int
) -> list[PlannedLayer]:
    layers: list[PlannedLayer] = []
    for group, wheels in groups:
        patched = {p.package for p in lock.patches}
        alone = [w for w in wheels if w.size >= own_layer_bytes and w.name not in patched]
        changing = [w for w in wheels if w.name in patched]
        shared = [w for w in wheels if w not in alone and w not in changing]
        bundles = [[w] for w in sorted(alone, key=lambda w: w.name)]
        bundles += _bundles(shared)
        bundles += [[w] for w in sorted(changing, key=lambda w: w.name)]  # what changes oftenest comes last
        for members in bundles:
            name = f"{group}/{members[0].name}" if len(members) == 1 else group
            layers.append(_wheel_layer(lock, group, name, members))
    return layers


def _bundles(wheels: list[Wheel]) -> list[list[Wheel]]:
    bundles: list[list[Wheel]] = []
    room = 0
    for wheel in sorted(wheels, key=lambda w: w.name):
        if wheel.size > room:
            bundles.append([])
            room = MAX_LAYER_BYTES
        bundles[-1].append(wheel)
        room -= wheel.size
    return bundles


def _wheel_layer(lock: Lock, group: str, name: str, members: list[Wheel]) -> PlannedLayer:
    planned = tuple(PlannedWheel(wheel=w, patches=tuple(lock.patches_of(w.name))) for w in pip_order(members))
    contents = [(p.wheel.filename, p.wheel.sha256.text, [x.sha256.text for x in p.patches]) for p in planned]
    return PlannedLayer(
        kind=LayerKind.WHEELS,
        name=name,
        group=group,
        key=_key("wheels", VENV, lock.python.text, lock.platform.machine, contents),
        size=sum(w.size for w in members),
        wheels=planned,
    )


def _files_layers(stack: Stack) -> list[PlannedLayer]:
    if not stack.files:
        return []
    files = tuple(sorted(stack.files, key=lambda f: f.path))
    key = _key("files", [(f.path, f.mode, Digest.of(f.content).text) for f in files])
    size = sum(len(f.content) for f in files)
    return [PlannedLayer(kind=LayerKind.FILES, name="files", group="files", key=key, size=size, files=files)]


def _run_config(stack: Stack, lock: Lock, created: datetime, layers: tuple[PlannedLayer, ...]) -> RunConfig:
    image = stack.image
    labels = {
        "org.opencontainers.image.created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "org.opencontainers.image.title": stack.name,
        "dev.imagebuilder.stack": stack.name,
        "dev.imagebuilder.plan": _key([layer.key.text for layer in layers]).text,
    }
    if stack.summary:
        labels["org.opencontainers.image.description"] = stack.summary
    if lock.base is not None and lock.base.ref is not None:
        labels["org.opencontainers.image.base.name"] = lock.base.ref.name + (
            f":{lock.base.ref.tag}" if lock.base.ref.tag else ""
        )
        labels["org.opencontainers.image.base.digest"] = lock.base.index.text
    labels.update(image.labels)
    return RunConfig(
        environment=stack.env,
        entrypoint=image.entrypoint,
        command=image.command,
        user=image.user,
        workdir=image.workdir,
        labels=tuple(sorted(labels.items())),
        ports=tuple(f"{port}/tcp" for port in image.ports),
    )
