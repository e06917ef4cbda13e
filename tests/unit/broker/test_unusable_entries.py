"""A committed entry that cannot be applied: the broker stops with an error that names it, at each start."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.broker.server import serve
from mq.broker.settings import BrokerSettings
from mq.protocol.records import encode_record
from mq.store.dispatch import META_TOPIC, check_entry
from raftlog import EntryUnusable, RealDisk, SegmentLog
from raftlog.segment import NORMAL
from tests.unit.broker.running import broker_settings, interpreter_as_before, properties, running


def record(topic: str, body: bytes) -> bytes:
    return encode_record(
        topic=topic,
        queue_id=0,
        body=body,
        properties="",
        queue_offset=0,
        physical_offset=0,
        born_timestamp_ms=0,
        born_host=bytes(8),
        store_timestamp_ms=0,
        store_host=bytes(8),
    )


def append_committed(settings: BrokerSettings, body: bytes) -> int:
    """Put an entry behind the log of a stopped broker; the only voter counts it as committed."""
    log = SegmentLog.open(
        str(settings.log_dir),
        cluster_id=settings.identity,
        node_id=settings.node_id,
        segment_bytes=settings.segment_bytes,
        disk=RealDisk(),
    )
    entry = log.append(NORMAL, log.last_index + 1, log.last_term, body)
    log.submit(1, commit_hint=entry.index)
    log.close()
    return entry.index


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"garbage" * 30, "record at byte 0"),
        (record("T", b"body") + b"x", "record at byte"),
        (record(META_TOPIC, b"no command"), "metadata command of 10 bytes"),
        (record("T", b"body").replace(b"\x01T\x00", b"\x01\xff\x00"), "utf-8"),
    ],
    ids=["garbage", "a byte too much", "no command", "a topic that is no text"],
)
@pytest.mark.trio
async def test_a_start_stops_at_an_entry_that_cannot_be_applied(tmp_path: Path, body: bytes, reason: str) -> None:
    async with running(tmp_path) as broker:
        client = await broker.connect()
        assert (await client.send("T", b"body", i=properties())).code == 0
    index = append_committed(broker.settings, body)
    for _ in range(2):
        with interpreter_as_before(), pytest.raises(EntryUnusable, match=reason) as raised:
            await serve(broker_settings(tmp_path))
        assert raised.value.index == index
        assert f"entry {index} of term " in str(raised.value)


def test_what_is_no_chain_of_records_is_refused_before_it_is_stored() -> None:
    good = record("T", b"body") * 3
    check_entry(memoryview(good))
    for bad in (b"x", bytes(500), good + b"x", good[:-1], good.replace(b"body", b"bodies", 1)):
        with pytest.raises(ValueError, match="record at byte"):
            check_entry(memoryview(bad))
