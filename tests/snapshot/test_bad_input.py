"""What is no Python, what is broken, what is hostile: a clear word for each, and never a traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imagebuilder.lock import read_lock
from tests.snapshot.conftest import TEXT, Place


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\nkill -SEGV $$\n", "signal 11"),
        ("#!/bin/sh\necho broken >&2; exit 3\n", "exit status 3: broken"),
        ("#!/bin/sh\necho hello\n", "it answers b'hello"),
        ("#!/bin/sh\necho '{\"imagebuilder\": 1}'\n", "its answer lacks"),
        ("#!/bin/sh\necho '[1]'\n", "it answers"),
        ("not a program\n", "is no Python that works"),
        (
            '#!/bin/sh\necho \'{"imagebuilder": 1, "implementation": "pypy", "version": "3.11.1", '
            '"system": "linux", "machine": "x86_64", "libc": "glibc 2.36", "prefix": "/x", "base": "/x", '
            '"sites": []}\'\n',
            "pypy 3.11.1 linux x86_64",
        ),
    ],
)
def test_what_is_no_python(place: Place, text: str, words: str) -> None:
    outcome = place.call("snapshot", "--python", script(place.folder / "python", text))
    assert outcome.code == 2
    assert words in outcome.err and "Traceback" not in outcome.err


def test_paths_that_are_none(place: Place) -> None:
    for path in ("/nonexistent/python", str(place.folder), "/"):
        outcome = place.call("snapshot", "--python", path)
        assert outcome.code == 2 and "is no Python" in outcome.err
    plain = place.folder / "plain"
    plain.write_text("x")
    outcome = place.call("snapshot", "--python", str(plain))
    assert outcome.code == 2 and "Permission denied" in outcome.err


def test_a_place_that_cannot_be_written_is_known_before(place: Place) -> None:
    blocked = place.folder / "file"
    blocked.touch()
    for more in ((), ("--dry-run",)):
        outcome = place.call(
            "snapshot", "--python", "/nonexistent/python", "--output", str(blocked / "below"), *more
        )
        assert outcome.code == (2 if more else 6) and ("--output" in outcome.err) != bool(more), outcome.err


def test_an_empty_environment_has_nothing_to_lock(place: Place) -> None:
    outcome = place.snapshot()
    assert outcome.code == 12 and "no package of" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--python", "x", "--image", "y"),
        ("--python", "x", "--prefix", "/usr"),
        ("--image", "x:1", "--env", "A"),
        ("--python", "x", "--name", "Not A Name"),
        ("--python", "x", "--as-of", "yesterday"),
        ("--python", "x", "--as-of", "2026-01-01"),
        ("--python", "x", "--gpu", "geforce"),
        ("--python", "x", "--driver", "new"),
        ("--python", "x", "--index", "nonsense"),
        ("--python", "x", "--index", "default=https://x.example/simple"),
        ("--image", "NOT/an IMAGE"),
        ("--image", "x:1", "--platform", "windows/amd64"),
    ],
)
def test_options_that_do_not_go_together(place: Place, arguments: tuple[str, ...]) -> None:
    outcome = place.call("snapshot", "--offline", *arguments)
    assert outcome.code == 2, outcome.err
    assert "Traceback" not in outcome.err


def test_dist_info_without_metadata_or_record(place: Place) -> None:
    for name in ("alpha", "beta", "gamma"):
        place.publish(name)
    place.install("alpha", "beta", "gamma")
    (place.site / "alpha-1.0.dist-info" / "METADATA").unlink()
    (place.site / "beta-1.0.dist-info" / "RECORD").unlink()
    (place.site / "gamma-1.0.dist-info" / "RECORD").write_bytes(b'"unclosed\x00\xff\n,,,\n')
    (place.site / "beta" / "text.py").write_bytes(TEXT + b"edited\n")
    said = place.taken()["by-name"]
    assert said["alpha"]["state"] == "equal"
    assert [c["what"] for c in said["alpha"]["changes"]] == ["metadata"]
    assert said["beta"]["state"] == "patched" and not said["beta"]["proven"]
    assert "no RECORD" in said["beta"]["notes"][0]
    assert said["gamma"]["state"] == "equal"


def test_a_hostile_record_is_never_followed(place: Place) -> None:
    place.publish("alpha")
    place.install("alpha")
    record = place.site / "alpha-1.0.dist-info" / "RECORD"
    secret = place.folder / "secret"
    secret.write_text("canary-canary")
    rows = [
        "../../../../secret,,",
        "/etc/passwd,,",
        "../" * 40 + "etc/shadow,,",
        f"{'x' * 5000},,",
        "a\x00b,,",
    ]
    record.write_text(record.read_text() + "\n".join(rows) + "\n")
    outcome = place.snapshot()
    assert outcome.code == 0, outcome.err
    assert "paths outside of the environment" in outcome.out
    written = "".join(p.read_text() for p in place.stacks.rglob("*") if p.is_file())
    assert "canary" not in written + outcome.out and "root:" not in written


def test_files_that_cannot_be_read_are_named(place: Place) -> None:
    place.publish("alpha")
    place.publish("beta")
    place.install("alpha", "beta")
    broken = place.site / "alpha" / "text.py"
    broken.unlink()
    broken.symlink_to("/proc/self/mem")  # a file that even root cannot read
    said = place.taken(code=12)["by-name"]
    assert said["alpha"]["state"] == "unlockable" and "cannot be read" in said["alpha"]["problem"]
    assert [w.name for w in read_lock(place.stacks / "pylock.s.toml").wheels] == ["beta"]


def test_odd_things_in_site_packages(place: Place) -> None:
    """Two of one name, leftovers of pip, eggs, names that are none, links in circles, a pipe."""
    place.publish("alpha")
    place.publish("beta")
    place.publish("beta", "2.0")
    place.install("alpha", "beta==1.0")
    (place.site / "beta-2.0.dist-info").mkdir()
    (place.site / "~lpha-0.9.dist-info").mkdir()
    (place.site / "old-1.0-py3.11.egg-info").write_text("Metadata-Version: 1.0\nName: old\nVersion: 1.0\n")
    (place.site / "linked.egg-link").write_text("/home/me/src\n.\n")
    (place.site / "legacy-2004d.dist-info").mkdir()
    (place.site / ".dist-info").mkdir()
    (place.site / "circle").symlink_to("circle")
    os.mkfifo(place.site / "pipe")
    said = place.taken(code=12)["by-name"]
    assert "it is there twice" in said["beta"]["problem"]
    assert "without a wheel" in said["old"]["problem"]
    assert "editable form from /home/me/src" in said["linked"]["problem"]
    assert "PEP 440" in said["legacy"]["problem"]
    assert said["alpha"]["state"] == "equal"
