"""What a copy of a stored record takes over, and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mq.broker.write_path.queue_tails import QueueTail, TopicName
from mq.broker.write_path.record_copy import copy_record
from mq.protocol.hashes import tag_code
from mq.protocol.messages.records import (
    COMMITTED,
    PREPARED,
    RawRecord,
    StoredMessage,
    decode_record,
    encode_host,
    encode_record,
    split_record,
)
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.wire.fields import INT32_MAX

COMPRESSED = 1
TAIL = QueueTail(TopicName("T"), 1, QueueOffset(0))


def record(*, born_ip: str = "10.0.0.1", store_ip: str = "10.0.0.2", reconsume_times: int = 2) -> bytes:
    return encode_record(
        topic="Before",
        queue_id=3,
        body=b"body",
        properties="TAGS\x01a\x02",
        queue_offset=QueueOffset(4),
        physical_offset=PhysicalOffset(5),
        born_timestamp_ms=6,
        born_host=encode_host(born_ip, 7),
        store_timestamp_ms=8,
        store_host=encode_host(store_ip, 9),
        flag=10,
        sys_flag=COMPRESSED | PREPARED,
        reconsume_times=reconsume_times,
        prepared_offset=PhysicalOffset(11),
    )


def decoded(data: bytes) -> StoredMessage:
    return decode_record(memoryview(data))


@pytest.mark.parametrize("read", [split_record, decoded])
def test_copy_is_the_same_message_in_another_queue(read: Callable[[bytes], RawRecord | StoredMessage]) -> None:
    copy = copy_record(read(record()), TAIL, b"TAGS\x01b\x02")
    assert (copy.tail, copy.body, copy.properties, copy.tag_code) == (TAIL, b"body", b"TAGS\x01b\x02", tag_code("b"))
    assert (copy.flag, copy.born_timestamp_ms, copy.born_host) == (10, 6, encode_host("10.0.0.1", 7))
    assert (copy.sys_flag, copy.prepared_offset, copy.reconsume_times) == (COMPRESSED | PREPARED, 0, 2)
    assert copy.nbytes == len(record()) - len("Before") + len("T")


@pytest.mark.parametrize("read", [split_record, decoded])
@pytest.mark.parametrize(
    ("born_ip", "store_ip", "kept"), [("10.0.0.1", "fe80::2", True), ("fe80::1", "10.0.0.2", False)]
)
def test_copy_keeps_only_ipv4_hosts(
    read: Callable[[bytes], RawRecord | StoredMessage], born_ip: str, store_ip: str, kept: bool
) -> None:
    copy = copy_record(read(record(born_ip=born_ip, store_ip=store_ip)), TAIL, b"")
    assert copy.sys_flag == COMPRESSED | PREPARED
    assert copy.born_host == (encode_host(born_ip, 7) if kept else bytes(8))


def test_copy_may_change_its_transaction_state_and_attempts() -> None:
    stored = split_record(record(reconsume_times=INT32_MAX - 1))
    copy = copy_record(stored, TAIL, b"", transaction=COMMITTED, prepared_offset=PhysicalOffset(5), attempts=3)
    assert (copy.sys_flag, copy.prepared_offset) == (COMPRESSED | COMMITTED, 5)
    assert copy.reconsume_times == INT32_MAX
    assert copy_record(stored, TAIL, b"", transaction=0).sys_flag == COMPRESSED


def test_copy_in_the_schedule_topic_has_no_tag_code() -> None:
    assert (
        copy_record(
            split_record(record()), QueueTail(TopicName(SCHEDULE_TOPIC), 1, QueueOffset(0)), b"TAGS\x01b\x02"
        ).tag_code
        == 0
    )
