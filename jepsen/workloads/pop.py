"""Consumers that pop messages by raw requests to any replica. They acknowledge most, postpone some, and drop some.

A message is sent once, so its value identifies one stored message. When the senders have stopped, consumers acknowledge
everything they get until nothing is left.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import ClassVar

import trio

from checkers.recording import Worker
from jepsen.deployments.cluster import GROUP, Cluster
from jepsen.derived_messages import value_of
from jepsen.recorder import Recorder
from jepsen.wire import Wire, open_wire
from jepsen.workloads.log import unknown_unless_answered
from jepsen.workloads.sdk_producers import NEVER_TWICE, produce_with_sdk
from jepsen.workloads.watching import CONNECT_SECONDS
from jepsen.workloads.workload import Workload
from mq.client import ClientError
from mq.client.consume.popped_messages import PoppedMessage, read_popped
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.incoming.headers import Response
from mq.protocol.names import pop_retry_topic
from mq.protocol.requests.receipts import NORMAL

CONSUMERS = 4
CONSUMER_GROUP = "jepsen_pops"
INVISIBLE_MS = (700, 1500, 3000)
BATCHES = (1, 8, 32)
"""Messages that a pop wants."""
HELD_MS = 500
"""Milliseconds for which a pop may wait for messages."""
ANSWER_SECONDS = 5.0
GIVE_BACK_CHANCE = 0.02
FORGET_CHANCE = 0.02
HANDLE_SECONDS_MAX = 0.1
LAST_MOMENT_CHANCE = 0.03
LAST_MOMENT_SECONDS = (-0.06, 0.01)
"""Some acknowledgements are sent just before or after the end of the invisible time."""

_NOTHING = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND})


class PopWorkload(Workload):
    name = "pop"
    summary = "raw pops at any replica, with messages acknowledged, given back or forgotten"
    ordered: ClassVar[bool] = False

    def __init__(self, cluster: Cluster, recorder: Recorder, rng: random.Random) -> None:
        super().__init__(cluster, recorder, rng)
        self._settled_values: set[str] = set()
        """Values whose acknowledgement was answered, or may have taken effect."""
        self._attempts = 0

    async def produce(self) -> None:
        """Send with the SDK until stopped."""
        await produce_with_sdk(self, NEVER_TWICE)

    async def consume(self) -> None:
        """Run the consumers until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(CONSUMERS):
                nursery.start_soon(self._consume, random.Random(self.rng.random()))

    async def wait_drained(self) -> None:
        """Wait until consumers have acknowledged every message that was acknowledged to its producer."""
        await self._wait_none_left(lambda: len(self.acknowledged_values - self._settled_values))

    async def _consume(self, rng: random.Random) -> None:
        worker = Worker(self.recorder)
        while True:
            node = rng.choice(self.cluster.nodes)
            try:
                with trio.move_on_after(CONNECT_SECONDS) as timeout:
                    async with open_wire(*self.cluster.network.clients_reach(node)) as wire:
                        timeout.deadline = math.inf
                        for _ in range(rng.randrange(5, 50)):
                            await self._pop(worker, wire, node, rng)
            except* (OSError, trio.BrokenResourceError, trio.TooSlowError):
                pass  # operations in flight are recorded as unknown
            await trio.sleep(0.05)

    async def _pop(self, worker: Worker, wire: Wire, node: str, rng: random.Random) -> None:
        """Pop, and handle the messages. Raises trio.TooSlowError, trio.BrokenResourceError."""
        invisible_ms = rng.choice(INVISIBLE_MS)
        self._attempts += 1
        code, fields = self._request(worker, invisible_ms, rng)
        began = trio.current_time()
        with unknown_unless_answered(worker, "pop", k=None, n=node, o=invisible_ms), trio.fail_after(ANSWER_SECONDS):
            response, body = await wire.ask(code, fields)
        if response.code != ResponseCode.SUCCESS:
            if self._is_empty(worker, response):
                worker.ok("pop", v=[])
            else:
                worker.info("pop", f"code {response.code}: {response.remark}")
                await trio.sleep(0.1)
            return
        try:
            messages = self._read(response, memoryview(body))
        except ClientError as error:
            worker.info("pop", str(error))
            return
        rows = [(self._queue(m), m.queue_offset, value_of(m.body, m.properties, m.tags)) for m in messages]
        worker.ok("pop", v=rows)
        lines: defaultdict[str | int, list[tuple[PoppedMessage, str]]] = defaultdict(list)
        for number, (message, (queue, _, value)) in enumerate(zip(messages, rows, strict=True)):
            lines[queue if self.ordered else number].append((message, value))
        async with trio.open_nursery() as nursery:
            for line in lines.values():
                if not self.ordered and rng.random() < LAST_MOMENT_CHANCE:
                    at = began + invisible_ms / 1000 + rng.uniform(*LAST_MOMENT_SECONDS)
                    nursery.start_soon(self._settle_at, at, wire, *line[0])
                else:
                    nursery.start_soon(self._settle_line, wire, line, random.Random(rng.random()))

    def _request(self, worker: Worker, invisible_ms: int, rng: random.Random) -> tuple[RequestCode, dict[str, object]]:
        """The code and the fields of a pop."""
        return RequestCode.POP_MESSAGE, {
            "consumerGroup": CONSUMER_GROUP,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": rng.choice(BATCHES),
            "invisibleTime": invisible_ms,
            "pollTime": HELD_MS,
            "bornTime": 0,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "true" if self.ordered else "false",
            "attemptId": f"jepsen{self._attempts}",
        }

    def _is_empty(self, worker: Worker, response: Response) -> bool:
        """Whether an answer other than success says that a queue has nothing to pop now."""
        return response.code in _NOTHING

    def _read(self, response: Response, body: memoryview) -> list[PoppedMessage]:
        """The messages of an answer. Raises ClientError."""
        return read_popped(self.topic, GROUP, response, body, math.inf)

    async def _settle_at(self, at: float, wire: Wire, message: PoppedMessage, value: str) -> None:
        """Acknowledge a message at the moment when it becomes visible again."""
        await trio.sleep_until(at)
        await self._settle(wire, message, value, 1.0)

    async def _settle_line(self, wire: Wire, line: list[tuple[PoppedMessage, str]], rng: random.Random) -> None:
        """Settle one message at a time until one is left unacknowledged, with which the later ones are redelivered."""
        for message, value in line:
            await trio.sleep(rng.uniform(0, HANDLE_SECONDS_MAX / len(line)))
            if not await self._settle(wire, message, value, rng.random()):
                return

    def _queue(self, message: PoppedMessage) -> str:
        """The original queue of a message, also of a redelivered one."""
        topic = self.topic if message.receipt.mark == NORMAL else pop_retry_topic(CONSUMER_GROUP, self.topic)
        return f"{topic}/{message.receipt.queue_id}"

    def _receipt(self, message: PoppedMessage) -> dict[str, object]:
        """The fields that name a message in an acknowledgement."""
        receipt = message.receipt
        return {
            "consumerGroup": CONSUMER_GROUP,
            "topic": self._queue(message).rpartition("/")[0],
            "queueId": receipt.queue_id,
            "extraInfo": receipt.encode(),
            "offset": receipt.offset,
        }

    async def _settle(self, wire: Wire, message: PoppedMessage, value: str, chance: float) -> bool:
        """Acknowledge a message, or leave it to redelivery; returns whether it is done."""
        receipt = message.receipt
        fields = self._receipt(message)
        name, code = "ack", RequestCode.ACK_MESSAGE
        if not self.stopping.is_set():
            if chance < FORGET_CHANCE:
                return False
            if not self.ordered and chance < FORGET_CHANCE + GIVE_BACK_CHANCE:
                name, code = "give-back", RequestCode.CHANGE_MESSAGE_INVISIBLETIME
                fields["invisibleTime"] = 100
        worker = Worker(self.recorder)
        queue = self._queue(message)
        if name == "ack":
            # Done for the end of the run: a message that may not be redelivered need not be.
            self._settled_values.add(value)
        with (
            unknown_unless_answered(worker, name, k=queue, v=value, o=receipt.offset),
            trio.fail_after(ANSWER_SECONDS),
        ):
            response, _ = await wire.ask(code, fields)
        if response.code == ResponseCode.SUCCESS:
            worker.ok(name, k=queue, v=value)
        elif response.code == ResponseCode.NO_MESSAGE:
            # A replica may have forwarded it to a leader that died, and then to the next one, where it is done already.
            worker.info(name, "it is no longer hidden for this receipt", k=queue, v=value)
        else:
            worker.info(name, f"code {response.code}: {response.remark}", k=queue, v=value)
        return name == "ack" and response.code == ResponseCode.SUCCESS


class OrderedPopWorkload(PopWorkload):
    """Pops in the order of each queue. It postpones no message, because that would release later messages too early."""

    name = "ordered-pop"
    summary = "as pop, in the order of each queue"
    ordered = True

    @property
    def topic(self) -> str:
        """The topic. Its name has no hyphen."""
        return "OrderedPop"
