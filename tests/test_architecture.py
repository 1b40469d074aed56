"""The layout and the dependency rule: data flows downwards, a room imports only what stands above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "imagebuilder"

# From the top of the data flow to its end (docs/10-architecture.md).
ROOMS = (
    "errors", "values", "progress", "files", "tarheaders", "settings", "cache", "stack", "index", "oci",
    "facts", "lock", "plan", "checks", "recon", "dockerfile", "builders", "accept", "publish", "deploy",
    "diff", "snapshot", "doctor", "cli",
)  # fmt: skip
LEVEL = {room: level for level, room in enumerate(ROOMS)}

# Rooms and modules that do no I/O and read no clock, environment or current directory.
PURE = (
    "errors.py", "values.py", "progress.py", "stack/model.py", "lock/model.py", "plan/*.py",
    "dockerfile/*.py", "oci/model.py", "facts/loader.py", "accept/answers.py", "accept/charts.py",
    "accept/compare.py", "accept/divergence.py", "accept/fairness.py", "accept/figures.py",
    "accept/looks.py", "accept/notes.py", "accept/pictures.py", "accept/quality.py", "accept/record.py",
    "accept/requirement.py", "accept/schema.py", "accept/sequential.py", "accept/speed.py",
    "accept/statistics.py", "accept/verdict.py",
    "checks/[!gk]*.py", "checks/g[!a]*.py", "recon/survey.py", "recon/matrix.py",
    "deploy/job.py", "deploy/podstate.py", "diff/[!r]*.py",
)  # fmt: skip
IMPURE_MODULES = {
    "os", "subprocess", "socket", "requests", "urllib3", "shutil", "tempfile", "time", "docker", "threading",
    "random",
}  # fmt: skip
IMPURE_CALLS = {"open", "input", "print"}
IMPURE_METHODS = {
    "now",
    "utcnow",
    "today",
    "cwd",
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "getenv",
}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "__pycache__" not in p.parts)


def room_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, dotted module) of every import, late ones included."""
    found: list[tuple[int, str]] = []
    package = ("imagebuilder", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found.append((node.lineno, stem))
            if stem == "imagebuilder":
                found += [(node.lineno, f"imagebuilder.{alias.name}") for alias in node.names]
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_upwards(path: Path) -> None:
    here = room_of(path)
    if here in ("__init__", "__main__"):
        return
    assert here in LEVEL, f"{path} stands in no known room; add it to ROOMS where its data flows"
    wrong = []
    for line, module in imports_of(path):
        parts = module.split(".")
        if parts[0] != "imagebuilder" or len(parts) == 1 or parts[1] not in LEVEL:
            continue
        if LEVEL[parts[1]] > LEVEL[here]:
            wrong.append(f"{path.name}:{line} imports {module}, which stands below {here}")
    assert not wrong, "\n".join(wrong)


def pure_modules() -> list[Path]:
    return sorted({p for pattern in PURE for p in PACKAGE.glob(pattern)})


@pytest.mark.parametrize("path", pure_modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_pure_modules_touch_nothing_outside(path: Path) -> None:
    wrong = [f"{line}: import {m}" for line, m in imports_of(path) if m.split(".")[0] in IMPURE_MODULES]
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            wrong.append(f"{node.lineno}: {node.func.id}()")
        if isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_METHODS:
            wrong.append(f"{node.lineno}: .{node.func.attr}()")
    assert not wrong, f"{path.name} is declared pure: " + "; ".join(wrong)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MAX_MODULE_LINES, f"{path.name} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{path.name}:{node.lineno} {node.name} has {length} lines"


def test_only_the_edge_reads_the_environment() -> None:
    """`os.environ` is read in cli/ and passed in from there.

    Two are programs of their own, with their own edge: the simulator, which stands in for SGLang in a
    container, and the agent, which is sent into a pod.
    """
    readers = []
    own = (PACKAGE / "deploy" / "agent.py", *(PACKAGE / "accept" / "simulator").glob("*.py"))
    for path in modules():
        if room_of(path) == "cli" or path in own:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                readers.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert not readers, readers


def test_start_up_imports_little() -> None:
    """`imagebuilder --help` loads no heavy library."""
    import subprocess
    import sys

    code = "import sys, imagebuilder.cli.main; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    heavy = {
        "requests",
        "docker",
        "jinja2",
        "pypi_simple",
        "debian",
        "pysequoia",
        "uv",
        "elftools",
        "rich.progress",
    }
    assert not heavy & set(loaded), heavy & set(loaded)
