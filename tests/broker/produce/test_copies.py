"""Batches of copies from another cluster, stored as they are; batches of thousands of tiny messages with the SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mq.client import Admin, Message, MessageQueue, Producer, SendRejected
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import HEADER_BYTES_MAX
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.running_broker import Answer, Client, broker_client, properties, send_ext


def copies(number: int = 0, **given: str) -> str:
    return properties(RAFTMQ_PRODUCER="mirror-1-0", RAFTMQ_SEQUENCE=str(number), RAFTMQ_COPIED="true", **given)


async def send(client: Client, messages: list[BatchedMessage], text: str, **given: Any) -> Answer:
    ext = send_ext(m=True, i=text, **given)
    return await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(messages))


def born(milliseconds: int | str, **given: str) -> BatchedMessage:
    return BatchedMessage(b"body", properties(**given) + f"BORN_TIMESTAMP\x01{milliseconds}\x02")


async def test_each_copy_keeps_the_time_of_its_birth(client: Client) -> None:
    messages = [born(1000, UNIQ_KEY="A", own="x"), born(2000, UNIQ_KEY="B"), BatchedMessage(b"c", "")]
    answer = await send(client, messages, copies(), g=5000, j=3)
    assert answer.code == ResponseCode.SUCCESS, answer
    stored = (await client.pull()).records
    assert [each.born_timestamp_ms for each in stored] == [1000, 2000, 5000]
    assert [each.reconsume_times for each in stored] == [3, 3, 3]
    assert all(props.BORN_TIMESTAMP not in each.properties for each in stored)
    assert all(props.COPIED not in each.properties for each in stored)
    assert stored[0].properties["own"] == "x"
    assert stored[0].properties["RAFTMQ_SEQUENCE"] == "0-2"


async def test_copy_keeps_delay_properties_but_is_visible_at_once(client: Client) -> None:
    given = {"DELAY": "5", "TRAN_MSG": "true", "REAL_TOPIC": "T", "TIMER_DELIVER_MS": "99999999999999"}
    answer = await send(client, [born(1, UNIQ_KEY="A", **given)], copies())
    assert answer.code == ResponseCode.SUCCESS, answer
    [stored] = (await client.pull()).records
    assert given.items() <= stored.properties.items()


async def test_copy_is_stored_once(client: Client) -> None:
    for _ in range(2):
        answer = await send(client, [born(1, UNIQ_KEY="A"), born(2, UNIQ_KEY="B")], copies(7))
        assert answer.ext["queueOffset"] == "0"
    more = await send(client, [born(2, UNIQ_KEY="B"), born(3, UNIQ_KEY="C")], copies(8))
    assert (more.ext["alreadyStored"], more.ext["queueOffset"]) == ("1", "-1")
    assert [each.born_timestamp_ms for each in (await client.pull()).records] == [1, 2, 3]


async def test_copies_are_stored_in_the_retry_topic_of_a_group(client: Client) -> None:
    await client.create_topic("%RETRY%G", 1)
    for _ in range(2):
        answer = await send(client, [born(1, UNIQ_KEY="A", RETRY_TOPIC="T", DELAY="4")], copies(), b="%RETRY%G", j=16)
        assert answer.code == ResponseCode.SUCCESS, answer
    [stored] = (await client.pull("%RETRY%G")).records
    assert (stored.reconsume_times, stored.properties["RETRY_TOPIC"]) == (16, "T")
    usual = await send(client, [born(1)], properties(WAIT="true"), b="%RETRY%G")
    assert "may not go to the retry topic" in str(usual.remark)


async def test_copies_may_have_the_longest_properties_of_a_record(client: Client) -> None:
    long = "x" * (props.SENT_PROPERTIES_BYTES_MAX + 1000)
    assert (await send(client, [born(1, own=long)], copies())).code == ResponseCode.SUCCESS
    too_long = "x" * props.PROPERTIES_BYTES_MAX
    answer = await send(client, [born(1, own=too_long[:32000])], copies(1, shared="y" * 900))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"maximum: {props.PROPERTIES_BYTES_MAX}" in str(answer.remark)


async def test_single_copy_may_be_as_large_as_a_message(tmp_path: Path) -> None:
    async with broker_client(tmp_path, message_bytes_max=2000) as client:
        assert (await send(client, [BatchedMessage(bytes(2000), "")], copies())).code == ResponseCode.SUCCESS
        too_large = await send(client, [BatchedMessage(bytes(2001), "")], copies(1))
        assert too_large.code == ResponseCode.MESSAGE_ILLEGAL
        two = await send(client, [BatchedMessage(bytes(1000), "")] * 2, copies(1))
        assert two.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("time", ["soon", "-1", str(2**63), "9" * 30])
async def test_invalid_time_is_refused(client: Client, time: str) -> None:
    answer = await send(client, [born(time)], copies())
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "is not a number of milliseconds" in str(answer.remark)


async def test_copy_without_a_sequence_number_is_refused(client: Client) -> None:
    answer = await send(client, [born(1, DELAY="3")], properties(RAFTMQ_COPIED="true"))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


async def test_batch_with_more_ids_than_a_header_holds_returns_all_results(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, _),
        Admin(namesrv) as admin,
        Producer(namesrv, "P") as producer,
    ):
        await admin.create_topic("T", 1)
        messages = [Message("T", b"%d" % number) for number in range(15_000)]
        results = await producer.send_batch(messages)
        assert [each.queue_offset for each in results] == list(range(15_000))
        assert sum(len(each.offset_message_id) for each in results) > HEADER_BYTES_MAX
        last = await admin.message_by_id(results[-1].offset_message_id)
        assert last is not None
        assert (last.body, last.message_id) == (b"14999", results[-1].message_id)


async def test_oversized_batch_is_refused_with_a_reason_and_not_stored(tmp_path: Path) -> None:
    async with (
        cluster_and_broker(tmp_path) as (namesrv, broker),
        Admin(namesrv) as admin,
        Producer(namesrv, "P") as producer,
    ):
        await admin.create_topic("T", 1)
        with pytest.raises(SendRejected, match="a batch of more than") as refused:
            await producer.send_batch([Message("T", b"x")] * 40_000)
        assert refused.value.stored == "no"
        assert await admin.max_offset(MessageQueue("T", broker.settings.group, 0)) == 0
