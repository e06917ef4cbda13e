"""The last offsets of a consumer that closes while its broker group has no leader."""

from __future__ import annotations

import anyio
import pytest

from tests.support.waiting import until
from tests.unit.client.consuming import IMPATIENT, consumer_of, fill, offset_of, stored, take
from tests.unit.client.fake_cluster import FakeBroker, FakeCluster
from tests.unit.client.fake_server import FakeConnection, FakeRequest

pytestmark = pytest.mark.anyio


async def test_closing_consumer_waits_for_the_next_leader() -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=2) as cluster:
        fill(cluster, 4)
        consumer = await consumer_of(cluster).open()
        consumer.subscribe("T")
        await take(consumer, 4)
        await cluster.kill(cluster.leader)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(consumer.aclose)
                # It has asked for the leader again, and there is none.
                asked = cluster.name_servers[0].count(105)
                await until(lambda: cluster.name_servers[0].count(105) >= asked + 2)
                cluster.group.leader = cluster.group.replicas[1]
        assert offset_of(cluster) == 3


async def test_closing_consumer_names_offsets_it_failed_to_store(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster.start(topics={"T": 1}, replicas=2) as cluster:
        fill(cluster, 4)
        async with consumer_of(cluster, remoting=IMPATIENT) as consumer:
            consumer.subscribe("T")
            await take(consumer, 4)
            await cluster.kill(cluster.leader)
        assert offset_of(cluster) != 3
    assert caplog.text.count("offset_commit_failed") == 1
    assert "has no leader" in caplog.text


async def test_new_group_that_ends_at_once_stores_no_offset_in_some_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began in one queue after the other, and had offsets in some: a later start skipped in the others."""
    answer = FakeBroker._query_offset
    begun = anyio.Event()

    async def silent_for_the_last(broker: FakeBroker, connection: FakeConnection, request: FakeRequest) -> None:
        if request.ext["queueId"] == "3":
            begun.set()
            await anyio.sleep_forever()
        await answer(broker, connection, request)

    monkeypatch.setattr(FakeBroker, "_query_offset", silent_for_the_last)
    async with FakeCluster.start(topics={"T": 4}) as cluster:
        for queue_id in range(4):
            cluster.group.append("T", queue_id, stored(b"before"))
        async with consumer_of(cluster, consume_from="last") as consumer:
            consumer.subscribe("T")
            with anyio.fail_after(30):
                await begun.wait()
        assert [offset_of(cluster, queue_id) for queue_id in range(4)] == [None] * 4
