"""Everything that clients and operators do at once, at any replica, while replicas die and fall silent.

In the end each message that was acknowledged is there once and none that was refused, and all replicas have the same
metadata and the same queues, whether they were told of each entry's queues or read its records themselves.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.client import Admin
from mq.local_cluster import DevCluster, Ports
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.store.dispatch import QUEUE_ENTRY_BYTES
from tests.support.group_clients import TOPICS, Clients, held
from tests.support.real_groups import LOST, SETTINGS
from tests.support.running_broker import Client, properties, send_ext
from tests.support.stored_bodies import all_stored_bodies
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

SECONDS = 12.0
ENOUGH = 500
"""How many messages are stored at least before the brokers are left alone."""
QUEUES = 4
CLIENTS = 6
SHORT_LOG = {
    "segment_bytes": str(128 * 1024),
    "message_bytes_max": "60000",
    "retention_bytes": str(1024 * 1024),
    "retention_check_seconds": "0.3",
    "catch_up_bytes_per_second": str(2 * 1024 * 1024),
    "delay_levels": " ".join(["1s"] * 9),  # what waits for longer keeps the log from being shortened
    "timer_delay_max_seconds": "60",
}


class Counted:
    """Sends messages to a topic that nobody deletes; each body once."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.sent: set[bytes] = set()
        self.stored: set[bytes] = set()
        self.refused: set[bytes] = set()

    async def send(self, client: Client, rng: random.Random) -> None:
        bodies = [b"%d" % next(self._numbers) for _ in range(rng.choice([1, 1, 1, 5]))]
        self.sent.update(bodies)
        if len(bodies) > 1:
            batch = encode_batch([BatchedMessage(body, "") for body in bodies])
            ext = send_ext("Once", e=rng.randrange(QUEUES), m=True)
            answer = await client.request(RequestCode.SEND_BATCH_MESSAGE, ext, batch)
        else:
            text = properties(DELAY="1") if rng.random() < 0.4 else ""
            if rng.random() < 0.4:
                text += properties(RAFTMQ_PRODUCER="mixed", RAFTMQ_SEQUENCE=bodies[0].decode())
            answer = await client.send("Once", bodies[0], e=rng.randrange(QUEUES), i=text)
        if answer.code == ResponseCode.SUCCESS:
            self.stored.update(bodies)
        else:
            self.refused.update(bodies)


async def work(cluster: DevCluster, counted: Counted, rng: random.Random) -> None:
    """Do things at random, at a replica at random until it closes the connection or does not answer."""
    while True:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", rng.choice(cluster.ports.clients)) as stream:
                client = Client(stream)
                clients = Clients(client, rng)
                for _ in range(rng.randrange(1, 400)):
                    if rng.random() < 0.7:
                        await counted.send(client, rng)
                    else:
                        await rng.choice(clients.deeds)()
        except LOST:
            await trio.sleep(0.05)


async def kill_and_pause(cluster: DevCluster, rng: random.Random) -> None:
    while True:
        await trio.sleep(rng.uniform(0.2, 2.0))
        leader = await cluster.leader()
        node = leader if rng.random() < 0.6 else rng.choice(cluster.node_ids)
        if rng.random() < 0.5:
            cluster.kill(node)
            await trio.sleep(rng.uniform(0.1, 2.0))
            await until(lambda: not cluster.is_running(node))
            await cluster.start(node)
        elif cluster.is_running(node):
            os.kill(cluster.pid(node), signal.SIGSTOP)
            try:
                await trio.sleep(rng.uniform(0.1, 3.0))
            finally:
                os.kill(cluster.pid(node), signal.SIGCONT)


async def fall_behind(cluster: DevCluster) -> None:
    """A follower is away until the leader's log begins behind all that it has."""
    leader = await cluster.leader()
    follower = next(node for node in cluster.node_ids if node != leader)
    async with Admin(cluster.namesrv) as admin:
        await cluster.stop(follower)
        has = int((await admin.broker_runtime(cluster.address(leader)))["raftmq.lastIndex"])

        async def log_begins_later() -> bool:
            return int((await admin.broker_runtime(cluster.address(leader)))["raftmq.baseIndex"]) > has

        await until(log_begins_later)
    await cluster.start(follower)


async def level(cluster: DevCluster) -> None:
    """Until all replicas have applied the same entries, and nothing is added any more."""
    async with Admin(cluster.namesrv) as admin:
        before: set[str] = set()
        with trio.fail_after(120):
            while True:
                tables = [await admin.broker_runtime(cluster.address(node)) for node in cluster.node_ids]
                now = {table[f"raftmq.{name}"] for table in tables for name in ("appliedIndex", "lastIndex")}
                if len(now) == 1 and now == before:
                    return
                before = now
                await trio.sleep(0.7)


@asynccontextmanager
async def cluster_under_faults(
    directory: Path, counted: Counted, *, falls_behind: bool = False, **settings: str
) -> AsyncIterator[DevCluster]:
    """Three brokers after faults, in step again."""
    rng = random.Random(1)
    ports = Ports.free(3)
    async with DevCluster.open(directory, ports=ports, settings=SETTINGS | settings) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Once", QUEUES)
            for topic in TOPICS:
                await admin.create_topic(topic, 3)
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(work, cluster, counted, random.Random(rng.random()))
            if falls_behind:
                await fall_behind(cluster)
            nursery.start_soon(kill_and_pause, cluster, rng)
            await trio.sleep(SECONDS)
            await until(lambda: len(counted.stored) >= ENOUGH)
            nursery.cancel_scope.cancel()
        await cluster.start_all()
        await cluster.wait_ready()
        await level(cluster)
        yield cluster
        leader = await cluster.leader()
        for node in sorted(cluster.node_ids, key=lambda node: node == leader):
            await cluster.stop(node)


def check_equal(directories: Sequence[Path]) -> None:
    """All replicas have the same metadata, and the same queues as far as each has them."""
    (state, queues), *others = map(held, directories)
    for other_state, other_queues in others:
        assert state == other_state
        assert queues.keys() == other_queues.keys()
        for key, (low, high, entries) in queues.items():
            other_low, other_high, other_entries = other_queues[key]
            begin = max(low, other_low)
            assert high == other_high, key
            assert (
                entries[(begin - low) * QUEUE_ENTRY_BYTES :] == other_entries[(begin - other_low) * QUEUE_ENTRY_BYTES :]
            ), key


async def test_replicas_stay_equal_and_store_each_message_once(tmp_path: Path) -> None:
    counted = Counted()
    async with cluster_under_faults(tmp_path, counted) as cluster:
        found = await all_stored_bodies(cluster, "Once", QUEUES, counted.stored)
    assert {body: count for body, count in found.items() if count > 1} == {}
    assert counted.refused & found.keys() == set()
    check_equal([tmp_path / node for node in cluster.node_ids])


async def test_replicas_that_fall_behind_a_short_log_stay_equal(tmp_path: Path) -> None:
    """Those that were away too long take over files of the log, and the metadata as it is behind them."""
    async with cluster_under_faults(tmp_path, Counted(), falls_behind=True, **SHORT_LOG) as cluster:
        pass
    logs = "".join(cluster.log_path(node).read_text() for node in cluster.node_ids)
    assert "install_begun" in logs
    check_equal([tmp_path / node for node in cluster.node_ids])
