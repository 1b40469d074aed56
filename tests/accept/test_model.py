"""What follows from what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.accept.samples import a_request, a_round


def test_latencies_are_per_token_whatever_a_piece_brings() -> None:
    request = a_request()
    assert request.ttft_s == 0.1
    assert request.itl_s == pytest.approx((0.1, 0.1, 0.1, 0.1))
    assert request.tpot_s == pytest.approx(0.1)
    assert len(request.itl_s) == request.output_tokens - request.tokens[0]


def test_nothing_is_made_of_nothing() -> None:
    empty = replace(a_request(), times=(), tokens=(), output_tokens=0, error="cut")
    assert (empty.ttft_s, empty.itl_s, empty.tpot_s, empty.accept_length) == (None, (), None, None)
    assert not empty.ok
    only = replace(a_request(), times=(0.1,), tokens=(3,))
    assert only.tpot_s is None


def test_accept_length_is_as_the_server_defines_it() -> None:
    assert replace(a_request(), output_tokens=26, verify_count=10).accept_length == 2.6


def test_a_round_counts_all_tokens() -> None:
    failed = replace(a_request(), error="cut", output_tokens=2)
    both = replace(a_round(), requests=(a_request(), failed))
    assert both.output_tokens == 7
    assert both.output_tok_s == 14
    assert both.errors == (failed,)
    assert replace(both, wall_s=0.0).output_tok_s == 0
