"""Marks of a queue against a plain set."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.completion_marks import CompleteEntries, QueueMarks, SkipEntries
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid, SnapshotDamaged
from mq.protocol.numbers import QueueOffset

OFFSETS = st.lists(st.integers(0, 60), min_size=1, max_size=8)
STEPS = st.lists(st.one_of(OFFSETS, st.integers(0, 70)), max_size=20)


def test_end_far_behind_the_marks_does_not_use_memory() -> None:
    marks = QueueMarks()
    marks.complete([QueueOffset(3), QueueOffset(5)])
    assert marks.count_open(QueueOffset(2**62)) == 2**62 - 2


@given(STEPS, st.integers(0, 80), st.integers(0, 80))
def test_marks_agree_with_a_set_of_offsets(steps: list[list[int] | int], start: int, end: int) -> None:
    marks, done = QueueMarks(), set[int]()
    for step in steps:
        if isinstance(step, int):
            marks.skip_to(QueueOffset(step))
            done |= set(range(step))
        else:
            marks.complete(list(map(QueueOffset, step)))
            done |= set(step)
        first_open = next(offset for offset in range(200) if offset not in done)
        assert marks.low == first_open
        assert not marks.bits or marks.bits[-1]
        assert all(not byte & (1 << marks.low % 8) - 1 for byte in marks.bits[:1])
        assert [offset for offset in range(100) if marks.is_done(QueueOffset(offset))] == sorted(done & set(range(100)))
        opened = [offset for offset in range(start, end) if offset not in done]
        assert list(marks.open_offsets(QueueOffset(start), QueueOffset(end))) == opened
        assert marks.count_open(QueueOffset(end)) == len([offset for offset in range(end) if offset not in done])


@given(STEPS)
def test_marks_survive_a_snapshot(steps: list[list[int] | int]) -> None:
    metadata = Metadata()
    for number, step in enumerate(steps):
        queue_id = number % 2
        command = (
            SkipEntries(topic="waiting", queue_id=queue_id, offset=QueueOffset(step))
            if isinstance(step, int)
            else CompleteEntries(topic="waiting", queue_id=queue_id, offsets=list(map(QueueOffset, step)))
        )
        metadata.apply(decode_command(encode_command(command)))
    snapshot = metadata.snapshot()
    restored = Metadata()
    restored.restore(snapshot)
    assert restored.snapshot() == snapshot
    for queue_id in (0, 1):
        of_both = [each.marks.get("waiting", queue_id) for each in (metadata, restored)]
        assert of_both[0].low == of_both[1].low
        assert of_both[0].bits == of_both[1].bits


def test_million_waiting_messages_are_few_bytes() -> None:
    marks = QueueMarks()
    marks.complete([QueueOffset(1_000_000)])
    assert len(marks.bits) == 125_001
    assert marks.count_open(QueueOffset(1_000_001)) == 1_000_000


def test_invalid_offsets_are_refused() -> None:
    for command in (
        CompleteEntries(topic="t", queue_id=0, offsets=[]),
        CompleteEntries(topic="t", queue_id=0, offsets=[QueueOffset(3), QueueOffset(-1)]),
        CompleteEntries(topic="../t", queue_id=0, offsets=[QueueOffset(3)]),
        SkipEntries(topic="t", queue_id=-1, offset=QueueOffset(3)),
    ):
        with pytest.raises(CommandInvalid):
            encode_command(command)


def test_snapshot_with_newer_parts_is_refused_and_changes_nothing() -> None:
    metadata = Metadata()
    metadata.apply(CompleteEntries(topic="waiting", queue_id=0, offsets=[QueueOffset(1)]))
    before = metadata.snapshot()
    wrong: list[dict[str, Any]] = [{"novel": []}, {"marks": "nonsense"}, {"marks": [("waiting", 0, -1, b"")]}]
    for parts in wrong:
        damaged = cbor2.dumps(cbor2.loads(before) | {"parts": parts})
        with pytest.raises(SnapshotDamaged):
            metadata.restore(damaged)
        assert metadata.snapshot() == before
