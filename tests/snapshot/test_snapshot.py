"""Snapshots of real environments whose packages come from an index on loopback."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from imagebuilder.builders.direct.derive import derive_patched
from imagebuilder.facts.wheel import Wheel
from imagebuilder.lock import check_fresh, read_lock
from imagebuilder.stack import load_stack
from tests.snapshot.conftest import DATED, TEXT, Place
from tests.support.mirror import publish_sdist

EDITED = TEXT.replace(b"three\n", b"3\nthree and a half\n").removesuffix(b"\n")


def test_an_untouched_environment_is_its_wheels(place: Place) -> None:
    place.publish("alpha", requires=["beta>=1"])
    place.publish("beta", "2.5")
    place.install("alpha")
    said = place.taken()
    assert said["complete"] and said["summary"]["equal"] == 2
    assert said["by-name"]["alpha"]["proven"]
    stack = load_stack(place.stacks / "s.toml")
    lock = read_lock(place.stacks / "pylock.s.toml")
    check_fresh(stack, lock)
    assert {w.name: (w.version, w.index) for w in lock.wheels} == {
        "alpha": ("1.0", "default"),
        "beta": ("2.5", "default"),
    }
    assert lock.by_name["alpha"].requires == ("beta",)
    assert stack.target.python.text == f"3.{sys.version_info.minor}"
    assert not stack.overrides


def test_the_lock_is_what_lock_makes_of_the_stack(place: Place) -> None:
    place.publish("alpha", requires=["beta>=1"])
    place.publish("beta", "2.5")
    place.publish("beta", "2.6")
    place.install("alpha", "beta<2.6")
    (place.site / "alpha" / "text.py").write_bytes(EDITED)
    place.taken()
    before = read_lock(place.stacks / "pylock.s.toml")
    (place.stacks / "pylock.s.toml").unlink()
    outcome = place.call("lock", "s")
    assert outcome.code == 0, outcome.err
    after = read_lock(place.stacks / "pylock.s.toml")
    assert (after.wheels, after.patches, after.stack_hash) == (
        before.wheels,
        before.patches,
        before.stack_hash,
    )


def test_edited_and_deleted_text_becomes_a_patch_that_gives_the_same_bytes(
    place: Place, tmp_path: Path
) -> None:
    place.publish(
        "alpha", files={"alpha/text.py": TEXT, "alpha/gone.py": b"gone\n", "alpha/win.py": b"a\r\nb\r\n"}
    )
    place.install("alpha")
    (place.site / "alpha" / "text.py").write_bytes(EDITED)
    (place.site / "alpha" / "win.py").write_bytes(b"a\r\nc\r\n")
    (place.site / "alpha" / "gone.py").unlink()
    (place.site / "alpha" / "__pycache__").mkdir(exist_ok=True)
    (place.site / "alpha" / "__pycache__" / "text.cpython-311.pyc").write_bytes(b"compiled")
    said = place.taken()
    (alpha,) = said["packages"]
    assert alpha["state"] == "patched" and alpha["proven"]
    assert {c["path"].rpartition("/")[2]: (c["what"], c["how"]) for c in alpha["changes"]} == {
        "gone.py": ("deleted", "patch"),
        "text.py": ("changed", "patch"),
        "win.py": ("changed", "patch"),
    }
    assert not said["added"]
    patch = place.stacks / "patches" / "s" / "alpha-1.0.patch"
    filename, _ = derive_patched(
        place.folder / "made" / "alpha-1.0-py3-none-any.whl", [(patch.name, patch.read_bytes())], tmp_path
    )
    with Wheel.open(tmp_path / filename) as wheel:
        assert wheel.read("alpha/text.py") == EDITED
        assert wheel.read("alpha/win.py") == b"a\r\nc\r\n"
        assert wheel.member("alpha/gone.py") is None


def test_what_a_patch_cannot_say_becomes_a_file_or_is_named(place: Place) -> None:
    place.publish("alpha")
    place.publish("beta")
    place.install("alpha", "beta")
    (place.site / "alpha" / "data.bin").write_bytes(b"\0changed")
    (place.site / "alpha" / "more.txt").write_bytes(b"added\n")
    (place.site / "lone.py").write_bytes(b"x = 1\n")
    (place.site / "beta" / "data.bin").unlink()
    said = place.taken(code=12)
    assert not said["complete"] and said["summary"]["lost-changes"] == 1
    (change,) = said["by-name"]["beta"]["changes"]
    assert (change["what"], change["how"]) == ("deleted", "nothing") and "no text" in change["why"]
    (change,) = said["by-name"]["alpha"]["changes"]
    assert (change["what"], change["how"]) == ("changed", "file")
    stack = load_stack(place.stacks / "s.toml")
    site = f"/opt/venv/lib/python3.{sys.version_info.minor}/site-packages"
    assert {f.path: f.content for f in stack.files} == {
        f"{site}/alpha/data.bin": b"\0changed",
        f"{site}/alpha/more.txt": b"added\n",
        f"{site}/lone.py": b"x = 1\n",
    }


def test_too_much_beside_the_packages_is_one_line(place: Place) -> None:
    place.publish("alpha")
    place.install("alpha")
    folder = place.site / "cache"
    folder.mkdir()
    for number in range(201):
        (folder / f"{number}.bin").write_bytes(b"x")
    said = place.taken(code=12)
    (added,) = said["added"]
    assert added["path"].endswith("/cache") and "201 files of no package" in added["why"]


def test_scripts_and_what_installers_write_are_no_changes(place: Place) -> None:
    place.publish(
        "alpha",
        files={
            "alpha/text.py": TEXT,
            "alpha-1.0.data/scripts/ready": b"#!python\nprint(1)\n",
            "alpha-1.0.data/data/share/alpha.txt": b"shared\n",
            "alpha-1.0.dist-info/entry_points.txt": b"[console_scripts]\nalpha = alpha:main\n",
        },
    )
    place.install("alpha")
    assert (place.venv / "bin" / "alpha").is_file()
    assert (place.venv / "bin" / "ready").read_bytes().startswith(b"#!/")
    assert place.taken()["summary"]["equal"] == 1
    script = place.venv / "bin" / "ready"
    script.write_bytes(script.read_bytes().replace(b"print(1)", b"print(2)"))
    said = place.taken("--force")
    (change,) = said["packages"][0]["changes"]
    assert change["how"] == "patch"
    patch = (place.stacks / "patches" / "s" / "alpha-1.0.patch").read_bytes()
    assert b"+++ b/alpha-1.0.data/scripts/ready" in patch and b"-print(1)\n+print(2)" in patch
    assert b"#!/" not in patch
    made = place.venv / "bin" / "alpha"
    made.write_bytes(made.read_bytes() + b"# edited\n")
    said = place.taken("--force", code=12)
    assert "entry point" in next(c for c in said["packages"][0]["changes"] if c["how"] == "nothing")["why"]


def test_the_wheel_is_found_by_its_bytes_not_by_its_name(place: Place) -> None:
    """Three builds of one version that all install here: RECORD says which it was."""
    minor = sys.version_info.minor
    for number, tag in enumerate((f"cp3{minor}-cp3{minor}-linux_x86_64", "py3-none-any", "py2.py3-none-any")):
        place.publish(
            "alpha",
            tag=tag,
            files={"alpha/text.py": b"build %d\n" % number, "alpha/data.bin": TEXT * (number + 1)},
        )
    place.install(f"{place.folder}/made/alpha-1.0-py2.py3-none-any.whl")
    said = place.taken()
    (alpha,) = said["packages"]
    assert alpha["filename"] == "alpha-1.0-py2.py3-none-any.whl" and alpha["proven"]


def test_another_build_of_the_same_version_is_not_taken(place: Place) -> None:
    other = place.server.index("/other", form="json")
    place.publish("alpha", index=other, files={"alpha/text.py": TEXT, "alpha/core.so": b"\x7fELF other"})
    place.install("alpha", index=other.url)
    place.publish("alpha", files={"alpha/text.py": TEXT, "alpha/core.so": b"\x7fELF this"})
    outcome = place.snapshot()
    assert outcome.code == 12
    assert "another build" in outcome.err
    assert not place.stacks.exists()


def test_a_rebuilt_package_with_other_text_is_brought_to_the_same_bytes(place: Place) -> None:
    """As Debian's pip is: other text, other RECORD, and files that the index's wheel has besides."""
    other = place.server.index("/other", form="json")
    files = {"alpha/text.py": TEXT, "alpha/a.py": b"a\n", "alpha/b.py": b"b\n"}
    place.publish("alpha", index=other, files={**files, "alpha/text.py": EDITED})
    place.install("alpha", index=other.url)
    place.publish("alpha", files={**files, "alpha/launcher.exe": b"MZ\0"})
    said = place.taken()
    (alpha,) = said["packages"]
    assert (alpha["state"], alpha["proven"], said["complete"]) == ("patched", False, True)
    assert {c["what"] for c in alpha["changes"]} == {"changed", "extra"}
    assert "somebody rebuilt it" in alpha["notes"][0]


def test_editable_and_local_installs_are_named(place: Place) -> None:
    place.publish("alpha")
    place.install("alpha")
    place.install("--editable", str(place.local_project()))
    said = place.taken(code=12)
    local = said["by-name"]["localpkg"]
    assert local["state"] == "unlockable" and "editable" in local["problem"] and "pip wheel" in local["fix"]
    text = (place.stacks / "s.toml").read_text()
    assert "# localpkg is not in it: it is installed in editable form from file://" in text
    assert [w.name for w in read_lock(place.stacks / "pylock.s.toml").wheels] == ["alpha"]
    place.install("--force-reinstall", str(place.local_project()))
    outcome = place.snapshot("--force")
    assert outcome.code == 12
    assert "cannot be locked: localpkg 0.3: it was built from the folder file://" in outcome.out
    assert "1 package cannot be locked" in outcome.err


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (
            {"url": "https://git.example/a.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "git+https://git.example/a.git at c0ffee",
        ),
        ({"url": "https://files.example/a-1.0.tar.gz", "archive_info": {}}, "source archive https://files"),
        (
            {"url": "https://u:canary@git.example/a", "vcs_info": {"vcs": "git"}},
            "git+https://***@git.example/a",
        ),
        ("nonsense", "source archive"),
    ],
)
def test_other_origins_are_named_without_their_secrets(place: Place, origin: object, words: str) -> None:
    place.publish("alpha")
    place.publish("beta")
    place.install("alpha", "beta")
    (place.site / "alpha-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    outcome = place.snapshot()
    assert outcome.code == 12 and words in outcome.out
    written = "".join(p.read_text() for p in place.stacks.rglob("*") if p.is_file())
    assert "canary" not in outcome.out + outcome.err + written


def test_gone_versions_and_sdists_are_named_and_yanked_ones_taken_with_a_word(place: Place) -> None:
    other = place.server.index("/other", form="json")
    for name in ("gone", "source", "unknown"):
        place.publish(name, index=other)
    place.install("gone", "source", "unknown", index=other.url)
    place.publish("gone", "2.0")
    publish_sdist(place.index, "source", "1.0", upload_time=DATED)
    place.publish("yanked", yanked="broken on Tuesdays")
    place.install("yanked==1.0")
    said = place.taken(code=12)["by-name"]
    assert "not (or no longer) on the index, which has 2.0" in said["gone"]["problem"]
    assert "only a source distribution" in said["source"]["problem"]
    assert "no index in reach knows unknown" in said["unknown"]["problem"]
    assert said["yanked"]["state"] == "equal" and "broken on Tuesdays" in said["yanked"]["notes"][0]


def test_one_more_index_is_asked(place: Place) -> None:
    other = place.server.index("/other", form="html")
    place.publish("mine", index=other)
    place.publish("alpha")
    place.install("alpha")
    place.install("mine", index=other.url)
    said = place.taken("--index", f"own={other.url}")
    assert said["by-name"]["mine"]["index"] == "own"
    stack = load_stack(place.stacks / "s.toml")
    assert [(i.name, i.explicit) for i in stack.indexes] == [("own", True)]
    layer = stack.layer_of("mine")
    assert layer is not None and layer.index == "own"
    assert read_lock(place.stacks / "pylock.s.toml").by_name["mine"].index == "own"


def test_a_cuda_build_is_looked_for_on_its_vendors_index(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = place.server.index("/whl/cu130", form="html")
    kernels = place.server.index("/kernels/cu130", form="html")
    monkeypatch.setenv("IMAGEBUILDER_INDEX_PYTORCH_CU130_URL", torch.url)
    monkeypatch.setenv("IMAGEBUILDER_INDEX_SGLANG_CU130_URL", kernels.url)
    place.publish("torch", "2.9.1", files={"torch/text.py": b"the plain build\n"})
    place.publish("torch", "2.9.1+cu130", index=torch, files={"torch/text.py": b"for CUDA\n"})
    place.publish(
        "sgl-kernel", "0.3.21+cu130", index=kernels, files={"sgl_kernel/text.py": TEXT}, hashed=False
    )
    place.install(*(str(p) for p in sorted((place.folder / "made").glob("*cu130*.whl"))))
    said = place.taken("--gpu", "sm_120", "--driver", "580.65.06")
    assert {n: p["index"] for n, p in said["by-name"].items()} == {
        "torch": "pytorch-cu130",
        "sgl-kernel": "sglang-cu130",
    }
    stack = load_stack(place.stacks / "s.toml")
    assert [str(gpu) for gpu in stack.target.gpus] == ["sm_120"]
    assert "https://download.pytorch.org/whl/cu130" in [i.url for i in stack.indexes]


def test_a_vendors_index_that_does_not_answer_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = place.server.index("/closed", form="json")
    monkeypatch.setenv("IMAGEBUILDER_INDEX_PYTORCH_CU130_URL", closed.url)
    place.server.login("/closed", "user", "secret")
    place.publish("torch", "2.9.1+cu130", index=place.server.index("/other", form="json"))
    place.publish("alpha")
    place.install("alpha", str(place.folder / "made" / "torch-2.9.1+cu130-py3-none-any.whl"))
    torch = place.taken(code=12)["by-name"]["torch"]
    assert "index pytorch-cu130 cannot be asked" in torch["problem"] and "mirror" in torch["fix"]


def test_broken_requirements_become_overrides(place: Place) -> None:
    place.publish("alpha", requires=["beta<2", "absent>=1", "gamma ; extra == 'more'"])
    place.publish("beta", "2.0")
    place.install("--no-deps", "alpha", "beta")
    place.taken()
    stack = load_stack(place.stacks / "s.toml")
    assert {o.package: str(o.requirement) for o in stack.overrides} == {
        "beta": "beta==2.0",
        "absent": 'absent; python_version < "3"',
    }
    assert "although alpha requires beta<2" in {o.package: o.reason for o in stack.overrides}["beta"]
    outcome = place.call("lock", "s")
    assert outcome.code == 0, outcome.err
    assert sorted(w.name for w in read_lock(place.stacks / "pylock.s.toml").wheels) == ["alpha", "beta"]


def test_a_file_of_two_packages_is_as_it_lies_there(place: Place) -> None:
    place.publish("alpha", files={"alpha/text.py": TEXT, "shared/data.py": b"of alpha\n"})
    place.publish("beta", files={"beta/text.py": TEXT, "shared/data.py": b"of beta\n"})
    place.install("alpha")
    place.install("beta")
    said = place.taken()
    assert said["summary"]["lost-changes"] == 0
    (file,) = load_stack(place.stacks / "s.toml").files
    assert file.content == b"of beta\n"


def test_files_in_the_way_are_not_overwritten(place: Place) -> None:
    place.publish("alpha")
    place.install("alpha")
    assert place.snapshot("--as-of", "2026-02-01T00:00:00Z").code == 0
    before = {p: p.read_bytes() for p in place.stacks.rglob("*") if p.is_file()}
    assert place.snapshot("--as-of", "2026-02-01T00:00:00Z").code == 0
    assert {p: p.read_bytes() for p in place.stacks.rglob("*") if p.is_file()} == before
    outcome = place.snapshot("--as-of", "2026-02-02T00:00:00Z")
    assert outcome.code == 2 and "--force" in outcome.err
    assert {p: p.read_bytes() for p in place.stacks.rglob("*") if p.is_file()} == before
    assert place.snapshot("--as-of", "2026-02-02T00:00:00Z", "--dry-run", "--force").code == 0
    assert {p: p.read_bytes() for p in place.stacks.rglob("*") if p.is_file()} == before


def test_variables_of_the_shell_are_taken_when_asked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.publish("alpha")
    place.install("alpha")
    monkeypatch.setenv("NCCL_PROTO", "LL")
    monkeypatch.setenv("NCCL_TOKEN", "canary-canary")
    place.taken()
    assert load_stack(place.stacks / "s.toml").env == ()
    said = place.taken("--force", "--env", "NCCL_*")
    assert load_stack(place.stacks / "s.toml").env == (("NCCL_PROTO", "LL"),)
    assert said["withheld"][0]["key"] == "env.NCCL_TOKEN"
    assert "canary" not in json.dumps(said) + (place.stacks / "s.toml").read_text()


def test_system_site_packages_count_too(place: Place) -> None:
    """A virtual environment on another one's Python: what both have is found, the nearer first."""
    place.publish("alpha")
    place.publish("alpha", "2.0")
    place.install("alpha==1.0")
    settings = place.venv / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("= false", "= true"))
    said = place.snapshot("--json")
    names = {p["name"]: p["installed"] for p in json.loads(said.out)["packages"]}
    assert names["alpha"] == "1.0"
