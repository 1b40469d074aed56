"""What patches make of a wheel's files, without writing a wheel: only the files that they touch are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from imagebuilder.errors import ArtefactUnusable
from imagebuilder.facts import unified
from imagebuilder.facts.wheel import Wheel, harmful_path

FILE, EXECUTABLE = 0o100644, 0o100755
_PATCHABLE = 64 << 20  # bytes; a larger file is no source text


def apply_patches(wheel: Wheel, patches: Sequence[tuple[str, bytes]]) -> PatchedFiles:
    """The patches (name, contents), applied in order. ArtefactUnusable where one does not apply exactly."""
    files = PatchedFiles(wheel)
    for name, patch in patches:
        for file in unified.parse(name, patch):
            files.apply(name, file)
    return files


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A file's new bytes and its Unix mode."""

    data: bytes
    mode: int


class PatchedFiles:
    """A wheel's files while patches change them: path → what it has become, None where it is gone."""

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel
        self.changed: dict[str, Changed | None] = {}

    def apply(self, patch: str, file: unified.FilePatch) -> None:
        """One file of a patch."""
        before = b""
        mode = FILE
        if file.old is not None:
            self._check_path(patch, file.old)
            before, mode = self._current(patch, file.old)
            executable = bool(mode & 0o111)
            if file.old_executable not in (None, executable):
                kinds = {True: "executable", False: "not executable"}
                raise ArtefactUnusable(
                    f"{patch} does not apply to {file.old}: its mode is another one",
                    seen=kinds[executable],
                    wanted=kinds[not executable],
                )
        if file.new != file.old and file.new is not None:
            self._check_path(patch, file.new)
            if self._exists(file.new):
                raise ArtefactUnusable(f"{patch} makes {file.new}, which is there already")
        after = unified.apply(patch, file, before)
        if file.new is None and after:
            raise ArtefactUnusable(
                f"{patch} deletes {file.old} without taking all of it away", seen=f"{len(after)} bytes left"
            )
        if file.old is not None:
            self.changed[file.old] = None
        if file.new is not None:
            if file.new_executable is not None:
                mode = EXECUTABLE if file.new_executable else FILE
            self.changed[file.new] = Changed(data=after, mode=mode)

    def _exists(self, path: str) -> bool:
        return self.changed[path] is not None if path in self.changed else self.wheel.member(path) is not None

    def _current(self, patch: str, path: str) -> tuple[bytes, int]:
        if not self._exists(path):
            ending = "/" + path.rpartition("/")[2]
            similar = [m.path for m in self.wheel.files if ("/" + m.path).endswith(ending)]
            raise ArtefactUnusable(
                f"{patch}: there is no {path} in {self.wheel.archive.name}",
                wanted="a path from the wheel's root, after one part that is taken away (p1)"
                + (f"; is it {similar[0]}?" if similar else ""),
            )
        now = self.changed.get(path)
        if now is not None:
            return now.data, now.mode
        member = self.wheel.member(path)
        assert member is not None
        return self.wheel.read(member, _PATCHABLE), EXECUTABLE if member.is_executable else FILE

    def _check_path(self, patch: str, path: str) -> None:
        if harmful_path(path):
            raise ArtefactUnusable(f"{patch} changes a path that leads astray", seen=repr(path))
        if path.partition("/")[0] == self.wheel.dist_info:
            raise ArtefactUnusable(
                f"{patch} changes {path}",
                hint="patch the package's files; what it requires is changed by an [[override]]",
            )
