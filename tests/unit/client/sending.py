"""What the tests of producers share: a cluster with a topic, and a producer that has entered it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mq.client import Producer
from tests.support.producing import producer_of
from tests.unit.client.fake_cluster import FakeCluster


@asynccontextmanager
async def sending(
    queues: int = 1, *, groups: int = 1, replicas: int = 1, **options: Any
) -> AsyncGenerator[tuple[FakeCluster, Producer]]:
    """A cluster whose topic T has so many `queues` in each group, and a producer with these `options`."""
    async with (
        FakeCluster.start(groups=groups, replicas=replicas, topics={"T": queues}) as cluster,
        producer_of(cluster, **options) as producer,
    ):
        yield cluster, producer
