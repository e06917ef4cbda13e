"""A committed entry that cannot be applied: the broker stops with an error that names it, at each start."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest
from structlog.testing import capture_logs

from mq.broker.broker import Broker
from mq.broker.server import serve
from mq.broker.settings import BrokerSettings
from mq.protocol.messages.records import RecordError, encode_record, iter_sizes
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.annotation import encode_runs, join_commands, join_sequenced
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QueueRun, check_entry
from mq.store.sequenced import SequencedRecord
from raftlog import EntryUnusable, RealDisk, SegmentLog
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import HEADER_BYTES, NORMAL
from tests.support.running_broker import broker_settings, interpreter_as_before, properties, running


def record(topic: str, body: bytes = b"body", *, offset: int = 0, **given: Any) -> bytes:
    fields: dict[str, Any] = {
        "queue_id": 0,
        "properties": "",
        "physical_offset": 0,
        "born_timestamp_ms": 0,
        "born_host": bytes(8),
        "store_timestamp_ms": 0,
        "store_host": bytes(8),
    }
    return encode_record(**fields | given, topic=topic, body=body, queue_offset=QueueOffset(offset))


def command(**fields: Any) -> bytes:
    return record(META_TOPIC, cbor2.dumps(fields))


def placed(body: bytes, position: int) -> bytes:
    """The records of a body, as far as it is a chain of them, with the physical offsets that they have there."""
    patched = bytearray(body)
    with contextlib.suppress(RecordError):
        for at, _ in iter_sizes(body):
            struct.pack_into(">q", patched, at + 28, position + at)
    return bytes(patched)


def append_committed(settings: BrokerSettings, body: bytes) -> int:
    """Put an entry behind the log of a stopped broker; the only voter counts it as committed."""
    log = SegmentLog.open(
        str(settings.log_dir),
        cluster_id=settings.identity,
        node_id=settings.node_id,
        segment_bytes=settings.segment_bytes,
        disk=RealDisk(),
    )
    position = log.position_for(HEADER_BYTES + len(body)) + HEADER_BYTES
    entry = log.append(NORMAL, log.last_index + 1, log.last_term, placed(body, position))
    log.submit(1, commit_hint=entry.index)
    log.close()
    return entry.index


DEEP = b"\x81" * 5000 + b"\x01"
LONG_NUMBER = b"\xa1\x64kind\xc2\x59\x27\x10" + b"\xff" * 10_000
EXPONENT = b"\xa1\x64kind\xc4\x82\x1a\x7f\xff\xff\xff\x01"
UNUSABLE = {
    "garbage": (b"garbage" * 30, "record at byte 0"),
    "a byte too much": (record("T", offset=1) + b"x", "record at byte"),
    "a topic that is no text": (record("T").replace(b"\x01T\x00", b"\x01\xff\x00"), "utf-8"),
    "a topic that leaves its directory": (record("../x"), "characters other than"),
    "a gap after the queue": (record("T", offset=5), "T/0: offset 5 leaves a gap after 1"),
    "a gap within the entry": (record("T", offset=1) + record("T", offset=3), "T/0: offset 3 follows 1 in one entry"),
    "an offset twice": (record("T", offset=1) * 2, "T/0: offset 1 follows 1 in one entry"),
    "another message at an offset": (
        record("T", b"another"),
        "T/0: the existing records from offset 0 on are different",
    ),
    "a negative offset": (record("T", offset=-1), "T/0: offset -1 is outside of 0"),
    "an offset beyond all": (record("T", offset=2**63 - 1, queue_id=1), "T/1: offset 9223372036854775807 is outside"),
    "a negative queue": (record("T", queue_id=-1), "T/-1: the queue id is negative"),
    "a turn beyond all": (record(SCHEDULE_TOPIC, queue_id=17, store_timestamp_ms=2**63 - 1), "has the tag code 92233"),
    "no command": (record(META_TOPIC, b"no command"), "metadata command of 10 bytes"),
    "an unknown command": (command(kind="from the future"), "metadata command of"),
    "nested deeply": (record(META_TOPIC, DEEP), "metadata command of 5001 bytes"),
    "a very long number": (record(META_TOPIC, LONG_NUMBER), "metadata command of 10010 bytes"),
    "a huge exponent": (record(META_TOPIC, EXPONENT), "tagged values are not allowed"),
    "a long number": (
        command(kind="advance_delay", level=1, offset=2**1000),
        "metadata command of .*offset is 107150860718626",
    ),
    "a time beyond all": (
        command(kind="delete_topic", name="T", timestamp_ms=2**64),
        "timestamp_ms is 1844674407370955",
    ),
    "marks beyond all": (
        command(kind="complete_entries", topic="T", queue_id=0, offsets=[2**62]),
        "T/0: 4611686018427387904 offsets from 0 on are completed",
    ),
}


@pytest.mark.parametrize(("body", "reason"), UNUSABLE.values(), ids=UNUSABLE)
async def test_start_stops_at_an_entry_that_cannot_be_applied(tmp_path: Path, body: bytes, reason: str) -> None:
    async with running(tmp_path) as broker:
        assert (await (await broker.connect()).send("T", b"body", i=properties())).code == 0
    index = append_committed(broker.settings, body)
    for _ in range(2):
        with capture_logs() as lines, interpreter_as_before(), pytest.raises(EntryUnusable, match=reason) as raised:
            await serve(broker_settings(tmp_path))
        assert lines[-1]["event"] == "entry_unusable"
        assert raised.value.index == index
        assert f"entry {index} of term " in str(raised.value)


def test_invalid_chain_of_records_is_refused_before_storing() -> None:
    good = placed(record("T", b"body") * 3, 1000)
    check_entry(memoryview(good), 1000)
    for bad in (b"x", bytes(500), good + b"x", good[:-1], good.replace(b"body", b"bodies", 1)):
        with pytest.raises(ValueError, match="record at byte"):
            check_entry(memoryview(bad), 1000)
    with pytest.raises(ValueError, match="record at byte 0: it lies at 1001 in the log, and names the position 1000"):
        check_entry(memoryview(good), 1001)


@dataclass(frozen=True)
class Committed:
    """A committed entry as a broker gets it."""

    index: LogIndex
    term: Term
    kind: int
    pos: int
    body: bytes
    annotation: bytes


def behind(broker: Broker, body: bytes, annotation: bytes) -> Committed:
    """An entry behind all that a broker has applied."""
    index, end = broker._replica.applied_index + 1, broker._replica.log.end_pos
    return Committed(index, Term(1), NORMAL, end, placed(body, end + HEADER_BYTES), annotation)


GOOD_RUN = QueueRun("T", 0, QueueOffset(1), QUEUE_ENTRY.pack(0, 100, 0))
LIES = {
    "another format": b"\x09",
    "cut": encode_runs([GOOD_RUN])[:-1],
    "a gap": encode_runs([msgspec.structs.replace(GOOD_RUN, first_offset=9)]),
    "an offset beyond all": encode_runs([msgspec.structs.replace(GOOD_RUN, queue_id=7, first_offset=2**63 - 1)]),
    "a topic that leaves its directory": encode_runs([msgspec.structs.replace(GOOD_RUN, topic="../x")]),
    "no commands there": join_commands([(0, 10)], encode_runs([])),
    "half a command": join_commands([(250, 3)], encode_runs([])),
    "a negative number": join_sequenced([SequencedRecord("P", -1, -1, PhysicalOffset(0), 0)], encode_runs([])),
    "a range that ends before it begins": join_sequenced(
        [SequencedRecord("P", 9, 3, PhysicalOffset(0), 0)], encode_runs([])
    ),
    "a range beyond all": join_sequenced([SequencedRecord("P", 0, 2**63 - 1, PhysicalOffset(0), 0)], encode_runs([])),
    "a producer without a name": join_sequenced([SequencedRecord("", 1, 1, PhysicalOffset(0), 0)], encode_runs([])),
    "a producer with a long name": join_sequenced(
        [SequencedRecord("P" * 65, 1, 1, PhysicalOffset(0), 0)], encode_runs([])
    ),
}


@pytest.mark.parametrize("annotation", LIES.values(), ids=LIES)
async def test_contradictory_hint_of_the_leader_is_ignored(
    tmp_path: Path, annotation: bytes, brokers: list[Broker]
) -> None:
    """The records say the same, and are right."""
    async with running(tmp_path) as served:
        client = await served.connect()
        assert (await client.send("T", b"body", i=properties())).code == 0
        (broker,) = brokers
        topic = {"name": "Made", "read_queues": 1, "write_queues": 1}
        body = record("T", b"second", offset=1) + command(kind="put_topic", config=topic, timestamp_ms=1)
        entry = behind(broker, body, annotation)
        with capture_logs() as lines:
            broker._dispatch(entry)
        assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["annotation_damaged"]
        queue = broker._store.get("T", 0)
        assert queue is not None
        size = len(record("T", b"second"))
        assert queue.read(QueueOffset(1), 10) == QUEUE_ENTRY.pack(entry.pos + HEADER_BYTES, size, 0)
        assert "Made" in broker._metadata.topics
        assert broker._metadata.sequences.producers == 0
        assert broker._store.get("T", 7) is None or broker._store.max_offset("T", 7) == 0
