"""`raftmq group` against real brokers: nodes come and go under a producer, and every stored message is there after."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, MessageQueue, Producer, SendResult
from mq.local_cluster import HOST, DevCluster, Ports
from tests.support.commands import raftmq
from tests.support.joining_broker import start_joining
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

PAUSE_SECONDS = 0.003
"""Between two messages of a producer: enough for files to fill, and the commands get their share of the machine."""
SETTINGS = {"segment_bytes": "262144", "message_bytes_max": "65536", "entry_bytes_max": "65536"}


class Group:
    """A group of three under a producer, and brokers that join it."""

    def __init__(self, cluster: DevCluster, ports: Ports, nursery: trio.Nursery) -> None:
        self.cluster = cluster
        self._ports = ports
        self._nursery = nursery
        self._rng = random.Random(1)
        self.stored: list[SendResult] = []

    async def command(self, *arguments: str, code: int = 0) -> str:
        """What `raftmq group` prints; its exit code must be ``code``."""
        done = await raftmq("group", *arguments, "--namesrv", self.cluster.namesrv)
        assert done.code == code, (arguments, done)
        return (done.out if code == 0 else done.err).strip()

    async def view(self) -> dict[str, dict[str, object]]:
        answer = json.loads(await self.command("status", "--json"))
        return {member["node_id"]: member for member in answer["view"]["members"]}

    def replication(self, number: int) -> str:
        return f"{HOST}:{self._ports.replication[number]}"

    async def join(self, number: int) -> None:
        """Start a broker that waits to be added, and is not told how large log files are."""
        await start_joining(self.cluster, self._ports, self._nursery, number)

    async def produce(self, producer: Producer) -> None:
        while True:
            result = await producer.send(Message("T", self._rng.randbytes(4000)), timeout=30)
            assert isinstance(result, SendResult)
            self.stored.append(result)
            await trio.sleep(PAUSE_SECONDS)

    async def grown(self, count: int) -> None:
        """Until so many more messages were stored."""
        goal = len(self.stored) + count
        await until(lambda: len(self.stored) >= goal)


@asynccontextmanager
async def group_of_three(directory: Path, **settings: str) -> AsyncIterator[Group]:
    """With a producer at work; at the end every stored message must have a place of its own within its queue."""
    ports = Ports.free(5)
    first = Ports(ports.namesrv, ports.clients[:3], ports.replication[:3])
    async with (
        DevCluster.open(directory, ports=first, settings=SETTINGS | settings) as cluster,
        Admin(cluster.namesrv) as admin,
        trio.open_nursery() as nursery,
    ):
        await admin.create_topic("T", 2)
        group = Group(cluster, ports, nursery)
        async with Producer(cluster.namesrv) as producer:
            with trio.CancelScope() as producing:
                async with trio.open_nursery() as sending:
                    sending.start_soon(group.produce, producer)
                    await group.grown(300)
                    yield group
                    producing.cancel()
        places = {(result.queue.queue_id, result.queue_offset) for result in group.stored}
        assert len(places) == len(group.stored)
        for queue_id in range(2):
            end = await admin.max_offset(MessageQueue("T", "broker-a", queue_id))
            assert end >= sum(place[0] == queue_id for place in places)
        nursery.cancel_scope.cancel()


async def test_learner_joins_under_load_becomes_a_voter_and_leads(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        assert len(list((tmp_path / "n0" / "commitlog").glob("0*"))) > 3  # several files are closed
        await group.join(3)
        said = await group.command("add", f"n3@{group.replication(3)}", "--voter")
        assert said.splitlines()[-1] == "n3 is a voter now"
        members = await group.view()
        assert {name: member["role"] for name, member in members.items()} == dict.fromkeys(
            ("n0", "n1", "n2", "n3"), "voter"
        )
        assert "n3 leads in term" in await group.command("transfer", "n3")
        await group.grown(50)
        assert "CHANGE" not in await group.command("remove", "n0")
        assert sorted(await group.view()) == ["n1", "n2", "n3"]
        await group.grown(50)
        assert await group.command("remove", "n3") == "n3 is no longer a member"
        handed_over = '"command": "transfer"' in group.cluster.log_path("n3").read_text()
        assert handed_over, "a leader that is removed hands over first"
        await group.grown(50)


async def test_node_joins_a_shortened_log_and_leads(tmp_path: Path) -> None:
    """It gets files and a snapshot; what was before is known from that alone, for no entry tells it any more."""
    short = {"retention_bytes": "1048576", "retention_check_seconds": "0.3", "checkpoint_seconds": "0.3"}
    async with group_of_three(tmp_path, **short) as group, Admin(group.cluster.namesrv) as admin:
        await admin.create_topic("Early", 1)
        async with Producer(group.cluster.namesrv) as producer:
            for number in range(3):
                await producer.send(Message("Early", b"%d" % number), timeout=30)

        async def have_expired() -> bool:
            return await admin.min_offset(MessageQueue("Early", "broker-a", 0)) == 3

        await until(have_expired)
        await group.join(3)
        said = await group.command("add", f"n3@{group.replication(3)}", "--voter")
        assert said.splitlines()[-1] == "n3 is a voter now"
        assert "n3 leads in term" in await group.command("transfer", "n3")
        await group.grown(30)
        assert "install_offered" in "".join(group.cluster.log_path(n).read_text() for n in group.cluster.node_ids)
        # The new leader was never shown an entry of this queue, and still goes on counting where it was. Only a send
        # tells: followers answer questions about queues as well, and they know it from the log.
        async with Producer(group.cluster.namesrv) as producer:
            assert (await producer.send(Message("Early", b"3"), timeout=30)).queue_offset == 3
        answer = json.loads(await group.command("status", "--json"))
        assert answer["view"]["leader"] == "n3", "somebody else gave out that offset"


async def test_dead_voter_is_replaced_by_a_new_node(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.cluster.leader()
        dead = next(node for node in group.cluster.node_ids if node != leader)
        group.cluster.kill(dead)
        await group.grown(50)
        await group.join(4)
        said = await group.command("replace", dead, f"n4@{group.replication(4)}")
        assert said == f"n4 is a voter now, in place of {dead}"
        members = await group.view()
        assert dead not in members
        assert members["n4"]["role"] == "voter"
        # With it in place another one may fail.
        other = next(node for node in group.cluster.node_ids if node not in (leader, dead))
        group.cluster.kill(other)
        await group.grown(50)


async def test_invalid_commands_name_the_reason(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        assert "INVALID_CHANGE: n9 is not a learner" in await group.command("promote", "n9", code=1)
        assert "INVALID_CHANGE: n0 is a member already" in await group.command("add", "n0@h:1", code=1)
        assert "UNKNOWN_NODE: n9 is not a voter; voters are n0, n1, n2" in await group.command("transfer", "n9", code=1)
        assert "UNKNOWN_NODE: n9 is not a voter" in await group.command("replace", "n9", "n4@h:1", code=1)
        assert "'n4' is not NODE@HOST:PORT" in await group.command("add", "n4", code=2)
        # A learner that nobody started does not catch up; it is not promoted.
        said = await group.command("add", f"n4@{group.replication(4)}", "--voter", "--wait", "1", code=1)
        assert "NOT_CAUGHT_UP: n4 has not caught up within 1 s; it stays a learner" in said
        assert "NOT_CAUGHT_UP" in await group.command("promote", "n4", code=1)
        assert await group.command("remove", "n4") == "n4 is no longer a member"
