"""Writes many requests of all kinds at once, cut at random places, to reach a broker's compiled receiver.

A broker takes plain sends from received bytes without looking at them one by one, and leaves the rest to other code:
here each such border lies at any byte. Frames are cut where a write ends, sends are followed by other requests, and
some clients leave in the middle of a frame.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import partial

import trio

from checkers.recording import Worker
from jepsen.derived_messages import body_of, new_value, properties_of, tag_of, unique_key_of
from jepsen.wire import OnResponse, Wire, open_wire, pull_fields, send_fields
from jepsen.workloads.raw_answers import record_batch_sent, record_end, record_pulled, record_sent
from jepsen.workloads.watching import CONNECT_SECONDS
from jepsen.workloads.workload import QUEUES, Workload
from mq.protocol import properties
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.incoming.headers import Response
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.requests.forwarding import FORWARDED_TO

WRITERS = 3
FRAMES_MAX = 12
SIZES = (0, 0, 0, 100, 100, 1000, 1000, 8000, 20_000)
BATCH_MAX = 5
CUTS_MAX = 3
"""A pipeline leaves in up to one more piece than that."""
CUT_SECONDS = 0.002
LEAVE_CHANCE = 0.04
"""Chance that a client leaves in the middle of its last frame."""
LEADER_CHANCE = 0.5
"""Chance of a connection to the replica that led last, as far as clients know."""
ANSWER_SECONDS = 8.0
REST_SECONDS = 0.05
READ_BACK_MAX = 50
UNKNOWN_CODE = 9_990

AddMore = Callable[["Pipeline", random.Random], None]


class Pipeline:
    """Requests that are written at once. The outcome of an operation without a response stays unknown.

    Attributes:
        frames: the requests.
        open_requests: the number of requests without an answer.
    """

    def __init__(self, workload: Workload, wire: Wire, node: str) -> None:
        self.frames: list[bytes] = []
        self.open_requests = 0
        self.node = node
        self.workload = workload
        self._wire = wire
        self._all_received = trio.Event()

    def add(
        self,
        code: int,
        ext: Mapping[str, object] | None,
        on_response: Callable[[Response, bytes], None] | None,
        body: bytes = b"",
        *,
        serialization: int = JSON,
    ) -> None:
        """Add a request; without ``on_response``, its response is ignored."""
        self.open_requests += on_response is not None

        def receive(response: Response, body: bytes) -> None:
            self.open_requests -= 1
            if on_response is not None:
                on_response(response, body)
            if not self.open_requests:
                self._all_received.set()

        callback: OnResponse | None = None if on_response is None else receive
        fields = None if ext is None else dict(ext)
        self.frames.append(self._wire.frame(code, fields, callback, body, serialization=serialization))

    def add_send(
        self, rng: random.Random, *, keyed: bool = True, oneway: bool = False, serialization: int = JSON
    ) -> tuple[Worker, str]:
        """Add a send, which the compiled form takes with ``keyed`` and JSON. Returns its worker and its value."""
        worker, value = self.new_message(rng)
        queue_id = rng.randrange(QUEUES)
        queue = f"{self.workload.topic}/{queue_id}"
        fields = send_fields(self.workload.topic, queue_id, properties.encode(own_properties(value, keyed=keyed)))
        worker.invoke("send", k=queue, v=value, n=self.node)

        def receive(response: Response, body: bytes) -> None:
            record_sent(self.workload, worker, response, value, queue, self.node)
            if response.code == ResponseCode.SUCCESS and FORWARDED_TO not in response.ext:
                self.workload.leader = self.node

        on_response = None if oneway else receive
        self.add(RequestCode.SEND_MESSAGE_V2, fields, on_response, body_of(value), serialization=serialization)
        return worker, value

    def add_batch(self, rng: random.Random) -> None:
        """Add a send of several messages to one queue."""
        queue_id = rng.randrange(QUEUES)
        queue = f"{self.workload.topic}/{queue_id}"
        messages = [self.new_message(rng, 1000) for _ in range(rng.randint(1, BATCH_MAX))]
        workers, values = [worker for worker, _ in messages], [value for _, value in messages]
        for worker, value in messages:
            worker.invoke("send", k=queue, v=value, n=self.node)
        batch = [BatchedMessage(body_of(value), properties.encode(own_properties(value)), 0) for value in values]
        fields = send_fields(self.workload.topic, queue_id, "", batch=True)

        def on_response(response: Response, body: bytes) -> None:
            record_batch_sent(self.workload, workers, response, values, queue, self.node)

        self.add(RequestCode.SEND_BATCH_MESSAGE, fields, on_response, encode_batch(batch))

    def add_pull(self, rng: random.Random) -> None:
        """Add a pull near the end of a queue."""
        queue_id = rng.randrange(QUEUES)
        queue = f"{self.workload.topic}/{queue_id}"
        offset = max(0, self.workload.newest[queue] - rng.randrange(READ_BACK_MAX))
        worker = Worker(self.workload.recorder)
        worker.invoke("read", k=queue, n=self.node, o=offset)

        def on_response(response: Response, body: bytes) -> None:
            record_pulled(worker, response, body, queue, self.node, offset)

        self.add(RequestCode.PULL_MESSAGE, pull_fields(self.workload.topic, queue_id, offset), on_response)

    def add_query(self, rng: random.Random) -> None:
        """Add a query for the end of a queue, in JSON or in RocketMQ's binary form."""
        queue_id = rng.randrange(QUEUES)
        queue = f"{self.workload.topic}/{queue_id}"
        worker = Worker(self.workload.recorder)
        worker.invoke("end", k=queue, n=self.node)

        def on_response(response: Response, body: bytes) -> None:
            record_end(worker, response, queue, self.node)

        fields = {"topic": self.workload.topic, "queueId": queue_id}
        self.add(RequestCode.GET_MAX_OFFSET, fields, on_response, serialization=rng.choice((JSON, BINARY)))

    def add_odd(self, rng: random.Random) -> None:
        """Add a request that the broker refuses, or that has only a code. Its response is awaited and ignored."""
        code = rng.choice((UNKNOWN_CODE, RequestCode.GET_BROKER_RUNTIME_INFO))
        self.add(code, None, lambda answer, body: None)

    def new_message(self, rng: random.Random, size_max: int | None = None) -> tuple[Worker, str]:
        """Return a new worker and the value that it sends. Operations of a pipeline overlap, so each needs a worker."""
        worker = Worker(self.workload.recorder)
        size = rng.choice([size for size in SIZES if size_max is None or size <= size_max])
        return worker, new_value(worker.process, worker.next_number(), size)

    async def write(self, rng: random.Random) -> None:
        """Write all requests, in one to four pieces. Raises trio.BrokenResourceError."""
        await self._write_pieces(b"".join(self.frames), rng)

    async def write_and_leave(self, rng: random.Random) -> None:
        """Write all requests, then only a part of a last send: no broker may store it. The caller then disconnects."""
        worker, value = self.add_send(rng)
        *whole, last = self.frames
        await self._write_pieces(b"".join(whole) + last[: rng.randrange(1, len(last))], rng)
        worker.fail("send", "its client left before the end of the frame", v=value)

    async def wait_answered(self) -> None:
        """Wait for the responses to all requests. Raises trio.TooSlowError."""
        with trio.fail_after(ANSWER_SECONDS):
            while self.open_requests:
                await self._all_received.wait()

    async def _write_pieces(self, data: bytes, rng: random.Random) -> None:
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(0, CUTS_MAX)))
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if begin:
                await trio.sleep(CUT_SECONDS * rng.random())  # so that the broker receives them apart
            await self._wire.write(data[begin:end])


def own_properties(value: str, *, keyed: bool = True) -> dict[str, str]:
    """Return the properties of a value's message, as its sender writes them."""
    own = {properties.TAGS: tag_of(value), properties.KEYS: value, **properties_of(value)}
    return own | {properties.UNIQUE_KEY: unique_key_of(value)} if keyed else own


async def send_pipelines(workload: Workload, add_more: AddMore | None = None) -> None:
    """Write one pipeline after the other, over several connections, until the workload stops.

    ``add_more`` adds the workload's own requests to a pipeline. Returns when every request has its answer, or none will
    come.
    """
    async with trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            nursery.start_soon(_write_all, workload, random.Random(workload.rng.random()), add_more)


async def _write_all(workload: Workload, rng: random.Random, add_more: AddMore | None) -> None:
    while not workload.stopping.is_set():
        # A leader receives with the compiled form; followers forward the requests that they get.
        leader = workload.leader if workload.leader in workload.cluster.nodes else None
        node = leader if leader and rng.random() < LEADER_CHANCE else rng.choice(workload.cluster.nodes)
        try:
            with trio.move_on_after(CONNECT_SECONDS) as timeout:
                async with open_wire(*workload.cluster.network.clients_reach(node)) as wire:
                    timeout.deadline = math.inf
                    await _session(workload, wire, node, rng, add_more)
        except* (OSError, trio.BrokenResourceError, trio.TooSlowError):
            pass  # operations in flight have no end in the history, so they are unknown
        await trio.sleep(REST_SECONDS * rng.random())


async def _session(workload: Workload, wire: Wire, node: str, rng: random.Random, add_more: AddMore | None) -> None:
    """Write some pipelines over one connection. Raises the error that ends it."""
    for _ in range(rng.randrange(1, 40)):
        if workload.stopping.is_set():
            return
        pipeline = draw(workload, wire, node, rng, add_more)
        if rng.random() < LEAVE_CHANCE:
            await pipeline.write_and_leave(rng)
            return
        await pipeline.write(rng)
        await pipeline.wait_answered()
        await trio.sleep(REST_SECONDS * rng.random())


def draw(workload: Workload, wire: Wire, node: str, rng: random.Random, add_more: AddMore | None = None) -> Pipeline:
    """Return a pipeline of random requests, most of them plain sends."""
    pipeline = Pipeline(workload, wire, node)
    kinds: list[Callable[[random.Random], object]] = [
        pipeline.add_batch,
        pipeline.add_pull,
        pipeline.add_query,
        pipeline.add_odd,
        partial(pipeline.add_send, keyed=False),
        partial(pipeline.add_send, oneway=True),
        partial(pipeline.add_send, serialization=BINARY),
    ]
    more = None if add_more is None else rng.randrange(FRAMES_MAX)
    for number in range(rng.randint(1, FRAMES_MAX)):
        if rng.random() < 0.6:
            pipeline.add_send(rng)
        else:
            rng.choice(kinds)(rng)
        if add_more is not None and number == more:
            add_more(pipeline, rng)
    return pipeline
