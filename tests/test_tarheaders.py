"""Whatever a tar's headers claim, reading it ends, soon and in a TarError."""

from __future__ import annotations

import io
import tarfile

import pytest

from imagebuilder.tarheaders import SmallHeaders
from tests.support.tars import HARMFUL, named, tarred


@pytest.mark.parametrize("data", HARMFUL.values(), ids=list(HARMFUL))
def test_harmful_headers(data: bytes) -> None:
    with (
        pytest.raises(tarfile.TarError),
        tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=SmallHeaders) as tar,
    ):
        list(tar)


def test_long_names_are_no_harm() -> None:
    long = "a/" * 2000 + "b"
    with tarfile.open(fileobj=io.BytesIO(tarred((named(long), b"x"))), tarinfo=SmallHeaders) as tar:
        assert [(m.name, m.size) for m in tar] == [(long, 1)]
