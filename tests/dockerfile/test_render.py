"""Rendering: a pure function of plan, stack and template."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.dockerfile import render
from imagebuilder.dockerfile.quoting import _BREAKS
from imagebuilder.errors import StackInvalid, UsageProblem
from imagebuilder.lock.model import Wheel
from imagebuilder.stack.model import File, ImageSettings, Stack
from tests.dockerfile.parser import image_of, instructions
from tests.dockerfile.samples import image_stack_of, plan_of, stack_of, wheel

TEMPLATE = (Path(__file__).resolve().parents[2] / "templates" / "Dockerfile.j2").read_text()

NASTY = [
    'a "b" c', "it's", "$(touch /tmp/pwned)", "${PATH}", "$HOME", "`id`", "a\\", "\\\\", 'x" RUN id "',
    "--flag", "--mount=type=bind", "{{ 7*7 }}", "{% for x in y %}", "{# no #}", "# a", "é☃ 日本", "<<EOF",
    "a=b", " lead", "trail ", "tab\there", "''", '""', "'\"'", "$$", "\\$x", "\\n", "%s", "!", "*", "~",
    "&& id", "; id", "| id", "> /x",
]  # fmt: skip
LINE = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1).filter(lambda t: not _BREAKS.search(t))


def rendered(stack: Stack, *, vendored: bool = False, wheels: tuple[Wheel, ...] = ()) -> str:
    return render(plan_of(stack, wheels), stack, TEMPLATE, vendored=vendored)


def nasty_stack(text: str) -> Stack:
    return stack_of(
        summary=text,
        env=(("X", text), ("Y", f"{text}{text}")),
        files=(File(path=f"/etc/{text.replace('/', '_')}", content=text.encode()),),
        image=ImageSettings(
            entrypoint=(text, "x"), command=("y", text), user="app", workdir=f"/{text}", labels=(("l", text),)
        ),
    )


@pytest.mark.parametrize("text", NASTY)
def test_no_text_of_a_stack_leaves_its_place(text: str) -> None:
    check_nasty(text)


@given(LINE)
@settings(max_examples=60)
def test_no_text_at_all_leaves_its_place(text: str) -> None:
    check_nasty(text)


def check_nasty(text: str) -> None:
    plain, nasty = rendered(nasty_stack("plain")), rendered(nasty_stack(text))
    assert [name for name, _ in instructions(nasty)] == [name for name, _ in instructions(plain)]
    assert [rest for name, rest in instructions(nasty) if name in ("RUN", "ADD", "FROM")] == [
        rest for name, rest in instructions(plain) if name in ("RUN", "ADD", "FROM")
    ]
    image = image_of(nasty)
    assert image["env"]["X"] == text and image["env"]["Y"] == text + text
    assert image["labels"]["l"] == text
    assert image["workdir"] == f"/{text}"
    assert image["entrypoint"] == [text, "x"] and image["cmd"] == ["y", text]


@pytest.mark.parametrize("text", ["a\nRUN id", "a\r\nb", "a\x00"])
def test_what_a_dockerfile_cannot_hold_is_reported_with_every_key(text: str) -> None:
    with pytest.raises(StackInvalid) as caught:
        rendered(nasty_stack(text))
    assert {p.key for p in caught.value.problems} >= {"env.X", "env.Y", "labels.l", "image.workdir"}


def test_one_group_of_instructions_for_each_layer_of_the_plan() -> None:
    stack = image_stack_of()
    names = [name for name, _ in instructions(rendered(stack))]
    assert names == [
        "ARG", "FROM", "ARG", "RUN", "RUN", "RUN", "RUN", "RUN", "ADD", "ENV",
        "LABEL", "EXPOSE", "WORKDIR", "CMD",
    ]  # fmt: skip
    runs = [rest for name, rest in instructions(rendered(stack)) if name in ("RUN", "ADD")]
    assert len(runs) == len([layer for layer in plan_of(stack).layers if layer.image is None])


def test_the_base_is_pinned_by_digest_and_can_be_replaced() -> None:
    text = rendered(image_stack_of())
    assert "ARG BASE_IMAGE=docker.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04@sha256:" in text
    assert "FROM ${BASE_IMAGE}" in text


def test_a_debian_base_needs_no_registry() -> None:
    assert [rest for name, rest in instructions(rendered(stack_of())) if name in ("FROM", "ADD")] == [
        "scratch",
        "base.tar.gz /",
        "files.tar /",
    ]


def test_wheels_of_a_named_index_are_asked_there_and_of_no_other() -> None:
    runs = [rest for name, rest in instructions(rendered(stack_of())) if name == "RUN"]
    torch = next(r for r in runs if "torch" in r)
    assert "requirements.txt pytorch-cu130 https://wheels.example/whl/cu130 " in torch
    assert "id=index-pytorch-cu130" in torch
    app = next(r for r in runs if "02-app" in r)
    assert "wheels.example" not in app


def test_a_layer_of_several_sources_fetches_from_each() -> None:
    wheels = (
        wheel("torch", index="pytorch-cu130"),
        wheel("app"),
        wheel("tool", url="https://files.example/tool-1.0-py3-none-any.whl"),
        wheel("numpy", index="pytorch-cu130"),
        wheel("idna"),
    )
    run = next(r for _, r in instructions(rendered(stack_of(), wheels=wheels)) if "02-app," in r)
    for file in ("fetch-addresses.txt", "fetch-default.txt", "fetch-pytorch-cu130.txt"):
        assert run.count(f"/mnt/layer/{file}") == 1


def test_vendored_builds_fetch_nothing() -> None:
    text = rendered(stack_of(), vendored=True)
    assert "fetch-wheels" not in text and "type=secret" not in text and "type=cache" not in text
    assert "install-wheels /mnt/layer/requirements.txt /mnt/layer" in text


def test_an_entry_point_without_a_command_clears_the_bases_command() -> None:
    image = ImageSettings(entrypoint=("serve",))
    assert "CMD" not in [name for name, _ in instructions(rendered(stack_of(image=image)))]
    assert "CMD" not in [n for n, _ in instructions(rendered(image_stack_of(image=ImageSettings())))]
    assert image_of(rendered(stack_of(image=ImageSettings())))["cmd"] == ["python3"]


def test_a_stacks_own_path_is_taken_as_it_is() -> None:
    assert image_of(rendered(stack_of(env=(("PATH", "/x:$PATH"),))))["env"]["PATH"] == "/x:$PATH"


@pytest.mark.parametrize(
    ("template", "says"),
    [("{{ nothing }}", "'nothing' is undefined"), ("{% for %}", "line 1"), ("{{ base.nothing }}", "nothing")],
)
def test_a_template_of_the_user_that_cannot_be_used_is_explained(template: str, says: str) -> None:
    stack = stack_of()
    with pytest.raises(UsageProblem) as caught:
        render(plan_of(stack), stack, template, template_name="my.j2")
    assert "my.j2" in str(caught.value) and says in str(caught.value)


def test_rendering_twice_gives_the_same_text() -> None:
    assert rendered(image_stack_of()) == rendered(image_stack_of())
