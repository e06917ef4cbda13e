"""What becomes of messages whose handlers fail: policies, time limits, and code around all handlers."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from mq.client import DeadLetter, OnError, PushConsumer, ReceivedMessage, RetryLater, Skip, StopConsumer
from mq.client.consume.policies import raised_policy
from mq.client.sync import SyncPushConsumer
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill, filled, offset_of, running
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio

DEAD = "%DLQ%cg"
SEND_BACK = 36


class Shop:
    """A handler that fails on the message `001` with an error, and notes when it got what."""

    def __init__(self, error: Exception | None = None, *, times: int = 1) -> None:
        self.error = error
        self.times = times
        self.got: list[bytes] = []
        self.at: list[float] = []

    async def bill(self, message: ReceivedMessage) -> None:
        self.got.append(message.body)
        self.at.append(anyio.current_time())
        if message.body == b"001" and self.error is not None and self.got.count(b"001") <= self.times:
            raise self.error

    def register(self, consumer: PushConsumer, **options: Any) -> None:
        decorate: Any = consumer.on
        decorate("T", **options)(self.bill)


@pytest.mark.parametrize("ordered", [True, False])
async def test_skipped_message_is_done(ordered: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with filled(3) as cluster:
        consumer, shop = consumer_of(cluster, ordered=ordered), Shop(Skip("an empty order"))
        shop.register(consumer)
        with caplog.at_level("INFO", "mq.client"):
            async with running(consumer):
                await until(lambda: len(shop.got) == 3)
        assert (sorted(shop.got), offset_of(cluster)) == ([b"000", b"001", b"002"], 3)
        assert cluster.leader.count(SEND_BACK) == 0
    assert "message_skipped" in caplog.text
    assert "Skip: an empty order (test_policies.py:" in caplog.text
    assert "handler_failed" not in caplog.text


async def test_policy_raised_in_a_task_group_applies(caplog: pytest.LogCaptureFixture) -> None:
    """It was logged as a failure, and the message retried 16 times."""
    async with filled(3) as cluster:
        consumer, shop = consumer_of(cluster), Shop(ExceptionGroup("of tasks", [Skip("empty"), Skip("empty, too")]))
        shop.register(consumer)
        with caplog.at_level("INFO", "mq.client"):
            async with running(consumer):
                await until(lambda: len(shop.got) == 3)
        assert shop.got == [b"000", b"001", b"002"]
        assert offset_of(cluster) == 3
    assert "reason='Skip: empty'" in caplog.text
    assert "handler_failed" not in caplog.text


@pytest.mark.parametrize(
    ("leaves", "wanted"),
    [
        ([Skip("a")], "Skip('a')"),
        ([RetryLater(5), ExceptionGroup("inner", [RetryLater(5), RetryLater(5)])], "RetryLater(5)"),
        ([RetryLater(5), RetryLater(6)], "None"),
        ([Skip(), DeadLetter()], "None"),
        ([Skip(), ValueError("a failure")], "None"),
        ([ValueError("a failure")], "None"),
    ],
)
def test_group_has_the_policy_of_all_its_exceptions(leaves: list[Exception], wanted: str) -> None:
    assert repr(raised_policy(ExceptionGroup("of tasks", leaves))) == wanted


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    "on_error",
    [
        {ValueError: DeadLetter},
        {Exception: Skip, ValueError: DeadLetter("bad")},
        {ValueError: lambda error: DeadLetter if str(error) == "no account" else None},
    ],
)
async def test_exception_makes_dead_letter_at_once(ordered: bool, on_error: OnError) -> None:
    async with filled(3) as cluster:
        consumer, shop = consumer_of(cluster, ordered=ordered), Shop(ValueError("no account"))
        shop.register(consumer, on_error=on_error)
        async with running(consumer):
            await until(lambda: len(shop.got) == 3)
            await until(lambda: cluster.group.bodies(DEAD) == [b"001"])
        assert (sorted(shop.got), offset_of(cluster)) == ([b"000", b"001", b"002"], 3)
        [letter] = cluster.group.queues[DEAD, 0]
        assert "ValueError: no account (test_policies.py" in letter.properties


async def test_unstored_dead_letter_is_retried() -> None:
    async with filled(3) as cluster:
        cluster.leader.fail_codes[SEND_BACK] = 1
        cluster.leader.fail_codes[310] = 1
        consumer, shop = consumer_of(cluster, on_error={ValueError: DeadLetter}), Shop(ValueError("x"), times=99)
        shop.register(consumer)
        async with running(consumer):
            await until(lambda: shop.got.count(b"001") == 2, seconds=60)
            assert offset_of(cluster) in (None, 0, 1)
            cluster.leader.fail_codes.clear()
            await until(lambda: b"002" in shop.got, seconds=60)
        assert cluster.group.bodies(DEAD) == [b"001"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_message_is_retried_after_its_seconds(ordered: bool) -> None:
    async with filled(3) as cluster:
        consumer, shop = consumer_of(cluster, ordered=ordered, retry_delay=30), Shop(RetryLater(0.2))
        shop.register(consumer)
        async with running(consumer):
            await until(lambda: len(shop.got) == 4)
        first, second = (at for body, at in zip(shop.got, shop.at, strict=True) if body == b"001")
        assert 0.2 <= second - first < 20
        assert shop.got == ([b"000", b"001", b"001", b"002"] if ordered else [b"000", b"001", b"002", b"001"])
        assert (offset_of(cluster), cluster.leader.count(SEND_BACK)) == (3, 0)


async def test_message_is_given_back_after_short_retries() -> None:
    async with filled(1) as cluster:
        consumer = consumer_of(cluster, ordered=False, max_reconsume_times=2)
        attempts: list[int] = []

        @consumer.on("T")
        async def handle(message: ReceivedMessage) -> None:
            if not cluster.leader.count(SEND_BACK):
                attempts.append(message.attempt)
                raise RetryLater(0.01)

        async with running(consumer):
            await until(lambda: cluster.leader.count(SEND_BACK) == 1 or len(attempts) > 9)
        assert attempts == [1, 2, 3]


async def test_broker_delays_a_long_retry() -> None:
    async with filled(3) as cluster:
        consumer, shop = consumer_of(cluster, ordered=False), Shop(OSError("down"))
        shop.register(consumer, on_error={OSError: RetryLater(61)})
        async with running(consumer):
            await until(lambda: len(shop.got) == 4)
        assert offset_of(cluster) == 3
        [asked] = [each for each in cluster.leader.received if each.code == SEND_BACK]
        assert asked.ext["delayLevel"] == "6", "two minutes: the first level that is not shorter"


@pytest.mark.parametrize("raised", [StopConsumer("disk full"), OSError("disk full")])
async def test_stop_ends_run_and_keeps_the_message(raised: Exception) -> None:
    async with filled(3) as cluster:
        consumer, shop = consumer_of(cluster, on_error={OSError: StopConsumer}), Shop(raised)
        shop.register(consumer)
        async with consumer:
            with anyio.fail_after(60), pytest.raises(type(raised), match="disk full"):
                await consumer.run()
            assert shop.got == [b"000", b"001"]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run)
                await until(lambda: shop.got == [b"000", b"001", b"001", b"002"])
                consumer.stop()


async def test_failing_policy_function_is_logged_and_the_message_retried(caplog: pytest.LogCaptureFixture) -> None:
    async with filled(3) as cluster:
        consumer, shop = consumer_of(cluster), Shop(KeyError("x"))
        shop.register(consumer, on_error={LookupError: lambda error: error.args[1]})
        async with running(consumer):
            await until(lambda: len(shop.got) == 4)
        assert shop.got == [b"000", b"001", b"001", b"002"]
    assert "on_error_failed" in caplog.text


async def test_handler_out_of_time_has_failed() -> None:
    async with filled(2) as cluster:
        consumer = consumer_of(cluster)
        cancelled: list[bytes] = []
        done: list[bytes] = []

        @consumer.on("T", timeout=0.05, on_error={TimeoutError: DeadLetter})
        async def slow(message: ReceivedMessage) -> None:
            if message.body == b"000":
                try:
                    await anyio.sleep_forever()
                finally:
                    cancelled.append(message.body)
            done.append(message.body)

        async with running(consumer):
            await until(lambda: done == [b"001"])
        assert cancelled == [b"000"]
        assert cluster.group.bodies(DEAD) == [b"000"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_middleware_runs_around_each_handler(ordered: bool) -> None:
    """Also around that of a redelivered message, once."""
    async with filled(2) as cluster:
        consumer, shop = consumer_of(cluster, ordered=ordered), Shop(ValueError("x"))
        steps: list[str] = []

        @consumer.use
        async def outer(message: ReceivedMessage, call_next: Callable[[Any], Awaitable[None]]) -> None:
            steps.append(f"outer {message.body.decode()}")
            try:
                await call_next(message)
            finally:
                steps.append("end")

        @consumer.use
        async def inner(message: ReceivedMessage, call_next: Callable[[Any], Awaitable[None]]) -> None:
            steps.append("inner")
            if message.body != b"000":
                await call_next(message)

        shop.register(consumer)
        async with running(consumer):
            await until(lambda: len(steps) == 9)
        assert steps == ["outer 000", "inner", "end", *["outer 001", "inner", "end"] * 2]
        assert shop.got == [b"001", b"001"], "the first message was left to nobody"
        assert offset_of(cluster) == 2


async def test_batch_gets_one_policy(cluster: FakeCluster) -> None:
    bodies = fill(cluster, 3)
    consumer = consumer_of(cluster)

    @consumer.on("T", batch=8)
    async def many(messages: Sequence[ReceivedMessage]) -> None:
        raise DeadLetter("all of them")

    async with running(consumer):
        await until(lambda: cluster.group.bodies(DEAD) == bodies)
    assert offset_of(cluster) == 3


@pytest.mark.parametrize(
    "on_error",
    [{"ValueError": Skip}, {ValueError: RetryLater}, {ValueError: "skip"}, {ValueError: None}],
)
def test_invalid_policies_are_refused(on_error: Any) -> None:
    with pytest.raises(TypeError, match="on_error"):
        PushConsumer("127.0.0.1:1", "cg", on_error=on_error)
    with pytest.raises(TypeError, match="on_error"):
        PushConsumer("127.0.0.1:1", "cg").on("T", on_error=on_error)


@pytest.mark.parametrize("seconds", [0, -1, 7201, float("nan")])
def test_invalid_times_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds are allowed"):
        RetryLater(seconds)
    if not seconds > 0:
        with pytest.raises(ValueError, match="must be positive"):
            PushConsumer("127.0.0.1:1", "cg").on("T", timeout=seconds)


def test_policies_can_be_pickled() -> None:
    policy = pickle.loads(pickle.dumps(RetryLater(5, "busy")))
    assert (policy.seconds, policy.reason) == (5, "busy")


def test_threads_have_policies_and_middleware(threads: FakeCluster) -> None:
    fill(threads, 3)
    consumer = SyncPushConsumer(threads.namesrv, "cg", consume_from="first")
    steps: list[bytes] = []

    @consumer.use
    def around(message: ReceivedMessage, call_next: Callable[[ReceivedMessage], None]) -> None:
        steps.append(message.body)
        call_next(message)

    @consumer.on("T", on_error={ValueError: Skip})
    def bill(message: ReceivedMessage) -> None:
        if message.body == b"000":
            raise ValueError
        if message.body == b"001":
            raise DeadLetter("no account")
        consumer.stop()

    with consumer:
        consumer.run()
    assert steps == [b"000", b"001", b"002"]
    assert threads.group.bodies(DEAD) == [b"001"]
