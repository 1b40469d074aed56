"""Where stack files are: named ones below the current folder, the shipped ones, or at a path."""

from __future__ import annotations

from pathlib import Path

from imagebuilder.errors import UsageProblem
from imagebuilder.stack.grammar import nearest, shown

FOLDER = "stacks"


def find_stack(argument: str, cwd: Path) -> Path:
    """The file that a STACK argument means: `stacks/NAME.toml` below `cwd`, else a shipped one; or a path.

    What holds a slash or ends in .toml is a path. Raises UsageProblem.
    """
    if "/" in argument or argument.endswith(".toml"):
        path = cwd / argument
        if path.is_file():
            return path
        raise UsageProblem(
            f"there is no stack file {shown(argument, 200)}",
            seen=f"{path} is a folder" if path.is_dir() else f"nothing at {path}",
            wanted="the path of a .toml file, or the name of a stack",
            hint=f"imagebuilder init NAME, of {', '.join(p.stem for p in shipped_stacks())}",
        )
    for folder in (cwd / FOLDER, shipped_folder()):
        path = folder / f"{argument}.toml"
        if argument and path.is_file() and not argument.startswith("pylock."):
            return path
    names = sorted({p.stem for p in [*_stacks_in(cwd / FOLDER), *shipped_stacks()]})
    raise UsageProblem(
        f"there is no stack called {shown(argument, 200)}",
        wanted=f"{FOLDER}/NAME.toml below this folder, a shipped stack, or a path",
        hint=nearest(argument, names),
    )


def shipped_stacks() -> list[Path]:
    """The stack files that come with imagebuilder, by name."""
    return _stacks_in(shipped_folder())


def shipped_folder() -> Path:
    """In an installed package `data/stacks`; in a checkout, where that is not there, `stacks` at its root."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "data" / FOLDER
    return installed if installed.is_dir() else package.parent / FOLDER


def lock_path(stack_file: Path, name: str) -> Path:
    """Where the lock of a stack is that lies in this file: `pylock.NAME.toml` beside it (PEP 751)."""
    return stack_file.with_name(f"pylock.{name}.toml")


def _stacks_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("*.toml") if p.is_file() and not p.name.startswith("pylock."))
