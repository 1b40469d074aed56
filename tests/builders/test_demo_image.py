"""The demo's image is an installed system: unpacked with `tar`, entered with `chroot`, used."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from imagebuilder.oci.layout import read_layout
from imagebuilder.oci.model import ImageConfig
from tests.support.command import Machine, give_files
from tests.support.debian import file, make_deb
from tests.support.golden import fetch
from tests.support.ports import free_ports

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ImageConfig]]:
    """(root folder, config) of the built and unpacked demo."""
    machine = Machine(root=tmp_path_factory.mktemp("demo"))
    give_files(fetch("demo", machine), machine.cache)
    machine.build("demo", "--offline")
    (stored,) = read_layout(machine.work / "images" / "demo")
    root = machine.root / "root"
    root.mkdir()
    for layer in stored.image.layers:
        unpack = ["tar", "--numeric-owner", "-xzpf", str(layer.path), "-C", str(root)]
        subprocess.run(unpack, check=True)
    null = root / "dev" / "null"
    null.unlink(missing_ok=True)
    os.mknod(null, 0o020666, os.makedev(1, 3))
    yield root, stored.image.config
    shutil.rmtree(root, ignore_errors=True)


def enter(image: tuple[Path, ImageConfig], *command: str) -> str:
    """Run a command as an engine would, but for its isolation; what it prints."""
    root, config = image
    env = {**dict(config.env), "HOME": "/root", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["chroot", str(root), *command], env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


FIND = "for name in pip uvicorn fastapi; do command -v $name; done; uvicorn --version"


def test_python_finds_what_is_installed(image: tuple[Path, ImageConfig]) -> None:
    assert "No broken requirements" in enter(image, "python3", "-m", "pip", "check")
    listed = dict(line.split("==") for line in enter(image, "pip", "freeze", "--all").splitlines())
    code = (
        "import sys, fastapi, pydantic_core, uvicorn; from importlib.metadata import version, entry_points;"
        "print(sys.prefix, version('fastapi'), fastapi.__version__);"
        "print([e.name for e in entry_points(group='console_scripts') if e.name == 'uvicorn'])"
    )
    answer = enter(image, "python3", "-c", code)
    assert answer.split()[:3] == ["/opt/venv", listed["fastapi"], listed["fastapi"]]
    assert "uvicorn" in answer
    scripts = enter(image, "sh", "-c", FIND).splitlines()
    assert scripts[:3] == ["/opt/venv/bin/pip", "/opt/venv/bin/uvicorn", "/opt/venv/bin/fastapi"]
    assert f"Running uvicorn {listed['uvicorn']}" in scripts[3]
    assert not list((image[0] / "opt" / "venv").rglob("*.pyc"))


def test_debian_is_whole_and_takes_more(image: tuple[Path, ImageConfig]) -> None:
    assert enter(image, "dpkg", "--audit") == ""
    assert "ii  python3 " in enter(image, "dpkg", "-l", "python3")
    deb = make_deb(
        "greeter",
        [file("./usr/bin/greet", b"#!/bin/sh\necho hello\n", 0o755)],
        architecture="all",
        control={"Depends": "python3, libc6"},
        scripts={"postinst": "#!/bin/sh\nset -e\ntouch /var/lib/greeted\n"},
    )
    (image[0] / "tmp" / "greeter.deb").write_bytes(deb)
    enter(image, "apt-get", "install", "-y", "-q", "/tmp/greeter.deb")
    assert enter(image, "greet") == "hello\n"
    assert (image[0] / "var" / "lib" / "greeted").exists()
    enter(image, "apt-get", "purge", "-y", "-q", "greeter")
    assert enter(image, "dpkg", "--audit") == ""


def test_its_own_command_serves(image: tuple[Path, ImageConfig]) -> None:
    root, config = image
    with ExitStack() as held:
        _serves(root, config, free_ports(1, held))


def _serves(root: Path, config: ImageConfig, port: int) -> None:
    command = [*config.entrypoint, *config.command]
    assert "8000" in command
    command[command.index("8000")] = str(port)
    words = ["chroot", str(root), "/usr/bin/env", "-C", config.workdir or "/", *command]
    with subprocess.Popen(words, env={**dict(config.env), "HOME": "/root"}) as server:
        try:
            status = None
            while status is None:
                assert server.poll() is None, "the server has ended"
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=120) as answer:
                        status = answer.status
                except urllib.error.HTTPError as error:
                    status = error.code if error.code != 503 else None
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.1)  # it is still starting
            assert status == 200
        finally:
            server.terminate()
