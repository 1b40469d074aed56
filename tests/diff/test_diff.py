"""Stacks, locks and images side by side, through the command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.command import ROOT, Outcome
from tests.support.registry import TestRegistry
from tests.support.small import Small

Command = Callable[..., Outcome]
SCHEMA = json.loads((ROOT / "imagebuilder" / "data" / "diff.schema.json").read_text())


def diff(imagebuilder: Command, *arguments: str) -> dict[str, Any]:
    """The JSON of a comparison, checked against its schema."""
    done = imagebuilder("diff", *arguments, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(found, SCHEMA)
    return found


def build(imagebuilder: Command, small: Small, name: str, *versions: str) -> None:
    """Build these versions into images/NAME, and keep the lock as pylock.NAME.toml."""
    for requirement in versions:
        package, _, version = requirement.partition("==")
        small.wheel(package, version or "1.0")
    small.write(*versions)
    for words in (
        ("lock", "s", "--upgrade"),
        ("build", "s", "--builder", "direct", "--output", f"images/{name}"),
    ):
        done = imagebuilder(*words)
        assert done.code == 0, done.err
    shutil.copy(small.lock, small.folder / f"pylock.{name}.toml")


@pytest.fixture
def two_images(imagebuilder: Command, small: Small) -> None:
    """images/a and images/b, whose locks differ in the package `two` only."""
    build(imagebuilder, small, "a", "one==1.0", "two==1.0")
    build(imagebuilder, small, "b", "one==1.0", "two==1.1")


def test_images_of_locks_that_differ_in_one_package(imagebuilder: Command, two_images: None) -> None:
    found = diff(imagebuilder, "images/a", "images/b")
    assert [(m["move"], m["name"], m["old"]["version"], m["new"]["version"]) for m in found["packages"]] == [
        ("upgraded", "two", "1.0", "1.1")
    ]
    assert found["settings"] == []
    assert {f["owner"] for f in found["files"]} == {"two"}
    assert any(f["path"].endswith("two-1.1.dist-info/METADATA") for f in found["files"])
    assert found["layers"]["exact"] and [x["title"] for x in found["layers"]["pulled"]] == [
        "layer1/two: two 1.1"
    ]
    table = imagebuilder("diff", "images/a", "images/b").out
    assert "↑ two" in table and "one" not in re.sub(r"none|one of", "", table.split("Layers")[0])


def test_equal_images(imagebuilder: Command, two_images: None, small: Small) -> None:
    shutil.copytree("images/a", "images/c")
    done = imagebuilder("diff", "images/a", "images/c", "--exit-code")
    assert (done.code, done.out) == (0, "no difference between images/a and images/c\n")
    assert diff(imagebuilder, "images/a", "images/c")["identical"]


@pytest.mark.parametrize("old", ["pylock.a.toml", "images/a", "a.tar"])
@pytest.mark.parametrize("new", ["pylock.b.toml", "images/b", "s", "stacks/s.toml"])
def test_any_mix(old: str, new: str, imagebuilder: Command, two_images: None) -> None:
    if old == "a.tar":
        assert imagebuilder("build", "s", "--builder", "direct", "--output", "b.tar").code == 0
        old = "images/a"
        assert diff(imagebuilder, "b.tar", "images/b")["identical"]
    found = diff(imagebuilder, old, new)
    assert [(m["move"], m["name"]) for m in found["packages"]] == [("upgraded", "two")]
    unexpected = [m for m in found["settings"] if m["section"] not in ("system",)]
    assert not unexpected
    assert diff(imagebuilder, new, new)["identical"]


def test_a_stack_and_its_image_are_the_same(imagebuilder: Command, two_images: None) -> None:
    found = diff(imagebuilder, "s", "images/b")
    assert found["identical"], found
    assert not found["layers"]["pulled"] and not found["layers"]["exact"]


def test_images_in_a_registry(imagebuilder: Command, two_images: None, real_registry: TestRegistry) -> None:
    place = f"{real_registry.host}/diff/{Path.cwd().parent.name.lower().replace('_', '-')}"
    for name in "ab":
        done = imagebuilder("push", f"images/{name}", "--to", f"{place}:{name}")
        assert done.code == 0, done.err
    found = diff(imagebuilder, f"{place}:a", f"{place}:b", "--files")
    assert [m["name"] for m in found["packages"]] == ["two"] and found["files"]
    shallow = diff(imagebuilder, f"{place}:a", f"{place}:b", "--no-files")
    assert shallow["files"] is None and shallow["layers"]["pulled"]
    assert diff(imagebuilder, f"{place}:a", "images/a")["identical"]


def test_settings_overrides_patches_and_files(imagebuilder: Command, small: Small) -> None:
    small.wheel("three", "1.0", requires=["two==1.0"])
    small.wheel("two", "1.1")
    small.write("three", tail='[env]\nA = "1"\nB = "same"\n')
    shutil.copy(small.folder / "stacks/s.toml", small.folder / "stacks/old.toml")
    old = small.folder / "stacks" / "old.toml"
    old.write_text(old.read_text().replace('name = "s"', 'name = "old"'))
    patch = "--- a/three/text.py\n+++ b/three/text.py\n@@ -1,2 +1,2 @@\n-# text\n+# changed\n # text\n"
    (small.folder / "stacks" / "p.patch").write_text(patch)
    small.write(
        "three",
        tail='patches = ["p.patch"]\n[[override]]\nrequirement = "two==1.1"\nreason = "to see it"\n'
        '[env]\nB = "same"\nC = "2"\n[[file]]\npath = "/etc/x"\ncontent = "x"\n[image]\nuser = "nobody"\n',
    )
    for stack in ("old", "s"):
        done = imagebuilder("lock", stack)
        assert done.code == 0, done.err
    found = diff(imagebuilder, "old", "s")
    settings = {(m["section"], m["name"]): (m["old"], m["new"]) for m in found["settings"]}
    assert settings[("override", "two")] == (None, "two==1.1 (to see it)")
    assert settings[("env", "A")] == ("1", None) and settings[("env", "C")] == (None, "2")
    assert ("env", "B") not in settings and ("image", "user") in settings and ("file", "/etc/x") in settings
    assert ("patch", "three: p.patch") in settings
    assert {(m["name"], m["move"]) for m in found["packages"]} == {("three", "patched"), ("two", "upgraded")}
    markdown = imagebuilder("diff", "old", "s", "--format", "markdown").out
    assert "### old → s" in markdown and "| + two | two==1.1 (to see it) |" in markdown


def test_abi_and_findings(imagebuilder: Command, small: Small, tmp_path: Path) -> None:
    """Two releases of a wheel with a library; the newer one needs a library that nobody has."""
    small.wheel("one", files={"one/libone.so": library(tmp_path, "void a(void){} void b(void){}")})
    small.write("one==1.0")
    shutil.copytree("stacks", "old")
    small.wheel(
        "one", "2.0", files={"one/libone.so": library(tmp_path, "void b(void){} void c(void){}", "-lnone")}
    )
    small.write("one==2.0")
    for stack in ("old/s.toml", "s"):
        done = imagebuilder("lock", stack)
        assert done.code == 0, done.err
    found = diff(imagebuilder, "old/s.toml", "s")
    assert found["abi"] is None and found["findings"] is None
    assert any("--findings runs it" in note for note in found["not-compared"])

    found = diff(imagebuilder, "old/s.toml", "s", "--abi", "--findings")
    (move,) = found["abi"]
    assert (move["library"], move["gained"], move["lost"]) == ("one/libone.so", ["c"], ["a"])
    appeared = {(m["move"], m["code"], m["place"]) for m in found["findings"]}
    assert ("appeared", "lib.missing-for-plugin", "one: one/libone.so") in appeared
    text = imagebuilder("diff", "old/s.toml", "s", "--abi").out
    assert "Findings: 1 appeared" in text, "they are known now"
    assert re.search(r"~ one +libone.so +\+1 +-1", text)
    back = diff(imagebuilder, "s", "old/s.toml")
    assert {m["move"] for m in back["findings"]} == {"vanished"}


def library(folder: Path, source: str, *options: str) -> bytes:
    """A compiled library; with -lnone, one that needs a library that is nowhere."""
    cc = shutil.which("cc") or shutil.which("gcc")
    if cc is None:
        pytest.skip("no C compiler here")
    base = [cc, "-shared", "-fPIC", "-nostdlib"]
    (folder / "none.c").write_text("void none(void){}")
    subprocess.run([*base, "-o", folder / "libnone.so", folder / "none.c"], check=True)
    (folder / "x.c").write_text(
        f"void none(void);\n{source}\nvoid user(void){{ {'none();' if options else ''} }}"
    )
    words = [*base, "-o", folder / "x.so", folder / "x.c", f"-L{folder}", *options]
    subprocess.run(words, check=True)
    return (folder / "x.so").read_bytes()


def test_exit_code_and_output(imagebuilder: Command, two_images: None) -> None:
    done = imagebuilder(
        "diff", "images/a", "images/b", "--exit-code", "--output", "out/diff.md", "--format", "markdown"
    )
    assert done.code == 11 and done.out == ""
    assert Path("out/diff.md").read_text().startswith("### images/a → images/b")
    assert imagebuilder("diff", "images/a", "images/b").code == 0


def test_a_stale_lock_is_no_side_of_a_stack(imagebuilder: Command, small: Small) -> None:
    """What it says is not what the stack would give; as a lock file it may be compared."""
    small.write("one==1.0")
    assert imagebuilder("lock", "s").code == 0
    shutil.copy(small.lock, small.folder / "pylock.old.toml")
    small.wheel("one", "2.0")
    small.write("one==2.0")
    done = imagebuilder("diff", "pylock.old.toml", "s", "--exit-code")
    assert done.code == 4 and "imagebuilder lock s" in done.err
    assert imagebuilder("diff", "pylock.old.toml", "stacks/pylock.s.toml", "--exit-code").code == 0


def test_a_stack_without_a_lock(imagebuilder: Command, small: Small) -> None:
    found = diff(imagebuilder, "s", "s")
    assert found["identical"] and found["packages"] is None and "has no lock" in found["not-compared"][0]


BAD = {
    "no such stack": ("nope", 2, "is nothing that can be compared"),
    "a folder without an image": ("images", 2, "is nothing that can be compared"),
    "a missing place": ("stacks/none.toml", 2, "is nothing that can be compared"),
    "a bad reference": ("x.example/UPPER:1", 2, "is not an image reference"),
    "a broken lock": ("pylock.broken.toml", 4, "is not a lock"),
    "a broken archive": ("broken.tar", 13, "cannot be read as an image archive"),
    "nobody there": ("127.0.0.1:1/a:b", 13, "no connection to 127.0.0.1:1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str, imagebuilder: Command, small: Small) -> None:
    Path("pylock.broken.toml").write_text("x = [")
    Path("broken.tar").write_bytes(b"no tar")
    Path("images").mkdir()
    argument, code, text = BAD[name]
    for pair in ((argument, "s"), ("s", argument)):
        done = imagebuilder("diff", *pair)
        assert (done.code, text in done.err) == (code, True), done.err
        assert "Traceback" not in done.err and "next:" in done.err


def test_names_cannot_write_markup(imagebuilder: Command, small: Small) -> None:
    small.write("one", "two", tail='[env]\nX = "<script>|`*"\n')
    shutil.copy(small.folder / "stacks/s.toml", small.folder / "stacks/t.toml")
    done = imagebuilder("diff", "stacks/t.toml", "demo", "--format", "markdown")
    assert done.code == 0, done.err
    assert "<script>" not in done.out.replace("<details><summary>", "")
