"""SKIP_MESSAGE: an operator moves a group behind a poison message, with requests and with the SDK."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from mq.client import Admin, BrokerError, Message, MessageQueue, PopConsumer, Producer, PushConsumer, ReceivedMessage
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.requests.group_progress import ResetConsumerClientOffset
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.running_broker import Answer, Client, RunningBroker, broker_client, properties
from tests.support.short_logs import SMALL, fill, shortened
from tests.support.stored_messages import stored, wait_stored
from tests.support.waiting import until

DEAD = "%DLQ%G"


async def skip(client: Client, offset: int, **given: Any) -> Answer:
    ext = {"group": "G", "topic": "T", "queueId": 0, "offset": offset, "operator": "ann@desk"} | given
    return await client.request(RequestCode.SKIP_MESSAGE, ext)


async def offset_of(client: Client) -> int:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    return int((await client.request(RequestCode.QUERY_CONSUMER_OFFSET, ext)).ext["offset"])


async def commit(client: Client, offset: int) -> None:
    ext = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": offset}
    assert (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


async def four_messages(client: Client) -> None:
    await client.create_topic("T", 1)
    await client.heartbeat("c", "G")
    for number in range(4):
        assert (await client.send(body=b"%d" % number, e=0, i=properties(UNIQ_KEY=f"u{number}", TAGS="x"))).code == 0


async def test_skipped_message_is_a_dead_letter_of_its_group(client: Client) -> None:
    await four_messages(client)
    assert (await skip(client, 0)).code == 0  # a young queue: the group has stored no offset yet
    await client.pull(offset=1)  # the group goes on
    await commit(client, 2)
    answer = await skip(client, 2)
    assert (answer.code, answer.ext) == (0, {"nextOffset": "3", "deadLetterTopic": DEAD})
    assert await offset_of(client) == 3
    first, dead = await stored(client, DEAD)
    assert (first.body, dead.body, dead.reconsume_times) == (b"0", b"2", 1)
    said = dead.properties
    assert said["RAFTMQ_DEAD_REASON"] == "skipped by an operator"
    assert said["RAFTMQ_DEAD_BY"].startswith("ann@desk from 127.0.0.1:")
    assert (said["RAFTMQ_DEAD_GROUP"], said["DLQ_ORIGIN_TOPIC"], said["UNIQ_KEY"]) == ("G", "T", "u2")
    assert (said["RAFTMQ_ORIGIN_BROKER"], said["RAFTMQ_ORIGIN_QUEUE"], said["RAFTMQ_ORIGIN_OFFSET"]) == (
        "broker-a",
        "0",
        "2",
    )
    assert int(said["RAFTMQ_DEAD_MS"]) >= dead.born_timestamp_ms


async def test_only_the_next_message_of_a_group_can_be_skipped(client: Client) -> None:
    await four_messages(client)
    await commit(client, 1)
    for offset in (0, 2, -1, 2**63 - 1):
        answer = await skip(client, offset)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert "stands at offset 1 in queue 0 of T" in str(answer.remark)
    await commit(client, 4)
    answer = await skip(client, 4)
    assert (answer.code, "there is no message 4" in str(answer.remark)) == (ResponseCode.ILLEGAL_OPERATION, True)
    refusals: list[tuple[dict[str, Any], int]] = [
        ({"group": "Other"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "Other"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -1}, ResponseCode.INVALID_PARAMETER),
    ]
    for given, code in refusals:
        assert (await skip(client, 4, **given)).code == code, given
    assert await stored(client, DEAD) == []
    assert await offset_of(client) == 4


async def test_commit_in_flight_counts_before_a_skip(tmp_path: Path) -> None:
    """Otherwise the skip would take the group back to where it was before that commit."""
    async with broker_client(tmp_path, offset_commit_seconds=1000.0) as client:
        await four_messages(client)
        ext = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 3}
        await client.post(RequestCode.UPDATE_CONSUMER_OFFSET, ext, oneway=True)
        answer = await skip(client, 0)
        assert (answer.code, "stands at offset 3" in str(answer.remark)) == (ResponseCode.ILLEGAL_OPERATION, True)
        assert (await skip(client, 3)).ext["nextOffset"] == "4"
        assert await offset_of(client) == 4


async def test_first_message_left_by_retention_is_skipped(tmp_path: Path) -> None:
    async with broker_client(tmp_path, **SMALL) as client:
        await four_messages(client)
        await commit(client, 1)
        await fill(client)
        await shortened(client, tmp_path / "commitlog")

        skipped: list[int] = []

        async def is_skipped() -> bool:  # retention may go on
            first = await client.offset(RequestCode.GET_MIN_OFFSET)
            if (await skip(client, first)).code == 0:
                skipped.append(first)
            return skipped != []

        await until(is_skipped)
        assert skipped[0] > 1
        assert await offset_of(client) == skipped[0] + 1
        assert len(await stored(client, DEAD)) == 1


async def test_members_are_sent_past_the_skipped_message(broker: RunningBroker) -> None:
    client, member = await broker.connect(), await broker.connect()
    await four_messages(client)
    await member.heartbeat("m", "G")
    await commit(client, 1)
    assert (await skip(client, 1)).code == 0
    request, body = await member.question()
    assert isinstance(request, ResetConsumerClientOffset)
    assert msgspec.to_builtins(request)["extFields"]["group"] == "G"
    assert body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}'
    ext = {"consumerGroup": "G", "topic": "T", "queueId": 0, "commitOffset": 4}
    ignored = await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    assert "no consumer has continued from there yet" in str(ignored.remark)
    assert await offset_of(client) == 2
    # A member that missed the notice is moved by its next pull.
    assert (await client.pull(offset=1)).ext["nextBeginOffset"] == "2"


DEAD_LETTERS = "%DLQ%G"
POISON = b"1"


async def three_messages(producer: Producer) -> MessageQueue:
    for number in range(3):
        sent = await producer.send(Message("T", b"%d" % number), queue=MessageQueue("T", "broker-a", 0))
    return sent.queue


async def stands_at(admin: Admin, queue: MessageQueue, offset: int) -> bool:
    return await admin.group_offset("G", queue) == offset


def poisoned(consumer: PushConsumer) -> trio.MemoryReceiveChannel[bytes]:
    comes, came = trio.open_memory_channel[bytes](999)

    @consumer.on("T")
    async def handle(message: ReceivedMessage) -> None:
        comes.send_nowait(message.body)
        if message.body == POISON:
            raise ValueError("no such account")

    return came


async def test_operator_skips_a_message_while_a_member_runs(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with (
            cluster_and_broker(tmp_path) as (namesrv, broker),
            Producer(namesrv) as producer,
            Admin(namesrv) as admin,
            trio.open_nursery() as nursery,
        ):
            queue = await three_messages(producer)
            consumer = PushConsumer(namesrv, "G", consume_from="first", commit_seconds=0.02, retry_delay=0.05)
            came = poisoned(consumer)
            async with consumer:
                nursery.start_soon(consumer.run)
                while await came.receive() != POISON:
                    pass
                await until(partial(stands_at, admin, queue, 1))
                with pytest.raises(BrokerError, match="stands at offset 1 in queue 0 of T, not at 2"):
                    await admin.skip_message("G", queue, 2)
                assert await admin.skip_message("G", queue, 1, operator="ann") == 2
                while await came.receive() != b"2":
                    pass
                await until(partial(stands_at, admin, queue, 3))
                consumer.stop()
            [dead] = await wait_stored(await broker.connect(), 1, DEAD_LETTERS)
            assert dead.body == POISON
            assert dead.properties["RAFTMQ_DEAD_BY"].startswith("ann from ")


async def test_ordered_member_gives_up_a_poison_message(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with (
            cluster_and_broker(tmp_path) as (namesrv, broker),
            Producer(namesrv) as producer,
            trio.open_nursery() as nursery,
        ):
            await three_messages(producer)
            consumer = PushConsumer(namesrv, "G", consume_from="first", max_reconsume_times=2, retry_delay=0.02)
            came = poisoned(consumer)
            async with consumer:
                nursery.start_soon(consumer.run)
                assert [await came.receive() for _ in range(5)] == [b"0", POISON, POISON, POISON, b"2"]
                consumer.stop()
            [dead] = await wait_stored(await broker.connect(), 1, DEAD_LETTERS)
            said = {
                "RAFTMQ_DEAD_REASON": "given up after 3 deliveries",
                "RAFTMQ_DEAD_ATTEMPTS": "3",
                "RAFTMQ_DEAD_GROUP": "G",
                "DLQ_ORIGIN_TOPIC": "T",
                "RAFTMQ_ORIGIN_BROKER": "broker-a",
                "RAFTMQ_ORIGIN_QUEUE": "0",
                "RAFTMQ_ORIGIN_OFFSET": "1",
            }
            assert said.items() <= dead.properties.items()
            assert dead.properties["RAFTMQ_FAILURE"].startswith("ValueError: no such account (test_skipping")


async def test_popped_message_is_made_a_dead_letter(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with cluster_and_broker(tmp_path) as (namesrv, broker), Producer(namesrv) as producer:
            await three_messages(producer)
            async with PopConsumer(namesrv, "G", "T", consume_from="first") as consumer:
                message = await anext(consumer)
                await consumer.nack(message)
                while (message := await anext(consumer)).reconsume_times == 0:
                    await consumer.ack(message)
                await consumer.dead_letter(message, KeyError("account"))
                await consumer.ack(message)
            [dead] = await wait_stored(await broker.connect(), 1, DEAD_LETTERS)
            assert dead.body == message.body == b"0"
            assert dead.properties["RAFTMQ_FAILURE"] == "KeyError: 'account'"
            assert (dead.properties["DLQ_ORIGIN_TOPIC"], dead.properties["RAFTMQ_DEAD_ATTEMPTS"]) == ("T", "2")
            assert dead.properties["RAFTMQ_ORIGIN_OFFSET"] == "0"
