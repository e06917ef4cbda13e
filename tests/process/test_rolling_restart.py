"""Three brokers restarted and upgraded one after another under a producer: leaders hand over, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mq.broker.state.format_level import LEVEL_NEWEST
from mq.client import Admin, Message, Producer, PushConsumer, SendResult
from mq.local_cluster import DevCluster, Ports
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]


class Pulse:
    """Sends one message after another."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.stored: list[bytes] = []

    async def run(self) -> None:
        while True:
            body = b"%d" % len(self.stored)
            result = await self._producer.send(Message("T", body), timeout=20)
            assert isinstance(result, SendResult)
            self.stored.append(body)
            await trio.sleep(0.005)


def handed_over(last_words: str) -> bool:
    """Whether a leader followed somebody else before it stopped, by what it logged."""
    lines = last_words.splitlines()
    follows = [at for at, line in enumerate(lines) if "role_changed" in line and "follower" in line]
    stopped = [at for at, line in enumerate(lines) if "stopped" in line]
    return bool(follows and stopped) and follows[-1] < stopped[-1]


async def beats(pulse: Pulse) -> None:
    """Until ten more messages were stored."""
    count = len(pulse.stored)
    await until(lambda: len(pulse.stored) >= count + 10)


async def test_rolling_restart_under_load_hands_over(tmp_path: Path) -> None:
    """What that is worth is too little to tell by a clock: half of the gaps within 0.2 s, and 0.4 s without it."""
    async with DevCluster.open(tmp_path, ports=Ports.free(3)) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", 4)
        async with Producer(cluster.namesrv) as producer, trio.open_nursery() as nursery:
            pulse = Pulse(producer)
            nursery.start_soon(pulse.run)
            for _ in range(3):
                leader = await cluster.leader()
                said_before = len(cluster.log_path(leader).read_text())
                await cluster.stop(leader)
                last_words = cluster.log_path(leader).read_text()[said_before:]
                assert handed_over(last_words), f"{leader} stopped as leader: {last_words}"
                await cluster.start(leader)
                await cluster.wait_ready()
                await beats(pulse)
            nursery.cancel_scope.cancel()


async def levels_are(cluster: DevCluster, level: int) -> bool:
    """Whether each replica has this format level."""
    status = await cluster.status()
    assert status is not None
    return [int(replica.figures.get("raftmq.formatLevel", 0)) for replica in status.replicas] == [level] * 3


async def test_rolling_upgrade_loses_nothing(tmp_path: Path) -> None:
    """Replicas that say they understand format level 1 are replaced by those that understand the newest, and once back.

    The level rises when the last one is replaced.
    """
    received: list[bytes] = []
    held = {"format_level_max": "1"}
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=held) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", 4)
        consumer = PushConsumer(cluster.namesrv, "readers", consume_from="first")
        consumer.subscribe("T")

        async def consume() -> None:
            async for message in consumer:
                received.append(message.body)

        async with Producer(cluster.namesrv) as producer, consumer, trio.open_nursery() as nursery:
            pulse = Pulse(producer)
            nursery.start_soon(pulse.run)
            nursery.start_soon(consume)
            newer: dict[str, str] = {}
            for node_id, settings in (("n0", newer), ("n0", held), ("n0", newer), ("n1", newer), ("n2", newer)):
                assert await levels_are(cluster, 1)
                await cluster.stop(node_id)
                cluster.settings = settings
                await cluster.start(node_id)
                await cluster.wait_ready()
                await beats(pulse)
            await until(lambda: levels_are(cluster, LEVEL_NEWEST))
            stored = set(pulse.stored)
            await until(lambda: stored <= set(received))
            nursery.cancel_scope.cancel()
    assert len(stored) >= 50
