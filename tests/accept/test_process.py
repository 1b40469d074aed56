"""Servers as processes: started, watched, ended, and never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from imagebuilder.accept.process import FreePort, ProcessRuntime, with_option
from imagebuilder.accept.server import Launch, Script, lost, redact, wait_healthy
from imagebuilder.errors import MachineLacks, NotAccepted
from imagebuilder.progress import Silent
from imagebuilder.stack import find_stack, load_stack
from tests.support.command import ROOT, WAIT

DEMO = load_stack(find_stack("demo", Path("/")))


def launch(*flags: str, program: str = "python3") -> Launch:
    words = (program, "-m", "sglang_simulator", "--model-path", "m", "--host", "0.0.0.0", "--port", "8000")
    return Launch(arm="baseline", command=(*words, *flags), port=8000, gpus="none", secrets={"KEY": "s3cr3t"})


@pytest.fixture
def runtime() -> Iterator[ProcessRuntime]:
    with ProcessRuntime(DEMO, os.environ) as made:
        yield made


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_from_the_stacks_own_files(runtime: ProcessRuntime) -> None:
    server = runtime.start(launch())
    took = asyncio.run(wait_healthy(server, launch(), WAIT, Silent()))
    assert 0 < took < WAIT
    assert server.ended() is None
    assert any("Uvicorn running on http://127.0.0.1" in line for line in server.log(10))
    server.stop()
    server.stop()
    assert server.ended() is not None


def test_a_server_that_crashes_at_its_start(runtime: ProcessRuntime) -> None:
    server = runtime.start(launch("--sim-fault", "start-crash"))
    with pytest.raises(NotAccepted) as failed:
        asyncio.run(wait_healthy(server, launch(), WAIT, Silent()))
    text = str(failed.value)
    assert "the baseline server ended while starting (exit status 1)" in text
    assert "CUDA out of memory" in text
    assert "--mem-fraction-static" in text


def test_a_command_line_that_the_server_does_not_take(runtime: ProcessRuntime) -> None:
    server = runtime.start(launch("--no-such-flag"))
    with pytest.raises(NotAccepted, match="exit status 2") as failed:
        asyncio.run(wait_healthy(server, launch(), WAIT, Silent()))
    assert "other arguments" in str(failed.value)


def test_a_slow_start_shows_what_the_server_says(
    runtime: ProcessRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    reporter = Silent()
    monkeypatch.setattr(reporter, "note", notes.append)
    monkeypatch.setattr("imagebuilder.accept.server._TELL_EVERY", 0.2)
    server = runtime.start(launch("--sim-startup", "4"))
    asyncio.run(wait_healthy(server, launch(), WAIT, reporter))
    assert any("baseline after" in note and "Load weight begin." in note for note in notes)


def test_a_server_that_is_too_slow(runtime: ProcessRuntime) -> None:
    server = runtime.start(launch("--sim-startup", "60"))
    with pytest.raises(NotAccepted, match=r"not healthy after 0\.5 s"):
        asyncio.run(wait_healthy(server, launch(), 0.5, Silent()))


def test_a_program_that_is_not_there(runtime: ProcessRuntime) -> None:
    with pytest.raises(MachineLacks, match="no-such-program cannot be started here"):
        runtime.start(launch(program="no-such-program"))


def test_servers_die_with_the_process_that_started_them() -> None:
    """Even when that is killed."""
    code = (
        "import os, sys; from pathlib import Path; from tests.accept.test_process import *\n"
        "runtime = ProcessRuntime(DEMO, os.environ)\n"
        "server = runtime.start(launch())\n"
        "print(server._process.pid, runtime._root, flush=True)\n"
        "import time; time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    assert alive(int(pid))
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + WAIT
    while alive(int(pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    subprocess.run(["rm", "-rf", folder], check=True)


def test_a_port_is_nobody_elses_and_a_server_can_listen_on_it() -> None:
    with closing(FreePort()) as port:
        with pytest.raises(OSError, match="in use"):
            FreePort(number=port.number)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port.number))
        with socket.create_server(("127.0.0.1", port.number)):
            socket.create_connection(("127.0.0.1", port.number)).close()


SCRIPT = "import json, sys; print(json.dumps([json.load(open(sys.argv[1])), 1]))"


def test_a_script(runtime: ProcessRuntime) -> None:
    assert json.loads(runtime.run(Script(name="x", source=SCRIPT, data=b'{"a": 1}'), launch(), 60)) == [
        {"a": 1},
        1,
    ]


def test_scripts_that_fail(runtime: ProcessRuntime) -> None:
    failing = Script(name="failing", source="raise SystemExit('it is broken')", data=b"")
    with pytest.raises(NotAccepted, match="failing failed with exit status 1") as failed:
        runtime.run(failing, launch(), WAIT)
    assert "it is broken" in str(failed.value)
    with pytest.raises(NotAccepted, match=r"endless did not end within 0\.5 s"):
        runtime.run(Script(name="endless", source="import time; time.sleep(60)", data=b""), launch(), 0.5)


def test_the_probe_and_the_tokenizer_as_they_are_sent(runtime: ProcessRuntime) -> None:
    folder = ROOT / "imagebuilder" / "accept"
    asked = {
        "packages": ["fastapi", "uvicorn", "not-there"],
        "jobs": 2,
        "timeout": 60,
        "folders": ["/tmp", "/proc/x"],
    }
    probe = Script(name="probe", source=(folder / "probe.py").read_text(), data=json.dumps(asked).encode())
    told = json.loads(runtime.run(probe, launch(), WAIT))
    assert set(told["packages"]) == {"fastapi", "uvicorn"}
    assert told["packages"]["fastapi"]["modules"] == ["fastapi"]
    assert told["packages"]["fastapi"]["error"] == ""
    assert told["folders"]["/tmp"] == ""
    assert told["folders"]["/proc/x"]
    assert told["shm"] > 0
    asked = {
        "model": "m",
        "revision": None,
        "draft": "d",
        "draft_revision": None,
        "trust": False,
        "prompts": ["x"],
    }
    script = Script(
        name="tokenizing", source=(folder / "tokenizing.py").read_text(), data=json.dumps(asked).encode()
    )
    told = json.loads(runtime.run(script, launch(), WAIT))
    assert told["ids"] is None
    assert told["why"]
    assert (told["target"], told["draft"]) == (None, None)


def test_secrets_do_not_get_into_errors() -> None:
    class Talkative:
        url = ""

        def ended(self) -> str | None:
            return "exit status 1"

        def log(self, lines: int) -> list[str]:
            return ["server_args=ServerArgs(api_key='s3cr3t', token=s3cr3t)"]

        def stop(self) -> None:
            pass

    text = str(lost(Talkative(), launch(), "ended"))
    assert "s3cr3t" not in text
    assert "(redacted)" in text
    assert redact(["a", ""], {"EMPTY": ""}) == ["a", ""]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("x", "--port", "1"), ("x", "--port", "9")),
        (("x", "--port=1", "y"), ("x", "--port=9", "y")),
        (("x",), ("x",)),
        (("x", "--port"), ("x", "--port")),
        (("x", "--portable", "1"), ("x", "--portable", "1")),
    ],
)
def test_another_value_of_an_option(words: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    assert with_option(words, "--port", "9") == wanted
