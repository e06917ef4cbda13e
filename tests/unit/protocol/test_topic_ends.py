"""Questions for the ends of many topics: one side reads what the other wrote, and takes nothing else for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.protocol.bulk import BulkError
from mq.protocol.numbers import QueueOffset
from mq.protocol.topic_ends import ENDS_TOPICS_MAX, TopicEnds, decode_ends, decode_topics, encode_ends, encode_topics

steady = settings(derandomize=True, deadline=None)
_text = st.text(st.characters(codec="utf-8"), max_size=20)
_offsets = st.integers(0, 2**63 - 1)
_topics = st.builds(
    lambda identity, queues: TopicEnds(identity, [first for first, _ in queues], [end for _, end in queues]),
    _text,
    st.lists(st.tuples(_offsets, _offsets), max_size=5),
)


@steady
@given(st.lists(_text.filter(bool), min_size=1, max_size=20, unique=True))
def test_names_round_trip(names: list[str]) -> None:
    assert decode_topics(encode_topics(names)) == names


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        b"\0\0",
        b"\0\1",
        b"\0\3ab",
        b"\0\1a\0",
        b"\0\1a\0\1a",
        b"\0\1\xff",
        b"\xff\xffa",
        encode_topics(str(number) for number in range(ENDS_TOPICS_MAX + 1)),
    ],
)
def test_bytes_that_name_no_topics_are_refused(body: bytes) -> None:
    with pytest.raises(BulkError):
        decode_topics(body)


@steady
@given(st.binary(max_size=64))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for decode in (decode_topics, decode_ends):
        try:
            decode(data)
        except BulkError:
            pass


@steady
@given(st.lists(_topics, max_size=6))
def test_ends_round_trip(topics: list[TopicEnds]) -> None:
    body = encode_ends(topics)
    found = decode_ends(body)
    assert [(each.identity, list(each.firsts), list(each.ends)) for each in found] == topics
    for wrong in (body[:-1], body + b"x", b""):
        with pytest.raises(BulkError):
            decode_ends(wrong)


def test_identity_that_is_not_text_is_refused() -> None:
    body = encode_ends([TopicEnds("a", [QueueOffset(1)], [QueueOffset(2)])])
    with pytest.raises(BulkError):
        decode_ends(body[:-1] + b"\xff")
