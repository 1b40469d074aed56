"""Console scripts, as pip 26.3 writes them: through distlib, with a template and exceptions of its own."""

from __future__ import annotations

import posixpath
import re

from imagebuilder.builders.direct.venv import VenvLayout
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts.wheel import Wheel

# Linux reads 127 bytes of a script's first line (BINPRM_BUF_SIZE before 5.1); distlib keeps to it.
_LONGEST_LINE = 127

_NAME = re.compile(r"[^\[\s]\S*")
_OBJECT = re.compile(r"\w+(?:[:.]\w+)*")  # what follows it is ignored, as "()" in "package:main()"
_EXTRAS = re.compile(r"\s*\[\s*[\w-]+(?:=\w+)?(?:,\s*\w+(?:=\w+)?)*\s*\]")

_TEMPLATE = """\
import sys
from {module} import {first}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({function}())
"""


def entry_point_scripts(wheel: Wheel, layout: VenvLayout) -> list[tuple[str, bytes]]:
    """(path in the image, contents) of every script made from the wheel's entry points, in pip's order.

    ArtefactUnusable for one that pip refuses: no function in it, or a name that leads out of `bin`.
    """
    groups: dict[str, dict[str, str]] = {"console_scripts": {}, "gui_scripts": {}}
    for entry in wheel.entry_points():
        if entry.group in groups:
            groups[entry.group][entry.name] = entry.value
    first_line = interpreter_line(layout.interpreter)
    scripts = []
    for names in (_versioned(groups["console_scripts"], layout.python_xy), groups["gui_scripts"]):
        for name, value in names.items():
            module, function = _function(wheel, name, value)
            text = _TEMPLATE.format(module=module, first=function.partition(".")[0], function=function)
            scripts.append((_place(wheel, name, layout), first_line + text.encode()))
    return scripts


def entry_point_names(wheel: Wheel) -> frozenset[str]:
    """Names for which scripts are generated; ready-made ones of the same name in the wheel are left out."""
    groups = ("console_scripts", "gui_scripts")
    return frozenset(entry.name for entry in wheel.entry_points() if entry.group in groups)


def interpreter_line(interpreter: str) -> bytes:
    """The line (or, for a long path or one with a space, lines) that start a script with this interpreter."""
    quoted = f'"{interpreter}"' if " " in interpreter else interpreter
    simple = f"#!{quoted}\n".encode()
    if " " not in interpreter and len(simple) <= _LONGEST_LINE:
        return simple
    return f"#!/bin/sh\n'''exec' {quoted} \"$0\" \"$@\"\n' '''\n".encode()


def wants_interpreter(start: bytes) -> bool:
    """Whether a script that begins with these bytes gets the environment's interpreter put in."""
    return start.startswith(b"#!python")


def with_interpreter(script: bytes, interpreter: str) -> bytes:
    """The script, its first line replaced."""
    _, _, rest = script.partition(b"\n")
    return b"#!" + interpreter.encode() + b"\n" + rest


def _versioned(scripts: dict[str, str], python_xy: str) -> dict[str, str]:
    """Scripts in the order of writing: pip and easy_install come first, under their names for this Python.

    Their wheels are made on one Python and installed on any, so pip does not take their names literally.
    """
    rest = dict(scripts)
    made: dict[str, str] = {}
    major = python_xy.partition(".")[0]
    for name, others, names in (
        ("pip", r"pip(\d+(\.\d+)?)?", ("pip", f"pip{major}", f"pip{python_xy}")),
        ("easy_install", r"easy_install(-\d+\.\d+)?", ("easy_install", f"easy_install-{python_xy}")),
    ):
        value = rest.pop(name, "")
        if value:
            made.update(dict.fromkeys(names, value))
            rest = {other: v for other, v in rest.items() if not re.fullmatch(others, other)}
    return made | rest


def _function(wheel: Wheel, name: str, value: str) -> tuple[str, str]:
    """(module, function) of an entry point `package.module:function.attribute [extra]`."""
    match = _OBJECT.match(value)
    module, colon, function = match[0].partition(":") if match else ("", "", "")
    has_extras = match and _EXTRAS.match(value[match.end() :])
    brackets = set("[]") & set(name + value)
    if not _NAME.fullmatch(name) or not colon or ":" in function or (brackets and not has_extras):
        raise ArtefactUnusable(
            f"{wheel.archive.name}: no script can be made from one of its entry points",
            seen=f"{name} = {value}",
            wanted="name = package.module:function",
        )
    return module, function


def _place(wheel: Wheel, name: str, layout: VenvLayout) -> str:
    folder = f"/{layout.root}/bin"
    path = posixpath.normpath(posixpath.join(folder, name))
    if not path.startswith(folder + "/"):
        raise ArtefactUnusable(
            f"{wheel.archive.name}: a script of its entry points would lie outside of {folder}", seen=name
        )
    return path.lstrip("/")
