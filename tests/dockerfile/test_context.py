"""The files beside the Dockerfile."""

from __future__ import annotations

import io
import re
import tarfile

from imagebuilder.builders.docker.context import DOCKERFILE, MARKER, TOP
from imagebuilder.dockerfile import PIP, context_files, render
from imagebuilder.dockerfile.context import files_tar
from imagebuilder.stack.model import File, Stack
from tests.dockerfile.samples import PATCH, derived_of, image_stack_of, plan_of, stack_of, wheel
from tests.dockerfile.test_render import TEMPLATE

TOOLS = {"fetch-wheels": b"#!/bin/sh\n", "install-wheels": b"#!/bin/sh\n", "install-packages": b"#!/bin/sh\n"}


def paths(stack: Stack, *, vendored: bool = False) -> dict[str, bytes | None]:
    plan = plan_of(stack)
    files = context_files(plan, stack, derived=derived_of(plan), tools=TOOLS, vendored=vendored)
    assert [f.path for f in files] == sorted({f.path for f in files})
    for file in files:
        given = [file.content is not None, file.wheel is not None, file.derived is not None, bool(file.debs)]
        assert sum(given) == 1, file.path
    return {f.path: f.content for f in files}


def test_all_that_the_dockerfile_reads_is_in_the_context() -> None:
    for stack in (stack_of(), image_stack_of()):
        for vendored in (False, True):
            text = render(plan_of(stack), stack, TEMPLATE, vendored=vendored)
            found = paths(stack, vendored=vendored)
            for folder in re.findall(r"source=([^,\s]+)", text):
                assert any(path.startswith(f"{folder}/") for path in found), folder
            for name in re.findall(r"^ADD (\S+)", text, re.M):
                assert name in found
            for folder, file in re.findall(r"source=(layers/\S+),target.*?/mnt/layer/(\S+)", text, re.S):
                assert f"{folder}/{file}" in found


def test_a_context_is_known_again_by_what_is_in_it() -> None:
    """`render` replaces a folder that holds the marker and nothing but these."""
    for stack in (stack_of(), image_stack_of()):
        for vendored in (False, True):
            found = paths(stack, vendored=vendored)
            assert MARKER in found
            assert {DOCKERFILE, *(path.partition("/")[0] for path in found)} <= set(TOP)


def test_requirements_pin_every_wheel_by_hash() -> None:
    found = paths(stack_of())
    app = found["layers/02-app/requirements.txt"]
    assert app is not None
    lines = app.decode().replace(" \\\n", "").splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["numpy==1.0", "tool==1.0"]
    assert all(re.fullmatch(r"\S+==\S+ +--hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_a_patched_wheel_is_in_the_context_with_its_patches() -> None:
    found = paths(stack_of())
    assert found["layers/03-app/patches/01-a.patch"] == PATCH.content
    assert "layers/03-app/app-1.0+patched.0123abcd-py3-none-any.whl" in found
    text = found["layers/03-app/requirements.txt"]
    assert text is not None and b"app==1.0+patched.0123abcd" in text


def test_vendored_contexts_hold_every_wheel_and_pip() -> None:
    found = paths(stack_of(), vendored=True)
    assert {p.rpartition("/")[2] for p in found if p.endswith(".whl")} == {
        "torch-2.9.1+cu130-py3-none-any.whl",
        "numpy-1.0-py3-none-any.whl",
        "tool-1.0-py3-none-any.whl",
        "app-1.0+patched.0123abcd-py3-none-any.whl",
        PIP.filename,
    }


def test_an_address_is_used_to_fetch_and_not_to_install() -> None:
    stack = stack_of()
    plan = plan_of(stack, (wheel("torch"), wheel("app"), wheel("tool", url="https://files.example/t.whl")))
    files = {
        f.path: f.content
        for f in context_files(plan, stack, derived=derived_of(plan), tools={}, vendored=False)
    }
    assert b"tool @ https://files.example/t.whl" in (files["layers/02-app-tool/fetch-addresses.txt"] or b"")
    assert b"tool==1.0" in (files["layers/02-app-tool/requirements.txt"] or b"")


def test_extra_files_keep_mode_bytes_and_order() -> None:
    files = (File(path="/b", mode=0o755, content=b"x"), File(path="/a/$(id) 'q'", content="é".encode()))
    with tarfile.open(fileobj=io.BytesIO(files_tar(files, 7))) as tar:
        assert [(m.name, m.mode, m.mtime, m.uid, m.uname) for m in tar] == [
            ("a/$(id) 'q'", 0o644, 7, 0, ""),
            ("b", 0o755, 7, 0, ""),
        ]
    assert files_tar(files, 7) == files_tar(files[::-1], 7)
