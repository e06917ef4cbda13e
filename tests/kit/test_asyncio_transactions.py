"""Transactions and policies on asyncio, whose tasks are cancelled one by one, and whose task groups raise groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mq.client import (
    DeadLetter,
    Message,
    OnError,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    Skip,
    StopConsumer,
    TransactionFenced,
    TransactionProducer,
    TransactionState,
)
from mq.testing import Kit, open_kit


def on_asyncio(test: Callable[[Kit], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_kit() as kit:
            await asyncio.wait_for(test(kit), 60)

    asyncio.run(main())


async def checked(message: ReceivedMessage) -> bool:
    return True


def test_cancelled_task_rolls_its_transaction_back() -> None:
    async def test(kit: Kit) -> None:
        async with TransactionProducer(kit.namesrv, "P", check=checked) as producer:
            inside = asyncio.Event()

            async def work() -> None:
                async with producer.transaction(Message("T", b"a")):
                    inside.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), producer.transaction(Message("T", b"b")):
                    await asyncio.sleep(30)
            async with producer.transaction(Message("T", b"c")) as transaction:
                pass
            assert (transaction.state, transaction.confirmed) == (TransactionState.COMMITTED, True)
            await kit.advance(minutes=5)
        kit.assert_stored("T", b"c")
        assert kit.pending() == []

    on_asyncio(test)


def test_cancelled_set_leaves_the_consumer_position_unchanged() -> None:
    async def test(kit: Kit) -> None:
        async with (
            TransactionProducer(kit.namesrv, "P") as producer,
            PullConsumer(kit.namesrv, "G", consume_from="first") as consumer,
        ):
            await producer.send(Message("In", b"a"))
            await consumer.assign(await consumer.queues("In"))

            async def transform(seconds: float) -> None:
                async with producer.transaction() as transaction:
                    for message in await consumer.poll(timeout=5):
                        await transaction.send(Message("Out", message.body * 2))
                    await transaction.commit_offsets(consumer)
                    await asyncio.sleep(seconds)

            task = asyncio.create_task(transform(30))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.3)
            await transform(0)
            await kit.advance(minutes=5)
            kit.assert_stored("Out", b"aa")
            assert await consumer.poll(timeout=0.05) == []

    on_asyncio(test)


def test_each_input_is_transformed_once_by_a_push_consumer() -> None:
    async def test(kit: Kit) -> None:
        async with TransactionProducer(kit.namesrv, "P") as producer:
            for number in range(5):
                await producer.send(Message("In", b"%d" % number))
            consumer = PushConsumer(kit.namesrv, "G", consume_from="first")
            failed: list[ReceivedMessage] = []

            @consumer.on("In", on_error={TransactionFenced: Skip()})
            async def transform(message: ReceivedMessage) -> None:
                async with producer.transaction() as transaction:
                    await transaction.send(Message("Out", message.body))
                    await transaction.commit_offsets(consumer, message)
                    if message.body == b"2" and not failed:
                        failed.append(message)
                        async with asyncio.TaskGroup() as tasks:
                            tasks.create_task(_fail(RetryLater(0.05)))

            async with consumer:
                running = asyncio.create_task(consumer.run())
                await kit.advance_until(lambda: len(kit.messages("Out")) == 5)
                consumer.stop()
                await running
            assert failed
            kit.assert_stored("Out", *(b"%d" % number for number in range(5)))

    on_asyncio(test)


async def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("ordered", [True, False])
def test_policies_of_handlers(ordered: bool) -> None:
    async def test(kit: Kit) -> None:
        seen: list[bytes] = []
        async with Producer(kit.namesrv) as producer:
            for body in (b"skip", b"dead", b"late", b"slow", b"good"):
                await producer.send(Message("T", body))
            consumer = PushConsumer(kit.namesrv, "G", consume_from="first", ordered=ordered)
            policies: OnError = {LookupError: DeadLetter, TimeoutError: DeadLetter, ZeroDivisionError: StopConsumer}

            @consumer.on("T", timeout=0.2, on_error=policies)
            async def handle(message: ReceivedMessage) -> None:
                seen.append(message.body)
                match message.body:
                    case b"skip":
                        async with asyncio.TaskGroup() as tasks:
                            tasks.create_task(_fail(Skip("no")))
                    case b"dead":
                        raise KeyError("a")
                    case b"late" if seen.count(b"late") == 1:
                        raise RetryLater(0.05)
                    case b"slow":
                        await asyncio.sleep(30)
                    case b"stop":
                        1 / 0  # noqa: B018

            async with consumer:
                running = asyncio.create_task(consumer.run())
                await kit.advance_until(lambda: b"good" in seen and len(kit.dead_letters("G")) == 2)
                await kit.advance_until(lambda: seen.count(b"late") == 2)
                await producer.send(Message("T", b"stop"))
                with pytest.raises(ZeroDivisionError):
                    await running
            assert sorted(each.body for each in kit.dead_letters("G")) == [b"dead", b"slow"]
            assert sorted(seen) == [b"dead", b"good", b"late", b"late", b"skip", b"slow", b"stop"]

    on_asyncio(test)


def test_cancelled_consumer_returns_its_messages() -> None:
    async def test(kit: Kit) -> None:
        async with Producer(kit.namesrv) as producer:
            await producer.send(Message("T", b"a"))
            begun: list[bytes] = []

            async def consume(seconds: float) -> None:
                consumer = PushConsumer(kit.namesrv, "G", consume_from="first")

                @consumer.on("T")
                async def handle(message: ReceivedMessage) -> None:
                    begun.append(message.body)
                    await asyncio.sleep(seconds)
                    consumer.stop()

                async with consumer:
                    await consumer.run()

            task = asyncio.create_task(consume(30))
            await kit.advance_until(lambda: begun)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(consume(0), 30)
            assert begun == [b"a", b"a"]

    on_asyncio(test)
