"""The test kit in a thread: for asyncio, for synchronous clients, and for both at once."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mq.client import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendOutcomeUnknown,
    TransactionProducer,
)
from mq.client.sync import SyncProducer, SyncPushConsumer
from mq.testing import open_kit, running_kit


def test_asyncio_gets_a_dead_letter_after_16_retries() -> None:
    async def main() -> None:
        calls: list[ReceivedMessage] = []
        async with open_kit() as kit, Producer(kit.namesrv) as producer:
            await producer.send(Message("Orders", b"bad"))
            consumer = PushConsumer(kit.namesrv, group="billing", consume_from="first", ordered=False)

            @consumer.on("Orders")
            async def bill(message: ReceivedMessage) -> None:
                calls.append(message)
                raise RetryLater(1800)

            async with consumer:
                running = asyncio.create_task(consumer.run())
                await kit.advance_until(lambda: kit.dead_letters("billing"))
                consumer.stop()
                await running
        assert len(calls) == 17

    asyncio.run(main())


def test_kit_refuses_coroutine_functions_as_conditions() -> None:
    async def never() -> bool:
        return False

    with running_kit() as kit, pytest.raises(TypeError, match=r"plain function \(def or lambda\), not <function"):
        kit.advance_until(never)

    async def main() -> None:
        async with open_kit() as kit:
            with pytest.raises(TypeError, match="plain function"):
                await kit.advance_until(never)

    asyncio.run(main())


def test_asyncio_waits_for_40_days_and_for_a_check() -> None:
    async def main() -> None:
        asked: list[str] = []

        async def check(message: ReceivedMessage) -> bool:
            asked.append(message.message_id)
            return True

        async with open_kit() as kit, TransactionProducer(kit.namesrv, group="shop", check=check) as producer:
            await producer.send(Message("Letters", b"late", delay=40 * 86_400))
            await kit.advance(days=40)
            kit.assert_stored("Letters", b"late")
            async with producer.transaction(Message("Bills", b"one")) as transaction:
                transaction.leave_open()
            await kit.advance_until(lambda: kit.messages("Bills"))
            assert asked == [transaction.message_id]

    asyncio.run(main())


def test_asyncio_fails_over() -> None:
    async def main() -> None:
        async with open_kit(replicas=3) as kit, Producer(kit.namesrv) as producer:
            await producer.send(Message("Orders", b"before"))
            lost = await kit.lose_leader()
            await producer.send(Message("Orders", b"after"))
            await kit.restore(lost)
            kit.assert_stored("Orders", b"before", b"after")

    asyncio.run(main())


def test_synchronous_clients_run_on_test_kit() -> None:
    calls: list[ReceivedMessage] = []
    with running_kit() as kit, SyncProducer(kit.namesrv) as producer:
        began = kit.now()
        producer.send(Message("Orders", b"bad"))
        producer.send(Message("Orders", b"late", delay=40 * 86_400))
        consumer = SyncPushConsumer(kit.namesrv, group="billing", consume_from="first", ordered=False)

        @consumer.on("Orders")
        def bill(message: ReceivedMessage) -> None:
            calls.append(message)
            if message.body == b"bad":
                raise RetryLater(1800)

        with consumer:
            running = threading.Thread(target=consumer.run)
            running.start()
            kit.advance_until(lambda: kit.dead_letters("billing"))
            kit.advance(days=40)
            kit.advance_until(lambda: any(message.body == b"late" for message in calls))
            consumer.stop()
            running.join()
        assert len(calls) == 18
        assert kit.now() - began > dt.timedelta(days=40)
        assert kit.advance_to_next() is None


def test_synchronous_failover_and_faults() -> None:
    with running_kit(replicas=3) as kit, SyncProducer(kit.namesrv, retry_unknown=False) as producer:
        producer.send(Message("Orders", b"1"))
        lost = kit.lose_leader()
        assert kit.leader != lost
        producer.send(Message("Orders", b"2"))
        kit.restore(lost)
        kit.wait_ready()
        kit.faults.outcome_unknown()
        with pytest.raises(SendOutcomeUnknown):
            producer.send(Message("Orders", b"3"))
        kit.settle()
        kit.assert_stored("Orders", b"1", b"2", b"3")


def test_asyncio_and_threads_share_a_kit() -> None:
    async def send(namesrv: str) -> None:
        async with Producer(namesrv) as producer:
            await producer.send(Message("Orders", b"of asyncio"))

    with running_kit() as kit, SyncProducer(kit.namesrv) as producer:
        producer.send(Message("Orders", b"of a thread"))
        asyncio.run(send(kit.namesrv))
        kit.assert_stored("Orders", b"of a thread", b"of asyncio")


def test_error_of_a_test_is_raised_unchanged() -> None:
    async def main() -> None:
        async with open_kit():
            raise LookupError("of the test")

    with pytest.raises(LookupError, match="of the test"):
        asyncio.run(main())
    with pytest.raises(LookupError, match="of the test"), running_kit():
        raise LookupError("of the test")


def test_cancelled_test_closes_the_kit() -> None:
    async def main() -> None:
        async with asyncio.timeout(0.3), open_kit() as kit, Producer(kit.namesrv) as producer:
            await producer.send(Message("Orders", b"1"))
            await kit.advance_until(lambda: False, timeout=60)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "raftmq.testing"]


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.01])
def test_kit_cancelled_during_its_start_leaves_no_thread(seconds: float) -> None:
    async def main() -> None:
        async with asyncio.timeout(seconds), open_kit():
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "raftmq.testing"]


def test_wrong_settings_leave_no_thread() -> None:
    with pytest.raises(ValueError, match="no_such_setting"), running_kit(no_such_setting=1):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "raftmq.testing"]


def test_numbered_sends_without_an_event_loop() -> None:
    with running_kit() as kit, SyncProducer(kit.namesrv, numbered="billing") as producer:
        producer.send(Message("Warm", b"up"))
        kit.faults.outcome_unknown()
        assert not producer.send(Message("Orders", b"one")).maybe_duplicated
        kit.settle()
        assert [message.body for message in kit.messages("Orders")] == [b"one"]


def test_threads_that_share_a_producer_store_each_message_once() -> None:
    with running_kit() as kit, SyncProducer(kit.namesrv, numbered=True, retries=9) as producer:
        producer.send(Message("Warm", b"up"))
        kit.faults.outcome_unknown(5)

        def send(thread: int) -> None:
            for number in range(20):
                assert not producer.send(Message("Orders", b"%d-%d" % (thread, number))).maybe_duplicated

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(send, range(8)))
        kit.settle()
        bodies = sorted(message.body for message in kit.messages("Orders"))
        assert bodies == sorted(b"%d-%d" % (thread, number) for thread in range(8) for number in range(20))
