"""`raftmq mirror` from RocketMQ's own servers: ``python -m tests.interop.mirror --version 4.9.7``, or ``5.5.0``.

Brokers of 4.9 run with DLedger. Producers and consumers are at work while the mirror is killed with SIGKILL again and
again. At the end both sides are read and compared message by message, without the mirror's own comparison.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mq.client import (
    Admin,
    ClientError,
    DeadLetter,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TransactionProducer,
)
from mq.local_cluster import DevCluster, Ports
from tests.interop.clients import build_servers
from tests.interop.rocketmq_servers import RocketMQCluster
from tests.support.waiting import until_accepted

QUEUES = 4
TOPIC, OTHER, CONSUMERS = "Orders", "Bills", "billing"
BODY = "é".encode() * 40


@asynccontextmanager
async def source_of(directory: Path, version: str, nodes: int) -> AsyncIterator[RocketMQCluster]:
    """RocketMQ in this version; 4.9 with DLedger and this many replicas."""
    settings = {"messageDelayLevel": "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s"}
    dledger = nodes if version.startswith("4") else 0
    async with RocketMQCluster.open(directory, settings=settings, version=version, dledger=dledger) as cluster:
        yield cluster


async def ready(namesrv: str, topic: str) -> None:
    """Create a topic as soon as the broker leads."""

    async def create() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, QUEUES)

    await until_accepted(create, ClientError)


async def produce(namesrv: str, version: str, seconds: float) -> Counter[str]:
    """Messages of all kinds; returns how many of each."""
    sent: Counter[str] = Counter()
    until = trio.current_time() + seconds
    async with (
        Producer(namesrv, timeout=30, compress_bytes_min=2000) as producer,
        TransactionProducer(namesrv, "deciding", check=_commit, timeout=30) as deciding,
    ):
        number = 0
        while trio.current_time() < until:
            plain = [
                Message(
                    TOPIC,
                    b"%d " % (number + n) + BODY * (100 if n == 7 else 1),
                    tags="new",
                    keys=[f"order-{number + n}", "all"],
                    properties={"n": str(number + n), "ü": "ö"},
                    flag=n,
                )
                for n in range(50)
            ]
            outcomes = await producer.send_many(plain)
            sent["plain"] += sum(not isinstance(each, ClientError) for each in outcomes)
            try:
                await producer.send(Message(OTHER, b"bill %d" % number, sharding_key=f"customer {number % 7}"))
                sent["other"] += 1
                await producer.send(Message(OTHER, b"later %d" % number, delay_level=2))
                sent["delayed"] += 1
                if version.startswith("5"):
                    await producer.send(Message(OTHER, b"timed %d" % number, delay=2.5))
                    sent["timed"] += 1
                await producer.send_batch([Message(OTHER, b"batched %d %d" % (number, n)) for n in range(10)])
                sent["batched"] += 10
                async with deciding.transaction(Message(OTHER, b"decided %d" % number)):
                    sent["committed"] += 1
            except ClientError:
                sent["unanswered"] += 1  # while the source has no leader
            number += 50
            await trio.sleep(0.01)
    return sent


async def _commit(message: ReceivedMessage) -> bool | None:
    return True


async def consume(namesrv: str, handled: set[str]) -> None:
    """Consume with a group that fails now and then: some messages are redelivered, some become dead letters."""

    async def handle(message: ReceivedMessage) -> None:
        body = bytes(message.body)
        if body.startswith(b"bill ") and int(body.split()[1]) % 100 == 0:
            raise DeadLetter("it is never paid")
        if body.startswith(b"bill ") and int(body.split()[1]) % 150 == 0 and message.reconsume_times < 2:
            raise RetryLater(60)
        handled.add(message.message_id)

    async with PushConsumer(namesrv, CONSUMERS, consume_from="first", ordered=False) as consumer:
        consumer.subscribe(OTHER)
        await consumer.run(handle)


async def raftmq(*arguments: str, kill_after: float | None = None) -> tuple[int, str, str]:
    """Run a command; its exit code and output. Killed with SIGKILL after so many seconds."""
    command = [sys.executable, "-m", "mq.cli", *arguments]
    async with trio.open_nursery() as nursery:
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = bytearray(), bytearray()

        async def gather(stream: trio.abc.ReceiveStream, into: bytearray) -> None:
            async for chunk in stream:
                into += chunk

        assert process.stdout is not None and process.stderr is not None  # noqa: PT018
        nursery.start_soon(gather, process.stdout, out)
        nursery.start_soon(gather, process.stderr, err)
        if kill_after is not None:
            with trio.move_on_after(kill_after):
                await process.wait()
            process.kill()
        code = await process.wait()
    return code, out.decode(), err.decode()


async def content(namesrv: str) -> dict[tuple[str, int], list[tuple[object, ...]]]:
    """All messages of all topics, by topic and queue, in their order: what must be equal on both sides."""
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    topics = [TOPIC, OTHER, f"%RETRY%{CONSUMERS}", f"%DLQ%{CONSUMERS}"]
    async with Admin(namesrv) as admin, PullConsumer(namesrv, "reading", consume_from="first") as consumer:
        known = await admin.topics()
        for topic in topics:
            if topic not in known:
                continue
            await consumer.assign(await consumer.queues(topic))
            async for message in await consumer.read_to_end():
                found.setdefault((topic, message.queue.queue_id), []).append(_facts(message))
    return found


def _facts(message: ReceivedMessage) -> tuple[object, ...]:
    return (
        message.message_id,
        message.body,
        message.tags,
        message.keys,
        message.sharding_key,
        message.flag,
        message.born_at,
        message.reconsume_times,
        message.origin_message_id,
        # The mirror's numbers are in the first message of each batch.
        tuple(sorted(each for each in message.user_properties.items() if not each[0].startswith("RAFTMQ_"))),
    )


async def play(version: str, directory: Path, *, nodes: int, seconds: float, kills: int, seed: int) -> list[str]:
    """The whole story; returns what came of it, as lines. Raises AssertionError."""
    rng = random.Random(seed)
    lines: list[str] = []
    async with (
        source_of(directory / "source", version, nodes) as source,
        DevCluster.open(
            directory / "target", ports=Ports.free(1), settings={"segment_bytes": str(64 * 1024 * 1024)}
        ) as target,
    ):
        for topic in (TOPIC, OTHER):
            await ready(source.namesrv, topic)
        both = ["mirror", "--from", source.namesrv, "--to", target.namesrv, "--state", str(directory / "state.json")]
        sent: Counter[str] = Counter()
        handled: set[str] = set()
        killed = 0

        async def produce_all() -> None:
            sent.update(await produce(source.namesrv, version, seconds))
            done.set()

        done = trio.Event()

        async def lose_leader() -> None:
            await trio.sleep(seconds / 3)  # producers are at work meanwhile
            await source.kill_leader()

        async with trio.open_nursery() as nursery:
            if nodes > 1:
                nursery.start_soon(lose_leader)
            nursery.start_soon(consume, source.namesrv, handled)
            nursery.start_soon(produce_all)
            while not done.is_set() or killed < kills:
                if killed and rng.random() < 0.2:
                    (directory / "state.json").unlink(missing_ok=True)  # also without its state
                code, _, err = await raftmq(*both, kill_after=rng.uniform(0.6, 3.0))
                assert code == -9, f"the mirror ended by itself: {code}, {err}"
                killed += 1
            while not (directory / "state.json").exists():
                await raftmq(*both, kill_after=5.0)
            await trio.sleep(12)  # delays and redeliveries
            code, out, err = await raftmq(*both[:1], "cut-over", *both[1:])
            assert code == 1, f"a cut-over beside running consumers: {code}, {out}{err}"
            assert "consumers run at the source" in err, err
            nursery.cancel_scope.cancel()
        lines.append(f"sent: {', '.join(f'{count:,} {kind}' for kind, count in sorted(sent.items()))}")
        lines.append(f"the mirror was killed {killed} times")
        code, out, err = await raftmq(*both, "--once")
        assert code == 0, err
        code, out, err = await raftmq(*both, "--verify")
        assert code == 0, out + err
        lines.append(f"--verify: {out.splitlines()[-1]}")
        code, out, err = await raftmq(*both[:1], "cut-over", *both[1:], "--quiet", "2", "--json")
        assert code == 0, err
        report = json.loads(out)
        lines.append(f"cut-over: {len(report['offsets'])} offsets, {report['waiting']} delayed messages wait")
        lines += await compare(source.namesrv, target.namesrv)
        lines += await go_on(target.namesrv, handled)
    return lines


async def compare(source: str, target: str) -> list[str]:
    """Both sides. Raises AssertionError."""
    ours, theirs = await content(source), await content(target)
    assert ours.keys() == theirs.keys(), f"queues {sorted(ours.keys() ^ theirs.keys())} are on one side only"
    for queue, messages in ours.items():
        assert len(messages) == len(theirs[queue]), f"{queue}: {len(messages)} and {len(theirs[queue])} messages"
        for n, (one, two) in enumerate(zip(messages, theirs[queue], strict=True)):
            assert one == two, f"{queue}, message {n}:\n{one}\n{two}"
    counts: Counter[str] = Counter()
    for (topic, _), messages in ours.items():
        counts[topic] += len(messages)
    return [f"equal on both sides, in order: {', '.join(f'{n:,} in {topic}' for topic, n in sorted(counts.items()))}"]


async def go_on(target: str, handled: set[str]) -> list[str]:
    """The group goes on at the target: it gets nothing again, and what is sent there. Raises AssertionError."""
    got: list[ReceivedMessage] = []
    all_new = trio.Event()

    async def handle(message: ReceivedMessage) -> None:
        got.append(message)
        if sum(each.body.startswith(b"new ") for each in got) == 20:
            all_new.set()

    async with (
        PushConsumer(target, CONSUMERS, consume_from="first") as consumer,
        Producer(target) as producer,
        trio.open_nursery() as nursery,
    ):
        consumer.subscribe(OTHER)
        nursery.start_soon(consumer.run, handle)
        for n in range(20):
            await producer.send(Message(OTHER, b"new %d" % n))
        with trio.move_on_after(20):
            await all_new.wait()
        await trio.sleep(2)  # what was handled at the source would come now
        nursery.cancel_scope.cancel()
    new = [each for each in got if each.body.startswith(b"new ")]
    old = [each for each in got if not each.body.startswith(b"new ")]
    assert len(new) == 20, f"{len(new)} of 20 new messages came"
    again = [each for each in old if each.message_id in handled]
    assert not again, f"{len(again)} messages come again that were handled at the source"
    return [f"the group goes on at the target: {len(new)} new messages, {len(old)} that were not handled before"]


def main() -> int:
    """Exit code 0 if all is as it must be."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.mirror", description=__doc__)
    parser.add_argument("--version", default="4.9.7", help="of RocketMQ's servers")
    parser.add_argument("--nodes", type=int, default=1, help="replicas of 4.9; with several, the leader is killed")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long producers send")
    parser.add_argument("--kills", type=int, default=10, help="how often the mirror is killed at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="keep data and logs here")
    given = parser.parse_args()
    logging.getLogger("mq.client").setLevel(logging.CRITICAL)  # what fails is meant to
    build_servers(given.version)
    with tempfile.TemporaryDirectory(prefix="mirror-", ignore_cleanup_errors=True) as scratch:
        directory = given.dir or Path(scratch)

        async def run() -> list[str]:
            return await play(
                given.version, directory, nodes=given.nodes, seconds=given.seconds, kills=given.kills, seed=given.seed
            )

        for line in trio.run(run):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
