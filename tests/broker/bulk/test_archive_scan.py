"""Scans whose tasks read the archive: the broker sends no byte of what is archived, and keeps it there meanwhile."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path

import pytest
import trio

from mq.protocol.codes import RequestCode, ResponseCode
from spark.batch_plan import plan_batch
from spark.client import BrokerResponse, Connection
from spark.filters import Narrowing
from spark.options import parse_read_options
from spark.plan import LogRange
from spark.reader_choice import task_reader
from spark.task_reader import task_options
from tests.support.archiving_brokers import LIMITS, settings
from tests.support.object_storage import ENVIRONMENT, SECRET_KEY, object_storage
from tests.support.running_broker import Client, RunningBroker, running
from tests.support.short_logs import MIB, body, fill

COUNT = 260


class NameServer(Connection):
    """Leads to one broker."""

    def __init__(self, address: str) -> None:
        self.address = "names:1"
        self._broker = address

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        assert code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        return 0

    def receive(self, opaque: int) -> BrokerResponse:
        route = {
            "queueDatas": [{"brokerName": "broker-a", "readQueueNums": 1, "perm": 6}],
            "brokerDatas": [{"brokerName": "broker-a", "brokerAddrs": {"0": self._broker}}],
        }
        return BrokerResponse(ResponseCode.SUCCESS, "", {}, memoryview(json.dumps(route).encode()))

    def close(self) -> None:
        pass


class Scan:
    """What the driver and the tasks of a query do."""

    def __init__(self, broker: RunningBroker, **given: str) -> None:
        host, port = broker.settings.listen_address
        self._address = f"{host}:{port}"
        fixed = {"namesrv": "names:1", "subscribe": "T", "readMode": "archive", "maxBytesPerPartition": "100k"}
        self._options = parse_read_options(fixed | {"readFrom": "any", "clientId": "scan"} | given, "batch")
        self.parts: list[LogRange] = []

    def _connect(self, address: str, timeout: float) -> Connection:
        return NameServer(self._address) if address == "names:1" else Connection(address, timeout)

    async def plan(self) -> list[LogRange]:
        self.parts = await trio.to_thread.run_sync(plan_batch, self._options, Narrowing(), self._connect)
        return self.parts

    async def read(self, parts: list[LogRange]) -> list[bytes]:
        def read_all() -> list[bytes]:
            options = task_options(self._options, ("body",))
            return [
                row for part in parts for batch in task_reader(part, options).read() for row in batch[0].to_pylist()
            ]

        return await trio.to_thread.run_sync(read_all)


async def served(client: Client) -> int:
    """Bytes of messages that the broker has sent to the query."""
    return int((await client.info()).get("raftmq.bulkBytesAsLeader.scan", "0"))


@pytest.mark.slow
async def test_scan_reads_archived_messages_from_the_store_not_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with object_storage() as storage:
        async with running(tmp_path, limits=LIMITS, **settings(storage)) as broker:
            client = await broker.connect()
            assert (await client.create_topic("T", 1)).code == 0
            await fill(client, count=COUNT)
            await client.wait_for(lambda info: int(info["raftmq.archiveIndex"]) >= 18)
            await client.wait_for(lambda info: int(info["raftmq.baseIndex"]) >= 8)
            scan = Scan(broker)
            parts = await scan.plan()
            assert SECRET_KEY.encode() not in pickle.dumps(parts), "credentials stay with each process"
            cold = [part for part in parts if part.archived_part is not None]
            assert len(cold) > 5
            archived_end = cold[0].archived_part.archive.end[2] if cold[0].archived_part else 0
            assert archived_end > 0
            rows = await scan.read(parts[:2])

            # Messages, archiving and local deletion go on.
            await fill(client, count=COUNT, first=COUNT)
            last = int((await client.info())["raftmq.lastIndex"])
            await client.wait_for(lambda info: int(info["raftmq.archiveIndex"]) >= last - 4)
            rows += await scan.read(parts[2 : len(cold) - 1])
            assert await served(client) == 0
            rows += await scan.read(parts[len(cold) - 1 :])
            assert rows == [body(number) for number in range(COUNT)]
            newest = sum(part.message_count for part in parts[len(cold) - 1 :])
            assert 0 < await served(client) < newest * (len(body(0)) + 400), "only what was not archived yet"

            # The scan holds what is only in the archive, too: retention counts from there.
            info = await client.info()
            assert (int(info["raftmq.basePosition"]) > 0, info["raftmq.logLeases"]) == (True, "1")
            lease = {"leaseId": parts[0].lease_id, "position": parts[0].lease_position, "seconds": 60}
            granted = await client.request(RequestCode.HOLD_LOG, lease)
            assert (granted.code, granted.ext["basePosition"], parts[0].lease_position) == (0, "0", 0)


def has_archived(index: int, info: dict[str, str]) -> bool:
    return int(info["raftmq.archiveIndex"]) >= index


@pytest.mark.slow
async def test_archive_retention_waits_for_a_running_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with object_storage() as storage:
        given = settings(storage, archive_retention_bytes=4 * MIB)
        async with running(tmp_path, limits=LIMITS, **given) as broker:
            client = await broker.connect()
            assert (await client.create_topic("T", 1)).code == 0
            await fill(client, count=COUNT)
            await client.wait_for(lambda info: int(info["raftmq.baseIndex"]) >= 1)
            scan = Scan(broker)
            parts = await scan.plan()
            rows = await scan.read(parts[:1])

            # By its size, the archive is to lose what the scan needs.
            await fill(client, count=600, first=COUNT)
            for sent in range(600 + COUNT, 800 + COUNT, 40):  # each run of the archiver looks for what is to be deleted
                await fill(client, count=40, first=sent)
                last = int((await client.info())["raftmq.lastIndex"])
                await client.wait_for(partial(has_archived, last - 4))
            assert (await client.info())["raftmq.archiveBeginPos"] == "0"
            rows += await scan.read(parts[1:])
            assert rows == [body(number) for number in range(COUNT)]

            over = {"leaseId": parts[0].lease_id, "position": parts[0].lease_position, "seconds": 0}
            assert (await client.request(RequestCode.HOLD_LOG, over)).code == 0
            await fill(client, count=60, first=800 + COUNT)
            await client.wait_for(lambda info: int(info["raftmq.archiveBeginPos"]) > 0)
