"""What clients write down of their messages, where only a broker of somebody else's can show it."""

from __future__ import annotations

import pytest

from mq.client import Message, Producer
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.anyio


async def test_producer_sends_no_trace_if_the_broker_turned_tracing_off() -> None:
    topics = {"T": 1, "Story": 1}
    async with FakeCluster.start(topics=topics) as cluster:
        async with Producer(cluster.namesrv, trace="Story") as producer:
            cluster.leader.untraced = True
            untraced = await producer.send(Message("T", b"x"))
            cluster.leader.untraced = False
            traced = await producer.send(Message("T", b"x"))
        [story] = cluster.group.bodies("Story")
        assert (untraced.trace_on, traced.trace_on) == (False, True)
        assert traced.message_id.encode() in story
        assert untraced.message_id.encode() not in story
