"""The bookkeeping of one assigned queue, by example and against a naive model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.client.consume.process_queue import FlowLimits, ProcessQueue
from mq.client.message import MessageQueue, ReceivedMessage

QUEUE = MessageQueue("T", "b-0", 0)


def messages(*offsets: int, body: bytes = b"12345") -> list[ReceivedMessage]:
    records = [SimpleNamespace(queue_offset=offset, topic="T", properties={}) for offset in offsets]
    return [ReceivedMessage(cast("Any", record), QUEUE, body) for record in records]


def test_commit_offset_is_the_smallest_offset_not_acknowledged() -> None:
    queue = ProcessQueue(QUEUE, 10)
    assert queue.commit_offset == 10
    queue.put(messages(10, 11, 12), 13)
    first, second, third = queue.take(5, 0.0)
    assert queue.commit_offset == 10
    queue.acknowledge(second)
    queue.acknowledge(third)
    assert queue.commit_offset == 10
    queue.acknowledge(first)
    assert queue.commit_offset == 13


def test_offsets_that_were_filtered_out_are_passed_with_their_neighbours() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(3), 8)
    assert queue.commit_offset == 3
    queue.acknowledge(queue.take(1, 0.0)[0])
    assert queue.commit_offset == 8
    queue.put((), 20)
    assert queue.commit_offset == 20


def test_returned_message_does_not_delay_others() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1), 2)
    failed = queue.take(1, 0.0)
    queue.give_back(failed, not_before=5.0)
    assert [m.queue_offset for m in queue.take(5, 1.0)] == [1]
    assert queue.available_at(1.0) == 5.0
    assert queue.take(5, 4.9) == []
    assert queue.take(5, 5.0) == failed
    assert queue.commit_offset == 0


def test_unblocked_queue_returns_the_same_messages_in_order() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1, 2), 3)
    taken = queue.take(2, 0.0)
    queue.block(taken, until=5.0)
    assert queue.available_at(1.0) == 5.0
    assert queue.take(5, 4.0) == []
    assert [m.queue_offset for m in queue.take(5, 5.0)] == [0, 1, 2]


def test_dropped_queue_returns_no_messages() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0), 1)
    queue.drop()
    assert queue.take(1, 0.0) == []
    assert queue.available_at(0.0) is None


@pytest.mark.parametrize(
    ("limits", "full"),
    [
        (FlowLimits(), False),
        (FlowLimits(count_max=3), True),
        (FlowLimits(bytes_max=15), True),
        (FlowLimits(bytes_max=16), False),
        (FlowLimits(span_max=9), True),
        (FlowLimits(span_max=10), False),
    ],
)
def test_is_full_by_count_bytes_and_span(limits: FlowLimits, full: bool) -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 4, 8), 9)
    assert queue.is_full(limits) is full


def test_room_returns_with_acknowledgements() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1), 2)
    limits = FlowLimits(count_max=2)
    assert queue.is_full(limits)
    queue.acknowledge(queue.take(1, 0.0)[0])
    assert not queue.is_full(limits)


def test_acknowledging_twice_is_a_bug() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1), 2)
    first, _ = queue.take(2, 0.0)
    queue.acknowledge(first)
    with pytest.raises(AssertionError, match="offset 0 acknowledged"):
        queue.acknowledge(first)


def test_offsets_must_grow() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.put(messages(0, 1), 2)
    with pytest.raises(AssertionError, match="offset 1 came after 1"):
        queue.put(messages(1), 3)


@settings(max_examples=40)
@given(st.data())
def test_process_queue_agrees_with_a_model(data: st.DataObject) -> None:
    """Any interleaving of pulls, hand-outs, acknowledgements and failures; the model is a set of offsets."""
    queue = ProcessQueue(QUEUE, 0)
    outstanding: set[int] = set()
    taken: list[ReceivedMessage] = []
    now, next_offset = 0.0, 0
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["put", "take", "acknowledge", "give back", "wait"])):
            case "put":
                gaps = data.draw(st.lists(st.integers(0, 3), max_size=5))
                offsets = []
                for gap in gaps:
                    offsets.append(next_offset + gap)
                    next_offset += gap + 1
                queue.put(messages(*offsets), next_offset)
                outstanding |= set(offsets)
            case "take":
                taken += queue.take(data.draw(st.integers(1, 4)), now)
            case "acknowledge" if taken:
                message = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
                queue.acknowledge(message)
                outstanding.remove(message.queue_offset)
            case "give back" if taken:
                queue.give_back([taken.pop()], now + data.draw(st.integers(0, 3)))
            case _:
                now += 1.0
        queue.check_invariants()
        assert queue.commit_offset == min(outstanding, default=next_offset)
        assert queue.cached_count == len(outstanding)
    rest = [*taken, *queue.take(1000, now + 100)]
    assert {message.queue_offset for message in rest} == outstanding
    for message in rest:
        queue.acknowledge(message)
    assert (queue.commit_offset, queue.cached_bytes) == (next_offset, 0)
