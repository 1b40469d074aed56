"""Fixtures that several test folders share."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.support.engine import TestEngine, find_engine
from tests.support.network import no_network

# A shell starts what runs in its background deaf to Ctrl-C, and so would be what the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on how fast the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test marked `network` is skipped where there is none, and fails where one is required."""
    if item.get_closest_marker("network") is not None and (why := no_network()):
        pytest.skip(why)


@pytest.fixture
def engine() -> TestEngine:
    """Any engine with BuildKit."""
    return find_engine()


@pytest.fixture(params=["containerd", "classic"])
def each_store(request: pytest.FixtureRequest) -> TestEngine:
    """One engine with the containerd image store, and one with the overlay2 graph driver."""
    return find_engine(request.param)


@pytest.fixture
def containerd_engine() -> TestEngine:
    """An engine with the containerd image store."""
    return find_engine("containerd")


@pytest.fixture
def classic_engine() -> TestEngine:
    """An engine with the overlay2 graph driver."""
    return find_engine("classic")


@pytest.fixture
def newest_engine() -> TestEngine:
    """What Debian is going to have: a BuildKit that lints, and a buildx with machine-readable progress."""
    return find_engine("newest")


@pytest.fixture
def old_engine() -> TestEngine:
    """Docker 20.10, as Debian 12 has it."""
    return find_engine("old")
