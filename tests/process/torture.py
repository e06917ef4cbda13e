"""A group of three real processes under kills, pauses and restarts, with producers and consumers that keep going.

    python -m tests.process.torture --seconds 120 --seed 7

Everything that a seed decides repeats; what the machine decides does not. It prints a summary, and exits with 1 and a
line for each promise that was broken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from os import kill
from pathlib import Path
from typing import Any

import trio

from mq.broker.settings import BrokerSettings
from mq.cli.dev_cluster import HOST, DevCluster, Ports
from mq.cli.logs import configure_logging
from mq.client import Admin, ClientError, Message, NoRoute, Producer, PushConsumer, SendResult
from mq.protocol.bodies import KVTable
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import split_frames
from mq.protocol.headers import Response, decode_header, encode_request
from raftlog.segment import RealDisk, SegmentLog
from tests.process.torture_history import History, Sent, judge

TOPIC = "Torture"
GROUP = "tortured_readers"
QUEUES = 4
SEGMENT_BYTES = 1024 * 1024
HEAL_SECONDS_MAX = 60.0
ANSWER_SECONDS_MAX = 10.0
_PULL_SUBSCRIPTION = 4

SETTINGS = {
    # Small files roll often, and checkpoints and flushes meet the kills.
    "segment_bytes": str(SEGMENT_BYTES),
    "message_bytes_max": str(256 * 1024),
    "checkpoint_seconds": "0.5",
    "offset_commit_seconds": "0.05",
}


OnAnswer = Callable[[Response, bytes], None]


class Wire:
    """A raw connection to one broker: requests leave without waiting, answers are handed to callbacks."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._opaque = itertools.count(1)
        self._waiting: dict[int, OnAnswer] = {}

    async def post(self, code: int, ext: dict[str, Any] | None, on_answer: OnAnswer, body: bytes = b"") -> None:
        """Send a request."""
        opaque = next(self._opaque)
        self._waiting[opaque] = on_answer
        fields = None if ext is None else {name: str(value) for name, value in ext.items()}
        await self._stream.send_all(encode_request(code, opaque, ext=fields, body=body))

    async def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> tuple[Response, bytes]:
        """Send a request and wait for its answer."""
        done = trio.Event()
        answers: list[tuple[Response, bytes]] = []

        def take(response: Response, body: bytes) -> None:
            answers.append((response, body))
            done.set()

        await self.post(code, ext, take, body)
        await done.wait()
        return answers[0]

    async def read(self) -> None:
        """Hand out answers until the connection ends."""
        received = bytearray()
        try:
            while chunk := await self._stream.receive_some():
                received += chunk
                frames, consumed = split_frames(memoryview(bytes(received)))
                del received[:consumed]
                for serialization, header, body in frames:
                    answer = decode_header(serialization, header)
                    if isinstance(answer, Response):
                        self._waiting.pop(answer.opaque)(answer, bytes(body))
        except trio.BrokenResourceError:
            pass


@asynccontextmanager
async def wired(port: int) -> AsyncIterator[Wire]:
    """A `Wire` to a local port; the block is cancelled when the connection ends. Raises OSError."""
    stream = await trio.open_tcp_stream(HOST, port)
    async with stream, trio.open_nursery() as nursery:
        wire = Wire(stream)

        async def read() -> None:
            await wire.read()
            nursery.cancel_scope.cancel()

        nursery.start_soon(read)
        yield wire
        nursery.cancel_scope.cancel()


async def figures(cluster: DevCluster, node: str, seconds: float = 1.0) -> dict[str, str] | None:
    """What a broker says of itself, or None if it does not answer in time."""
    table: dict[str, str] | None = None
    with trio.move_on_after(seconds):
        try:
            async with wired(cluster.port(node)) as wire:
                _, body = await wire.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
                table = KVTable.decode(body).table
        except* (OSError, trio.BrokenResourceError):
            pass
    return table


@dataclass(slots=True)
class Torture:
    """One run."""

    cluster: DevCluster
    rng: random.Random
    say: Callable[[str], None]
    history: History = field(default_factory=History)
    done: Counter[str] = field(default_factory=Counter)
    stop_sending: trio.Event = field(default_factory=trio.Event)

    # -- clients -----------------------------------------------------------------------------------------------------

    async def produce(self, name: str, *, in_flight: int, retry_unknown: bool) -> None:
        """Send unique values, ``in_flight`` tasks at once, each waiting for its own."""
        rng = random.Random(self.rng.random())
        numbers = itertools.count()

        async def send_one_by_one(producer: Producer, task: int) -> None:
            while not self.stop_sending.is_set():
                size = rng.choice((0, 0, 0, 0, 100, 100, 100, 1000, 1000, 20_000))
                value = f"{name}.{task}/{next(numbers)}/".encode() + rng.randbytes(size).hex().encode()
                began = trio.current_time()
                queue, offset, refused, repeated = None, None, False, False
                try:
                    result: SendResult = await producer.send(
                        Message(TOPIC, value), timeout=rng.choice((1.0, 5.0, 20.0))
                    )
                    queue, offset = result.queue.queue_id, result.queue_offset
                    repeated = result.maybe_duplicated
                except ClientError as error:
                    refused = error.stored == "no"
                    self.done[f"send failed: {type(error).__name__}"] += 1
                self.history.sent.append(
                    Sent(value, f"{name}.{task}", began, trio.current_time(), queue, offset, refused, repeated)
                )
                if offset is None:
                    await trio.sleep(0.02)

        writers = f"writers_{name}"
        async with (
            Producer(self.cluster.namesrv, writers, retry_unknown=retry_unknown, compress_bytes_min=None) as producer,
            trio.open_nursery() as nursery,
        ):
            for task in range(in_flight):
                nursery.start_soon(send_one_by_one, producer, task)

    async def consume(self, restarts: bool) -> None:
        """A member of the group, which now and then leaves and comes back."""
        rng = random.Random(self.rng.random())
        while True:
            with trio.move_on_after(rng.uniform(5, 15) if restarts else float("inf")):
                async with PushConsumer(
                    self.cluster.namesrv, GROUP, consume_from="first", commit_seconds=0.2, rebalance_seconds=2.0
                ) as consumer:
                    consumer.subscribe(TOPIC)
                    async for message in consumer:
                        self.history.deliver(message.queue.queue_id, message.queue_offset, message.body)
            self.done["consumer left"] += 1

    async def watch_offsets(self, node: str) -> None:
        """Ask one replica for the group's offsets again and again; late answers count from when they were asked for."""
        while True:
            try:
                async with wired(self.cluster.port(node)) as wire:
                    while True:
                        for queue in range(QUEUES):
                            ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": queue}
                            answer = partial(self._offset_answered, node, queue, trio.current_time())
                            await wire.post(RequestCode.QUERY_CONSUMER_OFFSET, ext, answer)
                        await trio.sleep(0.1)
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            await trio.sleep(0.1)

    def _offset_answered(self, node: str, queue: int, began: float, response: Response, body: bytes) -> None:
        if response.code == ResponseCode.SUCCESS:
            offset = int(response.ext["offset"])
            self.history.stored_offsets.append((began, trio.current_time(), queue, offset, node))

    # -- the nemesis -------------------------------------------------------------------------------------------------

    async def torment(self, seconds: float) -> None:
        """Break something, let it be for a while, and repeat."""
        ends = trio.current_time() + seconds
        plagues: list[Callable[[], Awaitable[None]]] = [
            self._kill_leader,
            self._kill_leader,
            self._kill_follower,
            self._kill_both_followers,
            self._kill_all,
            self._pause_leader_long,
            self._pause_leader_shortly,
            self._pause_follower,
            self._stop_one,
            self._restart_namesrv,
        ]
        self.rng.shuffle(plagues)
        for plague in itertools.cycle(plagues):
            if trio.current_time() > ends:
                return
            name = plague.__name__.removeprefix("_")
            self.say(f"{trio.current_time() - ends + seconds:6.1f} s  {name}")
            await plague()
            self.done[name] += 1
            await self.wait_leader()
            await trio.sleep(self.rng.uniform(0.2, 2.0))

    async def wait_leader(self) -> str:
        """The node that leads, once there is one."""
        with trio.fail_after(HEAL_SECONDS_MAX):
            while True:
                self.cluster.check()
                leaders: list[tuple[int, str]] = []
                for node in self.cluster.node_ids:
                    if (table := await figures(self.cluster, node)) and table["raftmq.role"] == "leader":
                        leaders.append((int(table["raftmq.term"]), node))
                if leaders:
                    return max(leaders)[1]
                await trio.sleep(0.1)

    async def _wait_ended(self, name: str) -> None:
        while self.cluster.is_running(name):  # noqa: ASYNC110 (a killed process ends within milliseconds)
            await trio.sleep(0.01)

    async def _kill(self, *nodes: str, seconds: float) -> None:
        for node in nodes:
            self.cluster.kill(node)
        for node in nodes:
            await self._wait_ended(node)
        await trio.sleep(seconds)
        for node in nodes:
            await self.cluster.start(node)

    async def _kill_leader(self) -> None:
        await self._kill(await self.wait_leader(), seconds=self.rng.choice((0.0, 0.5, 4.0)))

    async def _followers(self) -> list[str]:
        leader = await self.wait_leader()
        return [node for node in self.cluster.node_ids if node != leader]

    async def _kill_follower(self) -> None:
        await self._kill(self.rng.choice(await self._followers()), seconds=self.rng.choice((0.0, 1.0, 5.0)))

    async def _kill_both_followers(self) -> None:
        await self._kill(*await self._followers(), seconds=self.rng.choice((0.0, 3.0)))

    async def _kill_all(self) -> None:
        await self._kill(*self.cluster.node_ids, seconds=0.0)

    async def _pause(self, node: str, seconds: float) -> None:
        pid = self.cluster.pid(node)
        kill(pid, signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            kill(pid, signal.SIGCONT)

    async def _pause_leader_long(self) -> None:
        await self._pause(await self.wait_leader(), self.rng.uniform(4, 6))

    async def _pause_leader_shortly(self) -> None:
        leader = await self.wait_leader()
        for _ in range(5):
            await self._pause(leader, self.rng.uniform(0.1, 2.0))
            await trio.sleep(self.rng.uniform(0.01, 0.2))

    async def _pause_follower(self) -> None:
        await self._pause(self.rng.choice(await self._followers()), self.rng.uniform(1, 5))

    async def _stop_one(self) -> None:
        node = self.rng.choice(self.cluster.node_ids)
        await self.cluster.stop(node)
        await trio.sleep(self.rng.uniform(0, 2))
        await self.cluster.start(node)

    async def _restart_namesrv(self) -> None:
        self.cluster.kill("namesrv")
        await self._wait_ended("namesrv")
        await trio.sleep(self.rng.uniform(0, 2))
        await self.cluster._start_namesrv()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all replicas have applied the same log, and consumers have everything."""
        leader = await self.wait_leader()
        with trio.fail_after(HEAL_SECONDS_MAX):
            while True:
                tables = [await figures(self.cluster, node) for node in self.cluster.node_ids]
                ends = {(t["raftmq.appliedIndex"], t["raftmq.lastIndex"]) if t else None for t in tables}
                if None not in ends and len(ends) == 1 and len(set(ends.pop() or ())) == 1:
                    break
                await trio.sleep(0.1)
        self.say(f"all replicas are level, {leader} leads")

    async def wait_delivered(self) -> None:
        """Until consumers have everything acknowledged, or get nothing for a while; then the judge counts."""
        deliveries = -1
        while self.history.undelivered and self.history.deliveries != deliveries:
            deliveries = self.history.deliveries
            with trio.move_on_after(20):
                while self.history.undelivered and self.history.deliveries == deliveries:  # noqa: ASYNC110
                    await trio.sleep(0.2)

    async def read_replica(self, node: str) -> list[bytes]:
        """All records of all queues, as this replica serves them."""
        queues: list[bytes] = []
        with trio.fail_after(HEAL_SECONDS_MAX):
            async with wired(self.cluster.port(node)) as wire:
                for queue in range(QUEUES):
                    offset, records = 0, bytearray()
                    while True:
                        ext = {
                            "consumerGroup": "judges",
                            "topic": TOPIC,
                            "queueId": queue,
                            "queueOffset": offset,
                            "maxMsgNums": 32,
                            "sysFlag": _PULL_SUBSCRIPTION,
                            "commitOffset": 0,
                            "suspendTimeoutMillis": 0,
                            "subVersion": 0,
                            "subscription": "*",
                        }
                        answer, body = await wire.ask(RequestCode.PULL_MESSAGE, ext)
                        if answer.code != ResponseCode.SUCCESS:
                            end = int(answer.ext["maxOffset"])
                            if offset != end:
                                self.history.violations.append(f"{node} answers {answer} at {queue}/{offset} of {end}")
                            break
                        offset = int(answer.ext["nextBeginOffset"])
                        records += body
                    queues.append(bytes(records))
        if len(queues) != QUEUES:
            self.history.violations.append(f"{node} hung up while it was read")
        return queues + [b""] * (QUEUES - len(queues))


def compare_logs(directory: Path, cluster: DevCluster) -> list[str]:
    """Where the logs of stopped nodes differ, as far as all of them reach."""
    identity = BrokerSettings.load(group=cluster.group).identity
    logs = {
        node: SegmentLog.open(
            str(directory / node / "commitlog"),
            cluster_id=identity,
            node_id=node,
            segment_bytes=SEGMENT_BYTES,
            disk=RealDisk(),
        )
        for node in cluster.node_ids
    }
    try:
        end = min(log.last_index for log in logs.values())
        chains = {node: log.chain_at(end) for node, log in logs.items()}
        ends = {node: (log.last_index, log.last_term) for node, log in logs.items()}
        if len(set(chains.values())) > 1:
            return [f"chains of the logs differ at entry {end}: {chains}; the logs end at {ends}"]
        return [] if end else [f"a log is empty; the logs end at {ends}"]
    finally:
        for log in logs.values():
            log.close()


async def create_topic(cluster: DevCluster) -> None:
    """Create the topic, as soon as the leader is known to the name server."""
    async with Admin(cluster.namesrv) as admin:
        with trio.fail_after(HEAL_SECONDS_MAX):
            while True:
                try:
                    await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
                except NoRoute:
                    await trio.sleep(0.1)
                else:
                    return


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run showed."""

    violations: list[str]
    summary: dict[str, Any]


async def torture(
    directory: Path, *, seconds: float, seed: int, say: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Torture a group in ``directory`` for so long, let it heal, and judge it."""
    rng = random.Random(seed)
    async with DevCluster.open(directory, ports=Ports.free(3), settings=SETTINGS) as cluster:
        run = Torture(cluster, rng, say)
        await create_topic(cluster)
        async with trio.open_nursery() as clients:
            clients.start_soon(cluster.watch)
            for node in cluster.node_ids:
                clients.start_soon(run.watch_offsets, node)
            clients.start_soon(run.consume, False)
            clients.start_soon(run.consume, True)
            async with trio.open_nursery() as producers:
                producers.start_soon(partial(run.produce, "one", in_flight=1, retry_unknown=True))
                producers.start_soon(partial(run.produce, "once", in_flight=2, retry_unknown=False))
                producers.start_soon(partial(run.produce, "many", in_flight=12, retry_unknown=True))
                await run.torment(seconds)
                run.stop_sending.set()
            say("healing")
            for node in cluster.node_ids:
                if not cluster.is_running(node):
                    await cluster.start(node)
            await run.wait_leader()
            await run.wait_delivered()
            clients.cancel_scope.cancel()
        await run.settle()
        replicas = {node: await run.read_replica(node) for node in cluster.node_ids}
        cluster.check()
        history = run.history
    violations = judge(history, replicas) + compare_logs(directory, cluster)
    deliveries = history.deliveries
    summary = {
        "seed": seed,
        "sent": len(history.sent),
        "acknowledged": len(history.acknowledged),
        "refused": sum(message.refused for message in history.sent),
        "delivered": len(history.delivered),
        "duplicates": deliveries - len(history.delivered),
        "stored offsets asked": len(history.stored_offsets),
        "record bytes": sum(map(len, replicas[cluster.node_ids[0]])),
        **run.done,
    }
    return Verdict(violations, summary)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=None, help="where data and logs go; kept")
    arguments = parser.parse_args()
    configure_logging("error")
    directory = arguments.dir or Path(tempfile.mkdtemp(prefix="raftmq-torture-"))
    print(f"seed {arguments.seed}, data and logs in {directory}")  # noqa: T201
    verdict = trio.run(partial(torture, directory, seconds=arguments.seconds, seed=arguments.seed, say=print))
    print(json.dumps(verdict.summary, indent=2))  # noqa: T201
    for violation in verdict.violations:
        print("BROKEN:", violation)  # noqa: T201
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
