"""A group of real brokers that archives its log in object storage, with an outage of the store and of a follower."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.client import Message, Producer
from mq.local_cluster import HOST, DevCluster, Ports
from tests.support.commands import raftmq as command
from tests.support.joining_broker import start_joining
from tests.support.object_storage import BUCKET, ENVIRONMENT, ObjectStorage, object_storage
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

URL = f"s3://{BUCKET}/broker-a"
SETTINGS = {"segment_bytes": "262144", "message_bytes_max": "65536", "entry_bytes_max": "65536", "archive_url": URL}
TEXT = "0123456789abcdef" * 128


@asynccontextmanager
async def archiving(
    tmp_path: Path, patch: pytest.MonkeyPatch, given: dict[str, str] | None = None, ports: Ports | None = None
) -> AsyncIterator[tuple[DevCluster, ObjectStorage]]:
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    with object_storage() as storage:
        settings = SETTINGS | {"archive_endpoint_url": storage.url} | (given or {})
        ports = Ports.free(3) if ports is None else Ports(ports.namesrv, ports.clients[:3], ports.replication[:3])
        async with DevCluster.open(tmp_path / "group", ports=ports, settings=settings) as cluster:
            yield cluster, storage


async def send(cluster: DevCluster, first: int, count: int) -> None:
    async with Producer(cluster.namesrv) as producer, trio.open_nursery() as nursery:

        async def send_one(number: int) -> None:
            await producer.send(Message("T", f"{number:06d}{TEXT}".encode()), timeout=30)

        for number in range(first, first + count):
            nursery.start_soon(send_one, number)


async def figures(cluster: DevCluster) -> dict[str, dict[str, int]]:
    """By node the figures of its archive."""
    status = await cluster.status()
    assert status is not None
    return {
        each.node_id: {name: int(text) for name, text in each.figures.items() if name.startswith("raftmq.archive")}
        for each in status.replicas
        if each.figures
    }


async def everything_archived(cluster: DevCluster, nodes: int = 3) -> int:
    """Wait until each replica knows that all complete files are archived; up to which entry."""
    indexes: set[int] = set()

    async def is_archived() -> bool:
        nonlocal indexes
        found = await figures(cluster)
        indexes = {each["raftmq.archiveIndex"] for each in found.values()}
        waiting = sum(each["raftmq.archiveLagBytes"] for each in found.values())
        return len(found) == nodes and len(indexes) == 1 and 0 not in indexes and waiting == 0

    await until(is_archived, seconds=120)
    return indexes.pop()


async def raftmq(storage: ObjectStorage, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return await trio.run_process(
        [sys.executable, "-m", "mq.cli", *arguments, "--endpoint-url", storage.url], capture_stdout=True, check=True
    )


async def test_group_archives_its_log_while_store_and_follower_are_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with archiving(tmp_path, monkeypatch) as (cluster, storage):
        await send(cluster, 0, 400)
        first = await everything_archived(cluster)
        uploaded = {node: each["raftmq.archiveUploadedBytes"] for node, each in (await figures(cluster)).items()}
        leader = await cluster.leader()
        assert leader is not None
        assert uploaded[leader] == 0, "a follower archives"
        assert sum(count > 0 for count in uploaded.values()) == 1

        storage.fault = lambda method, path: 503
        await send(cluster, 400, 400)

        async def somebody_has_failed() -> bool:
            return any(each["raftmq.archiveFailures"] for each in (await figures(cluster)).values())

        await until(somebody_has_failed, seconds=120)
        assert any(each["raftmq.archiveLagBytes"] for each in (await figures(cluster)).values())
        storage.come_back()
        second = await everything_archived(cluster)
        assert second > first

        verified = json.loads((await raftmq(storage, "archive", "verify", URL, "--json")).stdout)
        assert (verified["intact"], verified["archived_index"]) == (True, second)
        shown = (await raftmq(storage, "archive", "cat", URL, "T")).stdout.splitlines()
        numbers = {int(line[:6]) for line in shown}
        assert len(numbers) == len(shown) > 600
        rows: list[dict[str, Any]] = json.loads((await raftmq(storage, "archive", "ls", URL, "--json")).stdout)
        assert rows[-1]["last_index"] == second


async def test_killed_replica_still_rebuilds_missing_queue_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {"local_retention_bytes": "1048576", "retention_check_seconds": "0.2", "checkpoint_seconds": "0.2"}
    async with archiving(tmp_path, monkeypatch, slow | {"archive_bytes_per_second": "200000"}) as (cluster, _):
        for first in range(0, 2000, 400):
            await send(cluster, first, 400)
        await everything_archived(cluster)
        leader = await cluster.leader()
        follower = next(each for each in cluster.node_ids if each != leader)
        await until(lambda: is_shorter(cluster), seconds=120)
        await cluster.stop(follower)
        (queues,) = [path for path in (tmp_path / "group").rglob("queues") if follower in path.parts]
        shutil.rmtree(queues)
        await cluster.start(follower)
        left: list[int] = []

        async def left_is_below(limit: int) -> bool:
            found = (await figures(cluster)).get(follower, {})
            if "raftmq.archiveRefillBytesLeft" in found:
                left.append(found["raftmq.archiveRefillBytesLeft"])
            return bool(left) and left[-1] <= limit

        await until(lambda: left_is_below(2**62), seconds=120)
        first = left[-1]
        assert first > 0, "there is something to kill"
        await until(lambda: left_is_below(first - 1), seconds=120)
        cluster.kill(follower)

        async def has_ended() -> bool:
            return not cluster.is_running(follower)

        await until(has_ended)
        left.clear()
        await cluster.start(follower)
        await until(lambda: left_is_below(first - 1), seconds=120)
        assert left[-1] < first, "what a checkpoint has is not read again"
        await until(lambda: left_is_below(0), seconds=120)


def joined_lines(cluster: DevCluster, node: str, event: str) -> list[dict[str, Any]]:
    """The log lines of a node with this event."""
    lines = cluster.log_path(node).read_text().splitlines()
    return [found for line in lines if event in line and (found := json.loads(line))["event"] == event]


@pytest.mark.parametrize("is_gone", [False, True], ids=["store-there", "store-gone"])
async def test_new_replica_takes_archived_files_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    ports = Ports.free(5)
    given = {"retention_bytes": "1048576", "retention_check_seconds": "0.2", "checkpoint_seconds": "0.2"}
    async with archiving(tmp_path, monkeypatch, given, ports) as (cluster, storage), trio.open_nursery() as nursery:
        await send(cluster, 0, 900)
        await everything_archived(cluster)
        await until(lambda: is_shorter(cluster), seconds=120)
        leader = await cluster.leader()
        dead = next(each for each in cluster.node_ids if each != leader)
        cluster.kill(dead)
        if is_gone:
            storage.fault = lambda method, path: 503
        before = len(storage.requests)
        await start_joining(cluster, ports, nursery, 4)
        address = f"{HOST}:{ports.replication[4]}"
        done = await command("group", "replace", dead, f"n4@{address}", "--namesrv", cluster.namesrv)
        assert done.code == 0, done
        fetched = joined_lines(cluster, "n4", "install_fetched")
        left = joined_lines(cluster, "n4", "install_without_archive")
        assert len(fetched) == 1, fetched
        if is_gone:
            assert (len(left), fetched[0]["archived_bytes"]) == (1, 0)
        else:
            assert left == []
            assert fetched[0]["archived_bytes"] >= 524288
            assert any(method == "GET" and "/log/" in path for method, path in storage.requests[before:])
        nursery.cancel_scope.cancel()


async def is_shorter(cluster: DevCluster) -> bool:
    """Whether files of the logs were deleted, so that a new replica gets files, and not entries."""
    status = await cluster.status()
    return status is not None and all((each.base_index or 0) > 0 for each in status.replicas)
