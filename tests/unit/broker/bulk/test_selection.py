"""Which records a bulk read answers with: in the order of the log, each once, and with where to go on."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.bulk.selection import GAP_BYTES_MAX, QueueSpan, Selection, read_answer, select, select_in_python
from mq.compiled import IS_COMPILED
from mq.protocol.bulk import decode_answer
from mq.protocol.messages.records import decode_record, encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY
from raftlog.segment.verified_reads import VerifiedRun

HOSTS = encode_host("10.0.0.1", 1), encode_host("fe80::1", 2)
LIMIT = 1 << 60


class Log:
    """Records of some queues at ascending positions with gaps, and what is read of them."""

    def __init__(self, queue_ids: list[int], gaps: list[int], start: int = 1000) -> None:
        self.records: list[tuple[int, int, int, bytes]] = []
        """Position, queue id, queue offset, bytes."""
        self.entries: dict[int, list[tuple[int, int, int]]] = {}
        at = start
        for number, (queue_id, gap) in enumerate(zip(queue_ids, gaps, strict=True)):
            at += gap
            queue = self.entries.setdefault(queue_id, [])
            data = encode_record(
                topic="T",
                queue_id=queue_id,
                body=b"%d" % number * (1 + number % 7),
                properties=f"n\x01{number}\x02",
                queue_offset=QueueOffset(len(queue)),
                physical_offset=PhysicalOffset(at),
                born_timestamp_ms=1,
                born_host=HOSTS[number % 2],
                store_timestamp_ms=2,
                store_host=HOSTS[number // 2 % 2],
            )
            self.records.append((at, queue_id, len(queue), data))
            queue.append((at, len(data), number % 3))
            at += len(data)
        self.end = at
        self.read: list[tuple[int, int]] = []

    def spans(self, most: int = 1 << 30) -> list[QueueSpan]:
        return [
            QueueSpan(
                queue_id,
                QueueOffset(0),
                b"".join(QUEUE_ENTRY.pack(*entry) for entry in queue[:most]),
                most >= len(queue),
            )
            for queue_id, queue in self.entries.items()
        ]

    def runs(self, pos: int, length: int) -> Iterator[VerifiedRun]:
        """Runs that begin before what is asked for and end behind it, as those of a log do; some with two in it."""
        self.read.append((pos, pos + length))
        data = bytearray(length + 20)
        for at, _, _, record in self.records:
            if at + len(record) > pos and at < pos + length:
                data[at - pos + 10 : at - pos + 10 + len(record)] = record
        # Runs end where entries do, and between those is a header.
        ends = {at + len(record) for at, _, _, record in self.records}
        starts = [at for at, *_ in self.records if pos + length // 2 < at < pos + length and at not in ends]
        cut = starts[0] if starts else pos + length
        yield VerifiedRun(pos - 10, cut, cut, bytes(data[: cut - pos + 10]))
        if cut < pos + length:
            yield VerifiedRun(cut, pos + length + 10, pos + length + 10, bytes(data[cut - pos + 10 :]))


_logs = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 48, 500, GAP_BYTES_MAX + 1])), max_size=40).map(
    lambda rows: Log([queue for queue, _ in rows], [gap for _, gap in rows])
)


def check_contents(log: Log, selection: Selection) -> None:
    head, pieces = read_answer(selection, log.runs, bodies=True)
    answer = decode_answer(head + b"".join(pieces))
    wanted = {at: data for at, _, _, data in log.records}
    assert bytes(answer.data) == b"".join(wanted[at] for at in selection.positions)
    assert list(answer.queue_ids) == list(selection.queue_ids)
    assert list(answer.sizes) == list(selection.sizes)
    assert answer.offsets == selection.offsets
    assert not answer.without_bodies


@given(_logs, st.integers(1, 2000), st.integers(1, 9))
def test_repeated_reads_give_each_record_once_in_log_order(log: Log, bytes_max: int, most: int) -> None:
    offsets = dict.fromkeys(log.entries, 0)
    seen: list[tuple[int, int, int]] = []
    while any(offsets[queue_id] < len(queue) for queue_id, queue in log.entries.items()):
        spans = [
            QueueSpan(
                queue_id,
                QueueOffset(start := offsets[queue_id]),
                b"".join(QUEUE_ENTRY.pack(*entry) for entry in queue[start : start + most]),
                start + most >= len(queue),
            )
            for queue_id, queue in log.entries.items()
            if offsets[queue_id] < len(queue)
        ]
        found = select(spans, frozenset(), bytes_max, PhysicalOffset(LIMIT))
        assert found.positions, "no progress"
        assert len(found.positions) == 1 or sum(found.sizes) <= bytes_max
        seen += [(at, queue, 0) for at, queue in zip(found.positions, found.queue_ids, strict=True)]
        offsets |= found.offsets
        check_contents(log, found)
    assert seen == [(at, queue_id, 0) for at, queue_id, _, _ in log.records]


@given(_logs, st.frozensets(st.integers(0, 2), min_size=1))
def test_selection_returns_subscribed_tags_and_skips_the_rest(log: Log, codes: frozenset[int]) -> None:
    found = select(log.spans(), codes, 1 << 30, PhysicalOffset(LIMIT))
    codes_at = {at: code for queue in log.entries.values() for at, _, code in queue}
    assert list(found.positions) == [at for at, *_ in log.records if codes_at[at] in codes]
    assert found.offsets == {queue_id: len(queue) for queue_id, queue in log.entries.items()}


@given(_logs, st.integers(0, 100_000))
def test_selection_stops_at_the_limit(log: Log, limit: int) -> None:
    found = select(log.spans(), frozenset(), 1 << 30, PhysicalOffset(limit))
    assert list(found.positions) == [at for at, *_ in log.records if at < limit]
    assert found.offsets == {queue_id: sum(at < limit for at, _, _ in queue) for queue_id, queue in log.entries.items()}


@given(_logs)
def test_bodies_are_cut_out_and_nothing_else(log: Log) -> None:
    selection = select(log.spans(), frozenset(), 1 << 30, PhysicalOffset(LIMIT))
    head, pieces = read_answer(selection, log.runs, bodies=False)
    answer = decode_answer(head + b"".join(pieces))
    assert answer.without_bodies
    at = 0
    for size, (_, _, _, record) in zip(answer.sizes, log.records, strict=True):
        body = decode_record(memoryview(record)).body
        begin = record.rindex(body, 0, record.index(b"T", 88 + len(body)))
        assert bytes(answer.data[at : at + size]) == record[:begin] + record[begin + len(body) :]
        at += size


@given(_logs)
def test_each_byte_is_read_once_and_wide_gaps_are_skipped(log: Log) -> None:
    selection = select(log.spans(), frozenset(), 1 << 30, PhysicalOffset(LIMIT))
    read_answer(selection, log.runs, bodies=True)
    assert all(end <= begin for (_, end), (begin, _) in zip(log.read, log.read[1:], strict=False))
    needed = sum(len(record) for *_, record in log.records)
    assert sum(end - begin for begin, end in log.read) <= needed + GAP_BYTES_MAX * len(log.records)
    for (at, *_, record), (behind, *_) in zip(log.records, log.records[1:], strict=False):
        if behind - at - len(record) > GAP_BYTES_MAX:
            assert not any(begin < at + len(record) + 1 and end > behind for begin, end in log.read)


@pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")
@given(_logs, st.integers(1, 2000), st.integers(1, 9), st.integers(900, 100_000))
def test_compiled_merge_selects_the_records_of_the_reference(log: Log, bytes_max: int, most: int, limit: int) -> None:
    spans = log.spans(most)
    found = select(spans, frozenset(), bytes_max, PhysicalOffset(limit))
    expected = select_in_python(spans, frozenset(), bytes_max, PhysicalOffset(limit))
    assert [list(each) for each in found] == [list(each) for each in expected]
    assert found.offsets == expected.offsets


@pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")
@given(st.lists(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)), min_size=1)))
def test_merge_of_damaged_queue_entries_stays_within_its_buffers(queues: list[list[tuple[int, int]]]) -> None:
    spans = [
        QueueSpan(number, QueueOffset(0), b"".join(QUEUE_ENTRY.pack(at, size, 0) for at, size in queue), True)
        for number, queue in enumerate(queues)
    ]
    found = select(spans, frozenset(), 1 << 20, PhysicalOffset(LIMIT))
    assert len(found.positions) == len(found.sizes) == len(found.queue_ids) == sum(found.offsets.values())
    assert found.offsets.keys() == set(range(len(queues)))


def test_merge_refuses_truncated_queue_entries() -> None:
    with pytest.raises((AssertionError, ValueError, struct.error)):
        select([QueueSpan(0, QueueOffset(0), bytes(21), True)], frozenset(), 1, PhysicalOffset(LIMIT))
