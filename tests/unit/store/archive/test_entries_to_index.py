"""Entries of an archived log: which messages count for an index, and queues that are read backward."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mq.protocol.messages.records import (
    IN_LITE_TOPIC,
    PREPARED,
    RecordError,
    decode_record,
    encode_host,
    encode_record,
    latest_store_timestamp,
)
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.archive.entries_to_index import consecutive_messages
from mq.store.archive.file_index import _messages
from mq.store.archive.older_entries import read_older
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QUEUE_ENTRY_BYTES, scan_runs
from mq.store.errors import RunInvalid
from mq.store.queue_store import QueueStore, QueueStoreSettings
from tests.support.archived_logs import SEGMENT_BYTES, ReadArchive

BEGIN = PhysicalOffset(1_000_064)
HOST = encode_host("10.0.0.1", 1)


def record(at: int, *, topic: str = "T", queue_id: int = 0, offset: int = 0, text: str = "", **more: Any) -> bytes:
    given: dict[str, Any] = {"sys_flag": 0, "store_timestamp_ms": 5, "born_host": HOST, **more}
    return encode_record(
        topic=topic,
        queue_id=queue_id,
        body=b"x" * 40,
        properties=text,
        queue_offset=QueueOffset(offset),
        physical_offset=PhysicalOffset(at),
        born_timestamp_ms=1,
        store_host=HOST,
        **given,
    )


def entry(*messages: dict[str, Any]) -> bytes:
    body = b""
    for each in messages:
        body += record(BEGIN + len(body), **each)
    return body


def reference(body: bytes) -> tuple[list[tuple[str, int, QueueOffset, int, set[int]]], int] | None:
    """None if it refuses the entry."""
    try:
        runs, _ = scan_runs(body, BEGIN)
        newest_ms = latest_store_timestamp(body)
    except (RecordError, RunInvalid, UnicodeDecodeError):
        return None
    found = []
    for run in runs:
        tags = {QUEUE_ENTRY.unpack_from(run.entries, at)[2] for at in range(0, len(run.entries), QUEUE_ENTRY_BYTES)}
        found.append((run.topic, run.queue_id, run.first_offset, len(run.entries) // QUEUE_ENTRY_BYTES, tags))
    return found, newest_ms


def random_entry(choice: random.Random) -> bytes:
    offsets: dict[tuple[str, int], int] = {}
    messages = []
    for _ in range(choice.randrange(1, 30)):
        key = choice.choice("TUÜ"), choice.randrange(3)
        offset = offsets.setdefault(key, choice.choice([0, 7, 2**40]))
        offsets[key] += 1
        text = choice.choice(["", "TAGS\x01a\x02", "KEYS\x01k\x02TAGS\x01b c\x02", "UNIQ_KEY\x01TAGS\x02"])
        messages.append({
            "topic": key[0], "queue_id": key[1], "offset": offset, "text": text,
            "store_timestamp_ms": choice.randrange(1, 2**41),
        })  # fmt: skip
    return entry(*messages)


@pytest.mark.parametrize("seed", range(20))
def test_counts_of_ordinary_messages_equal_those_of_the_reference(seed: int) -> None:
    body = random_entry(random.Random(seed))
    assert consecutive_messages(body, BEGIN) is not None
    assert _messages(body, BEGIN) == reference(body)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_entries_are_left_to_the_reference(seed: int) -> None:
    choice = random.Random(seed)
    body = random_entry(choice)
    for _ in range(200):
        damaged = bytearray(body)
        damaged[choice.randrange(len(body))] ^= 1 << choice.randrange(8)
        cut = bytes(damaged[: choice.choice([len(body), choice.randrange(len(body) + 1)])])
        wanted = reference(cut)
        if wanted is not None:
            assert _messages(cut, BEGIN) == wanted
            continue
        with pytest.raises((RecordError, RunInvalid, UnicodeDecodeError)):
            _messages(cut, BEGIN)


@pytest.mark.parametrize(
    "special",
    [
        {"sys_flag": PREPARED},
        {"sys_flag": IN_LITE_TOPIC},
        {"born_host": encode_host("::1", 1)},
        {"topic": META_TOPIC},
        {"topic": "rmq_sys_wheel_timer", "text": "TIMER_OUT_MS\x0177\x02"},
        {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2, "text": "TAGS\x01a\x02"},
        {"offset": 5},
    ],
)
def test_entries_with_other_messages_are_left_to_the_reference(special: dict[str, Any]) -> None:
    body = entry({"offset": 1, "store_timestamp_ms": 9}, {"offset": 2}, special)
    assert consecutive_messages(body, BEGIN) is None
    if (wanted := reference(body)) is not None:
        assert _messages(body, BEGIN) == wanted
    else:
        with pytest.raises(RunInvalid):
            _messages(body, BEGIN)


def test_reading_backward_gives_the_queues_of_the_log(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    end = PhysicalOffset(archive.end.pos)
    store = QueueStore.open(str(tmp_path / "queues"), QueueStoreSettings(), queues={}, dropped_count=0, log_end=end)
    store.floors = {}
    archived: dict[tuple[str, int], list[bytes]] = {}
    for topic, queue_id, _, body in archive.messages.sent:
        archived.setdefault((topic, queue_id), []).append(body)
    pos, steps = archive.end.pos, 0
    while pos > 0:
        step = read_older(archive.blocks.fetch, pos, 0, SEGMENT_BYTES, step_bytes=1)
        assert step.begin < step.end == pos
        assert step.begin >= (pos - 1) // SEGMENT_BYTES * SEGMENT_BYTES
        for run in step.runs:
            if store.get(run.topic, run.queue_id) is None:
                store.add_empty(run.topic, run.queue_id, run.end_offset)
            assert store.prepend(run) == len(run.entries) // QUEUE_ENTRY.size
        pos, steps = step.begin, steps + 1
    assert steps >= archive.end.pos // SEGMENT_BYTES
    for (topic, queue_id), bodies in archived.items():
        queue = store.get(topic, queue_id)
        assert queue is not None
        assert queue.min_offset == 0
        assert queue.max_offset > 10
        for number in range(queue.max_offset):
            place, size, _ = QUEUE_ENTRY.unpack(queue.read(QueueOffset(number), 1))
            record = decode_record(memoryview(archive.source.read(place, size)))
            assert (record.queue_offset, record.body) == (number, bodies[number])
    store.close()
