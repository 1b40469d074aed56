"""A rendered Dockerfile and all its files, on disk: for our own build, and for anyone's `docker build`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from imagebuilder.builders.direct.build import Obtain, build
from imagebuilder.builders.direct.derive import derive_patched, patched_version
from imagebuilder.builders.direct.layers import Inputs
from imagebuilder.cache import Cache
from imagebuilder.dockerfile import PIP, ContextFile, Derived, context_files
from imagebuilder.dockerfile.model import BASE_TAR, FILES_TAR, LAYERS, TOOLS
from imagebuilder.errors import UsageProblem
from imagebuilder.files import check_directory, link_or_copy, new_directory
from imagebuilder.plan import Plan, PlannedWheel
from imagebuilder.progress import Reporter
from imagebuilder.stack import Stack, shipped_folder
from imagebuilder.values import Digest

DOCKERFILE = "Dockerfile"
TEMPLATE = "Dockerfile.j2"
MARKER = f"{TOOLS}/install-wheels"  # in every context, and in nobody else's folder
TOP = (DOCKERFILE, TOOLS, LAYERS, BASE_TAR, FILES_TAR)


@dataclass(frozen=True, kw_only=True)
class Means:
    """What making a context needs of this machine. obtain: brings artefacts here, verified."""

    cache: Cache
    obtain: Obtain
    reporter: Reporter
    workers: int = 1


def templates_folder() -> Path:
    """Where the shipped template and tools are, beside the shipped stacks."""
    return shipped_folder().parent / "templates"


def read_template(own: Path | None = None) -> tuple[str, str]:
    """(text, name for errors) of the shipped template, or of one's own. UsageProblem: it cannot be read."""
    path = own or templates_folder() / TEMPLATE
    try:
        return path.read_text(encoding="utf-8"), str(own or TEMPLATE)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"the template {path} cannot be read", seen=str(error)) from error


def read_tools() -> dict[str, bytes]:
    """The scripts that the Dockerfile calls, by name."""
    folder = templates_folder() / "tools"
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def write_context(
    target: Path, plan: Plan, stack: Stack, means: Means, *, dockerfile: str, vendored: bool = False
) -> None:
    """Write the context of a Dockerfile to `target`, whole or not at all, in the place of an older one.

    vendored: with all wheels in it, so that the build needs no network. Files of the cache are linked, not
    copied. Raises ArtefactUnusable, MachineLacks, UsageProblem.
    """
    check_directory(target, marker=MARKER, others=TOP)
    patched = [w for w in plan.wheels if w.patches]
    with means.cache.temporary() as scratch:
        files = means.obtain([PIP, *(w.wheel for w in plan.wheels if vendored or w.patches)], [])
        derived = {w.wheel.sha256: _derive(w, stack, files[w.wheel.sha256], scratch) for w in patched}
        listed = context_files(plan, stack, derived=derived, tools=read_tools(), vendored=vendored)
        with new_directory(target, marker=MARKER, others=TOP) as folder:
            (folder / DOCKERFILE).write_text(dockerfile, encoding="utf-8")
            sources = _Sources(plan=plan, stack=stack, means=means, files=files, derived=scratch)
            for file in listed:
                sources.write(file, folder / file.path)


@dataclass(frozen=True, kw_only=True)
class _Sources:
    """Where the files of a context come from. derived: the folder with the patched wheels."""

    plan: Plan
    stack: Stack
    means: Means
    files: Mapping[Digest, Path]
    derived: Path

    def write(self, file: ContextFile, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.content is not None:
            path.write_bytes(file.content)
            path.chmod(0o755 if file.executable else 0o644)
        elif file.wheel:
            link_or_copy(self.files[file.wheel.sha256], path)
        elif file.derived:
            link_or_copy(self.derived / path.name, path)
        else:
            link_or_copy(self._base(), path)

    def _base(self) -> Path:
        """The Debian base as one layer, which the direct builder makes, or has made."""
        only = replace(self.plan, layers=tuple(layer for layer in self.plan.layers if layer.debs))
        built = build(
            only,
            Inputs(stack=self.stack, plan=only, workers=self.means.workers),
            obtain=self.means.obtain,
            cache=self.means.cache,
            reporter=self.means.reporter,
            workers=self.means.workers,
        )
        path = built.layers[0].ref.path
        assert path is not None, "a layer made here has a file"
        return path


def _derive(planned: PlannedWheel, stack: Stack, file: Path, scratch: Path) -> Derived:
    """Make the patched wheel in `scratch`."""
    wheel = planned.wheel
    contents = {p.digest: p.content for layer in stack.layers for p in layer.patches}
    patches = [(p.path.rpartition("/")[2], contents[p.sha256]) for p in planned.patches]
    named = scratch / "locked" / wheel.filename
    named.parent.mkdir(exist_ok=True)
    named.symlink_to(file)
    filename, digest = derive_patched(named, patches, scratch, digest=wheel.sha256)
    version = patched_version(wheel.version, wheel.sha256, [p.sha256 for p in planned.patches])
    return Derived(filename=filename, version=version, sha256=digest)
