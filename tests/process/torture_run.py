"""One run of a torture: its clients, what they saw, and what everybody who torments the group needs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from mq.client import ClientError, Message, Producer, PushConsumer, SendResult
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.hashes import parse_offset_message_id
from mq.protocol.headers import Response
from tests.process.torture_group import Group
from tests.process.torture_history import History, Queue, Sent, Served
from tests.process.torture_wire import HEAL_SECONDS_MAX, figures, leader_of, wired

TOPIC = "Torture"
GROUP = "tortured_readers"
QUEUES = 4
FLOW_SECONDS_MAX = 30.0
_PULL_SUBSCRIPTION = 4


@dataclass(slots=True)
class Torture:
    """One run; each task of a producer rests for ``pause_seconds`` after each message."""

    group: Group
    rng: random.Random
    say: Callable[[str], None]
    pause_seconds: float = 0.0
    history: History = field(default_factory=History)
    done: Counter[str] = field(default_factory=Counter)
    stop_sending: trio.Event = field(default_factory=trio.Event)
    acknowledged: int = 0

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
                queue, offset, pos, refused, repeated = None, None, -1, False, False
                try:
                    result: SendResult = await producer.send(
                        Message(TOPIC, value), timeout=rng.choice((1.0, 5.0, 20.0))
                    )
                    queue, offset = result.queue.queue_id, result.queue_offset
                    self.acknowledged += 1
                    pos = parse_offset_message_id(result.offset_message_id).physical_offset
                    repeated = result.maybe_duplicated
                except ClientError as error:
                    refused = error.stored == "no"
                    self.done[f"send failed: {type(error).__name__}"] += 1
                self.history.sent.append(
                    Sent(value, f"{name}.{task}", began, trio.current_time(), queue, offset, pos, refused, repeated)
                )
                await trio.sleep(max(self.pause_seconds, 0.02 if offset is None else 0.0))

        writers = f"writers_{name}"
        async with (
            Producer(self.group.cluster.namesrv, writers, retry_unknown=retry_unknown, compress=None) as producer,
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
                    self.group.cluster.namesrv, GROUP, consume_from="first", commit_seconds=0.2, rebalance_seconds=2.0
                ) as consumer:
                    consumer.subscribe(TOPIC)
                    async for message in consumer:
                        self.history.deliver(message.queue.queue_id, message.queue_offset, message.body)
            self.done["consumer left"] += 1

    async def watch_offsets(self, node: str) -> None:
        """Ask one replica for the group's offsets again and again; late answers count from when they were asked for."""
        while True:
            try:
                async with wired(self.group.port(node)) as wire:
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

    # -- for whoever torments it -------------------------------------------------------------------------------------

    async def wait_leader(self) -> str:
        """The member that leads, once there is one."""
        return await leader_of(self.group, lambda: self.group.members)

    async def followers(self) -> list[str]:
        """All members but the leader."""
        leader = await self.wait_leader()
        return [node for node in self.group.members if node != leader]

    async def a_follower(self) -> str:
        """One of them."""
        return self.rng.choice(await self.followers())

    async def flow(self, messages: int = 20) -> None:
        """Until so many more messages were acknowledged. Raises trio.TooSlowError."""
        goal = self.acknowledged + messages
        with trio.fail_after(FLOW_SECONDS_MAX):
            while self.acknowledged < goal and not self.stop_sending.is_set():
                self.group.check()
                await trio.sleep(0.02)

    async def figure(self, node: str, name: str) -> int:
        """A number that a broker tells of itself; waits until it answers. Raises trio.TooSlowError."""
        with trio.fail_after(HEAL_SECONDS_MAX):
            while (table := await figures(self.group, node)) is None:
                self.group.check()
                await trio.sleep(0.05)
        return int(table[f"raftmq.{name}"])

    async def level(self, *nodes: str, behind: int = 50) -> None:
        """Until these have applied all but the newest entries. Raises trio.TooSlowError."""
        with trio.fail_after(HEAL_SECONDS_MAX):
            for node in nodes:
                while True:
                    leader = await self.wait_leader()
                    end = await self.figure(leader, "commitIndex")
                    if await self.figure(node, "appliedIndex") >= end - behind:
                        break
                    await trio.sleep(0.1)

    async def below_base(self, node: str) -> None:
        """Until the leader's log begins behind the end of what a stopped node has. Raises trio.TooSlowError."""
        last = (self.group.segments(node) or [self.group.commitlog(node) / "0"])[-1]
        with trio.fail_after(HEAL_SECONDS_MAX):
            while await self.figure(await self.wait_leader(), "basePosition") <= int(last.name) + self.segment_bytes:  # noqa: ASYNC110
                await trio.sleep(0.1)

    @property
    def segment_bytes(self) -> int:
        """Size of a file of the log."""
        return int(self.group.settings["segment_bytes"])

    def broken(self, text: str) -> None:
        """A promise was broken."""
        self.say(f"BROKEN: {text}")
        self.history.violations.append(text)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all replicas have applied the same log, and consumers have everything."""
        leader = await self.wait_leader()
        with trio.fail_after(HEAL_SECONDS_MAX):
            while True:
                tables = [await figures(self.group, node) for node in self.group.members]
                ends = {(t["raftmq.appliedIndex"], t["raftmq.lastIndex"]) if t else None for t in tables}
                if None not in ends and len(ends) == 1 and len(set(ends.pop() or ())) == 1:
                    break
                await trio.sleep(0.1)
        self.say(f"all replicas are level, {leader} leads")

    async def wait_delivered(self) -> None:
        """Until consumers have everything acknowledged, or get nothing for a while; then the judge counts."""
        firsts = await self._firsts(await self.wait_leader())
        deliveries = -1
        while self.history.undelivered(firsts) and self.history.deliveries != deliveries:
            deliveries = self.history.deliveries
            with trio.move_on_after(20):
                while self.history.undelivered(firsts) and self.history.deliveries == deliveries:  # noqa: ASYNC110
                    await trio.sleep(0.2)

    async def _firsts(self, node: str) -> list[int]:
        """Where the queues of a replica begin."""
        async with wired(self.group.port(node)) as wire:
            return [
                int((await wire.ask(RequestCode.GET_MIN_OFFSET, {"topic": TOPIC, "queueId": queue}))[0].ext["offset"])
                for queue in range(QUEUES)
            ]
        raise AssertionError(f"{node} hung up while it was asked")

    async def read_replica(self, node: str) -> Served:
        """All records of all queues, as this replica serves them."""
        queues: list[Queue] = []
        with trio.fail_after(HEAL_SECONDS_MAX):
            async with wired(self.group.port(node)) as wire:
                for queue in range(QUEUES):
                    offset, first, records = 0, 0, bytearray()
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
                        if answer.code == ResponseCode.PULL_OFFSET_MOVED and int(answer.ext["minOffset"]) > offset:
                            # The front was removed, perhaps just now: what was read before is of no account.
                            offset = first = int(answer.ext["minOffset"])
                            records.clear()
                            continue
                        if answer.code != ResponseCode.SUCCESS:
                            end = int(answer.ext["maxOffset"])
                            if offset != end:
                                self.broken(f"{node} answers {answer} at {queue}/{offset} of {end}")
                            break
                        offset = int(answer.ext["nextBeginOffset"])
                        records += body
                    queues.append(Queue(first, bytes(records)))
        if len(queues) != QUEUES:
            self.broken(f"{node} hung up while it was read")
            queues += [Queue(0, b"")] * (QUEUES - len(queues))
        return Served(await self.figure(node, "basePosition"), queues)
