"""Transactions of several messages and consumer offsets with the SDK, against the test kit's brokers."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mq.client import (
    BrokerError,
    Message,
    MessageQueue,
    MessageRefused,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TransactionFenced,
    TransactionOutcomeUnknown,
    TransactionProducer,
)
from mq.client.sync import SyncProducer, SyncPullConsumer, SyncTransactionProducer
from mq.testing import Kit, open_kit, running_kit
from tests.support.virtual_time import VIRTUAL_TIME


def bodies(kit: Kit, topic: str) -> list[bytes]:
    return sorted(message.body for message in kit.messages(topic))


@VIRTUAL_TIME
async def test_all_messages_are_seen_or_none() -> None:
    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P") as producer:
        async with producer.transaction() as good:
            first = await good.send(Message("A", b"1", tags="x", keys=["k"], sharding_key="s"))
            await good.send(Message("B", b"2"))
            assert kit.messages("A") == []
        assert good.is_committed
        [one] = kit.messages("A")
        assert (one.body, one.tags, one.keys, one.message_id) == (b"1", "x", ("k",), first)
        assert bodies(kit, "B") == [b"2"]
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what raises
            async with producer.transaction() as bad:
                await bad.send(Message("A", b"never"))
                raise ZeroDivisionError
        async with producer.transaction() as given_up:
            await given_up.send(Message("A", b"neither"))
            given_up.rollback()
        async with producer.transaction():
            pass
        assert not bad.is_committed
        assert not given_up.is_committed
        assert (bodies(kit, "A"), kit.pending()) == ([b"1"], [])


async def transform(kit: Kit, producer: TransactionProducer, consumer: PullConsumer, count: int) -> None:
    """Consume `count` numbers, and send their squares."""
    async with producer.transaction() as transaction:
        taken: list[ReceivedMessage] = []
        while len(taken) < count:
            taken += await consumer.poll(count - len(taken))
        for message in taken:
            await transaction.send(Message("Squares", b"%d" % int(message.body) ** 2))
        await transaction.commit_offsets(consumer)


async def numbers(producer: TransactionProducer, count: int) -> MessageQueue:
    results = [await producer.send(Message("Numbers", b"0"))]
    queue = results[0].queue
    for number in range(1, count):
        await producer.send(Message("Numbers", b"%d" % number), queue=queue)
    return queue


@VIRTUAL_TIME
async def test_second_transform_of_the_same_offsets_is_refused() -> None:
    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P") as producer:
        queue = await numbers(producer, 6)
        async with (
            PullConsumer(kit.namesrv, "G", consume_from="first") as one,
            PullConsumer(kit.namesrv, "G", consume_from="first") as other,
        ):
            await one.assign([queue])
            await other.assign([queue])
            await transform(kit, producer, one, 4)
            assert await other.committed(queue) == 4
            with pytest.raises(TransactionFenced, match=r"has consumed queue \d+ of Numbers up to offset 4"):
                await transform(kit, producer, other, 3)
            assert other.position(queue) == 4, "it goes on where the group is"
            await transform(kit, producer, other, 2)
            assert await one.committed(queue) == 6
        assert bodies(kit, "Squares") == sorted(b"%d" % number**2 for number in range(6))


@VIRTUAL_TIME
async def test_messages_of_a_failed_transaction_are_consumed_again() -> None:
    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P") as producer:
        queue = await numbers(producer, 4)
        async with PullConsumer(kit.namesrv, "G", consume_from="first") as consumer:
            await consumer.assign([queue])
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what raises
                async with producer.transaction() as transaction:
                    assert [message.body for message in await consumer.poll(2)] == [b"0", b"1"]
                    await transaction.commit_offsets(consumer)
                    with pytest.raises(ValueError, match="another transaction"):
                        await transaction.commit_offsets(consumer)
                    raise ZeroDivisionError
            assert consumer.position(queue) == 0
            assert await consumer.committed(queue) is None
            await transform(kit, producer, consumer, 4)
            async with producer.transaction() as only_offsets:
                await only_offsets.commit_offsets(consumer)
            await producer.send(Message("Numbers", b"4"), queue=queue)
            async with producer.transaction() as only_offsets:
                assert len(await consumer.poll()) == 1
                await only_offsets.commit_offsets(consumer)
            assert await consumer.committed(queue) == 5
        assert bodies(kit, "Squares") == sorted(b"%d" % number**2 for number in range(4))


@VIRTUAL_TIME
async def test_handler_transforms_each_message_once() -> None:
    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P") as producer:
        queue = await numbers(producer, 5)
        consumer = PushConsumer(kit.namesrv, "G", consume_from="first", retry_delay=0.01)
        failed: list[bytes] = []

        @consumer.on("Numbers")
        async def square(message: ReceivedMessage) -> None:
            try:
                async with producer.transaction() as transaction:
                    await transaction.send(Message("Squares", b"%d" % int(message.body) ** 2))
                    await transaction.commit_offsets(consumer, message)
            except TransactionFenced:
                failed.append(message.body)
                return
            if message.body == b"3" and message.attempt == 1:
                raise ZeroDivisionError  # after the commit: the handler gets it again

        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            await kit.advance_until(lambda: len(kit.messages("Squares")) == 5)
            await kit.advance_until(lambda: consumer.positions[queue] == 5)
            consumer.stop()
        assert failed == [b"3"]
        assert bodies(kit, "Squares") == sorted(b"%d" % number**2 for number in range(5))


@VIRTUAL_TIME
async def test_transaction_cannot_consume_past_unfinished_messages() -> None:
    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P") as producer:
        await numbers(producer, 2)
        consumer = PushConsumer(kit.namesrv, "G", consume_from="first", ordered=False)
        refused = trio.Event()

        @consumer.on("Numbers")
        async def square(message: ReceivedMessage) -> None:
            if message.body == b"0":
                await refused.wait()
                return
            async with producer.transaction() as transaction:
                with pytest.raises(ValueError, match=r"offset 0 of .* is not finished"):
                    await transaction.commit_offsets(consumer, message)
            refused.set()

        async with consumer, trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            await refused.wait()
            consumer.stop()


@VIRTUAL_TIME
async def test_orphaned_set_is_ended_by_its_check() -> None:
    asked: list[str] = []

    async def check_set(transaction_id: str) -> bool:
        asked.append(transaction_id)
        return True

    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P") as plain:
        queue = await numbers(plain, 3)
        async with (
            TransactionProducer(kit.namesrv, "Q", check_set=check_set) as checked,
            PullConsumer(kit.namesrv, "G", consume_from="first") as consumer,
        ):
            await consumer.assign([queue])
            async with checked.transaction() as left:
                await left.send(Message("A", b"1"))
                await left.send(Message("B", b"2"))
                assert len(await consumer.poll(2)) == 2
                await left.commit_offsets(consumer)
                await left.prepare()
                with pytest.raises(MessageRefused, match="already sent to the broker"):
                    await left.send(Message("B", b"3"))
                left.leave_open()
            assert [waiting.kind for waiting in kit.pending()] == ["transaction"]
            assert await consumer.committed(queue) is None
            await kit.advance_until(lambda: kit.messages("A"))
            assert asked == [left.id]
            assert (bodies(kit, "A"), bodies(kit, "B")) == ([b"1"], [b"2"])
            assert await consumer.committed(queue) == 2
        async with plain.transaction() as transaction:
            with pytest.raises(ValueError, match="check_set"):
                transaction.leave_open()
            with pytest.raises(ValueError, match="check_set"):
                await transaction.prepare()
            await transaction.send(Message("A", b"no"))
            await transaction._stage(5.0)
            transaction._decision = None  # as if the process had died here
        await kit.advance_until(lambda: not kit.pending())
        assert bodies(kit, "A") == [b"1"]


@VIRTUAL_TIME
async def test_leader_failure_leaves_one_outcome() -> None:
    async with open_kit(replicas=3) as kit, TransactionProducer(kit.namesrv, "P", timeout=30) as producer:
        queue = await numbers(producer, 8)
        async with PullConsumer(kit.namesrv, "G", consume_from="first", timeout=30) as consumer:
            await consumer.assign([queue])
            async with trio.open_nursery() as nursery:

                @nursery.start_soon
                async def _() -> None:
                    lost = await kit.lose_leader()
                    await kit.restore(lost)

                done = 0
                while done < 8:
                    try:
                        await transform(kit, producer, consumer, 1)
                    except (TransactionFenced, TransactionOutcomeUnknown):
                        pass
                    done = await consumer.committed(queue) or 0
        assert bodies(kit, "Squares") == sorted(b"%d" % number**2 for number in range(8))


@VIRTUAL_TIME
async def test_invalid_transaction_is_refused_before_sending() -> None:
    async with open_kit() as kit, TransactionProducer(kit.namesrv, "P") as producer:
        with pytest.raises(MessageRefused, match="divide it"):  # noqa: PT012 - the block is what raises
            async with producer.transaction() as transaction:
                await transaction.send(Message("A", bytes([1]) * 3_000_000))
                await transaction.send(Message("A", bytes([1]) * 3_000_000))
        with pytest.raises(MessageRefused, match="broker groups broker-a, elsewhere, "):  # noqa: PT012 - the block is what raises
            async with producer.transaction() as transaction:
                await transaction.send(Message("A", b"1"), queue=MessageQueue("A", "elsewhere", 0))
                queue = (await producer.send(Message("B", b"here"))).queue
                await transaction.send(Message("B", b"2"), queue=queue)
        with pytest.raises(BrokerError, match="queue id 99 is illegal"):
            async with producer.transaction() as transaction:
                await transaction.send(Message("B", b"2"), queue=queue._replace(queue_id=99))
        with pytest.raises(ValueError, match="give the TransactionProducer a check"):
            producer.transaction(Message("A", b"1"))
        assert kit.pending() == []


@VIRTUAL_TIME
async def test_older_replica_prevents_sets_in_its_group() -> None:
    async with open_kit(format_level_max=3) as kit, TransactionProducer(kit.namesrv, "P", timeout=1.0) as producer:
        with pytest.raises(BrokerError, match="upgrade all its replicas first"):
            async with producer.transaction() as transaction:
                await transaction.send(Message("A", b"1"))


def test_sync_facade_offers_transactions_of_sets() -> None:
    with running_kit() as kit, SyncProducer(kit.namesrv) as sender:
        queue = sender.send(Message("Numbers", b"2")).queue
        sender.send(Message("Numbers", b"3"), queue=queue)
        asked: list[str] = []

        def check_set(transaction_id: str) -> bool:
            asked.append(transaction_id)
            return False

        with (
            SyncTransactionProducer(kit.namesrv, "P", check_set=check_set) as producer,
            SyncPullConsumer(kit.namesrv, "G", consume_from="first") as one,
            SyncPullConsumer(kit.namesrv, "G", consume_from="first") as other,
        ):
            for consumer in (one, other):
                consumer.assign([queue])
            with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:  # noqa: PT012 - the block is what raises
                assert len(one.poll(1)) == 1
                transaction.commit_offsets(one)
                raise ZeroDivisionError
            assert one.position(queue) == 0
            with producer.transaction() as transaction:
                [message] = one.poll(1)
                transaction.send(Message("Squares", b"%d" % int(message.body) ** 2))
                transaction.commit_offsets(one)
                transaction.prepare()
            assert transaction.is_committed
            with pytest.raises(TransactionFenced), producer.transaction() as transaction:  # noqa: PT012 - the block is what raises
                assert len(other.poll(1)) == 1
                transaction.commit_offsets(other)
            assert other.position(queue) == 1
            with producer.transaction() as transaction:
                transaction.send(Message("Squares", b"never"))
                transaction.leave_open()
            kit.advance_until(lambda: not kit.pending())
            assert asked == [transaction.id]
        assert [message.body for message in kit.messages("Squares")] == [b"4"]
