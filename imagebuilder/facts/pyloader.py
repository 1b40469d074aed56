"""What Python code of a package loads by itself: library names with a version, and preloads.

Only literals are read (by `ast`, nothing is executed); code that computes its names is not understood and
then simply says nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from imagebuilder.facts.record import Literal, Preload

_LIBRARY = re.compile(r"lib[A-Za-z0-9_+-]+\.so(?:\.\d+)+")
_PATTERN = re.compile(r"lib[A-Za-z0-9_+-]+\.so[.\d*\[\]-]*")
# Code that loads libraries lives in modules with such names; others are not read.
LOADER_MODULE = re.compile(r"(?i)(__init__|load|lib|cuda|nvrtc|ffi|native|runtime|dlopen|env|path)[^/]*\.py$")
MAX_SOURCE = 1 << 20


def literals(path: str, source: bytes) -> Iterator[Literal]:
    """Versioned library names in string literals of one module; docstrings and comments do not count."""
    if not _LIBRARY.search(source.decode("utf-8", "replace")):
        return
    tree = _parse(source)
    if tree is None:
        return
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
            for match in _LIBRARY.finditer(node.value):
                yield Literal(path=path, line=node.lineno, text=match.group())


def preloads(source: bytes, function: str) -> tuple[Preload, ...]:
    """What this function of a package, which runs when it is imported, preloads besides its own libraries.

    Understood, also in functions that it calls without a handler: `f("folder", "libx.so.*[0-9]")` and literal
    tables of such pairs. What stands in an `except` clause is left out: it runs only where loading failed.
    """
    tree = _parse(source)
    if tree is None:
        return ()
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    found: dict[Preload, None] = {}
    waiting, seen = [function], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for node in _without_handlers(functions[name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                waiting.append(node.func.id)
            pair = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
            texts = [x.value for x in pair if isinstance(x, ast.Constant) and isinstance(x.value, str)]
            if len(texts) == 2 and _PATTERN.fullmatch(texts[1]):
                found[Preload(folder=texts[0], pattern=texts[1])] = None
    return tuple(found)


def _without_handlers(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below this one, except what only runs after an exception."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ExceptHandler):
            yield child
            yield from _without_handlers(child)


def _parse(source: bytes) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
