"""A bit of a consume queue file flips on a real disk: the block is restored from the log, and nobody is told wrong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, MessageQueue, Producer, PullConsumer, SendResult
from mq.local_cluster import DevCluster, Ports
from tests.support.waiting import until_found

pytestmark = [pytest.mark.process, pytest.mark.slow]

MESSAGES = 1000
BLOCK_BYTES = 4096
BLOCKS = MESSAGES // 204
QUEUE = MessageQueue("T", "broker-a", 0)


def queue_file(directory: Path) -> Path | None:
    """The queue's first file, once all whole blocks are in it."""
    for path in (directory / "n0" / "queues" / "T").rglob(f"{0:020d}"):
        if path.stat().st_size >= BLOCKS * BLOCK_BYTES:
            return path
    return None


def flip(path: Path, rng: random.Random, count: int) -> None:
    """Flip bits of the queue's entries, in place."""
    with path.open("r+b") as file:
        for _ in range(count):
            at = rng.randrange(BLOCKS * BLOCK_BYTES)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))


async def read_all(cluster: DevCluster, group: str) -> list[bytes]:
    found: list[bytes] = []
    async with PullConsumer(cluster.namesrv, group, consume_from="first", timeout=30) as consumer:
        with trio.fail_after(60):
            await consumer.assign([QUEUE])
            while len(found) < MESSAGES:
                found += [each.body for each in await consumer.poll(100)]
    return found


async def restored(cluster: DevCluster) -> int:
    async with Admin(cluster.namesrv) as admin:
        return int((await admin.broker_runtime(cluster.address("n0")))["raftmq.queueBlocksRestored"])


async def test_flipped_bits_are_restored_from_the_log(tmp_path: Path) -> None:
    rng = random.Random(7)
    expected = [b"%d" % number for number in range(MESSAGES)]
    async with DevCluster.open(tmp_path, nodes=1, ports=Ports.free(1)) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", 1)
        async with Producer(cluster.namesrv) as producer:
            outcomes = await producer.send_many(Message("T", body) for body in expected)
            assert all(isinstance(each, SendResult) for each in outcomes)

        with trio.fail_after(60):
            path = await until_found(lambda: queue_file(tmp_path))
        await cluster.stop("n0")
        flip(path, rng, 2)
        await cluster.start("n0")
        await cluster.wait_ready()
        assert await read_all(cluster, "G1") == expected
        assert await restored(cluster) > 0

        await cluster.stop("n0")
        await cluster.start("n0")
        await cluster.wait_ready()
        assert await restored(cluster) == 0
        flip(path, rng, 2)  # what the process has not read yet
        assert await read_all(cluster, "G2") == expected
        assert await restored(cluster) > 0
