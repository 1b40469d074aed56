"""uv's answer → one file for each package, and the index that it comes from."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, NormalizedName, parse_wheel_filename

from imagebuilder.errors import ArtefactUnusable, Unresolvable
from imagebuilder.index.simple import Indexes, IndexFile
from imagebuilder.lock.choose import best_wheel, uploaded_by, why_unfit
from imagebuilder.lock.question import Asked
from imagebuilder.lock.uv import Answer
from imagebuilder.values import Digest

DIRECT = ""
"""`IndexFile.index` of a file that the stack names by its address."""


class Pinner:
    """Finds the files of the answers to one question."""

    def __init__(self, asked: Asked, indexes: Indexes) -> None:
        self._asked, self._indexes = asked, indexes
        self._question = asked.question
        self._names = {_bare(index.url): index.name for index in reversed(asked.question.indexes)}

    def pin(self, answer: Answer) -> IndexFile:
        """The file for one package.

        Raises Unresolvable where the index has none that fits; a package bound to an index never comes
        from another one.
        """
        if answer.name in self._asked.addressed:
            return self._asked.addressed[answer.name]
        if answer.url is not None:
            return _from_address(answer.name, answer.url)
        index = self._index_of(answer)
        files = self._indexes.project(answer.name, index)
        cutoff = self._question.cutoffs.get(answer.name, self._question.as_of)
        assert answer.version is not None
        file = best_wheel(uploaded_by(files, cutoff), answer.version, self._question.target)
        if file is None:
            mine = [f for f in files if f.version == answer.version]
            raise Unresolvable(
                f"{answer.name} {answer.version} has no wheel for the target on index {index}",
                seen=why_unfit(mine, self._question.target) or "its files are newer than as-of",
                hint="ask for another version in the stack file",
            )
        return file

    def _index_of(self, answer: Answer) -> str:
        bound = self._question.bindings.get(answer.name)
        found = self._names.get(_bare(answer.index_url or ""))
        if bound is not None and answer.index_url and found != bound:
            addresses = {_bare(i.url) for i in self._question.indexes if i.name == bound}
            if _bare(answer.index_url) not in addresses:  # two indexes of a stack may share an address
                raise Unresolvable(
                    f"{answer.name} would come from another index than its layer names",
                    seen=found or "an index that the stack does not have",
                    wanted=bound,
                )
        if bound is None and found is None:
            raise Unresolvable(f"{answer.name} comes from an index that the stack does not have")
        return bound or found or ""


def _from_address(name: NormalizedName, url: str) -> IndexFile:
    """A requirement that is an address: it must be a wheel's, and its `#sha256=` counts."""
    parts = urlsplit(url)
    filename = PurePosixPath(unquote(parts.path)).name
    try:
        found, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        raise ArtefactUnusable(
            f"{name} @ {url} is not the address of a wheel",
            seen=filename,
            wanted="…/NAME-VERSION-PYTHON-ABI-PLATFORM.whl",
        ) from None
    if found != name:
        raise ArtefactUnusable(f"{url} is a wheel of another package", seen=found, wanted=name)
    key, _, value = parts.fragment.partition("=")
    sha256 = Digest.from_hex(value) if key == "sha256" else None
    return IndexFile(
        name=name,
        version=version,
        filename=filename,
        url=parts._replace(fragment="").geturl(),
        sha256=sha256,
        size=None,
        requires_python=None,
        yanked=None,
        upload_time=None,
        index=DIRECT,
    )


def _bare(url: str) -> str:
    return url.rstrip("/")
