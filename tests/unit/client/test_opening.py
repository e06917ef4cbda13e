"""Opening and closing clients without a block: from any task, twice, again, halfway, cancelled."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from collections.abc import AsyncGenerator, Callable
from types import FrameType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mq.client import (
    Admin,
    AlreadyOpen,
    BrokerError,
    ClientClosed,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    TopicNotFound,
    TransactionProducer,
)
from mq.client.net.life_cycle import Client
from tests.support.producing import producer_of
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill, filled, offset_of, running
from tests.unit.client.fake_cluster import FakeCluster, Misdeed, check_back

pytestmark = pytest.mark.anyio


def never(message: object) -> None:
    return None


KINDS: dict[str, Callable[[str], Client]] = {
    "producer": Producer,
    "transactions": lambda namesrv: TransactionProducer(namesrv, "pg", check=never),
    "push": lambda namesrv: PushConsumer(namesrv, "G"),
    "pull": lambda namesrv: PullConsumer(namesrv, "G"),
    "pop": lambda namesrv: PopConsumer(namesrv, "G", "T"),
    "admin": Admin,
}


async def use(client: Client) -> None:
    """Call one method that needs an open client."""
    match client:
        case Producer() | PullConsumer():
            await client.queues("T")
        case PushConsumer():
            await client.commit()
        case Admin():
            await client.topics()
        case _:
            client._check_open()


async def in_another_task(function: Callable[[], Any]) -> None:
    """Await it in a task that ends before this returns."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(function)


@pytest.mark.parametrize("kind", KINDS)
async def test_client_is_opened_and_closed_by_different_tasks(cluster: FakeCluster, kind: str) -> None:
    client = KINDS[kind](cluster.namesrv)
    with pytest.raises(ClientClosed, match="open it first"):
        await use(client)
    await client.aclose()  # does nothing
    for _ in range(2):
        await in_another_task(client.open)
        await use(client)
        await in_another_task(client.aclose)
        with pytest.raises(ClientClosed, match="is closed"):
            await use(client)
        await client.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_open_client_is_not_opened_twice(cluster: FakeCluster, kind: str) -> None:
    client = KINDS[kind](cluster.namesrv)
    assert await client.open() is client
    with pytest.raises(AlreadyOpen):
        await client.open()
    with pytest.raises(AlreadyOpen):
        await client.__aenter__()
    await use(client)
    await client.aclose()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_block_may_end_in_another_task(cluster: FakeCluster, anyio_backend: str, kind: str) -> None:
    """As fixtures of pytest-asyncio do it, whose setup and teardown are different tasks."""

    async def fixture() -> AsyncGenerator[Client]:
        async with KINDS[kind](cluster.namesrv) as client:
            yield client

    yielded = fixture()
    client = await asyncio.ensure_future(anext(yielded))
    await use(client)
    with pytest.raises(StopAsyncIteration):
        await asyncio.ensure_future(anext(yielded))
    with pytest.raises(ClientClosed):
        await use(client)


@pytest.mark.parametrize("kind", KINDS)
async def test_client_cannot_be_copied_or_pickled(kind: str) -> None:
    client = KINDS[kind]("127.0.0.1:9")
    with pytest.raises(TypeError, match="make it there"):
        pickle.dumps(client)
    with pytest.raises(TypeError, match="make it there"):
        copy.copy(client)


async def test_every_opening_is_a_new_client_to_the_brokers(cluster: FakeCluster) -> None:
    producer = producer_of(cluster)
    ids = set()
    for _ in range(2):
        async with producer:
            ids.add(producer.client_id)
            ids.add((await producer.send(Message("T", b"x"))).message_id)
    assert len(ids) == 4


async def test_closing_waits_for_messages_in_flight(cluster: FakeCluster) -> None:
    producer = await producer_of(cluster).open()
    pending = [await producer.submit(Message("T", b"%d" % number)) for number in range(20)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.aclose)
        tasks.start_soon(producer.aclose)  # waits for the first
    assert all([(await each).attempts == 1 for each in pending])
    assert cluster.leader.count(35) == 1, "it did not say goodbye once"


async def test_closing_producer_refuses_messages(cluster: FakeCluster) -> None:
    producer = await producer_of(cluster, attempt_timeout=1.0, retries=1).open()
    cluster.leader.misdeeds = [Misdeed("silence")]
    pending = await producer.submit(Message("T", b"x"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer.aclose)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ClientClosed):
            await producer.send(Message("T", b"y"))
    assert (await pending).attempts == 2


async def test_cancelled_close_still_closes_the_client(cluster: FakeCluster) -> None:
    producer = await producer_of(cluster).open()
    await producer.send(Message("T", b"x"))
    cluster.leader.misdeeds = [Misdeed("silence")]
    pending = await producer.submit(Message("T", b"y"))
    await until(lambda: cluster.leader.count(310) == 2)
    with anyio.move_on_after(0.05) as scope:
        await producer.aclose()
    assert scope.cancelled_caught
    assert cluster.leader.count(35) == 1, "it did not say goodbye"
    assert (await pending.wait_outcome()).__class__.__name__ == "SendOutcomeUnknown"
    with pytest.raises(ClientClosed):
        await producer.send(Message("T", b"z"))


async def test_opening_that_fails_leaves_a_closed_client(cluster: FakeCluster) -> None:
    consumer = PopConsumer(cluster.namesrv, "G", "U")
    with pytest.raises(TopicNotFound):
        await consumer.open()
    await consumer.aclose()
    cluster.group.topics["U"] = 1
    await consumer.open()
    await consumer.aclose()


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_opening_may_be_given_up(cluster: FakeCluster, how: str) -> None:
    cluster.name_servers[0].mute = True
    consumer = PopConsumer(cluster.namesrv, "G", "T")
    raised: list[BaseException] = []

    async def open_it() -> None:
        try:
            await consumer.open()
        except ClientClosed as error:
            raised.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_it)
        await until(lambda: cluster.name_servers[0].received)
        with pytest.raises(AlreadyOpen):
            await consumer.open()
        if how == "cancel":
            tasks.cancel_scope.cancel()
        else:
            await consumer.aclose()
    assert [str(error) for error in raised] == (
        ["the client was closed while it was being opened"] if how == "close" else []
    )
    cluster.name_servers[0].mute = False
    await consumer.open()
    await consumer.aclose()


async def test_closed_consumer_ends_run_and_commits() -> None:
    async with filled(3) as cluster:
        consumer = PushConsumer(cluster.namesrv, "cg", consume_from="first")
        handled: list[bytes] = []

        @consumer.on("T")
        async def handle(message: Any) -> None:
            handled.append(message.body)

        await consumer.open()
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.run)
                await until(lambda: len(handled) == 3)
                await consumer.aclose()
        assert offset_of(cluster) == 3


async def test_reopened_pull_consumer_reads_from_the_start(cluster: FakeCluster) -> None:
    bodies = fill(cluster, 3)
    consumer = PullConsumer(cluster.namesrv, "cg", consume_from="first")
    for _ in range(2):
        async with consumer:
            await consumer.assign(await consumer.queues("T"))
            found = await consumer.poll(timeout=60)
            assert [message.body for message in found] == bodies


@pytest.mark.parametrize("block", [True, False])
async def test_failure_of_a_task_of_the_client_is_raised(
    cluster: FakeCluster, block: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.leader.fail_codes = {200050: 16}
    consumer = PopConsumer(cluster.namesrv, "G", "T")

    async def in_a_block() -> None:
        async with consumer:
            await anyio.sleep_forever()

    with anyio.fail_after(60):
        if block:
            with pytest.raises(BrokerError, match="as told"):
                await in_a_block()
        else:
            await consumer.open()
            with pytest.raises(ClientClosed):
                await anext(consumer)
            with pytest.raises(BrokerError, match="as told"):
                await consumer.aclose()
            assert "client_failed" in caplog.text
        await consumer.aclose()
        with pytest.raises(ClientClosed) as refused:
            await anext(consumer)
        assert isinstance(refused.value.__cause__, BrokerError)
    # This task is not left cancelled.
    await anyio.lowlevel.checkpoint()


async def test_check_may_close_its_producer() -> None:
    async with FakeCluster.start(topics={"T": 1, "TBW102": 1}) as cluster:
        fill(cluster, 1)

        async def check(message: ReceivedMessage) -> bool:
            await producer.aclose()
            return True

        producer = await TransactionProducer(cluster.namesrv, "pg", check=check).open()
        await producer.send(Message("T", b"x"))
        [connection] = cluster.leader.connections
        with anyio.fail_after(60):
            await connection.send(check_back(cluster))
            await until(lambda: cluster.leader.count(35) == 1)
            await producer.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
def test_client_of_another_event_loop_raises_client_closed(anyio_backend: str) -> None:
    producer = Producer("127.0.0.1:9")
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        first.run_until_complete(producer.open())
        with pytest.raises(ClientClosed, match="another event loop"):
            second.run_until_complete(producer.send(Message("T", b"x")))
        with pytest.raises(ClientClosed, match="another event loop"):
            second.run_until_complete(producer.aclose())
        first.run_until_complete(producer.aclose())
    finally:
        first.close()
        second.close()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the limit is for the opcodes of Python 3.11")
async def test_check_that_a_producer_is_open_costs_little() -> None:
    """Each send makes it; it took 47 opcodes on asyncio and 60 on trio, of 1,240 of the whole send."""
    executed = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal executed
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        executed += event == "opcode"
        return trace

    async with FakeCluster.start(topics={"T": 1}) as cluster, Producer(cluster.namesrv) as producer:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            producer._open_pipeline()
        finally:
            sys.settrace(before)
    assert 10 < executed <= 44, executed


def handled_by(consumer: PushConsumer[Any]) -> list[bytes]:
    """The bodies that its handler for the topic T has got."""
    bodies: list[bytes] = []

    @consumer.on("T")
    async def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)

    return bodies


async def test_second_run_is_refused_while_the_first_continues(cluster: FakeCluster) -> None:
    """`stop` ended only the second one, and `concurrency` held for each."""
    consumer = consumer_of(cluster)
    bodies = handled_by(consumer)

    async with running(consumer):
        await until(lambda: consumer.assignment)
        for _ in range(2):
            with pytest.raises(AlreadyOpen, match=r"run\(\) of this consumer of group cg is already running"):
                await consumer.run()
        fill(cluster, 3)
        await until(lambda: len(bodies) == 3)
    async with running(consumer):
        fill(cluster, 1)
        await until(lambda: len(bodies) >= 4)


async def test_loop_during_run_is_refused(cluster: FakeCluster) -> None:
    """Both took messages, each some of them, and those of the loop were missing in the handlers."""
    consumer = consumer_of(cluster)
    bodies = handled_by(consumer)

    async with consumer:
        begun = aiter(consumer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(consumer.run)
            await until(lambda: consumer.assignment)
            with pytest.raises(AlreadyOpen, match=r"either run\(\) or a loop"):
                aiter(consumer)
            with pytest.raises(AlreadyOpen, match=r"either run\(\) or a loop"):
                consumer.deliveries()
            with pytest.raises(AlreadyOpen, match=r"either run\(\) or a loop"):
                await anext(begun)
            assert len(fill(cluster, 20)) == 20
            await until(lambda: len(bodies) == 20)
            consumer.stop()
        fill(cluster, 1)
        with anyio.fail_after(30):
            assert (await anext(begun)).body == b"000"


async def test_run_is_refused_while_a_task_waits_in_a_loop(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)

    async def handle(message: ReceivedMessage) -> None:
        raise AssertionError(message)

    async with consumer, anyio.create_task_group() as tasks:
        consumer.subscribe("T")
        bodies: list[bytes] = []

        async def loop() -> None:
            async for message in consumer:
                bodies.append(message.body)

        tasks.start_soon(loop)
        await until(lambda: consumer.assignment)
        with pytest.raises(AlreadyOpen, match=r"in a loop, or by receive\(\)"):
            await consumer.run(handle)
        fill(cluster, 3)
        await until(lambda: len(bodies) == 3)
        tasks.cancel_scope.cancel()
