"""What applications see of a message, and which popped messages come out, and when."""

from __future__ import annotations

import datetime as dt

import anyio

from mq.client import Host, MessageQueue, ReceivedMessage
from mq.client.consume.popped_messages import Inbox
from mq.protocol import properties as props
from mq.protocol.messages.records import decode_records, encode_host, encode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from tests.unit.client.popping import popped_message

ID = "7F00000100002A9F0000000000000000"


def received(properties: dict[str, str], topic: str = "T") -> ReceivedMessage:
    [record] = decode_records(
        encode_record(
            topic=topic,
            queue_id=3,
            queue_offset=QueueOffset(7),
            physical_offset=PhysicalOffset(4096),
            reconsume_times=2,
            born_host=encode_host("10.0.0.1", 50_000),
            store_host=encode_host("10.0.0.2", 10_911),
            body=b"stored",
            properties=props.encode(properties),
            sys_flag=0,
            flag=5,
            born_timestamp_ms=1_600_000_000_000,
            store_timestamp_ms=1_600_000_000_250,
        )
    )
    return ReceivedMessage(record, MessageQueue(topic, "b-0", 3), b"inflated")


def test_message_has_all_fields_of_its_record() -> None:
    message = received(
        {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "U", "__SHARDINGKEY": "s", "colour": "red", "__RMQ.TRANSIENT.x": "y"}
    )
    assert (message.body, message.topic, message.queue_offset, message.flag) == (b"inflated", "T", 7, 5)
    assert (message.tags, message.keys, message.message_id, message.sharding_key) == ("t", ("a", "b"), "U", "s")
    assert message.user_properties == {"colour": "red"}
    assert (message.born_host, message.store_host) == (Host("10.0.0.1", 50_000), Host("10.0.0.2", 10_911))
    assert message.stored_at - message.born_at == dt.timedelta(milliseconds=250)
    assert message.offset_message_id == "0A00000200002A9F0000000000001000"
    assert (message.reconsume_times, message.attempt) == (2, 1)
    assert (message.delay_level, message.origin_message_id) == (None, None)


def test_redelivered_message_names_its_origin() -> None:
    message = received({"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": ID, "DELAY": "3"}, topic="%RETRY%G")
    assert (message.topic, message.queue.topic) == ("T", "%RETRY%G")
    assert (message.origin_message_id, message.delay_level, message.user_properties) == (ID, 3, {})
    assert message.message_id == message.offset_message_id, "nothing better without a UNIQ_KEY"
    assert received({"DELAY": "soon"}).delay_level is None


async def test_ordered_message_popped_again_replaces_its_earlier_copy() -> None:
    inbox = Inbox(32, ordered=True)
    inbox.put([popped_message(0, 1000), popped_message(1, 1000)])
    inbox.put([popped_message(0, 2000), popped_message(1, 2000)])
    got = []
    for _ in range(2):
        got.append(await inbox.get())
        inbox.release_next(got[-1])
    assert [(each.receipt.offset, each.receipt.pop_time_ms) for each in got] == [(0, 2000), (1, 2000)]
    with anyio.fail_after(10):
        await inbox.room()
    inbox.put([popped_message(2, 3000)])
    assert (await inbox.get()).receipt.offset == 2


async def test_replaced_messages_free_their_room() -> None:
    inbox = Inbox(2, ordered=True)
    for pop_time_ms in (1000, 2000, 3000):
        inbox.put([popped_message(0, pop_time_ms), popped_message(1, pop_time_ms)])
    for _ in range(2):
        inbox.release_next(await inbox.get())
    with anyio.fail_after(10):
        await inbox.room()
