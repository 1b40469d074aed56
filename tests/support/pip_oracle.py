"""What pip really does, to compare with: a real venv and a real pip of one version, run from its wheel."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock
from packaging.utils import canonicalize_name, parse_wheel_filename

PIP = "26.3"

# path → (kind and mode, sha256 of the contents or target of the link)
Tree = dict[str, tuple[str, str]]


def pip_environment() -> dict[str, str]:
    """Nothing of this machine's pip configuration; only what reaches an index (for `download`)."""
    keep = ("PATH", "HOME", "SSL_CERT_FILE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    return {name: os.environ[name] for name in keep if name in os.environ}


def download(folder: Path, requirements: Sequence[str]) -> dict[str, Path]:
    """Wheels for this Python by `name==version`; the folder is shared by parallel test workers."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        found = _wheels_in(folder)
        missing = [text for text in requirements if _key(text) not in found]
        if missing:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary",
                ":all:",
            ]
            # Constraints and folders of this machine's configuration would choose other files.
            environment = {**os.environ, "PIP_CONSTRAINT": "", "PIP_FIND_LINKS": ""}
            subprocess.run([*command, "--dest", str(folder), *missing], check=True, env=environment)
            found = _wheels_in(folder)
    return {text: found[_key(text)] for text in requirements}


def _key(requirement: str) -> tuple[str, str]:
    name, _, version = requirement.partition("==")
    return canonicalize_name(name), version


def _wheels_in(folder: Path) -> dict[tuple[str, str], Path]:
    named = {path: parse_wheel_filename(path.name) for path in folder.glob("*.whl")}
    return {(name, str(version)): path for path, (name, version, _, _) in named.items()}


def make_venv(folder: Path) -> Path:
    """An empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, umask=0o022)
    return folder


def pip_install(
    venv: Path, pip_wheel: Path, links: Sequence[Path], requirements: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """`pip install` as the design has it, from these folders or wheels."""
    find = [argument for link in links for argument in ("--find-links", str(link))]
    command = [str(venv / "bin/python"), str(pip_wheel / "pip"), "install", "--no-index", *find, "--no-deps"]
    return subprocess.run(
        [*command, "--no-compile", "--no-cache-dir", "--disable-pip-version-check", *requirements],
        check=False,
        capture_output=True,
        text=True,
        umask=0o022,
        env={**pip_environment(), "PYTHONDONTWRITEBYTECODE": "1", "PIP_CONFIG_FILE": os.devnull},
    )


def tree_on_disk(root: Path, below: Path) -> Tree:
    """Everything under `below`, by its path from `root`."""
    tree: Tree = {}
    for folder, folders, files in os.walk(below):
        for name in [*folders, *files]:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            key = str(path.relative_to(root))
            if stat.S_ISLNK(mode):
                tree[key] = ("link", str(path.readlink()))
            elif stat.S_ISDIR(mode):
                tree[key] = (f"folder {stat.S_IMODE(mode):o}", "")
            else:
                tree[key] = (f"file {stat.S_IMODE(mode):o}", hashlib.sha256(path.read_bytes()).hexdigest())
    return tree


def tree_in_layer(blob: Path) -> Tree:
    """Everything in a layer, as Python's own gzip and tarfile read it."""
    tree: Tree = {}
    with gzip.open(blob) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
        for entry in archive:
            assert entry.name not in tree
            if entry.issym():
                tree[entry.name] = ("link", entry.linkname)
            elif entry.isdir():
                tree[entry.name] = (f"folder {entry.mode:o}", "")
            else:
                file = archive.extractfile(entry)
                assert file is not None
                tree[entry.name] = (f"file {entry.mode:o}", hashlib.sha256(file.read()).hexdigest())
    return tree


def differences(ours: Tree, pips: Tree) -> list[str]:
    """What differs, one line each."""
    lines = [f"only pip has {path}: {pips[path]}" for path in sorted(pips.keys() - ours.keys())]
    lines += [f"only we have {path}: {ours[path]}" for path in sorted(ours.keys() - pips.keys())]
    both = sorted(ours.keys() & pips.keys())
    return lines + [f"{p}: ours {ours[p]}, pip's {pips[p]}" for p in both if ours[p] != pips[p]]
