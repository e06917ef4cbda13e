"""Bodies of bulk reads, plans and questions for many ends: one end reads what the other wrote, and nothing else."""

from __future__ import annotations

from array import array
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.protocol.bulk import (
    OFFSET_MAX,
    RANGES_MAX,
    BulkError,
    BulkResponse,
    BulkStatus,
    PlannedPlace,
    PlannedQueue,
    ReadRange,
    decode_answer,
    decode_plan,
    decode_ranges,
    encode_answer_head,
    encode_no_records,
    encode_plan,
    encode_ranges,
)
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.topic_ends import ENDS_TOPICS_MAX, TopicEnds, decode_ends, decode_topics, encode_ends, encode_topics

RANGE = Struct(">iqq")
_ids = st.integers(0, 2**31 - 1)
_sizes = st.integers(0, OFFSET_MAX)
_offsets = _sizes.map(QueueOffset)


@given(st.dictionaries(_ids, st.tuples(_offsets, _offsets), min_size=1, max_size=20))
def test_ranges_round_trip(wanted: dict[int, tuple[QueueOffset, QueueOffset]]) -> None:
    ranges = [ReadRange(queue, *sorted(ends)) for queue, ends in wanted.items() if ends[0] != ends[1]]
    if ranges:
        assert decode_ranges(encode_ranges(ranges)) == ranges


@pytest.mark.parametrize(
    "body",
    [
        b"",
        RANGE.pack(0, 0, 1)[:-1],
        RANGE.pack(0, 0, 1) + b"\0",
        RANGE.pack(-1, 0, 1),
        RANGE.pack(0, -1, 1),
        RANGE.pack(0, 5, 5),
        RANGE.pack(0, 5, 4),
        RANGE.pack(0, 0, 1) + RANGE.pack(0, 1, 2),
        b"".join(RANGE.pack(queue, 0, 1) for queue in range(RANGES_MAX + 1)),
    ],
)
def test_impossible_ranges_are_refused(body: bytes) -> None:
    with pytest.raises(BulkError):
        decode_ranges(body)


@given(st.dictionaries(_ids, _offsets, max_size=5), st.lists(st.tuples(_ids, st.binary(min_size=1)), max_size=20))
def test_answers_round_trip(offsets: dict[int, QueueOffset], records: list[tuple[int, bytes]]) -> None:
    queue_ids, sizes = [queue for queue, _ in records], [len(data) for _, data in records]
    data = b"".join(data for _, data in records)
    answer = decode_answer(encode_answer_head(offsets, queue_ids, sizes, without_bodies=True) + data)
    assert answer == BulkResponse(
        BulkStatus.RECORDS, offsets, 0, array("i", queue_ids), array("i", sizes), memoryview(data), True
    )


@pytest.mark.parametrize("status", [each for each in BulkStatus if each is not BulkStatus.RECORDS])
def test_answers_without_records_name_the_reason(status: BulkStatus) -> None:
    answer = decode_answer(encode_no_records(status, offsets={3: QueueOffset(2**40)}, pause_ms=250, text="ä:1,b:2"))
    assert (answer.status, answer.offsets, answer.pause_ms, answer.text) == (status, {3: 2**40}, 250, "ä:1,b:2")
    assert not answer.queue_ids
    assert not answer.sizes


WHOLE = (
    encode_answer_head({0: QueueOffset(7), 1: QueueOffset(9)}, [0, 1, 1], [1, 2, 3], without_bodies=False) + b"abbccc"
)


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_cut_answer_is_noticed(cut: int) -> None:
    with pytest.raises(BulkError):
        decode_answer(WHOLE[:cut])


@pytest.mark.parametrize(
    "answer",
    [
        WHOLE + b"!",
        bytes([7]) + WHOLE[1:],
        encode_answer_head({}, [0, 0], [3, -1], without_bodies=False) + b"ab",
        encode_answer_head({}, [0, 0], [2, 0], without_bodies=False) + b"ab",
    ],
)
def test_contradictory_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(BulkError):
        decode_answer(answer)


@given(
    st.data(), st.lists(st.tuples(_ids, _offsets, _offsets, st.integers(0, OFFSET_MAX)), max_size=5), st.integers(0, 4)
)
def test_plans_round_trip(
    data: st.DataObject, rows: list[tuple[int, QueueOffset, QueueOffset, int]], places: int
) -> None:
    queues = [PlannedQueue(*row) for row in rows]
    offsets = st.tuples(*[_offsets] * len(queues))
    wanted = [PlannedPlace(PhysicalOffset(data.draw(_offsets)), data.draw(offsets)) for _ in range(places)]
    body = encode_plan(queues, wanted)
    assert decode_plan(body) == (queues, wanted)
    for wrong in (body[:-1], body + b"\0", body[:3]):
        with pytest.raises(BulkError):
            decode_plan(wrong)


steady = settings(derandomize=True, deadline=None)
_text = st.text(st.characters(codec="utf-8"), max_size=20)
_end_offsets = st.integers(0, 2**63 - 1)
_topics = st.builds(
    lambda identity, queues: TopicEnds(identity, [first for first, _ in queues], [end for _, end in queues]),
    _text,
    st.lists(st.tuples(_end_offsets, _end_offsets), max_size=5),
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
