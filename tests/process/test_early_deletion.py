"""The disk of one replica is really full for a while: it deletes its oldest messages early, and hides none of them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from jepsen.damage.log_damage import BALLAST
from jepsen.damage.log_damage import fill as fill_disk
from jepsen.deployments.disks import OWN_DISK
from jepsen.wire import ask_figures
from mq.client import Admin, PushConsumer
from mq.local_cluster import HOST, DevCluster, Ports
from mq.protocol.codes import RequestCode
from mq.protocol.requests.raft_group import GroupCommand
from tests.support.real_groups import connected, transfer
from tests.support.running_broker import send_ext
from tests.support.waiting import until

MIB = 1024 * 1024
SHORT = "n2"
SMALL_DISK_BYTES = 96 * MIB
ROOMY_DISK_BYTES = 1024 * MIB
"""For the others, whose disk is not to be full whatever else is on this machine."""
SETTINGS = {
    "segment_bytes": str(MIB),
    "message_bytes_max": str(64 * 1024),
    "checkpoint_seconds": "0.5",
    "retention_check_seconds": "0.2",
    "offset_commit_seconds": "0.05",
    **OWN_DISK,
}
COUNT = 24_000
CONSUMED = 200
FILLED = 0.96


@contextmanager
def mounted(directory: Path, nbytes: int) -> Iterator[None]:
    """A file system of so many bytes in memory."""
    directory.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(directory)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"a small disk needs a user who may mount a tmpfs: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


async def _send_all(cluster: DevCluster) -> None:
    async with connected(cluster, SHORT) as client:
        for start in range(0, COUNT, 500):
            frames = [
                client.frame(RequestCode.SEND_MESSAGE_V2, send_ext(e=n % 4), b"%08d" % n * 100)
                for n in range(start, start + 500)
            ]
            await client.stream.send_all(b"".join(data for _, data in frames))
            for opaque, _ in frames:
                assert (await client.answer(opaque)).code == 0


async def _read(cluster: DevCluster, numbers: set[int], count: int) -> None:
    """Let the group read until it has got so many different messages."""
    consumer = PushConsumer(cluster.namesrv, "readers", consume_from="first")
    consumer.subscribe("T")
    async with consumer:
        async for message in consumer:
            numbers.add(int(message.body[:8]))
            if len(numbers) >= count:
                return


async def _base(cluster: DevCluster, node_id: str) -> int:
    table = await ask_figures(HOST, cluster.port(node_id))
    return 0 if table is None else int(table["raftmq.basePosition"])


async def _ask_to_lead(cluster: DevCluster) -> bool:
    """Ask once that the short replica leads; returns whether it does. It is refused as long as it lacks messages."""
    leader = await cluster.leader()
    if leader == SHORT:
        return True
    async with Admin(cluster.namesrv) as admin:
        command = GroupCommand(action="transfer", node=SHORT)
        return (await admin.manage_group(cluster.address(leader), command)).done


async def _run(directory: Path) -> None:
    async with DevCluster.open(directory, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", read_queues=4, write_queues=4)
        await transfer(cluster, SHORT)
        await _send_all(cluster)
        numbers: set[int] = set()
        with trio.fail_after(60):
            await _read(cluster, numbers, CONSUMED)
        fill_disk(directory / SHORT, FILLED)

        async def is_short() -> bool:
            return await _base(cluster, SHORT) > 0

        await until(is_short)
        (directory / SHORT / BALLAST).unlink()
        assert [await _base(cluster, node) for node in ("n0", "n1")] == [0, 0]
        assert '"event": "log_deleted_early", "level": "error"' in cluster.log_path(SHORT).read_text()
        await _ask_to_lead(cluster)
        with trio.fail_after(90):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until, partial(_ask_to_lead, cluster))
                nursery.start_soon(_read, cluster, numbers, COUNT)
        assert numbers == set(range(COUNT))

        async def is_whole() -> bool:
            return await _base(cluster, SHORT) == 0

        await until(is_whole)


@pytest.mark.process
@pytest.mark.slow
def test_messages_stay_readable_while_the_disk_of_one_replica_is_full(tmp_path: Path) -> None:
    with ExitStack() as disks:
        directory = tmp_path / "group"
        disks.enter_context(mounted(directory, ROOMY_DISK_BYTES))
        disks.enter_context(mounted(directory / SHORT, SMALL_DISK_BYTES))
        trio.run(_run, directory)
