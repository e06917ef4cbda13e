"""A poison message with the SDK and a real broker: it is given up, or an operator skips it while a member runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from mq.client import Admin, BrokerError, Message, MessageQueue, PopConsumer, Producer, PushConsumer, ReceivedMessage
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.stored_messages import wait_stored
from tests.support.waiting import until

DEAD = "%DLQ%G"
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
            [dead] = await wait_stored(await broker.connect(), 1, DEAD)
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
            [dead] = await wait_stored(await broker.connect(), 1, DEAD)
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
            assert dead.properties["RAFTMQ_FAILURE"].startswith("ValueError: no such account (test_skipping_with_sdk")


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
            [dead] = await wait_stored(await broker.connect(), 1, DEAD)
            assert dead.body == message.body == b"0"
            assert dead.properties["RAFTMQ_FAILURE"] == "KeyError: 'account'"
            assert (dead.properties["DLQ_ORIGIN_TOPIC"], dead.properties["RAFTMQ_DEAD_ATTEMPTS"]) == ("T", "2")
            assert dead.properties["RAFTMQ_ORIGIN_OFFSET"] == "0"
