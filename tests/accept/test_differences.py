"""What two servers say differently: secrets hidden, the unfair refused, the rest told."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.accept.differences import REDACTED, differences, redacted

SECRET = "c0ffee-not-for-you"


NAMES = ["api_key", "admin_api_key", "API_KEY", "hf_token", "ssl_keyfile_password", "client_secret"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["api_key", "model_path", "x"]), inner, max_size=3)
        ),
    ),
    st.sampled_from(NAMES),
)
def test_no_secret_comes_through(rest: object, name: str) -> None:
    info = {"a": [rest, {name: SECRET, "b": rest}], name: SECRET}
    assert SECRET not in json.dumps(redacted(info))


def test_what_only_looks_like_a_secret_is_kept() -> None:
    info = {
        "max_total_num_tokens": 5, "tokenizer_path": "t", "speculative_num_draft_tokens": 4,
        "keep_alive": 1, "kv_cache_dtype": "auto", "api_key": None,
    }  # fmt: skip
    assert redacted(info) == info
    assert redacted({"api_key": "x"}) == {"api_key": REDACTED}


BASE = {
    "model_path": "m", "max_running_requests": 48, "mem_fraction_static": 0.88, "port": 1,
    "disable_radix_cache": False,
    "internal_states": [{"effective_max_running_requests_per_dp": 48, "last_gen_throughput": 5.0}],
}  # fmt: skip


def weights(**changes: object) -> dict[str, str]:
    return {d.setting: d.weight for d in differences(BASE, {**BASE, **changes})}


def test_weights() -> None:
    assert weights() == {}
    assert weights(port=2, host="x", log_level_http="y") == {}
    assert weights(speculative_algorithm="EAGLE3", speculative_num_steps=3) == {
        "speculative_algorithm": "expected",
        "speculative_num_steps": "expected",
    }
    assert weights(mem_fraction_static=0.85) == {"mem_fraction_static": "noted"}
    assert weights(something_new=1) == {"something_new": "noted"}
    assert weights(max_running_requests=None) == {"max_running_requests": "unfair"}
    assert weights(disable_radix_cache=True, model_path="n") == {
        "disable_radix_cache": "unfair",
        "model_path": "unfair",
    }


def test_what_the_engine_made_of_it_counts_too() -> None:
    other = {"effective_max_running_requests_per_dp": 2048, "last_gen_throughput": 9.0}
    assert weights(internal_states=[other]) == {"effective_max_running_requests_per_dp": "unfair"}
    assert weights(internal_states=[]) == {"effective_max_running_requests_per_dp": "unfair"}


def test_the_worst_comes_first_with_both_values() -> None:
    found = differences(BASE, {**BASE, "zeta": 1, "dtype": "half", "speculative_x": 1})
    assert [d.weight for d in found] == ["unfair", "noted", "expected"]
    assert (found[0].baseline, found[0].eagle3, found[0].why) == ("null", '"half"', "two precisions")
