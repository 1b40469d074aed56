"""`lock` and `show` as people use them: what changed and why, dry runs, layers and sizes, several stacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.command import Outcome
from tests.support.small import Small

Call = Callable[..., Outcome]


def test_what_changed_and_what_was_passed_over(imagebuilder: Call, small: Small) -> None:
    small.wheel("one", "1.0", requires=["two"])
    small.wheel("two", "1.0")
    small.write("one")
    assert imagebuilder("lock", "s").code == 0
    before = small.lock.read_bytes()
    small.wheel("one", "2.0", requires=["two"])
    small.wheel("two", "2.0")
    again = imagebuilder("lock", "s")
    assert small.lock.read_bytes() != before  # it tells now what was passed over
    assert "passed over one 2.0 (chosen: 1.0): " in again.out and "--upgrade=one" in again.out
    kept = small.lock.read_bytes()

    would = imagebuilder("lock", "s", "--upgrade=two", "--dry-run")
    assert would.code == 0, would.err
    assert "two 1.0 → 2.0" in would.out and "one 1.0 →" not in would.out
    assert "(not written: --dry-run)" in would.err
    assert small.lock.read_bytes() == kept
    told = json.loads(imagebuilder("lock", "s", "--upgrade", "--dry-run", "--json").out)
    assert (told["kind"], told["written"]) == ("lock", False)
    assert {change["name"] for change in told["changes"]} == {"one", "two"}

    done = imagebuilder("lock", "s", "--upgrade=two")
    assert "two 1.0 → 2.0" in done.out and small.lock.read_bytes() != kept


def test_show(imagebuilder: Call, small: Small) -> None:
    """Stack, lock and layers with sizes; with `--plan` the layers and their wheels alone."""
    sizes = {name: small.wheel(name).stat().st_size for name in ("one", "two")}
    tail = "[[override]]\nrequirement = 'two==1.0'\nreason = 'because'\n"
    tail += "[[file]]\npath = '/etc/x'\ncontent = 'x'\n"
    path = small.write("one", tail=tail)
    path.write_text(path.read_text().replace("requirements = ['one']", "requirements = ['one', 'two']"))
    assert imagebuilder("lock", "s").code == 0
    whole, plan = imagebuilder("show", "s").out, imagebuilder("show", "s", "--plan").out
    assert whole.startswith("s\n  target   linux/amd64, Python 3.11, glibc 2.36, GPUs none named\n")
    for text in ("  base     base sha256:", "  content  2 wheels, ", "  override two==1.0: because\n"):
        assert text in whole
    layers = [line for line in whole.splitlines() if line.endswith("]")]
    assert [line.split()[0] for line in layers] == ["0", "1", "2", "3"]
    assert "layer0: 2 wheels" in layers[2] and "files: 1 file" in layers[3]
    rows = [line.split() for line in plan.splitlines() if not line.endswith("]")]
    assert [row[-2:] for row in rows] == [["one", "1.0"], ["two", "1.0"]]
    told = json.loads(imagebuilder("show", "s", "--json").out)
    (wheels,) = (layer for layer in told["layers"] if layer["group"] == "layer0")
    assert wheels["size"] == sum(sizes.values()) == told["download-size"]
    assert not (Path.cwd() / "images").exists()


def test_several_stacks_in_one_go(imagebuilder: Call, small: Small) -> None:
    """What they share is downloaded and made once; `--all` is every stack of the folder."""
    for name in ("one", "two"):
        small.wheel(name)
    path = small.write("one", "two")
    other = (
        path.read_text()
        .replace('name = "s"', 'name = "t"')
        .replace("requirements = ['two']", "requirements = ['one']")
    )
    (path.parent / "t.toml").write_text(
        other.replace("[[layer]]\nname = \"layer1\"\nrequirements = ['one']\n", "")
    )
    outcome = imagebuilder("build", "--all", "--builder", "direct")
    assert outcome.code == 0, outcome.err
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["s", "t"]
    assert "s: 3 of 3 layers made" in outcome.err  # the environment and a layer for each wheel
    assert "t: 0 of 2 layers made" in outcome.err
    names = imagebuilder("build", "t", "s", "--builder", "direct")
    assert sorted(names.out.splitlines()) == sorted(outcome.out.splitlines())
    tagged = imagebuilder("build", "--all", "--builder", "direct", "--tag", "x:1")
    assert tagged.code == 2 and "--tag names one image" in tagged.err
