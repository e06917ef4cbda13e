"""The test kit in the event loop of a test, on trio, with its own clock and with a virtual one."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from mq.client import (
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TransactionProducer,
)
from mq.testing import Kit, open_kit
from tests.support.virtual_time import VIRTUAL_TIME

DAYS = 40

Clock = trio.abc.Clock | None


@pytest.fixture(params=[False, True], ids=["real", "virtual"])
def clock(request: pytest.FixtureRequest) -> Clock:
    """The clock of the event loop: that of the machine, or one that jumps whenever all tasks wait."""
    return trio.testing.MockClock(autojump_threshold=0) if request.param else None


@asynccontextmanager
async def consuming(kit: Kit, group: str, topic: str, handle: Callable[[ReceivedMessage], None]) -> AsyncIterator[None]:
    consumer = PushConsumer(kit.namesrv, group=group, consume_from="first", ordered=False)

    @consumer.on(topic)
    async def called(message: ReceivedMessage) -> None:
        handle(message)

    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        yield
        consumer.stop()


async def test_message_waits_for_40_days(clock: Clock) -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Letters", b"late", delay=DAYS * 86_400))
        began = kit.now()
        [waiting] = kit.pending("Letters")
        assert waiting.kind == "delayed"
        assert waiting.message.body == b"late"
        assert abs(waiting.due_at - began - dt.timedelta(days=DAYS)) < dt.timedelta(seconds=5)
        await kit.advance(days=DAYS - 1)
        assert kit.messages("Letters") == []
        await kit.advance(days=1)
        [message] = kit.messages("Letters")
        assert (message.body, message.topic) == (b"late", "Letters")
        assert abs(kit.now() - began - dt.timedelta(days=DAYS)) < dt.timedelta(seconds=5)
        assert kit.pending() == []


async def test_message_becomes_a_dead_letter_after_sixteen_retries(clock: Clock) -> None:
    calls: list[ReceivedMessage] = []

    def fail(message: ReceivedMessage) -> None:
        calls.append(message)
        raise RetryLater(1800)

    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Orders", b"bad"))
        began = kit.now()
        async with consuming(kit, "billing", "Orders", fail):
            await kit.advance_until(lambda: kit.dead_letters("billing"))
        assert len(calls) == 17
        assert [message.reconsume_times for message in calls] == list(range(17))
        [letter] = kit.dead_letters("billing")
        assert letter.body == b"bad"
        assert dt.timedelta(hours=8) <= kit.now() - began < dt.timedelta(hours=8, minutes=1)
        with pytest.raises(AssertionError, match="billing has 1 dead letters"):
            kit.assert_no_dead_letters("billing")


async def test_transaction_is_checked(clock: Clock) -> None:
    asked: list[str] = []

    async def check(message: ReceivedMessage) -> bool | None:
        asked.append(message.message_id)
        return True if len(asked) == 3 else None

    async with open_kit() as kit, TransactionProducer(kit.namesrv, group="shop", check=check) as producer:
        async with producer.transaction(Message("Bills", b"two apples")) as transaction:
            transaction.leave_open()
        await kit.settle()
        assert [each.kind for each in kit.pending("Bills")] == ["transaction"]
        assert kit.messages("Bills") == []
        began = kit.now()
        await kit.advance_until(lambda: kit.messages("Bills"))
        assert asked == [transaction.message_id] * 3
        assert dt.timedelta(seconds=60) < kit.now() - began < dt.timedelta(seconds=90)


async def test_popped_message_is_redelivered_after_its_invisible_time(clock: Clock) -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Jobs", b"one"))
        async with PopConsumer(kit.namesrv, group="workers", topic="Jobs", invisible=3600) as consumer:
            first = await anext(consumer)
            await kit.settle()
            assert [each.kind for each in kit.pending()] == ["popped"]
            await kit.advance(hours=1)
            again = await anext(consumer)
            assert (first.body, again.body, again.reconsume_times) == (b"one", b"one", 1)


@VIRTUAL_TIME
async def test_time_advances_past_abandoned_popped_messages() -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Orders", b"first"))
        async with PopConsumer(kit.namesrv, "billing", "Orders", consume_from="first", ordered=True) as consumer:
            await anext(consumer)
            assert [each.kind for each in kit.pending("Orders")] == ["popped"]
        await producer.send(Message("Letters", b"late", delay=3600))
        await kit.advance_until(lambda: kit.messages("Letters"))


async def test_another_replica_of_the_kit_becomes_leader(clock: Clock) -> None:
    async with open_kit(replicas=3) as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Orders", b"before"))
        lost = await kit.lose_leader()
        assert kit.leader not in (lost, None)
        await producer.send(Message("Orders", b"after"))
        kit.assert_stored("Orders", b"before", b"after")
        await kit.restore(lost)
        await producer.send(Message("Orders", b"restored"))
        assert len(kit.messages("Orders")) == 3


async def test_consumers_of_all_kinds_work_while_time_is_advanced(clock: Clock) -> None:
    received: list[bytes] = []
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        async with consuming(kit, "readers", "Orders", lambda message: received.append(message.body)):
            for number in range(5):
                await producer.send(Message("Orders", b"%d" % number, delay=7200.0))
                await kit.advance(hours=2)
            await kit.advance_until(lambda: len(received) == 5)
        assert sorted(received) == [b"0", b"1", b"2", b"3", b"4"]
        async with PullConsumer(kit.namesrv, group="pulling") as puller:
            queues = await producer.queues("Orders")
            await puller.assign(queues)
            for queue in queues:
                await puller.seek(queue, "first")
            assert await puller.poll(timeout=1.0)


@VIRTUAL_TIME
async def test_failed_condition_describes_the_kit() -> None:
    async with open_kit() as kit, Producer(kit.namesrv) as producer:
        await producer.send(Message("Orders", b"one"))
        with pytest.raises(AssertionError) as caught:
            await kit.advance_until(lambda: False, timeout=0.2)
        assert "the condition is still false" in str(caught.value)
        assert "1 messages in Orders" in str(caught.value)
        with pytest.raises(
            AssertionError, match="lacks the expected \\[b'two'\\], and has the unexpected \\[b'one'\\]"
        ):
            kit.assert_stored("Orders", b"two")
        with pytest.raises(ValueError, match="time goes ahead"):
            await kit.advance(seconds=-1)


async def test_error_of_a_test_is_raised_unchanged() -> None:
    async def failing() -> None:
        async with open_kit() as kit:
            assert kit.leader == "n0"
            raise LookupError("of the test")

    with pytest.raises(LookupError, match="of the test"):
        await failing()


async def test_kit_accepts_broker_settings() -> None:
    with pytest.raises(ValueError, match="transaction_timeout"):
        async with open_kit(transaction_timeout_minutes=1):
            pass
    with pytest.raises(ValueError, match="1, 3 or 5 replicas, not 2"):
        async with open_kit(replicas=2):
            pass
    with pytest.raises(ValueError, match="the test kit sets listen itself"):
        async with open_kit(listen="127.0.0.1:1"):
            pass
    async with open_kit(auto_create_topics=False) as kit, Producer(kit.namesrv, timeout=0.5) as producer:
        with pytest.raises(Exception, match="Unknown"):
            await producer.send(Message("Unknown", b"x"))
