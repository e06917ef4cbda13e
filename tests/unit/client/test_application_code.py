"""What the application's own functions raise: their failure, never the silent end of the client."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider

from mq.client import ClientError, Message, MessageQueue, ReceivedMessage, SendResult, TransactionProducer
from mq.client.sync import SyncProducer, SyncPushConsumer
from tests.support.producing import producer_of
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill, filled, offset_of
from tests.unit.client.fake_cluster import FakeCluster, check_back
from tests.unit.client.fake_server import FakeConnection, FakeRequest
from tests.unit.client.sending import sending

pytestmark = pytest.mark.anyio

asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])


class NoException(BaseException):
    """Neither an `Exception` nor the end of the program."""


async def cancel_a_task_of_its_own() -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(3600)


async def close_itself() -> None:
    raise GeneratorExit


async def raise_no_exception() -> None:
    raise NoException


OWN_FAULTS = [cancel_a_task_of_its_own, cancel_itself, close_itself, raise_no_exception]


@asyncio_only
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("fault", OWN_FAULTS)
async def test_handler_that_cancels_itself_has_failed(
    cluster: FakeCluster, anyio_backend: str, fault: Callable[[], Awaitable[None]], ordered: bool
) -> None:
    bodies = fill(cluster, 3)
    consumer = consumer_of(cluster, ordered=ordered)
    handled: list[bytes] = []
    failed = False

    @consumer.on("T")
    async def handle(message: ReceivedMessage) -> None:
        nonlocal failed
        if message.body == bodies[1] and not failed:
            failed = True
            await fault()
        handled.append(message.body)
        if len(handled) == 3:
            consumer.stop()

    with anyio.fail_after(60):
        async with consumer:
            await consumer.run()
    assert sorted(handled) == bodies
    assert offset_of(cluster) == 3


@pytest.mark.parametrize("how", ["scope", "task", "stop"])
async def test_cancelled_consumer_ends_while_handlers_run(anyio_backend: str, how: str) -> None:
    if how == "task" and anyio_backend == "trio":
        pytest.skip("trio cancels scopes only")
    async with filled(1) as cluster:
        consumer = consumer_of(cluster)
        waits = anyio.Event()
        ended: list[str] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            waits.set()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("handler")

        with anyio.fail_after(60):
            async with consumer:
                if how == "task":
                    task = asyncio.ensure_future(consumer.run())
                    await waits.wait()
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                else:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(consumer.run)
                        await waits.wait()
                        if how == "stop":
                            consumer.stop()
                        else:
                            tasks.cancel_scope.cancel()
        assert ended == ["handler"]
        assert offset_of(cluster) in (0, None)


async def test_handler_that_exits_ends_run_with_its_code(anyio_backend: str) -> None:
    if anyio_backend == "asyncio":
        pytest.skip("asyncio ends its event loop at once")
    async with filled(1) as cluster:
        consumer = consumer_of(cluster)

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            raise SystemExit(7)

        async with consumer:
            with pytest.raises(SystemExit) as ended:
                await consumer.run()
        assert ended.value.code == 7
        assert offset_of(cluster) in (0, None)


@pytest.mark.parametrize("linger", [None, 0.0])
@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, NoException, ZeroDivisionError])
async def test_producer_survives_a_failing_callback(
    caplog: pytest.LogCaptureFixture, error: type[BaseException], linger: float | None
) -> None:
    outcomes: list[SendResult | ClientError] = []

    def fail(outcome: SendResult | ClientError) -> None:
        outcomes.append(outcome)
        raise error

    async with sending(linger=linger, trace=True) as (_, producer):
        for _ in range(3):
            producer.send_nowait(Message("T", b"x"), fail)
        await producer.flush()
        await producer.send(Message("T", b"y"))
        assert [type(each) for each in outcomes] == [SendResult] * 3
    assert caplog.text.count("send_callback_failed") == 3


async def test_producer_ends_when_a_callback_exits(anyio_backend: str) -> None:
    if anyio_backend == "asyncio":
        pytest.skip("asyncio ends its event loop at once")

    def leave(outcome: SendResult | ClientError) -> None:
        raise SystemExit(3)

    async with FakeCluster.start(topics={"T": 1}) as cluster:

        async def send() -> None:
            async with producer_of(cluster) as producer:
                producer.send_nowait(Message("T", b"x"), leave)
                await anyio.sleep_forever()

        with anyio.fail_after(60), pytest.raises((SystemExit, BaseExceptionGroup)) as raised:
            await send()
        error: BaseException = raised.value
        while isinstance(error, BaseExceptionGroup):
            [error] = error.exceptions
        assert isinstance(error, SystemExit)
        assert error.code == 3


@asyncio_only
@pytest.mark.parametrize("fault", OWN_FAULTS)
async def test_transaction_check_that_cancels_itself_is_repeated(
    anyio_backend: str, caplog: pytest.LogCaptureFixture, fault: Callable[[], Awaitable[None]]
) -> None:
    asked = 0

    async def check(message: ReceivedMessage) -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            await fault()
        return True

    async with FakeCluster.start(topics={"T": 1, "TBW102": 1}) as cluster:
        fill(cluster, 1)
        async with TransactionProducer(cluster.namesrv, "pg", check=check) as producer:
            await producer.send(Message("T", b"x"))
            [connection] = cluster.leader.connections
            for number in range(2):
                await connection.send(check_back(cluster))
                await until(lambda: asked > number)
            await until(lambda: cluster.leader.count(37) == 1)
            await producer.send(Message("T", b"y"))
    assert caplog.text.count("check_failed") == 1


async def test_allocation_that_cancels_itself_ends_the_consumer_loudly() -> None:
    def allocate(queues: Sequence[MessageQueue], members: Sequence[str], client_id: str) -> Sequence[MessageQueue]:
        raise asyncio.CancelledError

    async with FakeCluster.start(topics={"T": 1}) as cluster:

        async def consume() -> None:
            async with consumer_of(cluster, allocate=allocate) as consumer:
                consumer.subscribe("T")
                await anyio.sleep_forever()

        with anyio.fail_after(60), pytest.raises((RuntimeError, ExceptionGroup)) as raised:
            await consume()
    error: BaseException = raised.value
    while isinstance(error, ExceptionGroup):
        [error] = error.exceptions
    assert "the allocation strategy" in str(error)


@pytest.mark.parametrize("error", [asyncio.CancelledError, ZeroDivisionError])
async def test_messages_pass_although_tracing_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    class Broken(TracerProvider):
        def get_tracer(self, *args: object, **kwargs: object) -> Broken:  # type: ignore[override]
            return self

        def start_span(self, *args: object, **kwargs: object) -> None:
            raise error

    monkeypatch.setattr("mq.client.spans._never_raises.warn_at", float("-inf"))
    async with sending(otel=Broken()) as (cluster, producer):
        await producer.send(Message("T", b"000"))
        await producer.send_batch([Message("T", b"001")])
        consumer = consumer_of(cluster, otel=Broken())
        handled: list[bytes] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            if len(handled) == 2:
                consumer.stop()

        with anyio.fail_after(60):
            async with consumer:
                await consumer.run()
    assert handled == [b"000", b"001"]
    assert caplog.text.count("span_failed") == 1


async def test_client_survives_a_failing_log_filter(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise asyncio.CancelledError

    logger = logging.getLogger("mq.client")
    logger.addFilter(refuse)
    try:
        async with sending() as (_, producer):
            producer.send_nowait(Message("T", b"x"), lambda outcome: 1 / 0)  # type: ignore[arg-type]
            await producer.flush()
            await producer.send(Message("T", b"y"))
    finally:
        logger.removeFilter(refuse)
    assert "the application's logging failed for send_callback_failed" in capsys.readouterr().err


# From threads.


def cancelled_inside() -> None:
    async def main() -> None:
        await cancel_a_task_of_its_own()

    asyncio.run(main())


def raise_in_thread() -> None:
    raise NoException


@pytest.mark.parametrize("fault", [cancelled_inside, raise_in_thread])
def test_handler_in_a_thread_may_raise_any_exception(threads: FakeCluster, fault: Callable[[], None]) -> None:
    bodies = fill(threads, 2)
    handled: list[bytes] = []
    failed = False
    with SyncPushConsumer(threads.namesrv, "cg", consume_from="first", retry_delay=0.02) as consumer:

        @consumer.on("T")
        def handle(message: ReceivedMessage) -> None:
            nonlocal failed
            if not failed:
                failed = True
                fault()
            handled.append(message.body)
            if len(handled) == 2:
                consumer.stop()

        consumer.run()
        assert handled == bodies
        assert consumer.receive(timeout=0.01) is None


def test_handler_in_a_thread_may_exit(threads: FakeCluster) -> None:
    fill(threads, 1)
    with SyncPushConsumer(threads.namesrv, "cg", consume_from="first") as consumer:

        @consumer.on("T")
        def handle(message: ReceivedMessage) -> None:
            raise SystemExit(7)

        with pytest.raises(SystemExit) as ended:
            consumer.run()
        assert ended.value.code == 7
        assert len(consumer.assignment) == 1
    assert threads.group.offsets["cg", "T", 0] == 0


def test_callback_of_a_future_may_raise_any_exception(threads: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the producer's thread; of a message that is stored already, it is called by whoever adds it."""
    store, is_added = getattr(threads.leader, "_send"), threading.Event()  # noqa: B009

    async def store_later(connection: FakeConnection, request: FakeRequest) -> None:
        await anyio.to_thread.run_sync(is_added.wait)
        await store(connection, request)

    def fail(future: Future[SendResult]) -> None:
        raise NoException

    monkeypatch.setattr(threads.leader, "_send", store_later)
    with SyncProducer(threads.namesrv) as producer:
        future = producer.submit(Message("T", b"x"))
        future.add_done_callback(fail)
        is_added.set()
        assert future.result(60).queue_offset == 0
        assert producer.send(Message("T", b"y")).queue_offset == 1
