"""`verify` with an engine: built again without its cache; differences with instruction, file and cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.builders.with_docker.conftest import Made, Workplace
from tests.support.command import leftovers
from tests.support.engine import TestEngine

pytestmark = [pytest.mark.docker, pytest.mark.network]

VERIFY = ("verify", "stack/real.toml")

# A base, a step that is never the same, one whose time is the build's, and one that is right.
UNSTEADY = """\
FROM scratch
ADD {{ base.tar }} /
RUN head -c 8 /dev/urandom | od > /var/log/install.log
RUN mkdir -p /opt/.cache/tool && date +%N > /opt/.cache/tool/seen
RUN echo always > /etc/steady
"""


def test_an_image_is_built_again_and_is_the_same(
    containerd_engine: TestEngine, workplace: Workplace, with_engine: Callable[[TestEngine], Made]
) -> None:
    made = with_engine(containerd_engine)
    machine = workplace.machine(containerd_engine.kind, containerd_engine)  # where images/real is its
    outcome = machine.run(*VERIFY)
    assert (outcome.code, outcome.out) == (0, f"{made.record['manifest']}\n"), outcome.err
    assert leftovers(machine.cache) == []


def test_what_differs_is_named_with_its_instruction(
    containerd_engine: TestEngine, workplace: Workplace, direct: Made
) -> None:
    machine = workplace.machine("unsteady", containerd_engine)
    (machine.work / "unsteady.j2").write_text(UNSTEADY)
    outcome = machine.run(*VERIFY, "--builder", "docker", "--template", "unsteady.j2", "--vendored")
    assert outcome.code == 14, outcome.err
    log, cache = outcome.out.splitlines()
    assert log.startswith(
        "RUN head -c 8 /dev/urandom | od > /var/log/install.log: /var/log/install.log: content "
    )
    assert log.endswith(": a log of the installation with its times")
    assert cache.startswith("RUN mkdir -p /opt/.cache/tool && date +%N > …: /opt/.cache/tool/seen: content ")
    assert cache.endswith(": a cache that a program filled")
    assert leftovers(machine.cache) == []


def test_the_direct_builder_has_no_template(workplace: Workplace) -> None:
    outcome = workplace.machine("direct only").run(*VERIFY, "--builder", "direct", "--template", "x.j2")
    assert outcome.code == 2
    assert "--template: only the Docker builder has this" in outcome.err
