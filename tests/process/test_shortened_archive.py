"""A group that is restored from an archive whose oldest files were deleted: delays, and newest values of keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio

from mq.client import Message, Producer, PullConsumer, tombstone
from mq.client.admin import Admin
from mq.local_cluster import HOST, DevCluster, Ports
from raftlog.net.machine import Machine, standing_in
from raftlog.segment.backup_manifest import decode_backup_manifest
from raftlog.segment.backup_store import MANIFEST_NAME
from tests.support.backups import printed
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.object_storage import BUCKET, ENVIRONMENT, ObjectStorage, object_storage
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

URL = f"s3://{BUCKET}/broker-a"
SETTINGS = {
    "segment_bytes": "262144",
    "message_bytes_max": "65536",
    "entry_bytes_max": "65536",
    "checkpoint_seconds": "0.3",
    "retention_check_seconds": "0.3",
    "retention_hours": "0.01",
    "delete_when": "-1",
}
ARCHIVED = {"archive_url": URL, "archive_retention_bytes": "1500000"}
FILLER = Random(1).randbytes(2000) + bytes(6000)
"""Producers compress it to 2000 bytes: a file of the log has a hundred of it."""
KEYS = 20
DELAYED = 10
DELAY_SECONDS = 3600.0
"""However long the first group takes, its delayed messages are still delayed then."""


class LaterMachine(Machine):
    """A machine on which they are due."""

    def wall_clock_ms(self) -> int:
        return super().wall_clock_ms() + round(DELAY_SECONDS * 1000)


async def figures(cluster: DevCluster) -> dict[str, int]:
    status = await cluster.status()
    assert status is not None
    found = status.replicas[0].figures
    return {name: int(text) for name, text in found.items() if text.isdigit()}


async def wait_for(cluster: DevCluster, is_so: Callable[[dict[str, int]], bool]) -> None:
    async def ask() -> bool:
        return is_so(await figures(cluster))

    await until(ask, seconds=120)


def begin_of(storage: ObjectStorage) -> int:
    """The entry behind which the archive begins; 0 also if there is none yet."""
    found = [each for each in storage.names() if each.endswith(MANIFEST_NAME)]
    return decode_backup_manifest(storage.content(found[0])).base.index if found else 0


async def fill(producer: Producer, nbytes: int) -> None:
    for _ in range(nbytes // len(FILLER)):
        await producer.send(Message("Filler", FILLER), timeout=30)


async def read(namesrv: str, topic: str) -> list[tuple[str, bytes]]:
    """Keys and bodies of all messages, from the first offset that is there."""
    async with PullConsumer(namesrv, "reading", consume_from="first", timeout=30) as consumer:
        await consumer.assign(await consumer.queues(topic))
        return [(each.keys[0], bytes(each.body)) async for each in await consumer.read_to_end()]


async def write(cluster: DevCluster, storage: ObjectStorage) -> dict[str, bytes]:
    """Messages whose beginning the archive forgets, and delayed ones behind it; the newest value of each key."""
    async with Producer(cluster.namesrv) as producer:
        for round_number in range(3):
            for number in range(KEYS):
                key = f"k{number}"
                value = b"%d of %d" % (round_number, number)
                await producer.send(Message("Prices", value, keys=[key], sharding_key=key), timeout=30)
            await fill(producer, 1_500_000)
        # A file is deleted when the group has agreed, which a later run of the archiver finds.
        with trio.fail_after(240):
            while not await trio.to_thread.run_sync(begin_of, storage):
                await fill(producer, 300_000)
        for number in range(0, KEYS, 4):
            await producer.send(tombstone("Prices", f"k{number}"), timeout=30)
        for number in range(DELAYED):
            message = Message("Late", b"%d" % number, keys=[f"d{number}"], delay=DELAY_SECONDS)
            await producer.send(message, timeout=30)
        last = (await figures(cluster))["raftmq.lastIndex"]
        with trio.fail_after(240):
            while (await figures(cluster))["raftmq.archiveIndex"] <= last:
                await fill(producer, 300_000)
    return {f"k{number}": b"2 of %d" % number for number in range(KEYS) if number % 4}


async def test_restored_group_delivers_delays_and_has_the_newest_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with object_storage() as storage:
        given = SETTINGS | ARCHIVED | {"archive_endpoint_url": storage.url}
        async with (
            DevCluster.open(tmp_path / "group", nodes=1, ports=Ports.free(1), settings=given) as cluster,
            Admin(cluster.namesrv) as admin,
        ):
            await wait_for(cluster, lambda found: found["raftmq.formatLevel"] >= 8)
            await admin.create_topic("Prices", 2, compacted=True)
            for topic in ("Filler", "Late"):
                await admin.create_topic(topic, 2)
            expected = await write(cluster, storage)
            assert not await read(cluster.namesrv, "Late"), "they are still delayed when the group ends"
        restored = tmp_path / "restored" / "n0"
        peers = f"n0@{HOST}:{Ports.free(1).replication[0]}"
        await printed("restore", URL, f"n0={restored}", "--peers", peers, "--endpoint-url", storage.url)
        with standing_in(LaterMachine()):
            async with cluster_and_broker(restored, peers=peers, **SETTINGS) as (namesrv, _):
                found = dict(await read(namesrv, "Prices"))
                assert {key: value for key, value in found.items() if value} == expected

                async def have_come() -> bool:
                    return len(await read(namesrv, "Late")) >= DELAYED

                await until(have_come)
                assert sorted(await read(namesrv, "Late")) == sorted(
                    (f"d{number}", b"%d" % number) for number in range(DELAYED)
                )
