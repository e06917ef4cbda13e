"""The SDK against a real name server and three real brokers, on both event loops, with real deaths of leaders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import anyio
import anyio.abc
import anyio.from_thread
import anyio.to_thread
import pytest

from mq.client import Admin, Message, MessageQueue, Producer, ReceivedMessage, SendResult
from tests.support.real_groups import Cluster, cluster_in_thread
from tests.support.sdk_scenarios import GROUP, MESSAGE_BYTES_MAX, QUEUES, SCENARIOS, consumer_of, new_topic
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.anyio]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with cluster_in_thread(directory, settings={"message_bytes_max": str(MESSAGE_BYTES_MAX)}) as running:
        yield running


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_sdk_scenarios_pass_on_real_brokers(cluster: Cluster, scenario: str) -> None:
    await SCENARIOS[scenario](cluster.namesrv)


async def test_killed_leader_loses_nothing_and_clients_report_unknown_outcomes(cluster: Cluster) -> None:
    """Several tasks each await one send after the other, and a consumer reads along."""
    acknowledged: list[SendResult] = []
    consumed: dict[MessageQueue, dict[int, str]] = defaultdict(dict)
    stopped = False

    async def send_until_stopped(producer: Producer, topic: str) -> None:
        while not stopped:
            acknowledged.append(await producer.send(Message(topic, b"x")))

    async def note(message: ReceivedMessage) -> None:
        known = consumed[message.queue].setdefault(message.queue_offset, message.message_id)
        assert known == message.message_id, f"{message.queue}: another message at offset {message.queue_offset}"

    async with (
        new_topic(cluster.namesrv) as topic,
        Producer(cluster.namesrv, timeout=30) as producer,
        consumer_of(cluster.namesrv, topic) as consumer,
        anyio.create_task_group() as reading,
    ):
        reading.start_soon(consumer.run, note)
        async with anyio.create_task_group() as sending:
            for _ in range(8):
                sending.start_soon(send_until_stopped, producer, topic)
            await until(lambda: len(acknowledged) > 100)
            async with cluster.dead(await cluster.leader()):
                before = len(acknowledged)
                await until(lambda: len(acknowledged) > before + 100)
                stopped = True
        async with Admin(cluster.namesrv) as admin:
            ends = {queue: await admin.max_offset(queue) for queue in await producer.queues(topic)}
        await until(lambda: consumer.positions == ends)
        consumer.stop()

    assert {queue: sorted(each) for queue, each in consumed.items()} == {q: list(range(end)) for q, end in ends.items()}
    stored = Counter(message_id for each in consumed.values() for message_id in each.values())
    for result in acknowledged:
        most = result.attempts if result.maybe_duplicated else 1
        assert 1 <= stored[result.message_id] <= most, (result, stored[result.message_id])


async def test_admin_reports_topics_routes_and_offsets(cluster: Cluster) -> None:
    async with (
        new_topic(cluster.namesrv) as topic,
        Admin(cluster.namesrv) as admin,
        Producer(cluster.namesrv) as producer,
    ):
        assert topic in await admin.topics()
        route = await admin.route(topic)
        queues = [MessageQueue(topic, GROUP, number) for number in range(QUEUES)]
        assert route.write_queues == route.read_queues == tuple(queues)
        assert route.leader_address(GROUP) == cluster.inner.address(await cluster.leader())
        assert len(route.addresses()) == 3
        for _ in range(3):
            await producer.send(Message(topic, b"x"), queue=queues[1])
        assert [(await admin.min_offset(queue), await admin.max_offset(queue)) for queue in queues[:2]] == [
            (0, 0),
            (0, 3),
        ]
        async with consumer_of(cluster.namesrv, topic) as consumer:
            deliveries = consumer.deliveries()
            for _ in range(2):
                (await anext(deliveries)).ack()
            assert await admin.consumers(consumer.group, topic) == [consumer.client_id]
        assert await admin.group_offset(consumer.group, queues[1]) == 2
        assert await admin.group_offset("somebody-else", queues[0]) is None
        assert await admin.consumers(consumer.group, topic) == []
