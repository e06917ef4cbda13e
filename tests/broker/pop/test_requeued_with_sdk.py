"""Dead letters of groups that pop, requeued, on brokers of the test kit, in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from mq.client import Admin, Message, PopConsumer, Producer, PullConsumer, ReceivedMessage
from mq.testing import Kit, open_kit


def on_virtual_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        async def bounded() -> None:
            with trio.fail_after(600):
                await test()

        trio.run(bounded, clock=trio.testing.MockClock(autojump_threshold=0))

    del run.__wrapped__
    return run


async def bury(kit: Kit, group: str, count: int) -> None:
    async with PopConsumer(kit.namesrv, group, "T", ahead=1, consume_from="first") as consumer:
        for _ in range(count):
            message = await anext(aiter(consumer))
            await consumer.dead_letter(message, "no such address")
            await consumer.ack(message)


async def letters(kit: Kit, group: str) -> list[ReceivedMessage]:
    async with PullConsumer(kit.namesrv, group="readers", consume_from="first") as reader:
        await reader.assign(await reader.queues(f"%DLQ%{group}"))
        return list(await reader.poll(timeout=5.0))


@on_virtual_time
async def test_waiting_pop_gets_a_requeued_dead_letter_at_once() -> None:
    """It went to the retry topic that only pulling members of the group read: it was lost from sight."""
    async with open_kit() as kit, Admin(kit.namesrv) as admin, Producer(kit.namesrv) as producer:
        await admin.create_topic("T")
        await producer.send(Message("T", b"letter"))
        await bury(kit, "mail", 1)
        (letter,) = await letters(kit, "mail")
        async with PopConsumer(kit.namesrv, "mail", "T") as mail, PopConsumer(kit.namesrv, "audit", "T") as audit:
            received: list[tuple[str, ReceivedMessage]] = []
            arrived = trio.Event()

            async def receive(consumer: PopConsumer[bytes]) -> None:
                async for message in consumer:
                    await consumer.ack(message)
                    received.append((consumer.group, message))
                    arrived.set()

            async with trio.open_nursery() as tasks:
                tasks.start_soon(receive, mail)
                tasks.start_soon(receive, audit)
                await trio.sleep(1)  # both pops wait at the broker
                received.clear()  # the original may be news for a new group
                arrived = trio.Event()
                before = trio.current_time()
                await admin.requeue_dead_letter("mail", letter)
                await arrived.wait()
                assert trio.current_time() - before < 1
                await trio.sleep(60)  # the other group would get it, too
                tasks.cancel_scope.cancel()
        ((group, message),) = received
        assert (group, message.body, message.topic, message.reconsume_times) == ("mail", b"letter", "T", 0)
        assert message.message_id == letter.message_id


@on_virtual_time
async def test_requeued_dead_letters_keep_their_priority() -> None:
    async with open_kit() as kit, Admin(kit.namesrv) as admin, Producer(kit.namesrv) as producer:
        await admin.create_topic("T", 10, message_type="PRIORITY")
        for priority in (9, None, 4, 20):
            await producer.send(Message("T", b"%a" % priority, priority=priority))
        await bury(kit, "mail", 4)
        for letter in await letters(kit, "mail"):
            await admin.requeue_dead_letter("mail", letter)
        await producer.send(Message("T", b"5", priority=5))
        got = []
        async with PopConsumer(kit.namesrv, "mail", "T", ahead=1) as consumer:
            for _ in range(5):
                message = await anext(aiter(consumer))
                await consumer.ack(message)
                got.append(message.priority)
        assert got == [9, 20, 5, 4, None]


@on_virtual_time
async def test_failing_requeued_dead_letter_can_be_requeued_again() -> None:
    async with open_kit() as kit, Admin(kit.namesrv) as admin, Producer(kit.namesrv) as producer:
        await admin.create_topic("T")
        await producer.send(Message("T", b"letter"))
        for times in (1, 2, 3):
            await bury(kit, "mail", 1)
            found = await letters(kit, "mail")
            assert len(found) == times
            await admin.requeue_dead_letter("mail", found[-1], to_topic=times == 3)
        async with PopConsumer(kit.namesrv, "audit", "T", consume_from="first") as audit:
            with trio.move_on_after(60):
                assert [(await anext(aiter(audit))).body for _ in range(2)] == [b"letter"] * 2
                await anext(aiter(audit))
                pytest.fail("the group got a dead letter of another one")
