"""Lite topics of a real group: at a replica that was away, after a restore, at the target of a mirror."""

from __future__ import annotations

import random
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from mq.client import (
    Admin,
    BrokerError,
    LiteConsumer,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    SubscriptionGroupConfig,
)
from mq.local_cluster import HOST, DevCluster, Ports
from tests.support.backups import EXPIRING, SETTINGS, backed_up, committed, printed
from tests.support.real_groups import transfer
from tests.support.waiting import until, until_accepted

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

PARENT, GROUP, FILLER = "Sessions", "agents", "Filler"
BROKER = "broker-a"
Lites = dict[str, list[bytes]]


async def set_up(admin: Admin) -> None:
    create = partial(admin.create_topic, PARENT, 1, attributes={"message.type": "LITE"})
    await until_accepted(create, BrokerError)  # once all replicas have said what they understand
    await admin.put_consumer_group(SubscriptionGroupConfig(group_name=GROUP, attributes={"+lite.bind.topic": PARENT}))
    await admin.create_topic(FILLER, 1)


async def send(namesrv: str, lites: Lites) -> None:
    async with Producer(namesrv, "users") as producer:
        for lite, bodies in lites.items():
            for body in bodies:
                await producer.send(Message(PARENT, body, lite_topic=lite), timeout=30)


async def received(namesrv: str, lites: list[str], count: int) -> Lites:
    """That many messages of these, acknowledged."""
    got: Lites = {}
    with trio.fail_after(90):
        async with LiteConsumer(namesrv, GROUP, PARENT) as consumer:
            await consumer.subscribe(*lites)
            for _ in range(count):
                message = await anext(consumer)
                got.setdefault(message.lite_topic or "", []).append(message.body)
                await consumer.ack(message)
    return got


async def begin_goes(cluster: DevCluster, admin: Admin) -> None:
    """Send until all messages that were there are gone from the log."""
    queue, rng = MessageQueue(FILLER, BROKER, 0), random.Random(1)
    async with Producer(cluster.namesrv, "fillers") as producer:
        before = await admin.max_offset(queue)
        with trio.fail_after(120):
            while await admin.min_offset(queue) <= before:
                await producer.send(Message(FILLER, rng.randbytes(20_000)), timeout=30)


async def ends(admin: Admin) -> dict[str, tuple[int, int]]:
    """Of some lite topics: the first offset, and the end."""
    found: dict[str, tuple[int, int]] = {}
    for lite in ("read", "unread", "old", "late"):
        info = (await admin.lite.topic(PARENT, lite))[BROKER]
        found[lite] = (info.ends.min_offset, info.ends.max_offset)
    return found


async def lag(admin: Admin, lite: str) -> int:
    return (await admin.lite.lag(GROUP, lite))[BROKER].lag


async def mirror(source: str, target: str, state: Path) -> None:
    """Copy all there is."""
    both = ["--from", source, "--to", target, "--state", str(state)]
    async with trio.open_nursery() as nursery:
        command = [sys.executable, "-m", "mq.cli", "mirror", *both]
        running = await nursery.start(partial(trio.run_process, command, check=False, capture_stdout=True))
        with trio.fail_after(60):
            await until(state.exists)
        running.send_signal(signal.SIGINT)
    await printed("mirror", "cut-over", *both)


async def test_lite_topics_survive_absence_restore_and_mirroring(
    tmp_path: Path,
) -> None:
    """What is gone from the log is known from a snapshot alone: lite topics, and how far a group has read them."""
    backup = tmp_path / "backup"
    async with (
        DevCluster.open(tmp_path / "old", ports=Ports.free(3), settings=EXPIRING) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        await set_up(admin)
        early: Lites = {"read": [b"1", b"2", b"3"], "unread": [b"1"], "old": [b"1"]}
        await send(cluster.namesrv, early)
        assert await received(cluster.namesrv, ["read"], 3) == {"read": early["read"]}
        leader = await cluster.leader()
        away, stays = [node for node in cluster.node_ids if node != leader]
        await cluster.stop(away)
        await begin_goes(cluster, admin)
        await send(cluster.namesrv, {"read": [b"4", b"5"], "unread": [b"2"], "late": [b"1"]})
        await cluster.start(away)
        await cluster.wait_ready()
        await transfer(cluster, away)
        await cluster.wait_ready()
        told = "".join(cluster.log_path(node).read_text() for node in cluster.node_ids)
        assert "install_offered" in told, "it got no snapshot"
        assert await ends(admin) == {"read": (3, 5), "unread": (1, 2), "old": (1, 1), "late": (0, 1)}
        assert await lag(admin, "read") == 2
        assert await received(cluster.namesrv, ["read"], 2) == {"read": [b"4", b"5"]}
        await backed_up(cluster, backup, stays, await committed(cluster))
    shutil.rmtree(tmp_path / "old")

    new, ports = tmp_path / "new", Ports.free(3)
    nodes = list(zip(("n0", "n1", "n2"), ports.replication, strict=True))
    peers = ",".join(f"{node}@{HOST}:{port}" for node, port in nodes)
    await printed("restore", str(backup), *(f"{node}={new / node}" for node, _ in nodes), "--peers", peers)
    async with (
        DevCluster.open(new, ports=ports, settings=SETTINGS) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        assert await ends(admin) == {"read": (3, 5), "unread": (1, 2), "old": (1, 1), "late": (0, 1)}
        assert await lag(admin, "read") == 0
        await send(cluster.namesrv, {"read": [b"6"], "old": [b"2"]})
        lites = ["read", "unread", "old", "late"]
        assert await received(cluster.namesrv, lites, 4) == {
            "read": [b"6"],
            "unread": [b"2"],
            "old": [b"2"],
            "late": [b"1"],
        }
        async with DevCluster.open(tmp_path / "target", nodes=1, ports=Ports.free(1)) as target:
            await mirror(cluster.namesrv, target.namesrv, tmp_path / "state.json")
            async with PullConsumer(target.namesrv, "checkers", consume_from="first", timeout=30) as consumer:
                await consumer.assign([MessageQueue(PARENT, BROKER, 0)])
                copies = [message.body async for message in await consumer.read_to_end()]
            assert copies == [b"4", b"5", b"2", b"1", b"6", b"2"]
