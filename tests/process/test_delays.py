"""Delayed, retried and timed messages on three real brokers whose leaders die while they deliver."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import anyio
import anyio.to_thread
import pytest
import trio

from mq.client import Admin, BrokerError, Message, Producer, PushConsumer, ReceivedMessage, SendResult
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage
from tests.support.real_groups import SMALL_ENTRIES, Cluster, cluster_in_thread, delivered
from tests.support.running_broker import Client, properties
from tests.support.waiting import until, until_found

pytestmark = [pytest.mark.process, pytest.mark.slow]


MESSAGES = 1000
KILL_AFTER = (50, 500, 950)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path_factory.mktemp("cluster"), settings=SMALL_ENTRIES) as running:
        yield running


async def counts(cluster: Cluster, topic: str) -> dict[str, int]:
    """How many delayed messages each replica has delivered since it started, by address."""
    async with Admin(cluster.namesrv) as admin:
        replicas = (await admin.route(topic)).brokers["broker-a"]
        tables = {address: await admin.broker_runtime(address) for _, address in sorted(replicas.items())}
    return {address: int(table["raftmq.delayedDelivered"]) for address, table in tables.items()}


@pytest.mark.parametrize("kill_after", KILL_AFTER)
async def test_each_delayed_message_is_delivered_once_across_leader_changes(cluster: Cluster, kill_after: int) -> None:
    topic = f"Delayed{kill_after}"
    seen: list[ReceivedMessage] = []
    with anyio.fail_after(90):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(topic, 4)
        before = await counts(cluster, topic)
        async with Producer(cluster.namesrv) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(delivered, cluster, topic, f"{topic}-readers", seen)
            # One second and five: half of them are left for another leader, if the first is killed early enough.
            outcomes = await producer.send_many(
                Message(topic, b"%d" % number, delay_level=1 + number % 2) for number in range(MESSAGES)
            )
            assert all(isinstance(outcome, SendResult) for outcome in outcomes)
            assert not any(outcome.maybe_duplicated for outcome in outcomes if isinstance(outcome, SendResult))
            leader = await cluster.leader()
            await until(lambda: len(seen) >= kill_after)
            async with cluster.dead(leader):
                await until(lambda: len({message.body for message in seen}) >= MESSAGES)
            await anyio.sleep(1)  # a message that is delivered twice comes by then
            tasks.cancel_scope.cancel()
    if kill_after == min(KILL_AFTER):
        first_led = cluster.inner.address(leader)
        others = {address: count for address, count in (await counts(cluster, topic)).items() if address != first_led}
        assert any(count > before[address] for address, count in others.items()), "nobody had anything left to deliver"
    # The consumer may get a message twice, when it lost its leader; the topic has each once.
    places = {(message.queue, message.queue_offset): message.body for message in seen}
    assert Counter(places.values()) == Counter(b"%d" % number for number in range(MESSAGES))
    ends = Counter(queue for queue, _ in places)
    assert all({offset for q, offset in places if q == queue} == set(range(count)) for queue, count in ends.items())


async def pulled(client: Client, topic: str) -> list[StoredMessage] | None:
    return (await client.pull(topic)).records or None


async def test_followers_forward_delayed_and_returned_messages(cluster: Cluster) -> None:
    topic, delayed = "Handed", properties(DELAY="1")
    with anyio.fail_after(60):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(topic, 1)
            replicas = (await admin.route(topic)).brokers["broker-a"]
        host, port = next(address for number, address in replicas.items() if number != 0).split(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            client = Client(stream)
            assert (await client.send(topic, b"later", i=delayed)).code == ResponseCode.SUCCESS
            [message] = await until_found(partial(pulled, client, topic))
            assert message.body == b"later"
            ext = {"offset": message.physical_offset, "group": "handed", "delayLevel": 1, "unitMode": False}
            assert (await client.request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)).code == ResponseCode.SUCCESS
            [again] = await until_found(partial(pulled, client, "%RETRY%handed"))
            assert (again.body, again.reconsume_times, again.properties["RETRY_TOPIC"]) == (b"later", 1, topic)


async def test_unhandled_message_is_redelivered(cluster: Cluster) -> None:
    topic, group = "Failing", "failing-readers"
    seen: list[tuple[bytes, str, int]] = []
    consumer = PushConsumer(cluster.namesrv, group, consume_from="first", ordered=False)

    @consumer.on(topic)
    async def handle(message: ReceivedMessage) -> None:
        seen.append((message.body, message.topic, message.reconsume_times))
        if message.body == b"bad" and message.reconsume_times == 0:
            raise ValueError("not yet")
        if len(seen) == 4:
            consumer.stop()

    with anyio.fail_after(60):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(topic, 1)
        async with Producer(cluster.namesrv) as producer, consumer:
            begun = anyio.current_time()
            for body in (b"one", b"bad", b"two"):
                await producer.send(Message(topic, body))
            await consumer.run()
    assert sorted(seen[:3]) == [(b"bad", topic, 0), (b"one", topic, 0), (b"two", topic, 0)]
    assert seen[3] == (b"bad", topic, 1)
    assert anyio.current_time() - begun >= 10


TIMERS = 2000
RECALLED = 200
LATE_SECONDS = 10
"""When those that are recalled would be delivered: as the last ones."""


async def test_each_timer_fires_once_and_never_early_across_leader_changes(cluster: Cluster) -> None:
    rng = random.Random(5)
    seen: list[ReceivedMessage] = []
    with anyio.fail_after(120):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Timed", 4)
        async with Producer(cluster.namesrv) as producer, anyio.create_task_group() as tasks:
            tasks.start_soon(delivered, cluster, "Timed", "readers", seen)
            begun = anyio.current_time()
            sent = await producer.send_many(
                Message("Timed", b"%d" % number, delay=LATE_SECONDS if number < RECALLED else 3 + rng.random() * 6)
                for number in range(TIMERS)
            )
            results = [each for each in sent if isinstance(each, SendResult) and not each.maybe_duplicated]
            assert len(results) == TIMERS
            recalled: set[bytes] = set()
            for number, result in enumerate(results[:RECALLED]):
                assert result.recall_handle is not None
                if anyio.current_time() < begun + LATE_SECONDS / 2:  # a busy machine recalls fewer of them
                    assert await producer.recall(result.recall_handle) == result.message_id
                    recalled.add(b"%d" % number)
            assert recalled
            expected = {b"%d" % number for number in range(TIMERS)} - recalled
            for kill_after in (300, 1200):
                await until(lambda: len(seen) >= kill_after)
                async with cluster.dead(await cluster.leader()):
                    await until(lambda: len(seen) >= kill_after + 300)
            await until(lambda: len({message.body for message in seen}) >= len(expected))
            with pytest.raises(BrokerError) as late:
                await producer.recall(results[-1].recall_handle or "")
            assert late.value.code == 604
            await anyio.sleep_until(max(begun + LATE_SECONDS, anyio.current_time()) + 1)
            tasks.cancel_scope.cancel()
    # The consumer may get a message twice, when it lost its leader; the topic has each once.
    places = {(message.queue, message.queue_offset): message for message in seen}
    assert Counter(message.body for message in places.values()) == Counter(expected)
    early = [
        message
        for message in places.values()
        if message.record.store_timestamp_ms < int(message.properties["TIMER_OUT_MS"])
    ]
    assert not early, early[:3]
