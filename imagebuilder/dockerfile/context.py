"""Plan → the files that the Dockerfile reads. What must be fetched or made is only named here."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence

from imagebuilder.dockerfile.model import BASE_TAR, FILES_TAR, PIP, TOOLS, ContextFile, Derived
from imagebuilder.dockerfile.steps import REQUIREMENTS, fetch_files, folder_of
from imagebuilder.plan import LayerKind, Plan, PlannedLayer, PlannedWheel
from imagebuilder.stack.model import File, Stack
from imagebuilder.values import Digest


def context_files(
    plan: Plan,
    stack: Stack,
    *,
    derived: Mapping[Digest, Derived],
    tools: Mapping[str, bytes],
    vendored: bool,
) -> tuple[ContextFile, ...]:
    """All files but the Dockerfile, sorted by path.

    derived: the patched wheels by the sha256 of the wheel they come from. tools: the scripts of
    `templates/tools` by name.
    """
    files = [
        ContextFile(path=f"{TOOLS}/{name}", content=text, executable=True) for name, text in tools.items()
    ]
    files.append(ContextFile(path=f"{TOOLS}/{PIP.filename}", wheel=PIP))
    number = 0
    for layer in plan.layers:
        if layer.kind is LayerKind.BASE and layer.debs:
            files.append(ContextFile(path=BASE_TAR, debs=layer.debs))
        elif layer.kind is LayerKind.FILES:
            files.append(
                ContextFile(path=FILES_TAR, content=files_tar(layer.files, int(plan.created.timestamp())))
            )
        elif layer.kind is LayerKind.WHEELS:
            number += 1
            files += _wheel_files(folder_of(number, layer), layer, stack, derived, vendored)
    return tuple(sorted(files, key=lambda file: file.path))


def _wheel_files(
    folder: str, layer: PlannedLayer, stack: Stack, derived: Mapping[Digest, Derived], vendored: bool
) -> list[ContextFile]:
    pinned = [_pinned(w, derived) for w in layer.wheels]
    texts = {REQUIREMENTS: _requirements(layer.title, pinned)}
    if not vendored:
        for name, wheels in fetch_files(layer).items():
            if name != REQUIREMENTS:
                texts[name] = _requirements(
                    f"{layer.title}; fetched with this file", [_fetched(w) for w in wheels]
                )
    files = [ContextFile(path=f"{folder}/{name}", content=text.encode()) for name, text in texts.items()]
    contents = {patch.path: patch.content for part in stack.layers for patch in part.patches}
    for planned in layer.wheels:
        if planned.patches:
            name = derived[planned.wheel.sha256].filename
            files.append(ContextFile(path=f"{folder}/{name}", derived=planned))
            files += [
                ContextFile(
                    path=f"{folder}/patches/{n:02}-{p.path.rpartition('/')[2]}", content=contents[p.path]
                )
                for n, p in enumerate(planned.patches, start=1)
            ]
        elif vendored:
            files.append(ContextFile(path=f"{folder}/{planned.wheel.filename}", wheel=planned.wheel))
    return files


def _requirements(title: str, lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in (f"# {title}", *sorted(lines)))


def _pinned(planned: PlannedWheel, derived: Mapping[Digest, Derived]) -> str:
    """As it is installed: by name, version and hash."""
    wheel = planned.wheel
    if planned.patches:
        made = derived[wheel.sha256]
        return _line(f"{wheel.name}=={made.version}", made.sha256)
    return _line(f"{wheel.name}=={wheel.version}", wheel.sha256)


def _fetched(planned: PlannedWheel) -> str:
    """As it is fetched: with its address, where it has one."""
    wheel = planned.wheel
    return _line(
        f"{wheel.name} @ {wheel.url}" if wheel.url else f"{wheel.name}=={wheel.version}", wheel.sha256
    )


def _line(requirement: str, digest: Digest) -> str:
    return f"{requirement} \\\n    --hash=sha256:{digest.hex}"


def files_tar(files: Sequence[File], mtime: int) -> bytes:
    """The extra files as a tar that `ADD` unpacks; without parents, so that those there keep their modes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for file in sorted(files, key=lambda f: f.path):
            member = tarfile.TarInfo(file.path.lstrip("/"))
            member.size, member.mode, member.mtime = len(file.content), file.mode, mtime
            tar.addfile(member, io.BytesIO(file.content))
    return out.getvalue()
