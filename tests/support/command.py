"""The real command in a process of its own, in an environment that holds nothing of this machine's user.

machine = Machine(folder)                       # work/, home/ and cache/ below it
machine.run("build", "s.toml")                  # Outcome(code, out, err)
process = machine.start("build", "s.toml")      # a Popen; `outcome_of(process)` waits for it
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT = 500.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def digest(self) -> str:
        """What `build` prints. AssertionError with the command's words where it failed."""
        assert self.code == 0, f"exit {self.code}: {self.out}{self.err}"
        return self.out.strip()


@dataclass(kw_only=True)
class Machine:
    """Folders, environment and way of starting. python: the interpreter that has imagebuilder."""

    root: Path
    python: Path = Path(sys.executable)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        (self.root / "tmp").mkdir(exist_ok=True)

    @property
    def work(self) -> Path:
        """The current folder of commands."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        """HOME of commands."""
        return self.root / "home"

    @property
    def cache(self) -> Path:
        """imagebuilder's cache."""
        return self.root / "cache"

    def variables(self) -> dict[str, str]:
        """The whole environment of a command."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "TMPDIR": str(self.root / "tmp"),
            "IMAGEBUILDER_CACHE_DIR": str(self.cache),
            **self.environment,
        }

    def command(self, *arguments: str, prefix: Sequence[str] = ()) -> list[str]:
        """The words of the command line. prefix: a program that starts it."""
        return [*prefix, str(self.python), "-m", "imagebuilder", *arguments]

    def start(self, *arguments: str, prefix: Sequence[str] = (), **more: Any) -> subprocess.Popen[str]:
        """Start it in a session of its own; stdout and stderr are pipes."""
        more = {"cwd": self.work, "env": self.variables(), "start_new_session": True, **more}
        return subprocess.Popen(
            self.command(*arguments, prefix=prefix),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            **more,
        )

    def run(self, *arguments: str, prefix: Sequence[str] = (), **more: Any) -> Outcome:
        """Run it to its end."""
        return outcome_of(self.start(*arguments, prefix=prefix, **more))

    def build(self, *arguments: str, prefix: Sequence[str] = (), **more: Any) -> dict[str, Any]:
        """The direct builder's `build --json`: the build record. AssertionError where it fails."""
        outcome = self.run("build", "--builder", "direct", *arguments, "--json", prefix=prefix, **more)
        assert outcome.code == 0, f"exit {outcome.code}: {outcome.out}{outcome.err}"
        record: dict[str, Any] = json.loads(outcome.out)
        return record


def outcome_of(process: subprocess.Popen[str]) -> Outcome:
    """Wait for a started command."""
    try:
        out, err = process.communicate(timeout=WAIT)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return Outcome(code=process.returncode, out=out, err=err)


def give_files(files: Mapping[str, str], cache: Path, *, copied: bool = False) -> None:
    """Put these artefacts (path by sha256, as `fetch --json` says) into a cache.

    Hard links where possible; copied: files of their own, whose owner may change.
    """
    for digest, source in files.items():
        name = digest.removeprefix("sha256:")
        place = cache / "artefacts" / "sha256" / name[:2] / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            if copied:
                shutil.copy(source, place)
            else:
                os.link(source, place)
        except OSError:
            shutil.copy(source, place)


def leftovers(cache: Path) -> list[str]:
    """Files in a cache that are neither whole artefacts, records, locks nor uv's."""
    return [
        str(path.relative_to(cache))
        for folder in ("tmp", "partial")
        for path in sorted((cache / folder).rglob("*"))
    ]


def wrong_artefacts(cache: Path) -> list[str]:
    """Artefacts whose bytes are not those that their name promises."""
    return [
        path.name
        for path in sorted((cache / "artefacts").rglob("*"))
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() != path.name
    ]


def interpreters() -> Iterator[tuple[str, Path]]:
    """(release, path) of the other Pythons of this machine that imagebuilder runs on: PATH, then pyenv."""
    found: dict[str, Path] = {}
    folders = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    folders += sorted(Path("~/.pyenv/versions").expanduser().glob("*/bin"))
    for minor in (10, 11, 12, 13, 14):
        release = f"3.{minor}"
        for path in (folder / f"python{release}" for folder in folders):
            if release not in found and path.is_file() and _release(path) == release:
                found[release] = path
    own = f"3.{sys.version_info.minor}"
    yield from ((release, path) for release, path in found.items() if release != own)


def _release(python: Path) -> str:
    """`3.12`, or nothing where it does not start (a shim of a version manager)."""
    code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    environment = {"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")}
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def trusting() -> dict[str, str]:
    """This environment, for uv and requests: they do not see the authority that pip's configuration names."""
    from imagebuilder.settings import load

    bundle = load(os.environ).ca_bundle
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if bundle else ()
    return {**os.environ, **dict.fromkeys(names, str(bundle))}


def install(wheel: Path, folder: Path, python: Path, *more: str) -> Path:
    """Install a wheel of imagebuilder with its dependencies into a fresh environment; its interpreter.

    more: requirements. The dependencies come from the index that this machine is configured with.
    """
    import uv

    from imagebuilder.settings import load

    program = uv.find_uv_bin()
    index = load(os.environ).default_index
    quiet = {**trusting(), "UV_NO_PROGRESS": "1", **({"UV_DEFAULT_INDEX": index} if index else {})}
    subprocess.run([program, "venv", "--quiet", "--python", str(python), str(folder)], check=True, env=quiet)
    installed = folder / "bin" / "python"
    words = [program, "pip", "install", "--quiet", "--python", str(installed), str(wheel), *more]
    subprocess.run(words, check=True, env=quiet)
    return installed
