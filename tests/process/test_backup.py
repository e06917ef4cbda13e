"""A group of real brokers that is backed up, destroyed and restored."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Every, Message, MessageQueue, Producer, PullConsumer, Schedule, SendResult
from mq.local_cluster import HOST, DevCluster, Ports
from tests.support.backups import EXPIRING, SETTINGS, backed_up, committed, printed, raftmq

pytestmark = [pytest.mark.process, pytest.mark.slow]


async def send(namesrv: str, topic: str, bodies: list[bytes]) -> list[SendResult]:
    """Send messages side by side; where each of them was stored."""
    found: dict[int, SendResult] = {}
    async with Producer(namesrv) as producer:

        async def send_one(number: int) -> None:
            result = await producer.send(Message(topic, bodies[number]), timeout=30)
            assert isinstance(result, SendResult)
            found[number] = result

        async with trio.open_nursery() as nursery:
            for number in range(len(bodies)):
                nursery.start_soon(send_one, number)
    return [found[number] for number in range(len(bodies))]


async def ticks_of(namesrv: str, queue: MessageQueue) -> list[int]:
    """The times, in ms, of the ticks in a queue, in its order."""
    async with PullConsumer(namesrv, "ticks", consume_from="first", timeout=30) as consumer:
        await consumer.assign([queue])
        return [int(each.properties["RAFTMQ_SCHEDULE_DUE"]) async for each in await consumer.read_to_end()]


async def test_group_is_restored_after_all_its_replicas_are_destroyed(tmp_path: Path) -> None:
    """The beginning of its log is gone before the backup, so that what was there is known from the snapshot alone."""
    rng = random.Random(1)
    filler = [rng.randbytes(2000).hex().encode() for _ in range(600)]
    late = [b"late %d" % number for number in range(20)]
    backup = tmp_path / "backup"
    async with (
        DevCluster.open(tmp_path / "old", ports=Ports.free(3), settings=EXPIRING) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        await admin.create_topic("Early", 1)
        await admin.create_topic("T", 2)
        await admin.create_topic("Ticks", 1)
        for name in ("tick", "paused"):
            await admin.schedules.create(Schedule(name, "Ticks", b"tick", Every(dt.timedelta(seconds=1))))
        await admin.schedules.pause("paused")
        early = MessageQueue("Early", "broker-a", 0)
        await send(cluster.namesrv, "Early", [b"0", b"1", b"2"])
        await printed("consume", "Early", "--group", "readers", "--count", "2", "--namesrv", cluster.namesrv)
        sent = await send(cluster.namesrv, "T", filler)
        with trio.fail_after(60):
            while await admin.min_offset(early) < 3:  # until every one of them has expired
                # Files stay until two checkpoints do not need them, and there is none without a new entry.
                filler.append(b"more %d" % len(filler))
                sent += await send(cluster.namesrv, "T", filler[-1:])
        leader = await cluster.leader()
        first, second = [node for node in cluster.node_ids if node != leader]
        refused = await raftmq(
            "backup", str(backup), "--data-dir", str(cluster.directory / leader), "--namesrv", cluster.namesrv
        )
        assert refused.returncode == 3
        assert b"leads its group, nothing was copied" in refused.stderr
        whole = (await backed_up(cluster, backup, first, await committed(cluster)))[0]
        assert whole["snapshot_index"] >= whole["first_index"] > 1
        sent += await send(cluster.namesrv, "T", late)
        news = await backed_up(cluster, backup, second, await committed(cluster))
        assert sum(run["copied_bytes"] for run in news) < whole["copied_bytes"] / 10
        offset = await admin.group_offset("readers", early)
        assert offset == 2
        schedules = [await admin.schedules.get(name) for name in ("tick", "paused")]
    shutil.rmtree(tmp_path / "old")

    new, ports = tmp_path / "new", Ports.free(3)
    nodes = list(zip(("n0", "n1", "n2"), ports.replication, strict=True))
    peers = ",".join(f"{node}@{HOST}:{port}" for node, port in nodes)
    await printed("restore", str(backup), *(f"{node}={new / node}" for node, _ in nodes), "--peers", peers)
    async with (
        DevCluster.open(new, ports=ports, settings=SETTINGS) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        bodies = dict(zip(((r.queue.queue_id, r.queue_offset) for r in sent), (*filler, *late), strict=True))
        begins = [await admin.min_offset(MessageQueue("T", "broker-a", queue_id)) for queue_id in range(2)]
        expected = {body for (queue_id, offset), body in bodies.items() if offset >= begins[queue_id]}
        assert expected.issuperset(late)
        text = await printed(
            "consume", "T", "--group", "fresh", "--count", str(len(expected)), "--namesrv", cluster.namesrv
        )
        assert sorted(text.encode().splitlines()) == sorted(expected)
        ends = [await admin.max_offset(MessageQueue("T", "broker-a", queue_id)) for queue_id in range(2)]
        assert sum(ends) == len(bodies)
        # Neither of these is in any entry that was copied.
        assert await admin.group_offset("readers", early) == 2
        (result,) = await send(cluster.namesrv, "Early", [b"3"])
        assert result.queue_offset == 3
        # Schedules go on: no tick comes twice, and one that was paused stays so.
        assert await admin.schedules.get("paused") == schedules[1]
        restored = await admin.schedules.get("tick")
        assert restored.schedule == schedules[0].schedule
        with trio.fail_after(60):
            while (await admin.schedules.get("tick")).sent < restored.sent + 2:  # noqa: ASYNC110 - of the broker
                await trio.sleep(0.1)
        dues = await ticks_of(cluster.namesrv, MessageQueue("Ticks", "broker-a", 0))
        assert len(dues) >= 2
        assert dues == sorted(set(dues))
        assert restored.last is None or dues[-1] > restored.last.timestamp() * 1000


async def test_survivor_of_a_dead_majority_continues_and_gains_a_replica(tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(50)]
    ports = Ports.free(3)
    async with DevCluster.open(tmp_path, ports=ports, settings=SETTINGS) as cluster, trio.open_nursery() as nursery:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", 1)
        await send(cluster.namesrv, "T", bodies)
        leader = await cluster.leader()
        survivor, other = [node for node in cluster.node_ids if node != leader]
        goal = await committed(cluster)
        with trio.fail_after(60):
            while await committed(cluster, survivor) < goal:  # noqa: ASYNC110 - of another process
                await trio.sleep(0.05)
        for lost in (leader, other):
            cluster.kill(lost)
            shutil.rmtree(tmp_path / lost, ignore_errors=True)
        await cluster.stop(survivor)

        force = ["group", "force", "--data-dir", str(tmp_path / survivor)]
        assert "nothing was changed" in await printed(*force)
        assert f"done: {survivor} is the only voter" in await printed(*force, "--yes")
        await cluster.start(survivor)
        assert await cluster.leader() == survivor
        consume = ["consume", "T", "--group", "readers", "--count", "50", "--namesrv", cluster.namesrv]
        assert sorted((await printed(*consume)).encode().split()) == sorted(bodies)
        (result,) = await send(cluster.namesrv, "T", [b"after"])
        assert result.queue_offset == 50

        # With the id of one that is lost, and an empty directory.
        number = int(leader.removeprefix("n"))
        replication = f"{HOST}:{ports.replication[number]}"
        shutil.rmtree(tmp_path / leader, ignore_errors=True)
        command = [sys.executable, "-m", "mq.cli", "broker", "--join", "--node-id", leader, "--data-dir"]
        command += [str(tmp_path / leader), "--replication-listen", replication, "--listen", cluster.address(leader)]
        command += ["--namesrv", cluster.namesrv, "--set", f"secret_file={cluster.secret_file}"]
        command += ["--set", f"message_bytes_max={SETTINGS['message_bytes_max']}"]
        environment = {name: value for name, value in os.environ.items() if name != "RAFTMQ_BROKER_SEGMENT_BYTES"}
        with cluster.log_path("joined").open("ab") as log:
            run = partial(trio.run_process, command, stdout=log, stderr=log, check=False, env=environment)
            await nursery.start(run)
        added = await printed("group", "add", f"{leader}@{replication}", "--voter", "--namesrv", cluster.namesrv)
        assert added.splitlines()[-1] == f"{leader} is a voter now"
        (result,) = await send(cluster.namesrv, "T", [b"acknowledged by both"])
        assert result.queue_offset == 51
        nursery.cancel_scope.cancel()
