"""The locks that come with imagebuilder belong to their stacks and can be believed."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from imagebuilder.lock import check_fresh, read_lock
from imagebuilder.lock.choose import rank
from imagebuilder.lock.model import HASH_FROM_INDEX, Lock
from imagebuilder.lock.pylock import format_lock
from imagebuilder.lock.target import target_facts
from imagebuilder.plan import make_plan
from imagebuilder.stack import DebianBase, ImageBase, Stack, load_stack, lock_path, shipped_folder

NAMES = ("cu128", "cu128-debian", "cu130-debian", "demo")


@pytest.fixture(params=NAMES)
def shipped(request: pytest.FixtureRequest) -> tuple[Stack, Lock]:
    stack = load_stack(shipped_folder() / f"{request.param}.toml")
    assert stack.path is not None
    return stack, read_lock(lock_path(stack.path, stack.name))


def test_it_is_fresh(shipped: tuple[Stack, Lock]) -> None:
    check_fresh(*shipped)


def test_it_names_no_host_and_is_written_as_we_write(shipped: tuple[Stack, Lock]) -> None:
    stack, lock = shipped
    text = lock_path(stack.path, stack.name).read_text()  # type: ignore[arg-type]
    assert "://" not in text
    assert format_lock(lock) == text


def test_every_wheel_fits_the_target(shipped: tuple[Stack, Lock]) -> None:
    stack, lock = shipped
    target = target_facts(stack)
    for wheel in lock.wheels:
        name, version, _, _ = parse_wheel_filename(wheel.filename)
        assert (name, str(version)) == (wheel.name, wheel.version)
        assert rank(wheel.filename, target) is not None, wheel.filename
        assert (wheel.index, wheel.hash_origin) == ("default", HASH_FROM_INDEX)
        assert wheel.upload_time is not None and lock.as_of is not None and wheel.upload_time <= lock.as_of


def test_what_the_stack_names_is_there_as_it_is_named(shipped: tuple[Stack, Lock]) -> None:
    stack, lock = shipped
    asked: list[Requirement] = [r for layer in stack.layers for r in layer.requirements]
    for requirement in [*asked, *(o.requirement for o in stack.overrides)]:
        wheel = lock.by_name[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(wheel.version, prereleases=True)
    assert len(lock.patches) == sum(len(layer.patches) for layer in stack.layers)


def test_every_package_is_reached_from_the_stack(shipped: tuple[Stack, Lock]) -> None:
    stack, lock = shipped
    pending = [canonicalize_name(r.name) for layer in stack.layers for r in layer.requirements]
    reached: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending += lock.by_name[name].requires
    assert reached == set(lock.by_name)


def test_debian_packages_come_from_the_main_pocket(shipped: tuple[Stack, Lock]) -> None:
    stack, lock = shipped
    if isinstance(stack.base, DebianBase):
        assert {deb.pocket for deb in lock.debs} == {"bookworm"}
        names = {deb.name for deb in lock.debs}
        assert {name.partition("=")[0] for name in stack.system.packages} <= names
        assert {"libc6", "dpkg", "base-files"} <= names
    else:
        assert isinstance(stack.base, ImageBase) and lock.debs == ()
        assert lock.base is not None and lock.base.index == stack.base.ref.digest


def test_it_can_be_planned(shipped: tuple[Stack, Lock]) -> None:
    stack, lock = shipped
    plan = make_plan(stack, lock)
    planned = [wheel.wheel.name for layer in plan.layers for wheel in layer.wheels]
    assert sorted(planned) == sorted(lock.by_name)
