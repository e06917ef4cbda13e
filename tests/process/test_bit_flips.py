"""Bits that rot on real disks, in closed files of a leader and in consume queues: nobody is told anything wrong."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
import trio

from mq.client import Admin, Message, MessageQueue, Producer, PullConsumer, PushConsumer, SendResult
from mq.local_cluster import DevCluster, Ports
from mq.protocol.messages.records import StoredMessage, decode_records
from tests.support.commands import raftmq
from tests.support.real_groups import connected, transfer, wait_level
from tests.support.running_broker import SECONDS_MAX
from tests.support.waiting import until_found

pytestmark = [pytest.mark.process, pytest.mark.slow]


SEGMENT_BYTES = 8 * 1024 * 1024
DELAYED = 40
PLAIN = 40
DELAY_LEVEL = 5
"""One minute, so that the leader reads what waits from disk after its restart."""
FIELDS = ("property", "key", "body", "topic", "header")
_BODY_AT, _FLAG_AT = 88, 19


def body_of(kind: str, number: int) -> bytes:
    return b"body of %s %03d." % (kind.encode(), number)


def message_of(kind: str, number: int, delay_level: int | None = None) -> Message:
    properties = {"own": f"value of {kind} {number:03}."}
    return Message(
        "T", body_of(kind, number), keys=[f"key-of-{kind}-{number:03}"], properties=properties, delay_level=delay_level
    )


def flip(content: bytearray, kind: str, number: int) -> bool:
    """Flip a bit of a message's record in a file's content; False if it is not in this file."""
    body = body_of(kind, number)
    if (begin := content.find(body)) < 0:
        return False
    behind = begin + len(body)
    match FIELDS[number % len(FIELDS)]:
        case "property":
            at = content.index(b"value of", behind)
        case "key":
            at = content.index(b"key-of", behind)
        case "body":
            at = begin + 2
        case "topic":
            at = behind + 1
        case _:
            at = begin - _BODY_AT + _FLAG_AT
    content[at] ^= 1
    return True


async def send_all(cluster: DevCluster) -> None:
    async with Admin(cluster.namesrv) as admin:
        for topic in ("T", "Filler"):
            await admin.create_topic(topic, queues=1)
    async with Producer(cluster.namesrv) as producer:
        for number in range(max(DELAYED, PLAIN)):
            await producer.send(message_of("plain", number))
            await producer.send(message_of("delayed", number, delay_level=DELAY_LEVEL))
        rng = random.Random(1)
        for _ in range(3):  # so that the file is closed; this cannot be compressed
            await producer.send(Message("Filler", rng.randbytes(3_900_000)))


def check(message: StoredMessage) -> None:
    kind, number = message.body.decode().removeprefix("body of ").rstrip(".").split()
    assert message.topic == "T"
    assert message.body == body_of(kind, int(number))
    assert message.properties["own"] == f"value of {kind} {number}."
    assert message.properties["KEYS"] == f"key-of-{kind}-{number}"
    assert message.flag == 0


async def test_rot_in_closed_leader_files_is_repaired_before_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTMQ_BROKER_SEGMENT_BYTES", str(SEGMENT_BYTES))
    async with DevCluster.open(tmp_path, ports=Ports.free(3)) as cluster:
        await send_all(cluster)
        await wait_level(cluster)
        victim = await cluster.leader()
        await cluster.stop(victim)
        path = next(iter(sorted((tmp_path / victim).glob("**/00000000000000000000"))))
        whole = path.read_bytes()
        content = bytearray(whole)
        flipped = [number for kind in ("plain", "delayed") for number in range(40) if flip(content, kind, number)]
        assert len(flipped) == DELAYED + PLAIN
        path.write_bytes(content)
        await cluster.start(victim)
        await wait_level(cluster)
        await transfer(cluster, victim)
        seen: Counter[bytes] = Counter()
        with trio.fail_after(3 * SECONDS_MAX):
            async with PushConsumer(cluster.namesrv, group="G", consume_from="first") as consumer:
                consumer.subscribe("T")
                async for message in consumer:
                    kind, number = message.body.decode().removeprefix("body of ").rstrip(".").split()
                    assert message.body == body_of(kind, int(number))
                    assert message.properties["own"] == f"value of {kind} {number}."
                    assert message.keys == (f"key-of-{kind}-{number}",)
                    seen[message.body] += 1
                    if len(seen) == DELAYED + PLAIN:
                        break
        await wait_level(cluster)
        assert path.read_bytes() == whole, "the replica did not repair itself"
        done = await raftmq("doctor", "--json", "--watch", "0", "--namesrv", cluster.namesrv)
        damaged = [each for each in json.loads(done.out)["findings"] if "logged errors since its start" in each["what"]]
        assert [each["subject"] for each in damaged] == [f"replica {victim} ({cluster.address(victim)})"]
        assert "damage" in damaged[0]["what"]
        for node_id in cluster.node_ids:
            async with connected(cluster, node_id) as client:
                offset = 0
                bodies: Counter[bytes] = Counter()
                while (answer := await client.pull("T", 0, offset)).code == 0:
                    for record in decode_records(answer.body):
                        check(record)
                        bodies[record.body] += 1
                    offset = int(answer.ext["nextBeginOffset"])
                assert len(bodies) == offset == DELAYED + PLAIN
                assert set(bodies.values()) == {1}


MESSAGES = 1000
BLOCK_BYTES = 4096
BLOCKS = MESSAGES // 204
QUEUE = MessageQueue("T", "broker-a", 0)


def queue_file(directory: Path) -> Path | None:
    """The queue's first file, once all whole blocks are in it."""
    for path in (directory / "n0" / "queues" / "T").rglob(f"{0:020d}"):
        if path.stat().st_size >= BLOCKS * BLOCK_BYTES:
            return path
    return None


def flip_entries(path: Path, rng: random.Random, count: int) -> None:
    """Flip bits of the queue's entries, in place."""
    with path.open("r+b") as file:
        for _ in range(count):
            at = rng.randrange(BLOCKS * BLOCK_BYTES)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))


async def read_all(cluster: DevCluster, group: str) -> list[bytes]:
    found: list[bytes] = []
    async with PullConsumer(cluster.namesrv, group, consume_from="first", timeout=30) as consumer:
        with trio.fail_after(60):
            await consumer.assign([QUEUE])
            while len(found) < MESSAGES:
                found += [each.body for each in await consumer.poll(100)]
    return found


async def restored(cluster: DevCluster) -> int:
    async with Admin(cluster.namesrv) as admin:
        return int((await admin.broker_runtime(cluster.address("n0")))["raftmq.queueBlocksRestored"])


async def test_flipped_bits_are_restored_from_the_log(tmp_path: Path) -> None:
    rng = random.Random(7)
    expected = [b"%d" % number for number in range(MESSAGES)]
    async with DevCluster.open(tmp_path, nodes=1, ports=Ports.free(1)) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("T", 1)
        async with Producer(cluster.namesrv) as producer:
            outcomes = await producer.send_many(Message("T", body) for body in expected)
            assert all(isinstance(each, SendResult) for each in outcomes)

        with trio.fail_after(60):
            path = await until_found(lambda: queue_file(tmp_path))
        await cluster.stop("n0")
        flip_entries(path, rng, 2)
        await cluster.start("n0")
        await cluster.wait_ready()
        assert await read_all(cluster, "G1") == expected
        assert await restored(cluster) > 0

        await cluster.stop("n0")
        await cluster.start("n0")
        await cluster.wait_ready()
        assert await restored(cluster) == 0
        flip_entries(path, rng, 2)  # what the process has not read yet
        assert await read_all(cluster, "G2") == expected
        assert await restored(cluster) > 0
