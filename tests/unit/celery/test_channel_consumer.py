"""What a consumer does with messages that it has popped."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest import mock

import pytest
import trio
from trio.testing import MockClock

from mq.celery.channel_consumer import STAND_BACK_SECONDS, ChannelConsumer
from mq.celery.deliveries import Delivery
from mq.celery.limits import DEFAULT
from mq.client.consume.popped_messages import PoppedMessage
from mq.client.errors import ConnectionLost, NoRoute
from mq.protocol.requests.receipts import Receipt
from mq.tasks.queue_calls import Source
from tests.unit.client.popping import popped_message


class OneQueue:
    """A broker with one queue: pops are held until there is something, and forgotten if their connection closes."""

    def __init__(self) -> None:
        self.waiting: list[PoppedMessage] = []
        self.requests: list[str] = []
        self.acknowledged: list[int] = []
        self.acknowledge_seconds = 0.0
        self.acknowledge_requests = 0
        self.answer_seconds = 0.0
        self.given_back: list[int] = []
        self.lines: list[Line] = []
        self.levels = 1
        self.until_task_runs = 0.0
        """Seconds from the answer of a held pop until the task that has asked runs again."""

    async def sources(self, topic: str) -> dict[Source, int]:
        return {Source(topic, "b"): self.levels}

    async def leader(self, source: Source) -> str:
        return "b:1"

    async def connect(self, address: str) -> Line:
        self.lines.append(line := Line(address))
        return line

    async def pop(self, source: Source, level: int, count: int, invisible: float) -> list[PoppedMessage]:
        self.requests.append(f"pop {count}")
        await trio.sleep(self.answer_seconds)
        return self._take(count)

    async def pop_at(
        self,
        line: Line,
        source: Source,
        level: int,
        count: int,
        invisible: float,
        *,
        hold_seconds: float,
        at_once: Callable[[list[PoppedMessage]], None],
    ) -> list[PoppedMessage]:
        self.requests.append(f"held pop {count}")
        for _ in range(round(10 * hold_seconds)):
            if self.waiting:
                break
            await trio.sleep(0.1)
            if line.has_ended_requests:
                line.close("closed by the server")
                break
            if line.failure is not None:
                raise line.failure
        if not self.waiting and line.failure is not None:
            raise line.failure
        taken = self._take(count)
        at_once(taken)
        await trio.sleep(self.until_task_runs)
        return taken

    async def wait(self, source: Source, seconds: float) -> bool:
        self.requests.append("wait")
        for _ in range(round(10 * seconds)):
            if self.waiting:
                break
            await trio.sleep(0.1)
        return bool(self.waiting)

    async def acknowledge(self, source: Source, receipts: list[Receipt], *, seconds: float) -> None:
        self.acknowledge_requests += 1
        await trio.sleep(self.answer_seconds)
        self.acknowledged += [each.offset for each in receipts]
        self.acknowledge_seconds = seconds

    async def extend(self, message: PoppedMessage, seconds: float) -> bool:
        await self.change(Source.from_message(message), message.receipt, seconds)
        return False

    async def change(self, source: Source, receipt: Receipt, seconds: float) -> None:
        self.given_back.append(receipt.offset)
        await trio.lowlevel.checkpoint()

    def _take(self, count: int) -> list[PoppedMessage]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


class Line:
    """A connection that is not shared."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.failure: ConnectionLost | None = None
        self.has_ended_requests = False

    def end_requests(self) -> None:
        self.has_ended_requests = True

    async def run(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self.close("its task has ended")

    def close(self, reason: str) -> None:
        self.failure = self.failure or ConnectionLost(self.address, reason, sent=True)


def offset_of(delivery: Delivery) -> int:
    assert isinstance(delivery.message, PoppedMessage)
    return delivery.message.receipt.offset


def letter(offset: int) -> PoppedMessage:
    message = popped_message(offset, 1000)
    message.body = b'{"properties": {}}'
    return message


def consumer_of(broker: OneQueue | mock.Mock, delivered: list[Delivery], prefetch: int) -> ChannelConsumer:
    consumer = ChannelConsumer(
        cast("Any", broker),
        mock.Mock(of_queue=lambda queue: queue, limits=DEFAULT),
        invisible=60.0,
        redeliveries_max=None,
        emit=delivered.extend,
        fail=lambda error: pytest.fail(str(error)),
        on_unwanted=mock.AsyncMock(),
    )
    consumer.limit(prefetch)
    return consumer


@asynccontextmanager
async def running(consumer: ChannelConsumer) -> AsyncIterator[ChannelConsumer]:
    """Runs a consumer that consumes from the queue q."""
    await consumer.consume("q")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        yield consumer
        nursery.cancel_scope.cancel()


async def test_high_priority_messages_are_delivered_even_if_lower_pops_fail(autojump_clock: MockClock) -> None:
    """They stayed hidden for the visibility timeout, and nobody had them."""
    waiting = [letter(0)]

    async def pop(source: Source, level: int, *_: Any) -> list[PoppedMessage]:
        if level == 0:
            raise NoRoute("q", "no leader")
        return [waiting.pop()] if waiting else []

    calls = mock.Mock(
        sources=mock.AsyncMock(return_value={Source("q", "b"): 2}),
        pop=pop,
        wait=mock.AsyncMock(),
        refresh=mock.AsyncMock(),
    )
    delivered: list[Delivery] = []
    async with running(consumer_of(calls, delivered, prefetch=5)):
        await trio.sleep(1)
    assert [offset_of(each) for each in delivered] == [0]


async def test_messages_of_a_single_queue_arrive_by_waiting_pops(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        for offset in range(3):
            await trio.sleep(1)
            broker.waiting.append(letter(offset))
            await trio.sleep(1)
            assert len(delivered) == offset + 1
            consumer.deliveries.acknowledge(delivered[-1].tag)
        await trio.sleep(1)
    assert broker.acknowledged == [0, 1, 2]
    # The first one finds out that there is nothing yet. One for one message is held while the first is at work.
    assert broker.requests[:3] == ["pop 2", "held pop 2", "held pop 1"]
    assert broker.requests.count("wait") == 0


async def test_intake_yields_before_requesting_the_next_message(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that handles a message waited until the request for the next one was on its way."""
    broker, batches = OneQueue(), list[list[Delivery]]()
    seen: list[tuple[float, int, str]] = []
    monkeypatch.setattr(
        "mq.celery.channel_consumer.time.sleep",
        lambda seconds: seen.append((seconds, len(batches), broker.requests[-1])),
    )
    broker.waiting = [letter(0)]
    consumer = consumer_of(broker, [], prefetch=3)
    consumer._emit = batches.append
    async with running(consumer):
        await trio.sleep(1)
        assert len(batches) == 1
        assert seen == [], "it waited although the pop was not held"
        broker.waiting.append(letter(1))
        await trio.sleep(1)
    assert seen == [(STAND_BACK_SECONDS, 2, "held pop 2")]
    assert broker.requests == ["pop 3", "pop 2", "held pop 2", "held pop 1"]


async def test_waiting_pop_hands_over_before_its_task_runs_again(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    broker.until_task_runs = 0.5
    async with running(consumer_of(broker, delivered, prefetch=3)):
        await trio.sleep(1)
        foreign = popped_message(1, 1000)
        foreign.body = b"not of kombu"
        broker.waiting += [letter(0), foreign, letter(2)]
        await trio.sleep(0.3)
        assert [offset_of(each) for each in delivered] == [0, 2]
        assert broker.acknowledged == []
        await trio.sleep(1)
    assert [offset_of(each) for each in delivered] == [0, 2]
    assert broker.acknowledged == [1], "the foreign message was not settled, or another one was"


async def test_worker_with_full_prefetch_holds_no_pop(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    broker.waiting = [letter(offset) for offset in range(3)]
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        await trio.sleep(60)
        assert [len(delivered), len(broker.waiting)] == [2, 1]
        consumer.deliveries.acknowledge(delivered[0].tag)
        await trio.sleep(1)
        assert [len(delivered), len(broker.waiting)] == [3, 0]


async def test_waiting_pop_of_a_closed_channel_leaves_messages_visible(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        await trio.sleep(1)
        assert broker.requests[-1] == "held pop 2"
    await consumer.close()
    assert [line.failure is not None for line in broker.lines] == [True]


async def test_waiting_pop_of_a_cancelled_consumer_gives_the_message_back(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        await trio.sleep(1)
        consumer.cancel("q")
        broker.waiting.append(letter(0))
        await trio.sleep(1)
    assert broker.given_back == [0]
    assert delivered == []


async def test_pops_do_not_wait_with_a_second_queue(autojump_clock: MockClock) -> None:
    """What there is room for may come from either."""
    broker, delivered = OneQueue(), list[Delivery]()
    consumer = consumer_of(broker, delivered, prefetch=2)
    await consumer.consume("q")
    await consumer.consume("r")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert broker.requests == ["pop 2", "pop 2", "wait", "wait"]


async def test_closed_connection_is_reopened(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    broker.refresh = mock.AsyncMock()  # type: ignore[attr-defined]
    async with running(consumer_of(broker, delivered, prefetch=2)):
        await trio.sleep(1)
        broker.lines[0].close("the leader was killed")
        await trio.sleep(1)
        broker.waiting.append(letter(0))
        await trio.sleep(1)
    assert len(delivered) == 1
    assert len(broker.lines) == 2


async def test_messages_of_one_pop_are_delivered_at_once(autojump_clock: MockClock) -> None:
    """The application may take the first one, and cancel its consumer before the next one is there."""
    broker, batches = OneQueue(), list[list[Delivery]]()
    broker.waiting = [letter(0), letter(1)]
    consumer = consumer_of(broker, [], prefetch=2)
    consumer._emit = batches.append
    async with running(consumer):
        await trio.sleep(1)
    assert [len(batch) for batch in batches] == [2]


async def test_acknowledgement_is_repeated_for_as_long_as_the_message_is_hidden(autojump_clock: MockClock) -> None:
    """Tasks that were done ran again because no broker had answered for 10 s."""
    broker, delivered = OneQueue(), list[Delivery]()
    broker.waiting = [letter(0)]
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        await trio.sleep(1)
        consumer.deliveries.acknowledge(delivered[0].tag)
        await trio.sleep(1)
    assert broker.acknowledge_seconds == 60.0


async def test_messages_done_in_short_succession_are_acknowledged_together(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    broker.waiting = [letter(0), letter(1), letter(2)]
    async with running(consumer_of(broker, delivered, prefetch=3)) as consumer:
        await trio.sleep(1)
        for delivery in delivered:
            consumer.deliveries.acknowledge(delivery.tag)
            await trio.sleep(0.01)
        assert broker.acknowledged == []
        await trio.sleep(1)
    assert broker.acknowledged == [0, 1, 2]
    assert broker.acknowledge_requests == 1


async def test_arriving_message_does_not_flush_earlier_acknowledgements(autojump_clock: MockClock) -> None:
    """Each of one task after the other was a request, which the broker stored before the next task."""
    broker, delivered = OneQueue(), list[Delivery]()
    broker.waiting = [letter(0)]
    async with running(consumer_of(broker, delivered, prefetch=1)) as consumer:
        await trio.sleep(1)
        for number in range(1, 4):
            consumer.deliveries.acknowledge(delivered[-1].tag)
            broker.waiting.append(letter(number))
            await trio.sleep(0.01)
        assert len(delivered) == 4
        assert broker.acknowledged == []
        await trio.sleep(1)
    assert broker.acknowledged == [0, 1, 2]
    assert broker.acknowledge_requests == 1


@pytest.mark.parametrize("seconds", [0.0, 0.04], ids=["gathered", "in flight"])
async def test_closing_channel_sends_pending_acknowledgements(autojump_clock: MockClock, seconds: float) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    broker.waiting, broker.answer_seconds = [letter(0)], 0.5
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        await trio.sleep(1)
        consumer.deliveries.acknowledge(delivered[0].tag)
        await trio.sleep(seconds)
    assert broker.acknowledged == []
    await consumer.close()
    assert broker.acknowledged == [0]
    assert broker.given_back == []


@pytest.mark.parametrize("comes", [True, False])
async def test_message_popped_while_its_channel_closes_is_given_back(autojump_clock: MockClock, comes: bool) -> None:
    """It was hidden until the visibility timeout: nobody read the answer of the broker."""
    broker, delivered = OneQueue(), list[Delivery]()
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        await trio.sleep(1.05)
        if comes:
            broker.waiting.append(letter(0))
        began = trio.current_time()
        await consumer.close()
    assert trio.current_time() - began < 0.5
    assert broker.given_back == ([0] if comes else [])
    assert delivered == []


async def test_messages_popped_during_close_are_returned(autojump_clock: MockClock) -> None:
    broker, delivered = OneQueue(), list[Delivery]()
    broker.levels, broker.answer_seconds = 3, 0.2
    async with running(consumer_of(broker, delivered, prefetch=2)) as consumer:
        await trio.sleep(0.1)
        broker.waiting.append(letter(0))
        await consumer.close()
    assert broker.given_back == [0]
    assert delivered == []
