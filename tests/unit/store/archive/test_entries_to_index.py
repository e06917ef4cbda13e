"""Ordinary messages of an entry are counted as the reference does it; whatever else an entry has is left to that."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mq.protocol.messages.records import (
    IN_LITE_TOPIC,
    PREPARED,
    RecordError,
    encode_host,
    encode_record,
    latest_store_timestamp,
)
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.archive.entries_to_index import plain_ranges
from mq.store.archive.file_index import _messages
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QUEUE_ENTRY_BYTES, scan_runs
from mq.store.errors import RunRefused

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
    except (RecordError, RunRefused, UnicodeDecodeError):
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
    assert plain_ranges(body, BEGIN) is not None
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
        with pytest.raises((RecordError, RunRefused, UnicodeDecodeError)):
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
    assert plain_ranges(body, BEGIN) is None
    if (wanted := reference(body)) is not None:
        assert _messages(body, BEGIN) == wanted
    else:
        with pytest.raises(RunRefused):
            _messages(body, BEGIN)
