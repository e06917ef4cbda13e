"""Ordered consumers: a message that keeps failing becomes a dead letter, and its queue goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from mq.client import NotADeadLetter, PushConsumer, ReceivedMessage
from mq.client.application_code import failure_of
from mq.client.consume.send_back import failure_text
from mq.protocol.properties import SAFE_BYTES_MAX, decode
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, filled, offset_of, running, take

pytestmark = pytest.mark.anyio

SEND_BACK = 36
DEAD = "%DLQ%cg"
POISON = b"001"


def poisoned(consumer: PushConsumer) -> list[tuple[bytes, int]]:
    """What the handler saw: body and attempt. It fails for one of the messages."""
    seen: list[tuple[bytes, int]] = []

    @consumer.on("T")
    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.attempt))
        if message.body == POISON:
            raise ValueError("no such account")

    return seen


@pytest.mark.parametrize("options", [{}, {"exclusive": True}], ids=["ordered", "exclusive"])
async def test_poison_message_becomes_a_dead_letter_with_the_exception(options: dict[str, Any]) -> None:
    async with filled(3) as cluster:
        consumer = consumer_of(cluster, max_reconsume_times=2, commit_seconds=0.01, **options)
        seen = poisoned(consumer)
        async with running(consumer):
            await until(lambda: offset_of(cluster) == 3)
        assert seen == [(b"000", 1), (POISON, 1), (POISON, 2), (POISON, 3), (b"002", 1)]
        assert cluster.group.bodies(DEAD) == [POISON]
        [sent_back] = [request.ext for request in cluster.leader.received if request.code == SEND_BACK]
        assert (sent_back["delayLevel"], sent_back["raftmqAttempts"], sent_back["offset"]) == ("-1", "3", "1000")
        assert sent_back["raftmqFailure"].startswith("ValueError: no such account (test_giving_up.py:")


async def test_failing_batch_loses_only_the_poison_message() -> None:
    async with filled(4) as cluster:
        consumer = consumer_of(cluster, max_reconsume_times=1, commit_seconds=0.01)
        seen: list[list[bytes]] = []

        @consumer.on("T", batch=4)
        async def handle(messages: list[ReceivedMessage]) -> None:
            seen.append([message.body for message in messages])
            if POISON in seen[-1]:
                raise ValueError("no such account")

        async with running(consumer):
            await until(lambda: offset_of(cluster) == 4)
        assert cluster.group.bodies(DEAD) == [POISON]
        assert seen[-4:] == [[b"000"], [POISON], [b"002"], [b"003"]]


async def test_broadcast_member_gives_up_a_poison_message(tmp_path: Path) -> None:
    async with filled(3) as cluster:
        consumer = consumer_of(cluster, max_reconsume_times=1, broadcast=tmp_path / "offsets", ordered=False)
        seen = poisoned(consumer)
        async with running(consumer):
            await until(lambda: cluster.group.bodies(DEAD) == [POISON] and (b"002", 1) in seen)
        assert [attempt for body, attempt in seen if body == POISON] == [1, 2]


async def test_message_that_no_broker_takes_is_retried_here() -> None:
    async with filled(2) as cluster:
        cluster.leader.fail_codes[SEND_BACK] = 1
        consumer = consumer_of(cluster, max_reconsume_times=0, commit_seconds=0.01)
        seen = poisoned(consumer)
        async with running(consumer):
            await until(lambda: (POISON, 3) in seen)
            assert offset_of(cluster) in (None, 0, 1)
            cluster.leader.fail_codes.clear()
            await until(lambda: offset_of(cluster) == 2)
        assert cluster.group.bodies(DEAD) == [POISON]


async def test_minus_one_never_gives_up() -> None:
    async with filled(2) as cluster:
        consumer = consumer_of(cluster, max_reconsume_times=-1, retry_delay=1e-9)
        seen = poisoned(consumer)
        async with running(consumer):
            await until(lambda: (POISON, 150) in seen)
        assert cluster.leader.count(SEND_BACK) == 0


async def test_attempts_are_still_counted_when_a_queue_is_read_again() -> None:
    async with filled(2) as cluster:
        consumer = consumer_of(cluster, max_reconsume_times=3, commit_seconds=0.01)
        seen = poisoned(consumer)
        async with running(consumer):
            await until(lambda: (POISON, 2) in seen)
            [queue] = consumer.assignment
            member = consumer._membership()
            member.reset({queue: 1})  # the queue is read anew, as after its loss
            await until(lambda: offset_of(cluster) == 2)
        attempts = [attempt for body, attempt in seen if body == POISON]
        assert attempts[-1] == 4
        assert attempts.count(1) == 1
        assert cluster.group.bodies(DEAD) == [POISON]


async def test_application_makes_a_dead_letter_itself() -> None:
    async with filled(2) as cluster, consumer_of(cluster, commit_seconds=0.01) as consumer:
        consumer.subscribe("T")
        [_, message] = await take(consumer, 2)
        await consumer.dead_letter(message, "no such\x01 account")
        [letter] = cluster.group.queues[DEAD, 0]
        assert decode(letter.properties)["RAFTMQ_FAILURE"] == "no such  account"
        cluster.leader.fail_codes[SEND_BACK] = 1
        with pytest.raises(NotADeadLetter, match="as a dead letter"):
            await consumer.dead_letter(message, ValueError("x"))


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("broken itself")


def test_failure_text_is_bounded_and_never_raises() -> None:
    try:
        raise ValueError("é" * 2000 + "\x02")
    except ValueError as error:
        text = failure_text(error)
    assert len(text.encode()) <= SAFE_BYTES_MAX
    assert text.startswith("ValueError: éé")
    assert "(test_giving_up.py:" in text
    assert "\x02" not in text
    assert failure_text(Broken()) == "Broken: without a text"
    assert failure_text(anyio.WouldBlock()) == "WouldBlock"


def test_failure_text_names_the_handler_not_the_event_loop() -> None:
    """The place was that in asyncio, for a task that the handler had cancelled, and for a time-out."""

    async def cancels() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    async def times_out() -> None:
        with anyio.fail_after(0):
            await anyio.sleep_forever()

    async def failure(function: Callable[[], Awaitable[None]]) -> BaseException | None:
        return await failure_of(lambda _: function(), None)

    for run, name in [
        (partial(asyncio.run, failure(cancels)), "cancels"),
        (partial(asyncio.run, failure(times_out)), "times_out"),
        (partial(trio.run, failure, times_out), "times_out"),
    ]:
        error = run()
        assert error is not None
        assert failure_text(error).partition("(")[2].startswith("test_giving_up.py:")
        assert failure_text(error).endswith(f" in {name})")
