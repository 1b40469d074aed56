"""Runs inside the pod of an acceptance, with the image's own Python: starts servers, and tells how they are.

Sent there as text, so it needs nothing but Python's standard library (3.8 or newer). It listens on the pod's
loopback address only; requests are JSON with `do`, answers are JSON. When nobody has asked anything for
a while, it ends, and everything that it started with it.

Environment: IMAGEBUILDER_AGENT = {"port": …, "silence": seconds, "secrets": [names of variables]}.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SETTINGS: "dict[str, Any]" = json.loads(os.environ.pop("IMAGEBUILDER_AGENT", "{}"))
FOLDER = Path(tempfile.mkdtemp(prefix="imagebuilder-"))
TAIL = 1 << 16
GONE_SECONDS = 20
servers: "dict[str, subprocess.Popen[bytes]]" = {}
heard = time.monotonic()


def redacted(text: str) -> str:
    """Without the values of secrets."""
    for name in SETTINGS.get("secrets", ()):
        if os.environ.get(name):
            text = text.replace(os.environ[name], "(redacted)")
    return text


def tail(path: Path, lines: int) -> "list[str]":
    """The last lines of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        return redacted(file.read().decode(errors="replace")).splitlines()[-lines:]


def popen(words: "list[str]", env: "dict[str, str]", out: Any, err: Any) -> "subprocess.Popen[bytes]":
    """In a session of its own, so that all of it can be ended."""
    return subprocess.Popen(
        words,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )


def kill(process: "subprocess.Popen[bytes]") -> None:
    """It and what it started, and wait until all of it is gone: its GPU memory is then free again."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + GONE_SECONDS
    with contextlib.suppress(OSError):  # no such group
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)


def start(asked: "dict[str, Any]") -> "dict[str, Any]":
    """A server; its output goes to a file."""
    with (FOLDER / asked["name"]).open("wb") as log:
        try:
            servers[asked["name"]] = popen(asked["words"], asked["env"], log, subprocess.STDOUT)
        except OSError as error:
            return {"error": error.strerror or str(error)}
    return {}


def state(asked: "dict[str, Any]") -> "dict[str, Any]":
    """How it ended, None while it runs; and whether its port takes connections."""
    status = servers[asked["name"]].poll()
    if status is not None:
        return {"ended": f"exit status {status}" if status >= 0 else f"killed by signal {-status}"}
    with socket.socket() as trying:
        trying.settimeout(1)
        return {"ended": None, "listening": trying.connect_ex(("127.0.0.1", asked["port"])) == 0}


def run(asked: "dict[str, Any]") -> "dict[str, Any]":
    """A script with one JSON file, to its end."""
    program, data, log = (FOLDER / f"{asked['name']}.{suffix}" for suffix in ("py", "json", "log"))
    program.write_text(asked["source"], encoding="utf-8")
    data.write_text(asked["data"], encoding="utf-8")
    with log.open("wb") as err:
        process = popen([sys.executable, str(program), str(data)], asked["env"], subprocess.PIPE, err)
        try:
            out, _ = process.communicate(timeout=asked["timeout"])
        except subprocess.TimeoutExpired:
            kill(process)
            return {"status": None}
    return {"status": process.returncode, "out": out.decode(errors="replace"), "log": tail(log, 20)}


def stop(asked: "dict[str, Any]") -> "dict[str, Any]":
    """End a server."""
    kill(servers[asked["name"]])
    return {}


def end(_: Any = None) -> "dict[str, Any]":
    """Everything, and then the pod."""
    threading.Timer(0.2, finish).start()
    return {}


def finish(*_: Any) -> None:
    """Never returns."""
    for process in servers.values():
        kill(process)
    os._exit(0)


def watch() -> None:
    """End when whoever started this is gone."""
    while time.monotonic() - heard < SETTINGS["silence"]:
        time.sleep(1)
    print("nobody asks any more", flush=True)
    finish()


ORDERS: "dict[str, Any]" = {
    "start": start,
    "state": state,
    "run": run,
    "stop": stop,
    "end": end,
    "log": lambda asked: {"lines": tail(FOLDER / asked["name"], asked["lines"])},
    "beat": lambda _: {},
}


class Handler(BaseHTTPRequestHandler):
    """One order a request."""

    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        """Carry it out."""
        global heard  # noqa: PLW0603 - the program is this one module
        heard = time.monotonic()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(ORDERS[asked["do"]](asked)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def main() -> None:
    """Serve until told to end."""
    server = ThreadingHTTPServer(("127.0.0.1", SETTINGS["port"]), Handler)
    signal.signal(signal.SIGTERM, finish)
    threading.Thread(target=watch, daemon=True).start()
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
