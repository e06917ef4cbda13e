"""When a pull through a filter is answered, and where the next one begins."""

from __future__ import annotations

import itertools
import zlib

import pytest

from mq.client.errors import UnreadableAnswer
from mq.filter_server.picking import FilterResult, Records, pick, records_in, seen_by_filter
from mq.filter_server.pull_progress import EXAMINED_MAX, PullHead, PullProgress
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.compression import COMPRESSED
from mq.protocol.messages.records import encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset

FOUND, NOTHING, AGAIN = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY


def records(*bodies: bytes, first: int = 0, sys_flag: int = 0) -> bytes:
    """Records of one queue, with the property ``a``."""
    return b"".join(
        encode_record(
            topic="T",
            queue_id=0,
            body=body,
            properties="a\x01b\x02",
            queue_offset=QueueOffset(offset),
            physical_offset=PhysicalOffset(1000 * offset),
            born_timestamp_ms=1,
            born_host=bytes(8),
            store_timestamp_ms=2,
            store_host=bytes(8),
            sys_flag=sys_flag,
        )
        for offset, body in zip(itertools.count(first), bodies)
    )


def found(
    progress: PullProgress, next_offset: int, end: int, now: float, *, passed: int = 0, cut: bool = False
) -> None:
    """The broker had messages up to an offset, and the filter let some through."""
    assert progress.take_response(PullHead(FOUND, next_offset, 0, end, None), now) is None
    progress.add_result(FilterResult([memoryview(b"x")] * passed, passed, next_offset, cut), now)


def test_filtered_pull_is_answered_with_all_available_messages() -> None:
    progress = PullProgress(0, 32, 15.0, 0.0)
    found(progress, 10, 20, 0.0, passed=2)
    assert not progress.is_over()
    assert progress.read_until == 0.0, "the next read must not be held"
    found(progress, 20, 20, 0.01)
    assert progress.is_over()
    assert progress.response()[:4] == (FOUND, 20, 0, 20)


def test_arrived_messages_are_not_held_for_long() -> None:
    progress = PullProgress(0, 32, 15.0, 0.0)
    found(progress, 10, 1_000_000, 0.06, passed=1)
    assert progress.is_over()


def test_messages_beyond_the_room_come_with_the_next_pull() -> None:
    progress = PullProgress(0, 2, 15.0, 0.0)
    found(progress, 5, 20, 0.0, passed=2, cut=True)
    assert progress.is_over()
    assert progress.response().next_offset == 5


def test_filter_that_rejects_everything_still_advances_after_a_second() -> None:
    progress = PullProgress(0, 32, 15.0, 0.0)
    for number in range(1, 5):
        found(progress, 100 * number, 10_000, 0.2 * number)
        assert not progress.is_over()
    found(progress, 500, 10_000, 1.0)
    assert progress.is_over()
    assert progress.response()[:2] == (AGAIN, 500)


def test_pull_at_the_end_waits_for_its_deadline() -> None:
    progress = PullProgress(7, 32, 15.0, 0.0)
    progress.take_response(PullHead(NOTHING, 7, 0, 7, None), 14.0)
    assert not progress.is_over()
    progress.take_response(PullHead(NOTHING, 7, 0, 7, None), 15.0)
    assert progress.is_over()
    assert progress.response()[:2] == (NOTHING, 7)


def test_pull_fails_only_before_messages_were_examined() -> None:
    assert PullProgress(0, 32, 15.0, 0.0).fail()
    progress = PullProgress(0, 32, 15.0, 0.0)
    found(progress, 10, 20, 0.0)
    assert not progress.fail()
    assert progress.response()[:2] == (AGAIN, 10)


def test_moved_offset_waits_for_the_next_pull_after_progress() -> None:
    moved = PullHead(ResponseCode.PULL_OFFSET_MOVED, 50, 50, 60, "gone")
    answer = PullProgress(0, 32, 15.0, 0.0).take_response(moved, 0.0)
    assert answer is not None
    assert answer[:2] == (ResponseCode.PULL_OFFSET_MOVED, 50)
    progress = PullProgress(0, 32, 15.0, 0.0)
    found(progress, 10, 20, 0.0)
    assert progress.take_response(moved, 0.0) is None
    assert progress.is_over()
    assert progress.response().next_offset == 10


def test_requested_messages_are_capped_at_the_broker_limit() -> None:
    assert PullProgress(0, 1_000_000, 0.0, 0.0).room_count == EXAMINED_MAX
    assert PullProgress(0, -5, 0.0, 0.0).room_count == 1


def picked(data: bytes, passes: list[bool], **limits: int) -> FilterResult:
    return pick(data, records_in(data), passes, 100, **{"count_max": 32, "room": 1_000_000, **limits})


def test_passed_records_keep_their_bytes() -> None:
    data = records(b"a", b"bb", b"ccc", first=7)
    one, _, three = (records(body, first=first) for first, body in enumerate((b"a", b"bb", b"ccc"), 7))
    found = picked(data, [True, False, True])
    assert [bytes(each) for each in found.passed] == [one, three]
    assert (found.examined, found.next_offset, found.is_cut) == (3, 100, False)


@pytest.mark.parametrize(
    ("passes", "limits", "taken", "next_offset"),
    [
        ([True, True, True], {"count_max": 2}, 2, 9),
        ([True, False, True], {"count_max": 1}, 1, 9),
        ([True, False, False], {"count_max": 1}, 1, 100),
        ([True, True, True], {"room": 1}, 1, 8),
        ([True], {}, 1, 8),  # the filter had no time for the others
    ],
)
def test_next_offset_is_at_the_first_undecided_message(
    passes: list[bool], limits: dict[str, int], taken: int, next_offset: int
) -> None:
    found = picked(records(b"a", b"b", b"c", first=7), passes, **limits)
    assert (len(found.passed), found.next_offset) == (taken, next_offset)


def test_filter_sees_the_originals_of_compressed_bodies() -> None:
    data = records(zlib.compress(b"long" * 100), sys_flag=COMPRESSED) + records(b"plain", first=1)
    block, unreadable = seen_by_filter(data, records_in(data), 1000)
    assert [block.message(number) for number in range(2)] == [
        (b"a\x01b\x02", b"long" * 100),
        (b"a\x01b\x02", b"plain"),
    ]
    assert not unreadable
    assert block.data[20:28] == bytes(8), "the head of a record is before what the filter sees of it"


def test_body_beyond_the_inflation_limit_is_reported_unreadable() -> None:
    data = records(zlib.compress(bytes(5000)), sys_flag=COMPRESSED)
    block, unreadable = seen_by_filter(data, records_in(data), 1000)
    assert block.message(0).body == b""
    assert "cannot be read" in unreadable[0]


def test_invalid_answer_of_a_broker_is_an_error() -> None:
    with pytest.raises(UnreadableAnswer):
        records_in(b"no records at all" * 10)
    assert records_in(b"") == Records([], [], [], [], has_compressed=False)
