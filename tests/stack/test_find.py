from __future__ import annotations

from pathlib import Path

import pytest

from imagebuilder.errors import UsageProblem
from imagebuilder.stack import find_stack, load_stack, lock_path, shipped_folder, shipped_stacks

SHIPPED = ["cu128", "cu128-debian", "cu130", "cu130-debian", "demo"]


def test_shipped_stacks_are_found_load_and_carry_their_files_name() -> None:
    assert sorted(path.stem for path in shipped_stacks()) == SHIPPED
    for path in shipped_stacks():
        assert load_stack(path).name == path.stem


@pytest.mark.parametrize("name", SHIPPED)
def test_a_name_means_a_shipped_stack(tmp_path: Path, name: str) -> None:
    assert find_stack(name, tmp_path) == shipped_folder() / f"{name}.toml"


def test_ones_own_stack_comes_first(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    own = tmp_path / "stacks" / "demo.toml"
    own.write_text("")
    assert find_stack("demo", tmp_path) == own


def test_a_path_is_a_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("")
    assert find_stack("mine.toml", tmp_path) == file
    assert find_stack("./mine.toml", tmp_path).samefile(file)
    assert find_stack(str(file), Path("/")) == file


@pytest.mark.parametrize(
    "argument", ["", "nothing", "nothing.toml", "./demo", "/nothing.toml", "..", "demo/", "a\nb"]
)
def test_what_is_not_there(tmp_path: Path, argument: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        find_stack(argument, tmp_path)
    assert caught.value.exit_code == 2


def test_the_nearest_name_is_offered(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="cu13") as caught:
        find_stack("cu13", tmp_path)
    assert "'cu130'" in caught.value.hint


def test_a_lock_is_no_stack(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "pylock.x.toml").write_text("")
    with pytest.raises(UsageProblem):
        find_stack("pylock.x", tmp_path)


def test_the_lock_lies_beside_its_stack() -> None:
    assert lock_path(Path("a/stacks/x.toml"), "x") == Path("a/stacks/pylock.x.toml")
