"""A topic that keeps the newest message of each key, at real brokers that are killed, left behind and restored."""

from __future__ import annotations

import json
import random
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from mq.broker.state.format_level import LEVEL_OF_COMPACTION
from mq.client import Admin, Message, Producer, PullConsumer, ReceivedMessage, tombstone
from mq.local_cluster import HOST, DevCluster, Ports
from tests.support.backups import backed_up, committed, printed
from tests.support.object_storage import BUCKET, ENVIRONMENT, object_storage
from tests.support.real_groups import connected, transfer
from tests.support.spark_tasks import in_thread, reader_of, rows_of, survey
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

TOPIC = "Prices"
SETTINGS = {
    "segment_bytes": "262144",
    "message_bytes_max": "65536",
    "entry_bytes_max": "65536",
    "checkpoint_seconds": "0.3",
    "retention_check_seconds": "0.3",
    "retention_hours": "0.002",
    "delete_when": "-1",
}
TOMBSTONES_MS = 3000
KEYS = 40


class Writer:
    """Sends values, and deletes some, one after the other.

    Attributes:
        table: the newest value of each key that has one.
        sent: the bodies of all messages of the topic.
    """

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._rng = random.Random(1)
        self.table: dict[str, bytes] = {}
        self.sent: list[bytes] = []

    async def run(self) -> None:
        """Until cancelled between two messages."""
        async with Producer(self._namesrv) as producer:
            while True:
                with trio.CancelScope(shield=True):
                    await self._send_one(producer)
                    await producer.send(Message("Filler", self._rng.randbytes(4000)), timeout=60)
                await trio.sleep(0.01)

    async def _send_one(self, producer: Producer) -> None:
        key = f"k{self._rng.randrange(KEYS)}"
        if self._rng.random() < 0.2:
            await producer.send(tombstone(TOPIC, key), timeout=60)
            self.table.pop(key, None)
            self.sent.append(b"")
            return
        value = b"%s is %d" % (key.encode(), len(self.sent))
        await producer.send(Message(TOPIC, value, keys=[key], sharding_key=key), timeout=60)
        self.table[key] = value
        self.sent.append(value)


async def read(namesrv: str) -> list[ReceivedMessage]:
    async with PullConsumer(namesrv, "reading", consume_from="first", timeout=30) as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        return [message async for message in await consumer.read_to_end()]


def table(values: list[tuple[str, bytes]]) -> dict[str, bytes]:
    """The last value of each key that has one."""
    return {key: value for key, value in dict(values).items() if value}


def values(messages: list[ReceivedMessage]) -> list[tuple[str, bytes]]:
    return [(message.keys[0], bytes(message.body)) for message in messages]


async def figure(cluster: DevCluster, node_id: str, name: str) -> int:
    async with connected(cluster, node_id) as client:
        return int((await client.info())[f"raftmq.{name}"])


async def knows_compaction(cluster: DevCluster) -> bool:
    return await figure(cluster, await cluster.leader(), "formatLevel") >= LEVEL_OF_COMPACTION


async def went(cluster: DevCluster, count: int) -> None:
    """Wait until the present leader has let so many messages of the topic go."""

    async def have_gone() -> bool:
        return await figure(cluster, await cluster.leader(), "compactedMessagesExpired") >= count

    await until(have_gone)


async def check_restored(backup: Path, directory: Path, expected: dict[str, bytes]) -> None:
    """All replicas of a group are made from a backup, and go on compacting."""
    ports = Ports.free(3)
    nodes = list(zip(("n0", "n1", "n2"), ports.replication, strict=True))
    peers = ",".join(f"{node}@{HOST}:{port}" for node, port in nodes)
    await printed("restore", str(backup), *(f"{node}={directory / node}" for node, _ in nodes), "--peers", peers)
    async with DevCluster.open(directory, ports=ports, settings=SETTINGS) as cluster:
        assert table(values(await read(cluster.namesrv))) == expected
        await went(cluster, 1)
        assert table(values(await read(cluster.namesrv))) == expected


async def test_newest_values_outlive_kills_refills_backups_and_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    url = f"s3://{BUCKET}/broker-a"
    with object_storage() as storage:
        archived = {"archive_url": url, "archive_endpoint_url": storage.url}
        async with (
            DevCluster.open(tmp_path / "group", ports=Ports.free(3), settings=SETTINGS | archived) as cluster,
            Admin(cluster.namesrv) as admin,
            trio.open_nursery() as nursery,
        ):
            attributes = {"delete.retention.ms": str(TOMBSTONES_MS)}
            await until(partial(knows_compaction, cluster))
            await admin.create_topic(TOPIC, 2, compacted=True, attributes=attributes)
            await admin.create_topic("Filler", 2)
            writer = Writer(cluster.namesrv)
            writing = trio.CancelScope()

            async def write() -> None:
                with writing:
                    await writer.run()

            nursery.start_soon(write)
            first = await cluster.leader()
            behind, other = (node for node in cluster.node_ids if node != first)
            cluster.kill(behind)
            end = await figure(cluster, other, "lastIndex")
            await went(cluster, 100)
            cluster.kill(first)
            await until(lambda: not cluster.is_running(first))
            await cluster.start(first)
            await went(cluster, 100)

            async def is_gone() -> bool:
                return await figure(cluster, await cluster.leader(), "baseIndex") > end

            await until(is_gone)
            await cluster.start(behind)  # what it lacks is deleted: it is refilled from the leader's files
            await cluster.wait_ready()
            await transfer(cluster, behind)
            await went(cluster, 50)
            writing.cancel()
            await until(lambda: bool(writer.sent) and writing.cancelled_caught)
            assert table(values(await read(cluster.namesrv))) == writer.table

            async def has_no_old_tombstones() -> bool:
                return all(message.body for message in await read(cluster.namesrv))

            await until(has_no_old_tombstones)
            found = await in_thread(survey, cluster.namesrv, TOPIC)
            rows = await in_thread(rows_of, reader_of(cluster.namesrv, found, topic=TOPIC).read())
            rows.sort(key=lambda row: (row["queue_id"], row["queue_offset"]))
            assert table([(dict(row["properties"])["KEYS"], bytes(row["body"])) for row in rows]) == writer.table
            for node in cluster.node_ids:
                await transfer(cluster, node)
                assert table(values(await read(cluster.namesrv))) == writer.table, node
            leader = await cluster.leader()
            follower = next(node for node in cluster.node_ids if node != leader)
            await backed_up(cluster, tmp_path / "backup", follower, await committed(cluster))
            done = await trio.run_process(
                [sys.executable, "-m", "mq.cli", "archive", "cat", url, TOPIC, "--json", "--endpoint-url", storage.url],
                capture_stdout=True,
            )
            kept = {json.loads(line)["body"].encode() for line in done.stdout.splitlines()}
            assert kept <= set(writer.sent)
            assert b"" in kept, "the archive forgets no tombstone"
            assert kept - set(writer.table.values()) - {b""}, "nor older values"
    await check_restored(tmp_path / "backup", tmp_path / "restored", writer.table)
