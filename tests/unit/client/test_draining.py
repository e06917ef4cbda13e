"""A worker that ends: what its handlers are doing is finished, the rest is left to others, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading

import anyio
import anyio.lowlevel
import pytest

from mq.client import ClientError, ReceivedMessage
from mq.client.consume.member import GroupMember
from mq.client.sync import SyncPushConsumer
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, consuming, fill, filled, offset_of
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio


class Work:
    """A handler that is at work until it may end."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.done: list[bytes] = []
        self.may_end = anyio.Event()

    async def handle(self, message: ReceivedMessage) -> None:
        self.begun.append(message.body)
        await self.may_end.wait()
        self.done.append(message.body)


@pytest.mark.parametrize("ordered", [True, False])
async def test_drain_finishes_running_handlers(ordered: bool) -> None:
    async with filled(9) as cluster:
        work, finished = Work(), []
        async with consumer_of(cluster, ordered=ordered, concurrency=3) as consumer:
            consumer.on("T")(work.handle)

            async def drain() -> None:
                finished.append(await consumer.drain(60))

            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consumer.run)
                    count = 1 if ordered else 3
                    await until(lambda: len(work.begun) == count)
                    tasks.start_soon(drain)
                    await anyio.wait_all_tasks_blocked()
                    assert not finished
                    work.may_end.set()
            assert finished == [True]
            assert sorted(work.done) == sorted(work.begun)
            assert len(work.done) == count
            assert offset_of(cluster) == 1, "stored before the consumer leaves its group"
            assert await consumer.drain(1) is True, "nothing runs"
            # The next run goes on.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run)
                await until(lambda: len(work.done) == 9)
                consumer.stop()
        assert (sorted(work.done), offset_of(cluster)) == ([b"%03d" % number for number in range(9)], 9)


async def test_drain_cancels_handlers_after_its_timeout() -> None:
    async with filled(3) as cluster:
        work = Work()
        async with consumer_of(cluster) as consumer:
            consumer.on("T")(work.handle)
            with anyio.fail_after(60):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consumer.run)
                    await until(lambda: bool(work.begun))
                    assert await consumer.drain(0.05) is False
            assert work.done == []
        assert offset_of(cluster) in (None, 0)


@pytest.mark.parametrize("ordered", [True, False, "key"])
async def test_handler_cannot_drain_its_own_consumer(ordered: bool | str) -> None:
    async with filled(1) as cluster, consumer_of(cluster, ordered=ordered) as consumer:

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            with pytest.raises(ClientError, match=r"a handler cannot drain its consumer.*stop\(\)"):
                await consumer.drain(0.05)
            consumer.stop()

        with anyio.fail_after(30):
            await consumer.run()


async def test_drain_in_a_task_of_a_handler_ends() -> None:
    async with filled(1) as cluster:
        calls: list[bytes] = []
        async with consumer_of(cluster) as consumer:

            @consumer.on("T")
            async def handle(message: ReceivedMessage) -> None:
                calls.append(message.body)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consumer.drain, 0.05)

            with anyio.fail_after(30):
                await consumer.run()
        assert calls == [b"000"]
        assert offset_of(cluster) in (None, 0)


async def test_handler_may_have_another_task_drain() -> None:
    async with filled(3) as cluster:
        finished: list[bool] = []
        async with consumer_of(cluster) as consumer, anyio.create_task_group() as others:

            async def drain() -> None:
                finished.append(await consumer.drain(60))

            @consumer.on("T")
            async def handle(message: ReceivedMessage) -> None:
                others.start_soon(drain)
                await until(lambda: consumer._handlers._drains)

            with anyio.fail_after(60):
                await consumer.run()
        assert finished == [True]
        assert offset_of(cluster) == 1


def test_thread_of_a_handler_cannot_drain(threads: FakeCluster) -> None:
    fill(threads, 1)
    errors: list[str] = []
    with SyncPushConsumer(threads.namesrv, "cg", consume_from="first") as consumer:

        @consumer.on("T")
        def handle(message: ReceivedMessage) -> None:
            try:
                consumer.drain(0.05)
            except ClientError as error:
                errors.append(str(error))
            consumer.stop()

        consumer.run()
    assert errors == [
        "a handler cannot drain its consumer, which waits for it: call stop(), or drain in another thread"
    ]


async def test_idle_consumer_is_drained_at_once() -> None:
    async with consuming() as (_, consumer):
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run, Work().handle)
                await consumer.wait_assigned()
                assert await consumer.drain(60) is True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_drains_and_a_second_one_stops(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    async with filled(3) as cluster:
        for is_patient in (True, False):
            work = Work()
            async with consumer_of(cluster) as consumer:
                consumer.on("T")(work.handle)
                with anyio.fail_after(60):
                    async with anyio.create_task_group() as tasks:

                        async def run() -> None:
                            await consumer.run(signals=True, drain_timeout=3600)

                        tasks.start_soon(run)
                        await until(lambda: bool(work.begun))
                        os.kill(os.getpid(), number)
                        await until(lambda: consumer._handlers._drains)
                        if is_patient:
                            work.may_end.set()
                        else:
                            os.kill(os.getpid(), number)
            assert len(work.done) == is_patient
        assert offset_of(cluster) == 1
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("wakes_main_thread", [True, False])
def test_signal_drains_threads(threads: FakeCluster, wakes_main_thread: bool) -> None:
    fill(threads, 3)
    done: list[bytes] = []
    may_end = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    consumer = SyncPushConsumer(threads.namesrv, "cg", consume_from="first", ordered=False, concurrency=2)

    @consumer.on("T")
    def handle(message: ReceivedMessage) -> None:
        if message.body == b"000" and wakes_main_thread:
            os.kill(os.getpid(), signal.SIGTERM)
        elif message.body == b"000":
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        assert may_end.wait(60)
        done.append(message.body)

    def let_end() -> None:
        while not consumer._client._handlers._drains:
            may_end.wait(0.01)
        may_end.set()

    helper = threading.Thread(target=let_end)
    helper.start()
    with consumer:
        consumer.run(signals=True)
    helper.join()
    assert 1 <= len(done) <= 2, "the third message is left to the next member"
    assert threads.group.offsets["cg", "T", 0] == len(done)
    assert signal.getsignal(signal.SIGTERM) == before


def test_offsets_are_stored_when_drained_run_returns(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(threads, 1)
    commit = GroupMember.commit
    consumer = SyncPushConsumer(threads.namesrv, "cg", consume_from="first", commit_seconds=3600)

    async def commit_late(self: GroupMember) -> None:
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
        await commit(self)

    monkeypatch.setattr(GroupMember, "commit", commit_late)

    @consumer.on("T")
    def handle(message: ReceivedMessage) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with consumer:
        consumer.run(signals=True)
        assert threads.group.offsets["cg", "T", 0] == 1


def test_times_must_be_positive(threads: FakeCluster) -> None:
    with SyncPushConsumer(threads.namesrv, "cg") as consumer:
        with pytest.raises(ValueError, match="drain_timeout is 0"):
            consumer.run(signals=True, drain_timeout=0)
        with pytest.raises(ValueError, match="timeout is -1"):
            consumer.drain(-1)
