"""Three real replicas, and readers of a whole topic: followers serve them, whatever happens to single ones."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mq.client import Admin, BrokerError, Message, Producer
from mq.local_cluster import DevCluster, Ports
from tests.support.real_groups import connected, transfer, wait_level
from tests.support.running_broker import SECONDS_MAX
from tests.support.spark_tasks import in_thread, reader_of, rows_of, survey
from tests.support.waiting import until, until_accepted

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUEUES = 3
MESSAGES = 1500
BODY_BYTES = 6000
SEGMENT_BYTES = 8 * 1024 * 1024
SETTINGS = {"segment_bytes": str(SEGMENT_BYTES)}


def body_of(number: int) -> bytes:
    return b"%06d" % number + random.Random(number).randbytes(BODY_BYTES)


async def fill(cluster: DevCluster, count: int = MESSAGES, first: int = 0) -> None:
    async with Admin(cluster.namesrv) as admin:
        if not first:
            await admin.create_topic("T", queues=QUEUES)
    async with Producer(cluster.namesrv) as producer:
        for begin in range(first, first + count, 100):
            await producer.send_many(
                Message("T", body_of(number), properties={"n": str(number)}) for number in range(begin, begin + 100)
            )


def check(rows: list[dict[str, Any]], count: int = MESSAGES) -> None:
    assert sorted(dict(row["properties"])["n"] for row in rows) == sorted(map(str, range(count)))
    assert all(row["body"] == body_of(int(dict(row["properties"])["n"])) for row in rows)
    for queue_id in range(QUEUES):
        offsets = [row["queue_offset"] for row in rows if row["queue_id"] == queue_id]
        assert offsets == list(range(len(offsets)))


async def served_by_leaders(cluster: DevCluster, nodes: list[str]) -> int:
    total = 0
    for node_id in nodes:
        async with connected(cluster, node_id) as client:
            total += int((await client.info())["raftmq.bulkBytesAsLeader"])
    return total


async def test_scan_continues_after_follower_death_and_leadership_change(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        await fill(cluster)
        leader = await cluster.leader()
        found = await in_thread(survey, cluster.namesrv)
        assert sum(ends.end for ends in found.ends.values()) == MESSAGES
        assert len(found.places["T", "broker-a"]) >= MESSAGES * BODY_BYTES // SEGMENT_BYTES - 1
        reader = reader_of(cluster.namesrv, found)
        batches = reader.read()
        rows = (await in_thread(next, batches)).to_pylist()
        serving = next(node for node in cluster.node_ids if cluster.address(node) in reader.statistics.replicas)
        assert serving != leader
        other = next(node for node in cluster.node_ids if node not in (leader, serving))
        cluster.kill(serving)
        rows += (await in_thread(next, batches)).to_pylist()
        await transfer(cluster, other)
        rows += await in_thread(rows_of, batches)
        check(rows)
        assert reader.statistics.switches >= 2
        assert await served_by_leaders(cluster, [leader, other]) == 0
        async with connected(cluster, leader) as client:
            assert int((await client.info())["raftmq.bulkBytesAsFollower.test"]) > 0


async def test_damage_on_a_followers_disk_does_not_change_rows(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        await fill(cluster)
        found = await in_thread(survey, cluster.namesrv)
        reader = reader_of(cluster.namesrv, found)
        rows = await in_thread(rows_of, reader.read())
        check(rows)
        [address] = reader.statistics.replicas
        serving = next(node for node in cluster.node_ids if cluster.address(node) == address)
        await cluster.stop(serving)
        [path] = (tmp_path / serving).glob(f"**/commitlog/{0:020d}")
        whole = path.read_bytes()
        content = bytearray(whole)
        for number, place in enumerate((b"n\x01", body_of(200)[:6], body_of(400)[100:120])):
            content[content.index(place, 100_000 * number)] ^= 1
        path.write_bytes(content)
        await cluster.start(serving)
        await wait_level(cluster)
        again = reader_of(cluster.namesrv, found)
        check(await in_thread(rows_of, again.read()))
        # The scrub begins with the start, and may have been first.
        assert again.statistics.switches >= 1 or path.read_bytes() == whole
        await until(lambda: path.read_bytes() == whole, seconds=SECONDS_MAX)
        check(await in_thread(rows_of, reader_of(cluster.namesrv, found).read()))


async def test_messages_of_a_lite_parent_name_their_lite_topics(tmp_path: Path) -> None:
    sent = [(f"session-{number % 7}", b"%d" % number) for number in range(50)]
    async with DevCluster.open(tmp_path, nodes=1, ports=Ports.free(1)) as cluster:
        async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, "users") as producer:
            create = partial(admin.create_topic, "Sessions", 2, attributes={"message.type": "LITE"})
            await until_accepted(create, BrokerError)  # once the replica has said what it understands
            for lite, body in sent:
                await producer.send(Message("Sessions", body, lite_topic=lite))
        found = await in_thread(survey, cluster.namesrv, "Sessions")
        assert sum(ends.end for ends in found.ends.values()) == len(sent), "queues of lite topics are no partitions"
        reader = reader_of(cluster.namesrv, found, 0, "Sessions", "any")
        rows = await in_thread(rows_of, reader.read())
    rows.sort(key=lambda row: int(row["body"]))
    assert [(dict(row["properties"])["__LITE_TOPIC"], row["body"]) for row in rows] == sent
    assert {row["queue_id"] for row in rows} <= {0, 1}
