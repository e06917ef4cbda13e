"""Messages with priorities of the SDK's clients, on brokers of the test kit, in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mq.client import Admin, Message, MessageRefused, PopConsumer, Producer, PushConsumer, TransactionProducer
from mq.client.sync import SyncAdmin, SyncPopConsumer, SyncProducer
from mq.testing import Kit, open_kit, running_kit
from tests.support.virtual_time import VIRTUAL_TIME


async def popped(kit: Kit, count: int, *, ahead: int = 1) -> list[tuple[bytes, int | None]]:
    """Bodies and priorities, in the order in which a consumer gets them that acknowledges all."""
    got: list[tuple[bytes, int | None]] = []
    async with PopConsumer(kit.namesrv, "G", "T", ahead=ahead, consume_from="first") as consumer:
        async for message in consumer:
            got.append((message.body, message.priority))
            await consumer.ack(message)
            if len(got) == count:
                return got
    raise AssertionError(got)


async def make_topic(kit: Kit, queues: int = 10) -> None:
    async with Admin(kit.namesrv) as admin:
        await admin.create_topic("T", queues, message_type="PRIORITY")


@VIRTUAL_TIME
async def test_urgent_messages_come_first_with_their_priority() -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await make_topic(kit)
        queue = (await producer.queues("T"))[3]
        for priority in (1, 9, 0, 20):
            result = await producer.send(Message("T", b"%d" % priority, priority=priority), queue=queue)
            assert result.queue.queue_id == min(priority, 9), "the broker chooses"
        assert (await producer.send(Message("T", b"none"))).queue.queue_id == 0
        assert await popped(kit, 5) == [(b"9", 9), (b"20", 20), (b"1", 1), (b"0", 0), (b"none", None)]


@VIRTUAL_TIME
async def test_sdk_refuses_invalid_priorities() -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        for message, said in (
            (Message("T", b"x", priority=-1), "the priority '-1' is not a number from 0 to 2147483647"),
            (Message("T", b"x", priority=10**30), "is not a number from 0"),
            (Message("T", b"x", priority=10**5000), "is not a number from 0"),
            (Message("T", b"x", priority=True), "a priority is a number, not True"),
            (Message("T", b"x", priority=1.5), "a priority is a number, not 1.5"),  # type: ignore[arg-type]
            (Message("T", b"x", priority=1, sharding_key="k"), "cannot have a sharding key"),
            (Message("T", b"x", priority=1, delay=3), "cannot have a delay, too"),
            (Message("T", b"x", priority=1, delay_level=3), "cannot have a delay, too"),
            (Message("T", b"x", properties={"_SYS_MSG_PRIORITY_": "1"}), "is reserved"),
        ):
            with pytest.raises(MessageRefused, match=said):
                await producer.send(message)
        with pytest.raises(MessageRefused, match="since they go to one queue; these have 2"):
            await producer.send_batch([Message("T", b"x", priority=1), Message("T", b"y")])


@VIRTUAL_TIME
async def test_batches_have_one_priority_automatic_ones_too() -> None:
    async with open_kit() as kit, Producer(kit.namesrv, linger=0.01) as producer:
        await make_topic(kit)
        results = await producer.send_batch([Message("T", b"x", priority=7), Message("T", b"y", priority=7)])
        assert {result.queue.queue_id for result in results} == {7}
        sent = [await producer.submit(Message("T", b"x", priority=number % 3)) for number in range(30)]
        queues = [(await each).queue.queue_id for each in sent]
        assert queues == [number % 3 for number in range(30)]


@VIRTUAL_TIME
async def test_failed_message_keeps_its_priority_up_to_its_dead_letter() -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await make_topic(kit)
        await producer.send(Message("T", b"bad", priority=9))
        async with PopConsumer(kit.namesrv, "G", "T", ahead=1, consume_from="first") as consumer:
            message = await anext(consumer)
            await consumer.nack(message)
        await kit.settle()
        await producer.send(Message("T", b"low", priority=3))
        assert await popped(kit, 2) == [(b"bad", 9), (b"low", 3)]
        pusher = PushConsumer(kit.namesrv, group="H", ordered=False, max_reconsume_times=0, consume_from="first")

        @pusher.on("T")
        async def fail(message: object) -> None:
            raise ValueError

        async with pusher, trio.open_nursery() as nursery:
            nursery.start_soon(pusher.run)
            await kit.advance_until(lambda: len(kit.dead_letters("H")) == 2)
            nursery.cancel_scope.cancel()
        assert {(each.body, each.priority) for each in kit.dead_letters("H")} == {(b"bad", 9), (b"low", 3)}


@VIRTUAL_TIME
async def test_transactions_keep_priorities_also_if_the_topic_shrinks() -> None:
    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P", check=lambda message: None) as producer:
        await make_topic(kit)
        async with producer.transaction() as transaction:
            for priority in (2, 9, 1):
                await transaction.send(Message("T", b"%d" % priority, priority=priority))
            await transaction.send(Message("T", b"none"))
        assert where(kit) == {b"1": 1, b"2": 2, b"9": 9, b"none": 0}
        async with producer.transaction(Message("T", b"8", priority=8)):
            await make_topic(kit, 4)
        assert where(kit)[b"8"] == 3


def where(kit: Kit) -> dict[bytes, int]:
    return {each.body: each.queue.queue_id for each in kit.messages("T")}


def test_threads_send_and_receive_priorities() -> None:
    with running_kit() as kit, SyncProducer(kit.namesrv) as producer:
        with SyncAdmin(kit.namesrv) as admin:
            admin.create_topic("T", 10, message_type="PRIORITY")
        for priority in (1, 9):
            producer.send(Message("T", b"x", priority=priority))
        with SyncPopConsumer(kit.namesrv, "G", "T", ahead=1, consume_from="first") as consumer:
            for priority in (9, 1):
                message = consumer.receive(timeout=10)
                assert message is not None
                assert message.priority == priority
                consumer.ack(message)
