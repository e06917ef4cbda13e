"""The last offsets of a consumer that closes while its broker group has no leader."""

from __future__ import annotations

import anyio
import pytest

from mq.client.consume import rebalance
from tests.support.waiting import until
from tests.unit.client.consuming import consumer_of, fill, offset_of, take
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio


async def test_a_closing_consumer_waits_for_the_next_leader() -> None:
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


async def test_a_consumer_names_offsets_that_it_cannot_store(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "LEAVE_COMMIT_SECONDS", 0.3)
    async with FakeCluster.start(topics={"T": 1}, replicas=2) as cluster:
        fill(cluster, 4)
        async with consumer_of(cluster) as consumer:
            consumer.subscribe("T")
            await take(consumer, 4)
            await cluster.kill(cluster.leader)
        assert offset_of(cluster) != 3
    assert caplog.text.count("offset_commit_failed") == 1
    assert "has no leader" in caplog.text
