"""Clients whose clock is hours ahead or behind: what they ask for by duration counts by the clock of the brokers."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import AsyncIterator

import kombu
import pytest
import trio
import trio.testing

import raftmq.celery  # noqa: F401 - makes the URLs known
from mq.client import Admin, Every, Message, PopConsumer, Producer, PushConsumer, RetryLater, Schedule
from mq.testing import Kit, running_kit
from tests.support.virtual_time import VIRTUAL_TIME
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("hours", [5, -5])


@pytest.fixture
async def producer(kit: Kit, monkeypatch: pytest.MonkeyPatch, hours: float) -> AsyncIterator[Producer]:
    """From now on, all clients have the wrong clock."""
    set_clock(monkeypatch, hours)
    async with Producer(kit.namesrv) as producer:
        yield producer


def set_clock(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    right, right_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: right() + 3600 * hours)
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + int(3600 * hours) * 1_000_000_000)


@VIRTUAL_TIME
async def test_popped_message_is_hidden_for_its_time(kit: Kit, producer: Producer) -> None:
    await producer.send(Message("T", b"a"))
    async with PopConsumer(kit.namesrv, "G", "T", invisible=60, consume_from="first") as consumer:
        message = await anext(consumer)
        await consumer.extend(message, 600)
        await kit.advance(minutes=9)
        with trio.move_on_after(5):
            pytest.fail(f"{await anext(consumer)} was delivered twice")
        await kit.advance(minutes=1)
        again = await anext(consumer)
        assert (again.body, again.reconsume_times) == (b"a", 1)
        await consumer.nack(again, delay=30)
        await kit.advance(seconds=31)
        await consumer.ack(await anext(consumer))
        await kit.advance(minutes=30)
        assert kit.pending() == []


@VIRTUAL_TIME
async def test_pop_of_a_client_with_a_wrong_clock_waits_for_messages(kit: Kit, producer: Producer) -> None:
    """A request that seemed to be old was not held, or held for hours."""
    await producer.send(Message("T", b"first"))
    async with PopConsumer(kit.namesrv, "G", "T", consume_from="first") as consumer:
        await consumer.ack(await anext(consumer))
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def send_later() -> None:
                await trio.sleep(40)  # the broker holds the pop
                await producer.send(Message("T", b"second"))

            began = trio.current_time()
            message = await anext(consumer)
            assert message.body == b"second"
            assert trio.current_time() - began < 42
            await consumer.ack(message)


@VIRTUAL_TIME
async def test_delays_and_retries_ignore_wrong_client_clocks(kit: Kit, producer: Producer) -> None:
    await producer.send(Message("T", b"a", delay=90))
    began, calls = kit.now(), list[dt.datetime]()
    consumer = PushConsumer(kit.namesrv, "G", consume_from="first", ordered=False)

    @consumer.on("T")
    async def handle(message: object) -> None:
        calls.append(kit.now())
        if len(calls) == 1:
            raise RetryLater(1800)

    async with consumer, trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        await kit.advance_until(lambda: len(calls) == 2)
        consumer.stop()
    first, second = (call - began for call in calls)
    assert dt.timedelta(seconds=90) <= first < dt.timedelta(seconds=100)
    assert dt.timedelta(seconds=1800) <= second - first < dt.timedelta(seconds=1830)


@VIRTUAL_TIME
async def test_schedule_ticks_at_once_and_evenly(kit: Kit, producer: Producer) -> None:
    async with Admin(kit.namesrv) as admin:
        await admin.create_topic("T")
        schedule = Schedule("a", "T", b"hi", Every(dt.timedelta(minutes=1)))
        await admin.schedules.create(schedule)
        await kit.advance(minutes=5)
        await admin.schedules.pause("a")
        await kit.advance(minutes=5)
        await admin.schedules.resume("a")
        await kit.advance(minutes=5)
    dues = [int(each.properties["RAFTMQ_SCHEDULE_DUE"]) for each in kit.messages("T")]
    assert len(dues) == len(set(dues))
    assert 10 <= len(dues) <= 11
    assert all(abs(due / 1000 - kit.now().timestamp()) < 16 * 60 for due in dues)


def test_celery_message_expires_and_is_redelivered_by_the_broker_clock(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    with running_kit() as kit:
        set_clock(monkeypatch, hours)
        with kombu.Connection(f"raftmq://{kit.namesrv}") as connection:
            queue = kombu.Queue("q", channel=connection.channel())
            queue.declare()
            producer = kombu.Producer(connection.channel(), routing_key="q")
            producer.publish("a", expiration=60)
            got = queue.get()
            assert got is not None
            got.requeue()
            wait_until(lambda: queue.get(no_ack=True))
            producer.publish("b", expiration=60)
            kit.advance(seconds=61)
            assert queue.get() is None
