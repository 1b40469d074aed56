"""The environment in an image: its layers are read, nothing of it is run."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from imagebuilder.errors import ArtefactUnusable, Unresolvable, UsageProblem
from imagebuilder.oci.descriptor import ImagePlatform
from imagebuilder.oci.model import ImageConfig
from imagebuilder.oci.untar import Members, cleaned, open_layer
from imagebuilder.publish.contents import merged
from imagebuilder.publish.layerscan import LayerContents
from imagebuilder.snapshot.model import Environment, Interpreter, Run, Unreadable, joined
from imagebuilder.snapshot.places import compiled
from imagebuilder.values import Platform, Release

_MAX_LINKS = 40
_PYTHON = re.compile(r"python(3\.\d+)")
_LIBRARY = re.compile(
    r"(?P<prefix>.*?)/?lib(?:64)?/python(?P<python>3\.\d+)/(?:site|dist)-packages/[^/]+\.dist-info/METADATA"
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SITE = re.compile(r".*?lib(?:64)?/python3(?:\.\d+)?/(?:site|dist)-packages/")
_GLIBC = re.compile(rb"GNU C Library [^\0]{0,200}?version (2\.\d+)")
_LARGEST_LIBC = 32 << 20
_MUSL = re.compile(r"lib/ld-musl-[^/]+\.so\.1")


class LayerFiles:
    """`Files` of layers on top of each other, bottom first. open_: opens a layer by its number."""

    def __init__(
        self,
        layers: Sequence[LayerContents],
        open_: Callable[[int], AbstractContextManager[Members]],
    ) -> None:
        self.contents = merged(layers)
        self._layers, self._open = layers, open_
        self._sorted = sorted(self.contents.files)

    @classmethod
    def of_blobs(cls, layers: Sequence[LayerContents], blobs: Sequence[Path]) -> LayerFiles:
        """Of layers whose blobs lie here."""
        return cls(layers, lambda number: open_layer(blobs[number]))

    def kind(self, path: str) -> str | None:
        """See `Files`."""
        real = self.resolve(path)
        if real is None:
            return None
        entry = self.contents.files.get(real)
        if entry is None:
            return "directory" if self._has_below(real) else None
        return {"file": "file", "hardlink": "file", "directory": "directory"}.get(entry.kind)

    def resolve(self, path: str) -> str | None:
        """The path with all links followed, within the image; None where they go in circles."""
        done: list[str] = []
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        for _ in range(4096):
            if not todo:
                return "/".join(done)
            part = todo.pop()
            if part == "..":
                del done[-1:]
                continue
            done.append(part)
            entry = self.contents.files.get("/".join(done))
            if entry is not None and entry.kind == "symlink":
                done = [] if entry.content.startswith("/") else done[:-1]
                todo += [p for p in reversed(entry.content.split("/")) if p not in ("", ".")]
        return None

    def names(self, folder: str) -> tuple[str, ...]:
        """See `Files`."""
        real = self.resolve(folder)
        if real is None:
            return ()
        lead = f"{real}/" if real else ""
        return tuple(dict.fromkeys(p[len(lead) :].partition("/")[0] for p in self._below(lead)))

    def walk(self, folder: str) -> Iterator[str]:
        """See `Files`."""
        real = self.resolve(folder)
        if real is not None:
            for path in self._below(f"{real}/"):
                if self.contents.files[path].kind in ("file", "hardlink"):
                    yield f"{folder}/{path[len(real) + 1 :]}"

    def digest(self, path: str) -> str:
        """See `Files`."""
        real = self.resolve(path)
        entry = self.contents.files.get(real) if real is not None else None
        for _ in range(_MAX_LINKS):
            if entry is None or entry.kind != "hardlink":
                break
            entry = self.contents.files.get(entry.content)
        if entry is None or entry.kind != "file":
            raise Unreadable("it is no file")
        return entry.content

    def executable(self, path: str) -> bool:
        """See `Files`."""
        entry = self.contents.files.get(self.resolve(path) or "")
        return bool(entry and entry.mode & 0o100)

    def size(self, path: str) -> int:
        """See `Files`."""
        entry = self.contents.files.get(self.resolve(path) or "")
        return entry.size if entry else 0

    def read(self, paths: Iterable[str], limit: int) -> Mapping[str, bytes]:
        """See `Files`. Each layer that has one of them is read once, a second time for targets of hard
        links.
        """
        wanted = {path: real for path in paths if (real := self.resolve(path)) is not None}
        found: dict[str, bytes] = {}
        links: dict[str, str] = {}  # path → what it is a link to
        todo = set(wanted.values())
        for _ in range(3):
            for number, there in self._by_layer(todo).items():
                self._read_layer(number, there, limit, found, links)
            todo = {target for path, target in links.items() if path not in found and target not in found}
            if not todo:
                break
        for path, target in links.items():
            if target in found:
                found.setdefault(path, found[target])
        return {path: found[real] for path, real in wanted.items() if real in found}

    def _by_layer(self, paths: Collection[str]) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for path in paths:
            number = next(
                (n for n in reversed(range(len(self._layers))) if path in self._layers[n].files), None
            )
            if number is not None and path in self.contents.files:
                found.setdefault(number, set()).add(path)
        return found

    def _read_layer(
        self, number: int, wanted: set[str], limit: int, found: dict[str, bytes], links: dict[str, str]
    ) -> None:
        left = set(wanted)
        with self._open(number) as members:
            for path, member in members:
                if path not in left:
                    continue
                left.discard(path)
                if member.islnk():
                    links[path] = cleaned(member.linkname)
                elif member.isreg() and member.size <= limit:
                    found[path] = members.contents(member, limit)
                if not left:
                    return

    def _below(self, lead: str) -> Iterator[str]:
        for place in range(bisect_left(self._sorted, lead), len(self._sorted)):
            if not self._sorted[place].startswith(lead):
                return
            yield self._sorted[place]

    def _has_below(self, real: str) -> bool:
        return not real or next(self._below(f"{real}/"), None) is not None


def environment_of(
    files: LayerFiles, config: ImageConfig, *, label: str, name: str, prefix: str | None = None
) -> Environment:
    """The Python that `python3` means in the image, or the one below `prefix`.

    Raises Unresolvable where there is none, UsageProblem where it is none that images are built for.
    """
    platform = _platform(config.platform, label)
    if any(_MUSL.fullmatch(f"lib/{n}") for n in files.names("lib")):
        raise UsageProblem(
            f"{label} runs on another C library than images are built for",
            seen="musl (Alpine)",
            wanted="glibc",
        )
    there = _prefixes(files)
    found = prefix.strip("/") if prefix else _prefix_on_path(files, dict(config.env).get("PATH") or _PATH)
    if found is None:
        raise Unresolvable(
            f"there is no Python in {label}",
            seen=f"no python3 on its PATH; packages below {', '.join(f'/{p}' for p in there)}"
            if there
            else "no python3 on its PATH, and no package anywhere",
            hint=f"--prefix /{there[0]}" if there else "",
        )
    interpreter = _interpreter(files, found, platform, label)
    inside = {interpreter.prefix, interpreter.base}
    if interpreter.base == "usr":
        inside.add("usr/local")
    run = Run(
        env=config.env,
        entrypoint=config.entrypoint,
        command=config.command,
        user=config.user,
        workdir=config.workdir,
        labels=config.labels,
        ports=config.ports,
        volumes=config.volumes,
        healthcheck=config.healthcheck is not None,
    )
    return Environment(
        label=label,
        name=name,
        files=files,
        interpreter=interpreter,
        run=run,
        whole=True,
        elsewhere=tuple(p for p in there if p not in inside),
        beside=_beside(files, interpreter),
    )


def _beside(files: LayerFiles, interpreter: Interpreter) -> tuple[tuple[str, int], ...]:
    """Folders with files that neither a wheel nor a Debian package brought, as COPY and RUN leave them."""
    counts: dict[str, int] = {}
    made = ("etc/", "var/", "tmp/", "run/", "dev/", "proc/", "sys/", "usr/share/")  # by maintainer scripts
    own = f"{interpreter.prefix}/" if interpreter.prefix != "usr" else "usr/lib/"
    for path, entry in files.contents.files.items():
        if entry.kind != "file" or entry.owner or "/" not in path or path.startswith((own, *made)):
            continue
        if not compiled(path) and not _SITE.match(path) and path not in ("root/.bashrc", "root/.profile"):
            folder = "/".join(path.split("/")[: min(2, path.count("/"))])
            counts[folder] = counts.get(folder, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: -item[1]))


def _platform(platform: ImagePlatform, label: str) -> Platform:
    try:
        return Platform.parse(f"{platform.os}/{platform.architecture}")
    except ValueError as error:
        raise UsageProblem(f"{label} is an image for {platform}", wanted=str(error)) from None


def _prefixes(files: LayerFiles) -> list[str]:
    """Every prefix below which something is installed, the fullest first."""
    counts: dict[str, int] = {}
    for path in files.contents.files:
        if path.endswith(".dist-info/METADATA") and (match := _LIBRARY.fullmatch(path)):
            counts[match["prefix"]] = counts.get(match["prefix"], 0) + 1
    return sorted(counts, key=lambda p: (-counts[p], p))


def _prefix_on_path(files: LayerFiles, path: str) -> str | None:
    """The prefix of the first python3 (or python) on PATH: of its virtual environment, where it is in one."""
    for name in ("python3", "python"):
        for folder in path.split(":"):
            if folder.startswith("/") and files.kind(f"{folder}/{name}".strip("/")) == "file":
                at = folder.strip("/")
                if files.kind(joined(at, "../pyvenv.cfg")) == "file":
                    return joined(at, "..")
                real = files.resolve(f"{at}/{name}") or ""
                return real.rpartition("/")[0].rpartition("/")[0]
    return None


def _interpreter(files: LayerFiles, prefix: str, platform: Platform, label: str) -> Interpreter:
    config = files.read([f"{prefix}/pyvenv.cfg"], 1 << 16).get(f"{prefix}/pyvenv.cfg")
    settings: dict[str, str] = {}
    for line in (config or b"").decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        settings[key.strip().lower()] = value.strip()
    versions = [m[1] for n in files.names(f"{prefix}/lib") if (m := _PYTHON.fullmatch(n))]
    chosen = _PYTHON.search(
        (files.resolve(f"{prefix}/bin/python3") or "").rpartition("/")[2] if not config else ""
    )
    python = chosen[1] if chosen else versions[-1] if versions else ""
    if not python:
        raise Unresolvable(
            f"there is no Python below /{prefix} in {label}", seen="no lib/python3.X", hint="--prefix DIR"
        )
    base = joined(settings["home"], "..") if settings.get("home") else prefix
    sites = [f"{prefix}/lib/python{python}/site-packages"]
    if not config:
        sites = _system_sites(files, prefix, python)
    elif settings.get("include-system-site-packages", "").lower() == "true":
        sites += _system_sites(files, base, python)
    full = settings.get("version_info") or settings.get("version") or python
    text = match[0] if (match := re.match(r"3\.\d+(?:\.\d+)?", full)) else python
    return Interpreter(
        version=Release(text if text.startswith(python) else python),
        platform=platform,
        prefix=prefix,
        base=base,
        sites=tuple(sites),
        glibc=_glibc(files),
    )


def _glibc(files: LayerFiles) -> Release | None:
    """As dpkg has it, else as the library itself says."""
    version = next((d.version for d in files.contents.debs if d.name == "libc6"), "")
    if match := re.match(r"2\.\d+", version):
        return Release(match[0])
    for path in (
        "lib64/libc.so.6",
        "usr/lib64/libc.so.6",
        *(f"lib/{n}/libc.so.6" for n in files.names("lib")),
    ):
        if files.kind(path) == "file":
            data = files.read([path], _LARGEST_LIBC).get(path, b"")
            if found := _GLIBC.search(data):
                return Release(found[1].decode())
    return None


def _system_sites(files: LayerFiles, prefix: str, python: str) -> list[str]:
    """Where a Python that is no virtual environment looks; Debian's own has dist-packages, and /usr/local
    first.
    """
    debian = [
        "usr/local/lib/python{}/dist-packages",
        "usr/lib/python3/dist-packages",
        "usr/lib/python{}/dist-packages",
    ]
    places = debian if prefix == "usr" else []
    places = [*places, f"{prefix}/lib/python{{}}/site-packages", f"{prefix}/lib64/python{{}}/site-packages"]
    found: dict[str, str] = {}
    for place in (p.format(python) for p in places):
        if files.kind(place) == "directory":
            found.setdefault(files.resolve(place) or place, place)
    return list(found.values())


def parse_config(data: bytes, label: str) -> ImageConfig:
    """An image's config as an engine hands it out. ArtefactUnusable."""
    try:
        return ImageConfig.parse(data)
    except ValueError as error:
        raise ArtefactUnusable(
            f"{label} has a config that cannot be understood", seen=str(error)[:300]
        ) from None
