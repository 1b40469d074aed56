"""Events are the same however the stream is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagebuilder.accept.sse import MAX_EVENT, EventReader

data = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])).map(str.encode)


@given(st.lists(data, max_size=8), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_any_cut_gives_the_same_events(events: list[bytes], end: bytes, draw: st.DataObject) -> None:
    stream = b"".join(b"data: " + event + end + end for event in events)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = EventReader()
    assert [event for piece in pieces for event in reader.feed(piece)] == events
    assert not reader.inside


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b": comment\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 7\ndata: a\nretry: 1\n\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\n\ndata: b\n\ndata: c", [b"a", b"b"]),
        (b"\n\n\n\ndata: a\n\n", [b"a"]),
        (b"", []),
        (b"data\n\n", []),
    ],
)
def test_forms(stream: bytes, events: list[bytes]) -> None:
    assert EventReader().feed(stream) == events


def test_a_stream_that_breaks_off_is_noticed() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"te') == []
    assert reader.inside


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader()
    with pytest.raises(ValueError, match="16 MiB"):
        for _ in range(20):
            reader.feed(b"x" * (MAX_EVENT // 16))
