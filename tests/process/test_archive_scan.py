"""A scan of a topic whose tasks read the archive: one set of rows, whatever the archive and the log do meanwhile.

A real broker that archives, and deletes locally what is archived; object storage on a socket. What PySpark would do is
done here: the plan of the driver, then its tasks one after the other.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.client import Message, Producer
from mq.client.admin import Admin
from mq.local_cluster import DevCluster, Ports
from spark.batch_plan import plan_batch
from spark.errors import ReadFailed
from spark.filters import Narrowing
from spark.options import parse_read_options
from spark.plan import LogRange
from spark.reader_choice import task_reader
from spark.task_reader import task_options
from tests.support.object_storage import BUCKET, ENVIRONMENT, SECRET_KEY, ObjectStorage, object_storage
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

SETTINGS = {
    "segment_bytes": "262144",
    "message_bytes_max": "65536",
    "entry_bytes_max": "65536",
    "archive_url": f"s3://{BUCKET}/broker-a",
    "archive_bytes_per_second": "0",
    "local_retention_bytes": "1048576",
    "retention_check_seconds": "0.1",
    "checkpoint_seconds": "0.1",
}
QUEUES = 4
MESSAGES = 2000
TEXT = b"0123456789abcdef" * 64


def body(number: int) -> bytes:
    return b"%06d" % number + TEXT


class Scanned:
    """A broker whose archive has most of its messages."""

    def __init__(self, cluster: DevCluster, storage: ObjectStorage) -> None:
        self.cluster = cluster
        self.storage = storage
        self.sent = 0

    async def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        async with Producer(self.cluster.namesrv, timeout=30) as producer:
            for begin in range(numbers.start, numbers.stop, 500):
                pending = [
                    await producer.submit(Message("T", body(each), tags="even" if each % 2 == 0 else "odd"))
                    for each in numbers[begin - numbers.start : begin - numbers.start + 500]
                ]
                for each in pending:
                    await each

    async def figure(self, name: str) -> int:
        status = await self.cluster.status()
        assert status is not None
        return int(status.replicas[0].figures[f"raftmq.{name}"])

    async def bulk_bytes(self, client_id: str) -> int:
        """What the broker has sent to a query, of the bytes of messages."""
        status = await self.cluster.status()
        assert status is not None
        figures = status.replicas[0].figures
        return sum(int(each) for name, each in figures.items() if "bulkBytes" in name and name.endswith(client_id))

    async def archived(self) -> None:
        """Wait until all complete files are archived, and most of them are deleted locally."""

        async def is_done() -> bool:
            status = await self.cluster.status()
            [replica] = status.replicas if status else [None]
            return (
                replica is not None
                and (replica.base_index or 0) > 0
                and int(replica.figures.get("raftmq.archiveLagBytes", 1)) == 0
            )

        await until(is_done, seconds=60)

    def options(self, **given: str) -> dict[str, str]:
        fixed = {"namesrv": self.cluster.namesrv, "subscribe": "T", "readMode": "archive", "clientId": "scan"}
        return fixed | {"maxBytesPerPartition": "200k", "readFrom": "any", "fetchTimeout": "5s"} | given

    async def plan(self, **given: str) -> list[LogRange]:
        options = parse_read_options(self.options(**given), "batch")
        return await trio.to_thread.run_sync(plan_batch, options, Narrowing())

    def rows(self, part: LogRange, **given: str) -> Iterator[tuple[int, int, bytes]]:
        options = parse_read_options(self.options(**given), "batch")
        columns = ("queue_id", "queue_offset", "body")
        for batch in task_reader(part, task_options(options, columns)).read():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    async def read(self, parts: list[LogRange], **given: str) -> list[tuple[int, int, bytes]]:
        def read_all() -> list[tuple[int, int, bytes]]:
            return [row for part in parts for row in self.rows(part, **given)]

        return await trio.to_thread.run_sync(read_all)

    def check(self, rows: list[tuple[int, int, bytes]], parts: list[LogRange], count: int) -> None:
        """Each planned offset once, and all of the first messages; a send that was tried again is stored twice."""
        planned = {
            (each.queue_id, offset) for part in parts for each in part.ranges for offset in range(each.start, each.end)
        }
        places = [row[:2] for row in rows]
        assert (len(places), len(planned)) == (len(set(places)), len(places)), "an offset twice, or one left out"
        assert planned == set(places), sorted(planned ^ set(places))[:10]
        missing = set(map(body, range(count))) - {row[2] for row in rows}
        assert not missing, sorted(each[:6] for each in missing)[:10]


@asynccontextmanager
async def scanned(tmp_path: Path, patch: pytest.MonkeyPatch, **given: str) -> AsyncIterator[Scanned]:
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    with object_storage() as storage:
        settings = SETTINGS | {"archive_endpoint_url": storage.url} | given
        opened = DevCluster.open(tmp_path / "group", nodes=1, ports=Ports.free(1), settings=settings)
        async with opened as cluster:
            async with Admin(cluster.namesrv) as admin:
                await admin.create_topic("T", QUEUES)
            found = Scanned(cluster, storage)
            await found.send(MESSAGES)
            await found.archived()
            yield found


async def test_archive_scan_does_not_load_a_running_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scanned(tmp_path, monkeypatch) as group:
        parts = await group.plan()
        cold = [part for part in parts if part.archived_part is not None]
        assert len(cold) > 4
        assert len({part.lease_id for part in parts}) == 1
        assert SECRET_KEY.encode() not in pickle.dumps(parts), "credentials stay with each process"
        rows = await group.read(cold[:3])
        assert await group.bulk_bytes("scan") == 0
        # Messages, archiving and local deletion go on, and the rest of the scan is as it was planned.
        await group.send(MESSAGES)
        await group.archived()
        rows += await group.read(cold[3:-1])
        assert await group.bulk_bytes("scan") == 0, "no byte of what is archived"
        rows += await group.read([part for part in parts if part not in cold[:-1]])
        group.check(rows, parts, MESSAGES)
        found = await group.read(await group.plan(tags="even"), tags="even")
        assert {row[2] for row in found} == set(map(body, range(0, 2 * MESSAGES, 2)))


async def test_store_in_trouble_is_reported_or_brokers_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scanned(tmp_path, monkeypatch) as group:
        parts = await group.plan()
        storage = group.storage
        name = next(each for each in storage.names() if f"log/{262144 * 2:020d}" in each)
        content = bytearray(storage.content(name))
        content[5000] ^= 1
        storage.put(name, bytes(content))
        with pytest.raises(ReadFailed, match=rf"queue broker-a:\d, from offset \d+ on: .*{name}: damaged.*onArchiveF"):
            await group.read(parts)
        # Brokers find the same damage in what they do not have locally, and say so.
        content[5000] ^= 1
        storage.put(name, bytes(content))
        storage.fault = lambda method, path: 503
        with pytest.raises(ReadFailed, match="SlowDown"):
            await group.read(parts, readDeadline="200ms")
        with pytest.raises(ReadFailed, match="SlowDown"):
            await group.plan()
        fallen = await group.plan(onArchiveFailure="brokers")
        assert not any(part.archived_part for part in fallen)
        storage.come_back()
        group.check(await group.read(fallen), fallen, MESSAGES)
        # What a task cannot read for lack of permission, the broker can.
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        storage.fault = lambda method, path: 403
        with pytest.raises(ReadFailed, match="AccessDenied"):
            await group.read(parts[:1])
