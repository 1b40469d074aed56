"""`init`: a shipped stack becomes one's own, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.errors import MachineLacks, UsageProblem
from imagebuilder.stack import (
    find_stack,
    load_stack,
    perform_copy,
    plan_copy,
    resolution_hash,
    shipped_stacks,
)

FULL = Path(__file__).parent / "good" / "full" / "stack.toml"


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("shipped", shipped_stacks(), ids=lambda path: path.stem)
def test_a_copy_of_a_shipped_stack_is_found_and_equal(tmp_path: Path, shipped: Path) -> None:
    stack = load_stack(shipped)
    perform_copy(plan_copy(stack, tmp_path))
    own = find_stack(stack.name, tmp_path)
    assert own.is_relative_to(tmp_path)
    assert load_stack(own) == stack
    assert resolution_hash(load_stack(own)) == resolution_hash(stack)


def test_patches_files_and_a_lock_come_along(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name, data in tree(FULL.parent).items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    (source / "pylock.full.toml").write_text("lock")
    written = perform_copy(plan_copy(load_stack(source / "stack.toml"), tmp_path))
    assert tree(tmp_path / "stacks") == tree(source)
    assert len(written) == 5
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in written)


def test_planning_writes_nothing(tmp_path: Path) -> None:
    plan_copy(load_stack(FULL), tmp_path)
    assert tree(tmp_path) == {}


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    copies = plan_copy(load_stack(FULL), tmp_path)
    changed = tmp_path / "stacks" / "etc" / "motd"
    changed.parent.mkdir(parents=True)
    changed.write_text("mine\n")
    with pytest.raises(UsageProblem, match="overwritten") as caught:
        perform_copy(copies)
    assert caught.value.seen == str(changed)
    assert tree(tmp_path) == {"stacks/etc/motd": b"mine\n"}, "all or nothing"
    perform_copy(copies, force=True)
    assert changed.read_text() == "motd\n"


def test_copying_again_changes_nothing(tmp_path: Path) -> None:
    copies = plan_copy(load_stack(FULL), tmp_path)
    assert perform_copy(copies)
    assert perform_copy(copies) == []


def test_a_folder_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "stacks").write_text("a file")
    with pytest.raises(MachineLacks, match="cannot be written"):
        perform_copy(plan_copy(load_stack(FULL), tmp_path))
    assert tree(tmp_path) == {"stacks": b"a file"}
