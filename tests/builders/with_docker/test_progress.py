"""What buildx prints is understood, in both of its forms."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from types import TracebackType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.builders.docker.progress import BuildProgress
from imagebuilder.progress import Silent, Task


class Recorder(Silent):
    """Remembers which pieces of work began and ended."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.all: list[str] = []

    def task(self, label: str, *, total: int | None = None, unit: str = "B") -> Task:
        recorder = self

        class One:
            def advance(self, amount: int) -> None: ...

            def __enter__(self) -> One:
                recorder.open.append(label)
                recorder.all.append(label)
                return self

            def __exit__(
                self,
                kind: type[BaseException] | None,
                value: BaseException | None,
                trace: TracebackType | None,
            ) -> None:
                recorder.open.remove(label)

        return One()


PLAIN = """\
#0 building with "default" instance using docker driver

#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 1.30kB done
#1 DONE 0.0s

#3 [stage-0 1/4] ADD base.tar.gz /
#3 CACHED

#4 [stage-0 2/4] RUN --mount=type=bind,source=layers/01-torch,target=/mnt/layer     sh /mnt/tools/install
#4 1.012 Looking in links: /mnt/wheels
#4 2.5 Successfully installed torch
#4 DONE 2.9s

#5 [stage-0 3/4] RUN --mount=type=secret,id=pip.conf     --network=none     sh -c 'exit 3'
#5 0.310 going wrong
#5 ERROR: process "/bin/sh -c sh -c 'exit 3'" did not complete successfully: exit code: 3
------
 > [stage-0 3/4] RUN sh -c 'exit 3':
0.310 going wrong
------
ERROR: failed to solve: process did not complete successfully: exit code: 3
"""


def rawjson() -> Iterator[str]:
    def vertex(digest: str, name: str, **more: object) -> str:
        return json.dumps({"vertexes": [{"digest": f"sha256:{digest}", "name": name, **more}]})

    torch = "[stage-0 2/4] RUN --mount=type=bind,source=layers/01-torch,target=/mnt/layer sh"
    yield vertex("a", "[internal] load build definition from Dockerfile", started="t")
    yield vertex("a", "[internal] load build definition from Dockerfile", started="t", completed="t")
    yield vertex("b", "[stage-0 1/4] ADD base.tar.gz /", started="t", completed="t", cached=True)
    yield vertex("c", torch, started="t")
    yield json.dumps({"statuses": [{"id": "x", "vertex": "sha256:c", "current": 3, "total": 9}]})
    yield vertex("c", torch, started="t", completed="t")
    yield vertex("d", "[stage-0 3/4] RUN sh -c 'exit 3'", started="t")
    yield json.dumps({"logs": [{"vertex": "sha256:d", "data": base64.b64encode(b"going wrong\n").decode()}]})
    yield vertex(
        "d", "[stage-0 3/4] RUN sh -c 'exit 3'", completed="t", error="process did not complete: exit code: 3"
    )
    yield "ERROR: failed to solve: process did not complete successfully: exit code: 3"


@pytest.mark.parametrize("lines", [PLAIN.splitlines(), list(rawjson())], ids=["plain", "rawjson"])
def test_steps_begin_end_and_fail(lines: list[str]) -> None:
    recorder = Recorder()
    progress = BuildProgress(recorder, {"layers/01-torch": "torch: torch 2.9.1"})
    for line in lines:
        progress.feed(line)
    assert recorder.open == []
    assert recorder.all == [
        "[stage-0 1/4] ADD base.tar.gz /",
        "torch: torch 2.9.1",
        "[stage-0 3/4] RUN sh -c 'exit 3'",
    ]
    assert (progress.cached, progress.made) == (1, 1)
    assert progress.failed == "[stage-0 3/4] RUN sh -c 'exit 3'"
    assert progress.explanation[0] == "going wrong"
    assert "failed to solve" in progress.text


def test_a_build_that_is_cut_off_leaves_nothing_open() -> None:
    recorder = Recorder()
    progress = BuildProgress(recorder, {})
    for line in PLAIN.splitlines()[:11]:
        progress.feed(line)
    assert recorder.open
    progress.close()
    progress.close()
    assert recorder.open == []
    assert progress.failed == ""


def test_words_of_buildx_itself_explain_when_no_step_failed() -> None:
    progress = BuildProgress(Silent(), {})
    progress.feed("ERROR: Cannot connect to the Docker daemon at unix:///x")
    assert progress.explanation == ["ERROR: Cannot connect to the Docker daemon at unix:///x"]


@given(st.lists(st.text() | st.sampled_from(PLAIN.splitlines())))
def test_any_text_is_taken(lines: list[str]) -> None:
    progress = BuildProgress(Silent(), {})
    for line in lines:
        progress.feed(line)
    progress.close()


@pytest.mark.parametrize(
    "line", ['{"vertexes": null}', "{", '{"logs": [{"vertex": "sha256:unknown", "data": ""}]}', "{}"]
)
def test_odd_json_is_taken(line: str) -> None:
    BuildProgress(Silent(), {}).feed(line)
