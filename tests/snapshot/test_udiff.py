"""Unified diffs: whatever the two texts are, applying gives the second."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.facts import unified
from imagebuilder.snapshot.udiff import NotText, file_patch

LINES = st.lists(
    st.sampled_from(["a", "b", "", "-- x", "++ y", "@@ -1 +1 @@", "\\ No newline", "c\r", "é"]), max_size=40
)
TEXTS = st.builds(lambda lines, end: ("\n".join(lines) + end).encode(), LINES, st.sampled_from(["", "\n"]))


@given(TEXTS, TEXTS | st.none())
def test_a_patch_gives_the_text(before: bytes, after: bytes | None) -> None:
    if before == after:
        return
    try:
        patch = file_patch("p/x.py", before, after)
    except NotText as error:
        assert "look like a patch" in str(error) or (after is None and not before)
        return
    (file,) = unified.parse("x", patch)
    assert unified.apply("x", file, before) == (after or b"")
    assert file.new == (None if after is None else "p/x.py")


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@given(TEXTS, TEXTS)
def test_patch_itself_takes_it(tmp_path_factory: pytest.TempPathFactory, before: bytes, after: bytes) -> None:
    if before == after:
        return
    try:
        patch = file_patch("x.py", before, after)
    except NotText:
        return
    folder = tmp_path_factory.mktemp("patch")
    (folder / "x.py").write_bytes(before)
    words = ["patch", "-p1", "--binary", "--fuzz=0", "--quiet", "--no-backup-if-mismatch"]
    done = subprocess.run(words, cwd=folder, input=patch, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    present = folder / "x.py"
    assert (present.read_bytes() if present.exists() else b"") == after  # an empty file is removed by some
    shutil.rmtree(folder)


def test_large_files_take_no_time() -> None:
    before = b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(60_000))
    after = b"".join(b"%d\n" % (n * 7907 % 100_003) for n in range(60_000))
    assert file_patch("p/x.py", before, after)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("p/x.py", b"a\0b", b"c"),
        ("p/x.py", b"a", b"\xff\xfe"),
        ("p/a\tb.py", b"a\n", b"b\n"),
        ('p/"x".py', b"a\n", b"b\n"),
        ("p/é.py", b"a\n", b"b\n"),
        ("p/x.py", b"", None),
        ("p/x.py", b"a\n" * (1 << 20), b"b\n" * (1 << 20)),
    ],
)
def test_what_a_patch_cannot_say(path: str, before: bytes, after: bytes | None) -> None:
    with pytest.raises(NotText):
        file_patch(path, before, after)


def test_the_form(tmp_path: Path) -> None:
    before = b"".join(b"%d\n" % n for n in range(20))
    after = before.replace(b"3\n", b"three\n", 1).replace(b"18\n", b"")
    assert file_patch("p/x.py", before, after).decode() == (
        "--- a/p/x.py\n+++ b/p/x.py\n@@ -1,7 +1,7 @@\n 0\n 1\n 2\n-3\n+three\n 4\n 5\n 6\n"
        "@@ -16,5 +16,4 @@\n 15\n 16\n 17\n-18\n 19\n"
    )
