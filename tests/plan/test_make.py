"""The plan's rules, by cases and by properties."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from imagebuilder.errors import StackInvalid
from imagebuilder.lock.model import DebPackage, Lock, LockedBase, LockedPatch, Wheel
from imagebuilder.plan import LayerKind, make_plan
from imagebuilder.plan.make import MAX_LAYER_BYTES, MAX_LAYERS, OWN_LAYER_BYTES
from imagebuilder.stack.model import DebianBase, File, ImageBase, ImageSettings, Layer, Stack, System, Target
from imagebuilder.values import Digest, ImageRef, Platform, Release

AS_OF = datetime(2026, 2, 25, tzinfo=timezone.utc)


def wheel(name: str, *requires: str, size: int = 1000) -> Wheel:
    filename = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    return Wheel(
        name=canonicalize_name(name),
        version="1.0",
        filename=filename,
        size=size,
        sha256=Digest.of(f"{name} {size}".encode()),
        path=f"wheels/{filename}",
        requires=tuple(canonicalize_name(r) for r in requires),
    )


DEB = DebPackage(
    name="base-files",
    version="12",
    architecture="amd64",
    path="pool/b.deb",
    size=10,
    sha256=Digest.of(b"d"),
    pocket="bookworm",
)


def lock_of(*wheels: Wheel, **changes: object) -> Lock:
    lock = Lock(
        stack_name="s",
        stack_hash=Digest.of(b""),
        stack_parts=(),
        resolver="uv 0",
        python=Release("3.11"),
        platform=Platform("linux", "amd64"),
        glibc=Release("2.36"),
        as_of=AS_OF,
        wheels=tuple(sorted(wheels, key=lambda w: w.name)),
        debs=(DEB,),
    )
    return replace(lock, **changes)  # type: ignore[arg-type]


def stack_of(*layers: tuple[str, tuple[str, ...]], **changes: object) -> Stack:
    stack = Stack(
        name="s",
        target=Target(python=Release("3.11")),
        base=DebianBase(suite="bookworm"),
        layers=tuple(Layer(name=n, requirements=tuple(Requirement(r) for r in rs)) for n, rs in layers),
    )
    return replace(stack, **changes)  # type: ignore[arg-type]


def groups(stack: Stack, lock: Lock) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for layer in make_plan(stack, lock).layers:
        if layer.kind is LayerKind.WHEELS:
            found.setdefault(layer.group, set()).update(p.wheel.name for p in layer.wheels)
    return found


def test_a_package_goes_to_the_layer_that_names_it_else_to_the_first_that_needs_it() -> None:
    lock = lock_of(
        wheel("torch", "numpy", "filelock"), wheel("sglang", "torch", "numpy", "aiohttp"), wheel("numpy"),
        wheel("filelock"), wheel("aiohttp"),
    )  # fmt: skip
    stack = stack_of(("torch", ("torch",)), ("sglang", ("sglang", "numpy")))
    assert groups(stack, lock) == {"torch": {"torch", "filelock"}, "sglang": {"sglang", "numpy", "aiohttp"}}


def test_what_nobody_needs_is_not_lost() -> None:
    assert groups(
        stack_of(("a", ("a",)), ("b", ("b",))), lock_of(wheel("a"), wheel("b"), wheel("stray"))
    ) == {
        "a": {"a"},
        "b": {"b", "stray"},
    }


def test_dependency_cycles_end() -> None:
    assert groups(stack_of(("a", ("a",))), lock_of(wheel("a", "b"), wheel("b", "a"))) == {"a": {"a", "b"}}


def test_big_wheels_stand_alone_and_patched_ones_come_last() -> None:
    patch = LockedPatch(package=canonicalize_name("app"), path="p.patch", sha256=Digest.of(b"p"))
    lock = lock_of(
        wheel("big", size=OWN_LAYER_BYTES),
        wheel("app", "big", "x", "y"),
        wheel("x"),
        wheel("y"),
        patches=(patch,),
    )
    layers = [x for x in make_plan(stack_of(("app", ("app",))), lock).layers if x.kind is LayerKind.WHEELS]
    assert [[p.wheel.name for p in layer.wheels] for layer in layers] == [["big"], ["y", "x"], ["app"]]
    assert layers[-1].wheels[0].patches == (patch,)


def test_a_patch_changes_only_its_layers_key() -> None:
    stack = stack_of(("app", ("app",)))
    wheels = (wheel("app", "x"), wheel("x"))

    def keys(content: bytes) -> list[Digest]:
        patch = LockedPatch(package=canonicalize_name("app"), path="p.patch", sha256=Digest.of(content))
        return [layer.key for layer in make_plan(stack, lock_of(*wheels, patches=(patch,))).layers]

    before, after = keys(b"one"), keys(b"two")
    assert [a == b for a, b in zip(before, after, strict=True)] == [True] * (len(before) - 1) + [False]


def test_equal_wheels_give_equal_keys_in_different_stacks() -> None:
    one = make_plan(stack_of(("a", ("a",)), name="one"), lock_of(wheel("a"), stack_name="one"))
    two = make_plan(stack_of(("z", ("a",)), name="two"), lock_of(wheel("a"), stack_name="two", as_of=None))
    assert [x.key for x in one.layers] == [x.key for x in two.layers]


def test_a_wheel_above_what_registries_take_is_refused() -> None:
    with pytest.raises(StackInvalid, match="1 problem"):
        make_plan(stack_of(("a", ("a",))), lock_of(wheel("a", size=MAX_LAYER_BYTES + 1)))


@given(st.lists(st.integers(1, 3 * OWN_LAYER_BYTES), min_size=1, max_size=300))
def test_limits_hold_and_every_wheel_is_planned_once(sizes: list[int]) -> None:
    wheels = [wheel(f"p{i}", size=size) for i, size in enumerate(sizes)]
    plan = make_plan(stack_of(("all", tuple(w.name for w in wheels))), lock_of(*wheels))
    assert len(plan.layers) <= MAX_LAYERS
    assert all(layer.size <= MAX_LAYER_BYTES for layer in plan.layers)
    assert sorted(p.wheel.name for p in plan.wheels) == sorted(w.name for w in wheels)


def test_an_image_base_keeps_apt_packages_for_the_docker_build() -> None:
    base = LockedBase(ref=ImageRef.parse("nvidia/cuda:13"), index=Digest.of(b"i"))
    stack = stack_of(
        ("a", ("a",)), base=ImageBase(ref=ImageRef.parse("nvidia/cuda:13")), system=System(packages=("g++",))
    )
    plan = make_plan(stack, lock_of(wheel("a"), debs=(), base=base))
    assert [layer.kind for layer in plan.layers] == [
        LayerKind.BASE, LayerKind.SYSTEM, LayerKind.VENV, LayerKind.WHEELS,
    ]  # fmt: skip
    assert dict(plan.run.labels)["org.opencontainers.image.base.digest"] == Digest.of(b"i").text


def test_files_and_settings_are_carried() -> None:
    stack = stack_of(
        ("a", ("a",)),
        files=(File(path="/etc/motd", content=b"hi", mode=0o600),),
        image=ImageSettings(entrypoint=("python3",), ports=(30000,), labels=(("a", "b"),)),
        env=(("A", "1"),),
    )
    plan = make_plan(stack, lock_of(wheel("a")))
    assert plan.layers[-1].files == stack.files
    assert plan.run.ports == ("30000/tcp",)
    assert dict(plan.run.labels)["a"] == "b"
    assert dict(plan.run.labels)["org.opencontainers.image.created"] == "2026-02-25T00:00:00Z"
    assert plan.interpreter == "/usr/bin/python3.11"
