"""The broker for Taskiq: real tasks, Taskiq's own receiver, a real broker."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from taskiq import InMemoryBroker
from taskiq.acks import AckableMessage
from taskiq.api import run_receiver_task
from taskiq.exceptions import SendTaskError

from mq.client import Admin, ClientClosed, Message, NameServersUnavailable, Producer, PushConsumer, TopicNotFound
from raftmq.taskiq import RaftmqBroker
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SECONDS_MAX = 30.0
_numbers = itertools.count()


@pytest.fixture
def topic() -> str:
    return f"tasks-{next(_numbers)}"


def broker_of(namesrv: str, topic: str, **given: Any) -> RaftmqBroker:
    broker = RaftmqBroker(namesrv, topic=topic, group=f"workers-of-{topic}", queues=2, **given)
    return broker.with_result_backend(InMemoryBroker().result_backend)


@asynccontextmanager
async def started(broker: RaftmqBroker) -> AsyncIterator[RaftmqBroker]:
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()  # noqa: ASYNC102


@asynccontextmanager
async def working(broker: RaftmqBroker, **options: Any) -> AsyncIterator[RaftmqBroker]:
    """The broker, and a worker of it in this process."""
    broker.is_worker_process = True
    with anyio.fail_after(SECONDS_MAX):
        async with started(broker), anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run_receiver_task(broker, **options))
            yield broker
            tasks.cancel_scope.cancel()


async def test_client_receives_the_result_of_an_executed_task(namesrv: str, topic: str) -> None:
    broker = broker_of(namesrv, topic)

    @broker.task
    async def add(a: int, b: int) -> int:
        return a + b

    @broker.task(task_name="divide")
    def divide(a: int, b: int) -> float:  # in a thread
        return a / b

    async with working(broker):
        assert (await (await add.kiq(1, 2)).wait_result(timeout=SECONDS_MAX)).return_value == 3
        assert (await (await divide.kiq(3, 2)).wait_result(timeout=SECONDS_MAX)).return_value == 1.5
        failed = await (await divide.kiq(3, 0)).wait_result(timeout=SECONDS_MAX)
        assert failed.is_err


async def test_tasks_sent_before_any_worker_started_are_each_executed_once(namesrv: str, topic: str) -> None:
    done: list[tuple[int, int]] = []
    workers = [broker_of(namesrv, topic) for _ in range(3)]

    def task_of(worker: int, broker: RaftmqBroker) -> Any:
        @broker.task(task_name=f"{topic}-note")
        async def note(number: int) -> None:
            done.append((worker, number))
            await anyio.lowlevel.checkpoint()

        return note

    tasks = [task_of(worker, broker) for worker, broker in enumerate(workers)]
    async with started(workers[0]):
        for number in range(60):
            await tasks[0].kiq(number)
    async with working(workers[0]), working(workers[1]), working(workers[2]):
        await until(lambda: len(done) >= 60, seconds=SECONDS_MAX)
        sent = 60
        with anyio.fail_after(SECONDS_MAX):
            while {worker for worker, _ in done} != {0, 1, 2}:  # the first may have been so quick that it took all
                await tasks[0].kiq(sent)
                await anyio.sleep(0.01)
                sent += 1
        await until(lambda: len(done) >= sent, seconds=SECONDS_MAX)
    assert sorted(number for _, number in done) == list(range(sent))


async def test_delayed_task_waits_in_the_broker(namesrv: str, topic: str) -> None:
    broker = broker_of(namesrv, topic)
    done: list[tuple[str, float]] = []

    @broker.task
    async def note(name: str) -> None:
        done.append((name, anyio.current_time()))

    async with working(broker):
        began = anyio.current_time()
        await note.kicker().with_labels(delay=0.5).kiq("later")
        await note.kiq("now")
        await until(lambda: len(done) == 2, seconds=SECONDS_MAX)
    assert [name for name, _ in done] == ["now", "later"]
    assert done[1][1] - began >= 0.5


async def test_tasks_of_a_higher_priority_run_first(namesrv: str, topic: str) -> None:
    broker = broker_of(namesrv, topic, priorities=3)
    done: list[int] = []
    counts = {0: 6, 1: 6, 2: 6}

    def is_ready(level: int) -> bool:
        left = counts[level] - done.count(level)
        return left == 0 or broker._consumers[2 - level]._inbox._count > 0

    @broker.task
    async def note(level: int) -> None:
        done.append(level)
        # Longer than it takes to get the next one of each.
        await until(lambda: all(map(is_ready, counts)), seconds=SECONDS_MAX)

    async with started(broker):
        for level, count in counts.items():
            for _ in range(count):
                await note.kicker().with_labels(priority=level).kiq(level)
    async with working(broker, max_async_tasks=1):
        await until(lambda: len(done) == 18, seconds=SECONDS_MAX)
    # Whichever comes first when nothing is here yet; Taskiq fetches one more while a task runs.
    assert done[2:] == sorted(done[2:], reverse=True)


async def test_worker_with_all_places_taken_leaves_the_tasks_to_others(namesrv: str, topic: str) -> None:
    busy, idle = broker_of(namesrv, topic), broker_of(namesrv, topic)
    executed: list[str] = []
    go_on = anyio.Event()

    @busy.task(task_name=f"{topic}-note")
    async def hold(name: str) -> None:
        executed.append(f"busy {name}")
        await go_on.wait()

    @idle.task(task_name=f"{topic}-note")
    async def note(name: str) -> None:
        executed.append(f"idle {name}")

    async with working(busy, max_async_tasks=1):
        await hold.kiq("0")
        await until(lambda: executed == ["busy 0"], seconds=SECONDS_MAX)
        for number in range(1, 5):
            await hold.kiq(str(number))
        async with working(idle, max_async_tasks=1):
            await until(lambda: len(executed) == 5, seconds=SECONDS_MAX)
            assert sorted(executed) == ["busy 0", "idle 1", "idle 2", "idle 3", "idle 4"]
            go_on.set()


async def test_task_that_runs_longer_than_the_visibility_is_executed_once(namesrv: str, topic: str) -> None:
    one, other = broker_of(namesrv, topic, visibility=1.0), broker_of(namesrv, topic, visibility=1.0)
    executed: list[int] = []
    ended: list[int] = []

    def task_of(broker: RaftmqBroker) -> Any:
        @broker.task(task_name=f"{topic}-slow")
        async def slow(number: int) -> None:
            executed.append(number)
            await anyio.sleep(2.1 if number == 0 else 0)  # twice the visibility
            ended.append(number)

        return slow

    slow, _ = task_of(one), task_of(other)
    async with working(one), working(other):
        await slow.kiq(0)
        await until(lambda: ended == [0], seconds=SECONDS_MAX)
        await slow.kiq(1)
        await until(lambda: ended == [0, 1], seconds=SECONDS_MAX)
    assert executed == [0, 1]


async def test_task_is_acknowledged_after_execution_and_otherwise_redelivered(namesrv: str, topic: str) -> None:
    one, other = broker_of(namesrv, topic), broker_of(namesrv, topic)
    executed: list[str] = []

    @one.task(task_name=f"{topic}-note")
    async def hang() -> None:
        executed.append("one")
        await anyio.sleep_forever()

    @other.task(task_name=f"{topic}-note")
    async def note() -> None:
        executed.append("other")

    async with working(one):
        await hang.kiq()
        await until(lambda: executed == ["one"], seconds=SECONDS_MAX)
    async with working(other):  # at once, and not after a minute
        await until(lambda: executed == ["one", "other"], seconds=SECONDS_MAX / 3)


async def test_task_that_no_worker_acknowledges_becomes_a_dead_letter(
    namesrv: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = broker_of(namesrv, topic, max_attempts=2)
    attempts: list[int] = []

    @broker.task(ack_type="manual")
    async def forget() -> None:
        attempts.append(1)

    with caplog.at_level(logging.ERROR, "raftmq.taskiq"):
        for _ in range(2):  # a worker that ends without an acknowledgement gives the task back
            async with working(broker):
                seen = len(attempts)
                if not seen:
                    await forget.kiq()
                await until(lambda: len(attempts) > seen or bool(caplog.records), seconds=SECONDS_MAX)
        async with working(broker):
            await until(lambda: bool(caplog.records), seconds=SECONDS_MAX)
    assert len(attempts) == 2
    async with PushConsumer(namesrv, group="dead", consume_from="first") as consumer:
        consumer.subscribe(f"%DLQ%workers-of-{topic}")
        with anyio.fail_after(SECONDS_MAX):
            letter = await anext(aiter(consumer))
        assert b"forget" in letter.body
        assert "delivered 2 times" in letter.properties["RAFTMQ_FAILURE"]
        assert letter.properties["DLQ_ORIGIN_TOPIC"] == topic


async def test_taskiq_broker_raises_the_reason_of_failed_sends(namesrv: str, topic: str) -> None:
    broker = broker_of(namesrv, topic, priorities=2)

    @broker.task
    async def nothing() -> None:
        raise AssertionError("never sent")

    with pytest.raises(SendTaskError) as not_started:
        await nothing.kiq()
    assert isinstance(not_started.value.__cause__, ClientClosed)
    assert not_started.value.__cause__.__notes__ == ["await broker.startup() connects it"]
    async with started(broker):
        for labels, expected in (
            ({"priority": 2}, "this broker has 0 to 1"),
            ({"priority": 0.5}, "this broker has 0 to 1"),
            ({"delay": "soon"}, "label delay of .*: expected a number, got 'soon'"),
        ):
            with pytest.raises(SendTaskError) as refused:
                await nothing.kicker().with_labels(**labels).kiq()
            with pytest.raises(ValueError, match=expected):
                raise refused.value.__cause__ or AssertionError("without a cause")


async def test_undecodable_task_does_not_delay_others(namesrv: str, topic: str) -> None:
    broker = broker_of(namesrv, topic)

    @broker.task
    async def good() -> str:
        return "done"

    async with working(broker, max_async_tasks=1), Producer(namesrv) as producer:
        await producer.send(Message(topic, b"\xff not a task"))
        assert (await (await good.kiq()).wait_result(timeout=SECONDS_MAX)).return_value == "done"


async def test_missing_topics_are_created_at_startup(namesrv: str, topic: str) -> None:
    broker = broker_of(namesrv, topic, create_topics=False)
    broker.is_worker_process = True
    with pytest.raises(TopicNotFound):
        await broker.startup()
    await broker.shutdown()
    async with started(broker_of(namesrv, topic, priorities=2)), Admin(namesrv) as admin:
        for each in (topic, f"{topic}-priority-1"):
            assert len((await admin.route(each)).read_queues) == 2
        await admin.create_topic(topic, 5)
    async with started(broker_of(namesrv, topic)), Admin(namesrv) as admin:
        assert len((await admin.route(topic)).read_queues) == 5  # left as it is


async def test_cancelled_listener_loses_no_task(namesrv: str, topic: str) -> None:
    broker = broker_of(namesrv, topic, priorities=2)

    @broker.task
    async def nothing() -> None:
        raise AssertionError("never executed")

    async with started(broker):
        listening = broker.listen()
        with anyio.move_on_after(0.05):
            await anext(listening)
        await listening.aclose()
        sent = {(await nothing.kicker().with_labels(priority=number % 2).kiq()).task_id for number in range(6)}
        received: set[str] = set()
        with anyio.fail_after(SECONDS_MAX):
            async for message in broker.listen():
                assert isinstance(message, AckableMessage)
                received.add(broker.formatter.loads(message.data).task_id)
                await message.ack()  # type: ignore[misc]
                if len(received) == 6:
                    break
        assert received == sent


async def test_start_without_a_name_server_fails_within_seconds() -> None:
    broker = RaftmqBroker("127.0.0.1:1")
    with anyio.fail_after(SECONDS_MAX), pytest.raises(NameServersUnavailable, match=r"127\.0\.0\.1:1"):
        await broker.startup()
    await broker.shutdown()


@pytest.mark.parametrize("wrong", [{"priorities": 0}, {"priorities": 33}, {"prefetch": -1}, {"max_attempts": 0}])
async def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RaftmqBroker("127.0.0.1:1", **wrong)
