"""Patched wheels: exactly what git makes of a patch, the same bytes always; anything inexact is an error."""

# ruff: noqa: E501 - patches are read best as the lines they are

from __future__ import annotations

import difflib
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imagebuilder.builders.direct.derive import derive_patched, patched_version
from imagebuilder.builders.direct.zipwriter import ZipWriter
from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts import unified
from imagebuilder.facts.wheel import Wheel
from imagebuilder.values import Digest
from tests.support.wheels import EXECUTABLE, Content, make_wheel, record_row

CODE = b"".join(b"line %d\n" % n for n in range(1, 31))
FILES: dict[str, bytes | Content] = {
    "pkg/__init__.py": b"",
    "pkg/code.py": CODE,
    "pkg/last.py": b"one\ntwo",
    "pkg/crlf.py": b"one\r\ntwo\r\nthree\r\n",
    "pkg/feed.py": b"one\x0ctwo\nthree\xe2\x80\xa8four\n",
    "pkg/tool": Content(data=b"#!/bin/sh\n", mode=EXECUTABLE),
    "pkg/stored": Content(data=b"s" * 100, method=0),
    "pkg/gr\u00f6\u00dfe.py": b"a\n",
    "sample-1.0.data/scripts/run": Content(data=b"#!python\n", mode=EXECUTABLE),
}

EDIT = b"""\
diff --git a/pkg/code.py b/pkg/code.py
index 1111111..2222222 100644
--- a/pkg/code.py
+++ b/pkg/code.py
@@ -2,5 +2,6 @@ line 1
 line 2
 line 3
-line 4
+line four
+line four and a half
 line 5
 line 6
@@ -28,3 +29,2 @@
 line 28
-line 29
 line 30
"""


def derive(tmp_path: Path, *patches: bytes, files: dict[str, bytes | Content] | None = None) -> Wheel:
    source = make_wheel(tmp_path / "in", files=files or FILES)
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    named = [(f"{number}.patch", patch) for number, patch in enumerate(patches)]
    filename, digest = derive_patched(source, named, out)
    data = (out / filename).read_bytes()
    assert digest == Digest.of(data)
    assert [path.name for path in out.iterdir()] == [filename]
    with zipfile.ZipFile(out / filename) as archive:
        assert archive.testzip() is None
    wheel = Wheel.open(out / filename)
    assert wheel.record_oddities() == ()
    for path, hashed, size in wheel.record():
        if hashed:
            assert record_row(path, wheel.read(path)).rsplit(",", 2)[1:] == [hashed, size]
    return wheel


def test_the_derived_wheel_says_that_it_is_patched(tmp_path: Path) -> None:
    wheel = derive(tmp_path, EDIT)
    source = tmp_path / "in/sample-1.0-py3-none-any.whl"
    version = patched_version("1.0", Digest.of(source.read_bytes()), [Digest.of(EDIT)])
    assert version.startswith("1.0+patched.")
    assert wheel.filename == f"sample-{version}-py3-none-any.whl"
    assert (wheel.version, wheel.dist_info) == (version, f"sample-{version}.dist-info")
    assert wheel.metadata()["version"] == version
    assert wheel.member(f"sample-{version}.data/scripts/run")
    assert b"line 3\nline four\nline four and a half\nline 5\n" in wheel.read("pkg/code.py")


def test_what_no_patch_touches_keeps_its_packed_data(tmp_path: Path) -> None:
    wheel = derive(tmp_path, EDIT)
    with Wheel.open(tmp_path / "in/sample-1.0-py3-none-any.whl") as source:
        kept = [
            member.path
            for member in source.files
            if member.path.startswith("pkg/") and "code" not in member.path
        ]
        for path in kept:
            old, new = source.member(path), wheel.member(path)
            assert old
            assert new
            assert b"".join(source.raw_deflate(old)) == b"".join(wheel.raw_deflate(new))
            assert (old.mode, old.method) == (new.mode, new.method)
        order = [m.path for m in source.files if m.path.startswith("pkg/")]
    assert [m.path for m in wheel.files if m.path.startswith("pkg/")] == order


def test_the_same_wheel_and_patches_give_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for folder in (tmp_path / "1", tmp_path / "2"):
        # Stored, because the zlib of this Python would make bytes of its own.
        source = make_wheel(
            folder / "in", files={"pkg/code.py": CODE, "pkg/b.py": b"b"}, method=zipfile.ZIP_STORED
        )
        digests.add(derive_patched(source, [("p", EDIT)], folder))
    assert digests == {
        (
            "sample-1.0+patched.ab83bec0-py3-none-any.whl",
            Digest("sha256:b56630d380ddd7f75c48c34b7832ea5a14a347c951c4b045cd176ece80970ef0"),
        )
    }


def test_versions() -> None:
    wheel, patch, other = Digest.of(b"wheel"), Digest.of(b"patch"), Digest.of(b"other")
    plain = patched_version("0.5.9", wheel, [patch])
    assert plain.startswith("0.5.9+patched.")
    assert patched_version("0.3.21+cu130", wheel, [patch]).startswith("0.3.21+cu130.patched.")
    different = {
        plain,
        patched_version("0.5.9", wheel, [patch, other]),
        patched_version("0.5.9", wheel, [other, patch]),
    }
    assert len(different) == 3
    assert patched_version("0.5.9", other, [patch]) != plain


def test_patches_build_on_each_other(tmp_path: Path) -> None:
    second = b"--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -4 +4 @@\n-line four\n+line vier\n"
    assert b"line vier\n" in derive(tmp_path, EDIT, second).read("pkg/code.py")


NEW = b"diff --git a/pkg/new.py b/pkg/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/pkg/new.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"
GOOD: dict[str, tuple[bytes, dict[str, bytes | None]]] = {
    "a new file": (NEW, {"pkg/new.py": b"a\nb\n"}),
    "a new file, no git": (b"--- /dev/null\t1970\n+++ b/new.py\t2020\n@@ -0,0 +1 @@\n+a\n", {"new.py": b"a\n"}),
    "an empty new file": (
        b"diff --git a/pkg/e.py b/pkg/e.py\nnew file mode 100644\nindex 0000000..e69de29\n",
        {"pkg/e.py": b""},
    ),
    "a deletion": (
        b"diff --git a/pkg/last.py b/pkg/last.py\ndeleted file mode 100644\n--- a/pkg/last.py\n+++ /dev/null\n"
        b"@@ -1,2 +0,0 @@\n-one\n-two\n\\ No newline at end of file\n",
        {"pkg/last.py": None},
    ),
    "a deletion of an empty file": (
        b"diff --git a/pkg/__init__.py b/pkg/__init__.py\ndeleted file mode 100644\nindex e69de29..0000000\n",
        {"pkg/__init__.py": None},
    ),
    "a rename": (
        b"diff --git a/pkg/last.py b/pkg/other.py\nsimilarity index 100%\nrename from pkg/last.py\nrename to pkg/other.py\n",
        {"pkg/last.py": None, "pkg/other.py": b"one\ntwo"},
    ),
    "a rename with an edit": (
        b"diff --git a/pkg/last.py b/pkg/x/other.py\nsimilarity index 60%\nrename from pkg/last.py\n"
        b"rename to pkg/x/other.py\nindex 1..2 100644\n--- a/pkg/last.py\n+++ b/pkg/x/other.py\n"
        b"@@ -1,2 +1,2 @@\n-one\n+eins\n two\n\\ No newline at end of file\n",
        {"pkg/last.py": None, "pkg/x/other.py": b"eins\ntwo"},
    ),
    "a newline at the end": (
        b"--- a/pkg/last.py\n+++ b/pkg/last.py\n@@ -2 +2 @@\n-two\n\\ No newline at end of file\n+two\n",
        {"pkg/last.py": b"one\ntwo\n"},
    ),
    "no newline at the end": (
        b"--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -30 +30 @@\n-line 30\n+line 30\n\\ Pas de fin de ligne\n",
        {"pkg/code.py": CODE[:-1]},
    ),
    "carriage returns": (
        b"--- a/pkg/crlf.py\n+++ b/pkg/crlf.py\n@@ -1,3 +1,3 @@\n one\r\n-two\r\n+2\r\n three\r\n",
        {"pkg/crlf.py": b"one\r\n2\r\nthree\r\n"},
    ),
    "line ends that only Python sees": (
        b"--- a/pkg/feed.py\n+++ b/pkg/feed.py\n@@ -1,2 +1,2 @@\n one\x0ctwo\n-three\xe2\x80\xa8four\n+x\n",
        {"pkg/feed.py": b"one\x0ctwo\nx\n"},
    ),
    "a quoted name": (
        b'diff --git "a/pkg/gr\\303\\266\\303\\237e.py" "b/pkg/gr\\303\\266\\303\\237e.py"\n'
        b'--- "a/pkg/gr\\303\\266\\303\\237e.py"\n+++ "b/pkg/gr\\303\\266\\303\\237e.py"\n@@ -1 +1 @@\n-a\n+b\n',
        {"pkg/gr\u00f6\u00dfe.py": b"b\n"},
    ),
    "an insertion without context": (
        b"--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -2,0 +3 @@\n+new\n",
        {"pkg/code.py": CODE.replace(b"line 2\n", b"line 2\nnew\n")},
    ),
    "a removal without context": (
        b"--- a/pkg/code.py\n+++ b/pkg/code.py\n@@ -3,2 +2,0 @@\n-line 3\n-line 4\n",
        {"pkg/code.py": CODE.replace(b"line 3\nline 4\n", b"")},
    ),
    "a mail around it": (
        b"From 1234 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] a thing\n\n---\n pkg/new.py | 2 ++\n" + NEW + b"-- \n2.39.5\n\n",
        {"pkg/new.py": b"a\nb\n"},
    ),
    "lines that look like headers": (
        b"--- a/pkg/last.py\n+++ b/pkg/last.py\n@@ -1,2 +1,3 @@\n one\n+-- a/b\n two\n\\ No newline at end of file\n",
        {"pkg/last.py": b"one\n-- a/b\ntwo"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GOOD)
def test_what_patches_do(case: str, tmp_path: Path) -> None:
    patch, wanted = GOOD[case]
    wheel = derive(tmp_path, patch)
    for path, content in wanted.items():
        assert (wheel.read(path) if wheel.member(path) else None) == content


@pytest.mark.parametrize("case", GOOD)
def test_git_does_the_same(case: str, tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.skip("git is not installed")
    patch, wanted = GOOD[case]
    for path, content in FILES.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.data if isinstance(content, Content) else content)
    command = ["git", "apply", "--unidiff-zero", "-p1", "-"]
    environment = {
        "PATH": "/usr/bin:/bin",
        "GIT_CEILING_DIRECTORIES": str(tmp_path.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    subprocess.run(command, input=patch, cwd=tmp_path, env=environment, check=True, capture_output=True)
    for path, content in wanted.items():
        assert ((tmp_path / path).read_bytes() if (tmp_path / path).exists() else None) == content


@pytest.mark.parametrize(("old", "new"), [("pkg/tool", b"644"), ("pkg/code.py", b"755")])
def test_modes(old: str, new: bytes, tmp_path: Path) -> None:
    before = b"755" if new == b"644" else b"644"
    name = old.encode()
    patch = b"diff --git a/%s b/%s\nold mode 100%s\nnew mode 100%s\n" % (name, name, before, new)
    member = derive(tmp_path, patch).member(old)
    assert member
    assert member.is_executable == (new == b"755")


HEAD = b"--- a/pkg/code.py\n+++ b/pkg/code.py\n"
BAD: dict[str, tuple[bytes, str]] = {
    "other context": (HEAD + b"@@ -2,2 +2,2 @@\n line 2\n-line x\n+y\n", r"hunk @@ -2,2(?s:.)*line 3: 'line 3(?s:.)*line x"),
    "one line off": (HEAD + b"@@ -3,2 +3,2 @@\n line 2\n-line 3\n+y\n", "seen:   line 3: 'line 3"),
    "blanks that differ": (HEAD + b"@@ -2 +2 @@\n-line  2\n+y\n", "does not apply"),
    "carriage returns that differ": (HEAD + b"@@ -2 +2 @@\r\n-line 2\r\n+y\r\n", "does not apply"),
    "beyond the end": (HEAD + b"@@ -31 +31 @@\n-line 31\n+y\n", "the end of the file"),
    "far beyond the end": (HEAD + b"@@ -99 +99 @@\n-line 99\n+y\n", "line 99 of 30"),
    "hunks in the wrong order": (HEAD + b"@@ -9 +9 @@\n-line 9\n+y\n@@ -2 +2 @@\n-line 2\n+y\n", "hunks in order"),
    "a new start that is wrong": (HEAD + b"@@ -2 +5 @@\n-line 2\n+y\n", "of the new file"),
    "a newline that is there": (HEAD + b"@@ -30 +30 @@\n-line 30\n\\ No newline at end of file\n+y\n", "does not apply"),
    "a newline missing in the middle": (HEAD + b"@@ -2 +2 @@\n-line 2\n+y\n\\ No newline at end of file\n", "without an end"),
    "already applied": (HEAD + b"@@ -2 +2 @@\n-line zwei\n+line 2\n", "does not apply"),
    "no such file": (b"--- a/pkg/gone.py\n+++ b/pkg/gone.py\n@@ -1 +1 @@\n-a\n+b\n", "there is no pkg/gone.py"),
    "a repository's path": (b"--- a/python/pkg/code.py\n+++ b/python/pkg/code.py\n@@ -2 +2 @@\n-a\n+b\n", r"is it pkg/code\.py"),
    "a path of level p0": (b"--- code.py\n+++ code.py\n@@ -2 +2 @@\n-a\n+b\n", "p1"),
    "a new file that is there": (NEW.replace(b"new.py", b"code.py"), "there already"),
    "a rename onto a file": (
        b"diff --git a/pkg/last.py b/pkg/code.py\nsimilarity index 100%\nrename from pkg/last.py\nrename to pkg/code.py\n",
        "there already",
    ),
    "an incomplete deletion": (b"--- a/pkg/code.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-line 1\n", "without taking all"),
    "a path outside": (NEW.replace(b"pkg/new.py", b"../../new.py"), "astray"),
    "metadata": (NEW.replace(b"pkg/new.py", b"sample-1.0.dist-info/METADATA"), "overrid"),
    "another mode": (b"diff --git a/pkg/tool b/pkg/tool\nold mode 100644\nnew mode 100755\n", "mode"),
    "a link": (b"diff --git a/pkg/l b/pkg/l\nnew file mode 120000\n--- /dev/null\n+++ b/pkg/l\n@@ -0,0 +1 @@\n+a\n", "a link"),
    "binary": (b"diff --git a/pkg/x b/pkg/x\nindex 1..2 100644\nGIT binary patch\nliteral 5\nabc\n", "binary"),
    "binary that differs": (b"diff --git a/pkg/x b/pkg/x\nBinary files a/pkg/x and b/pkg/x differ\n", "binary"),
    "a copy": (b"diff --git a/pkg/code.py b/pkg/c.py\nsimilarity index 100%\ncopy from pkg/code.py\ncopy to pkg/c.py\n", "copy"),
    "two names": (b"--- a/pkg/code.py\n+++ b/pkg/last.py\n@@ -2 +2 @@\n-line 2\n+y\n", "two names"),
    "no diff": (b"This is a letter.\n", "no unified diff"),
    "empty": (b"", "no unified diff"),
    "no hunks": (HEAD, "no hunk"),
    "a hunk of no file": (b"@@ -2 +2 @@\n-line 2\n+y\n", "belongs to no file"),
    "cut off": (EDIT[:120], "end of the patch|belongs to no hunk|numbers"),
    "too few lines announced": (HEAD + b"@@ -2 +2 @@\n-line 2\n+y\n+z\n", "too few lines"),
    "too many lines announced": (HEAD + b"@@ -2,3 +2,3 @@\n-line 2\n+y\n", "end of the patch"),
    "counts that do not fit": (HEAD + b"@@ -2,2 +2,1 @@\n-line 2\n+y\n+z\n-line 3\n", "numbers of lines"),
    "junk in a hunk": (HEAD + b"@@ -2,2 +2,2 @@\n line 2\nwhat is this\n", "belongs to no hunk"),
    "nothing on both sides": (b"--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "neither"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_patch_that_does_not_apply_exactly_is_an_error(case: str, tmp_path: Path) -> None:
    patch, message = BAD[case]
    with pytest.raises(ArtefactUnusable) as caught:
        derive(tmp_path, patch)
    assert caught.match("(?s)" + message.replace("(?s:.)", ".")) or message in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


lines = st.lists(
    st.sampled_from(["a", "b", "c", "", "x\r", "\x0c", "- d", "+e", "@@ f", "\\ g"]), max_size=14
)


@settings(deadline=None, max_examples=300)
@given(lines, lines, st.booleans(), st.booleans(), st.integers(0, 3))
def test_a_diff_leads_from_one_text_to_the_other(
    old: list[str], new: list[str], old_end: bool, new_end: bool, context: int
) -> None:
    before, after = (
        "\n".join(side) + ("\n" if side and end else "") for side, end in ((old, old_end), (new, new_end))
    )
    sides = [unified.split_lines(side.encode()) for side in (before, after)]
    text = [[line.decode() for line in side] for side in sides]
    patch = b""
    for line in difflib.unified_diff(*text, "a/f", "b/f", n=context):
        patch += line.encode()
        if not line.endswith("\n"):
            patch += b"\n\\ No newline at end of file\n"
    if patch:
        (file,) = unified.parse("p", patch)
        assert unified.apply("p", file, before.encode()) == after.encode()


def test_damaged_patches_are_errors_of_their_own() -> None:
    for at in range(len(EDIT)):
        for damaged in (EDIT[:at], EDIT[:at] + b"\xff" + EDIT[at + 1 :], EDIT[:at] + b"\n" + EDIT[at:]):
            try:
                for file in unified.parse("p", damaged):
                    unified.apply("p", file, CODE)
            except ArtefactUnusable:
                continue


def test_metadata_keeps_its_description(tmp_path: Path) -> None:
    body = "Summary: x\n\nVersion: 9 is what this line says\n"
    source = make_wheel(tmp_path, files={"pkg/code.py": CODE}, metadata=body)
    filename, _ = derive_patched(source, [("p", EDIT)], tmp_path)
    with Wheel.open(tmp_path / filename) as wheel:
        text = wheel.read(f"{wheel.dist_info}/METADATA").decode()
    assert text.endswith(body)
    assert f"\nVersion: {wheel.version}\n" in text


def test_zip64_is_written_where_it_is_needed(tmp_path: Path) -> None:
    """Offsets above 4 GiB, in a sparse file."""
    path = tmp_path / "large.zip"
    with path.open("wb") as out:
        writer = ZipWriter(out)
        writer.add("first", 0o100644, 0, crc=0xA684C7C6, size=1, compressed=1, data=[b"0"])
        hole = 0x1_0000_0000
        out.seek(hole)
        writer._at = hole
        writer.add("second", 0o100644, 0, crc=0xA684C7C6, size=1, compressed=1, data=[b"0"])
        writer.finish()
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
        assert [info.filename for info in infos] == ["first", "second"]
        assert infos[1].header_offset == hole
