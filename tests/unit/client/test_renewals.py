"""Messages that a pop consumer holds stay hidden."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from mq.client.consume.popped_messages import Inbox, PoppedMessage
from mq.client.consume.renewals import Renewals
from mq.client.errors import NoRoute
from tests.unit.client.popping import popped_message


class Broker:
    """Extends by a minute, unless it is told otherwise; each answer takes `seconds`."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []
        self.failing = self.gone = False
        self.seconds = 0.0
        self.renewals = Renewals(60.0, self.extend)

    async def extend(self, message: PoppedMessage) -> bool:
        self.asked.append((message.receipt.offset, trio.current_time()))
        await trio.sleep(self.seconds)
        if self.failing:
            raise NoRoute("T", "no leader")
        if self.gone:
            return False
        message.hidden_until = trio.current_time() + 60
        return True


@asynccontextmanager
async def renewing() -> AsyncIterator[Broker]:
    broker = Broker()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.renewals.run)
        yield broker
        nursery.cancel_scope.cancel()


async def test_unsettled_message_is_renewed_at_half_its_invisible_time(autojump_clock: MockClock) -> None:
    async with renewing() as broker:
        start = trio.current_time()
        message = popped_message(0, 1000)
        broker.renewals.hold([message])
        await trio.sleep(100)
        assert [at - start for _, at in broker.asked] == [30, 60, 90]
        await broker.renewals.release(message)
        await trio.sleep(1000)
        assert len(broker.asked) == 3


async def test_messages_due_soon_are_renewed_together_without_waiting_for_each_other(autojump_clock: MockClock) -> None:
    async with renewing() as broker:
        start = trio.current_time()
        broker.seconds = 25.0
        broker.renewals.hold([popped_message(0, 1000)])
        await trio.sleep(5)
        broker.renewals.hold([popped_message(1, 1000)])
        await trio.sleep(10)
        broker.renewals.hold([popped_message(2, 1000)])
        await trio.sleep(35)
        assert sorted((offset, at - start) for offset, at in broker.asked) == [(0, 30), (1, 30), (2, 45)]


async def test_failed_renewal_is_repeated_while_there_is_time(autojump_clock: MockClock) -> None:
    async with renewing() as broker:
        message = popped_message(0, 1000)
        broker.failing = True
        broker.renewals.hold([message])
        await trio.sleep(50)
        broker.failing = False
        await trio.sleep(50)
        assert message.hidden_until > trio.current_time()
        assert broker.renewals.messages() == [message]


@pytest.mark.parametrize("kind", ["gone", "failing"])
async def test_message_with_a_failed_renewal_is_not_handed_out(autojump_clock: MockClock, kind: str) -> None:
    async with renewing() as broker:
        inbox = Inbox(32, ordered=False)
        lost, good = popped_message(0, 1000), popped_message(1, 1000)
        setattr(broker, kind, True)
        broker.renewals.hold([lost])
        inbox.put([lost])
        await trio.sleep(100)
        assert broker.renewals.messages() == []
        good.hidden_until = trio.current_time() + 60
        inbox.put([good])
        assert await inbox.get() is good


async def test_release_waits_for_the_receipt_of_a_renewal_in_flight(autojump_clock: MockClock) -> None:
    async with renewing() as broker:
        broker.seconds = 7.0
        message = popped_message(0, 1000)
        broker.renewals.hold([message])
        await trio.sleep(31)
        start = trio.current_time()
        await broker.renewals.release(message)
        assert trio.current_time() - start == 6


async def test_message_is_not_renewed_while_its_receipt_changes(autojump_clock: MockClock) -> None:
    async with renewing() as broker:
        broker.seconds = 7.0
        message = popped_message(0, 1000)
        broker.renewals.hold([message])
        start = trio.current_time()
        await trio.sleep(31)
        async with broker.renewals.pause(message):
            assert trio.current_time() - start == 37  # the renewal in flight was waited for
            await trio.sleep(100)
            assert len(broker.asked) == 1
        await trio.sleep(1)
        assert len(broker.asked) == 2


async def test_closing_wakes_tasks_that_wait_for_a_receipt(autojump_clock: MockClock) -> None:
    broker = Broker()
    broker.seconds = 1e9
    running = trio.CancelScope()

    async def run() -> None:
        with running:
            await broker.renewals.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        messages = [popped_message(0, 1000), popped_message(1, 1000)]
        broker.renewals.hold(messages)
        await trio.sleep(31)
        nursery.start_soon(broker.renewals.release, messages[0])
        await trio.testing.wait_all_tasks_blocked()
        running.cancel()
        assert broker.renewals.close() == messages[1:]


async def test_consumer_pops_only_for_waiting_callers(autojump_clock: MockClock) -> None:
    inbox = Inbox(0, ordered=False)
    with trio.move_on_after(10) as nobody:
        await inbox.room()
    assert nobody.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.get)
        await inbox.room()
        inbox.put([popped_message(0, 1000), popped_message(1, 1000)])
    with trio.move_on_after(10) as one_is_left:
        await inbox.room()
    assert one_is_left.cancelled_caught
    assert (await inbox.get()).receipt.offset == 1
