"""Clients that put heavy load on a broker, to measure how they disturb others. Each kind is a separate process.

``python -m benchmarks.noisy_clients`` reads one JSON object from standard input (`NeighbourJob`), writes a line once
the load is up, and runs until it is killed.

- ``groups``: topics of 16 queues each, and consumer groups, 250 on each connection, which heartbeat every 30 s as stock
  clients do. A group reads the topic of its number and has offsets in all queues of it. In addition, messages to the
  queues of all topics in turn, and the commits of the groups that have read them.
- ``heartbeats``: one connection repeats a heartbeat of 14 MB.
- ``subscriptions``: four connections repeat a heartbeat with nearly as many subscriptions as a client may have.
- ``dialect``: four connections repeat a heartbeat of 64 KiB that needs the parser for Java's dialect of JSON.
- ``pulls``: 200 connections request 32 messages of 2 kB, 300 times at once, repeatedly, and read no response.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass

import trio

from benchmarks.load.frames import pull_frame, request_frame, send_frame, topic_ext, topic_name
from benchmarks.suites.case_load import BODY_BYTES, ROOT
from mq.cli.errors import run_trio
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.clients import ConsumerData, HeartbeatData, SubscriptionData
from mq.protocol.requests.offsets import UpdateConsumerOffsetExt
from mq.protocol.wire.encoding import encode_request

QUEUES = 16
PULLED_BYTES = 2000
HEARTBEAT_BYTES = 14 * 1024 * 1024
_GROUPS_PER_CONNECTION = 250
_HEARTBEAT_SECONDS = 30.0
_SUBSCRIPTIONS = 8000
_SUBSCRIPTIONS_PER_GROUP = 1000
_DIALECT_BYTES = 64 * 1024
_PULLS = 300
_PULLED_MESSAGES = 32
_BURST_SECONDS = 0.02
_ASKED_AT_ONCE = 200
_PAUSE_SECONDS = 0.1


class NeighbourFailed(Exception):
    """A noisy client could not be set up or started. The message has the reason."""


@dataclass(frozen=True, slots=True)
class NeighbourJob:
    """The noisy clients to run. The kind ``groups`` uses ``topics``, ``groups``, and ``rate`` in messages a second."""

    kind: str
    host: str
    port: int
    topics: int = 0
    groups: int = 0
    rate: int = 0


@asynccontextmanager
async def neighbours(job: NeighbourJob) -> AsyncIterator[None]:
    """Run the noisy clients until the block ends. Raises NeighbourFailed if they cannot start."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "benchmarks.noisy_clients"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin is not None, "it was to be a pipe"
    assert process.stdout is not None, "it was to be a pipe"
    try:
        await process.stdin.send_all(json.dumps(asdict(job)).encode())
        await process.stdin.aclose()
        if not await process.stdout.receive_some():
            raise NeighbourFailed(f"the neighbours ({job.kind}) ended with exit code {await process.wait()}")
        yield
        if process.poll() is not None:
            raise NeighbourFailed(f"the neighbours ({job.kind}) ended with exit code {process.poll()}")
    finally:
        with trio.CancelScope(shield=True):  # this does not hang: it is killed
            process.kill()
            await process.wait()


class _NoisyClient:
    """A connection that waits for as many responses as it has sent requests."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    @classmethod
    async def open(cls, job: NeighbourJob) -> _NoisyClient:
        return cls(await trio.open_tcp_stream(job.host, job.port))

    async def ask(self, frames: Iterable[bytes]) -> None:
        """Send requests and wait until all are answered. Raises NeighbourFailed."""
        unsent = list(frames)
        while unsent:
            batch, unsent = unsent[:_ASKED_AT_ONCE], unsent[_ASKED_AT_ONCE:]
            await self.stream.send_all(b"".join(batch))
            owed_count = len(batch)
            while owed_count:
                owed_count -= await self._answers()

    async def _answers(self) -> int:
        chunk = await self.stream.receive_some(65536)
        if not chunk:
            raise NeighbourFailed("the broker closed the connection")
        data = self._buffer + bytes(chunk)
        frames, end = split_frames(memoryview(data))
        self._buffer = data[end:]
        count = 0
        for serialization, header, _ in frames:
            response = decode_header(serialization, header)
            if isinstance(response, Response):
                if response.code != ResponseCode.SUCCESS:
                    raise NeighbourFailed(f"code {response.code}: {response.remark}")
                count += 1
        return count


# -- groups ------------------------------------------------------------------------------------------------------------


async def _groups(job: NeighbourJob, at_work: Callable[[], None]) -> None:
    first = await _NoisyClient.open(job)
    await first.ask(_topic_request(number) for number in range(job.topics))
    clients = [first]
    async with trio.open_nursery() as nursery:
        for begin in range(0, job.groups, _GROUPS_PER_CONNECTION):
            client = await _NoisyClient.open(job)
            clients.append(client)
            await client.ask([_group_heartbeat(job, begin)])
        rows = ((group, queue) for group in range(job.groups) for queue in range(QUEUES))
        await first.ask(_offset_request(job, group, queue, 0) for group, queue in rows)
        at_work()
        for number, client in enumerate(clients[1:]):
            delay = _HEARTBEAT_SECONDS * number / len(clients)
            nursery.start_soon(_keep_alive, client, _group_heartbeat(job, number * _GROUPS_PER_CONNECTION), delay)
        nursery.start_soon(_discard, first.stream)
        nursery.start_soon(_spread, job, first.stream)


def _topic_request(number: int) -> bytes:
    ext = topic_ext(topic_name(number + 1), QUEUES)
    return request_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, number + 1, ext)


def _topic_of(job: NeighbourJob, number: int) -> str:
    return topic_name(number % job.topics + 1)


def _group_heartbeat(job: NeighbourJob, begin: int) -> bytes:
    groups = range(begin, min(begin + _GROUPS_PER_CONNECTION, job.groups))
    consumers = [
        ConsumerData(group=f"group{number}", subscriptions=[SubscriptionData(topic=_topic_of(job, number))])
        for number in groups
    ]
    return _heartbeat(HeartbeatData(client_id=f"members{begin}", consumers=consumers).encode())


def _offset_request(job: NeighbourJob, group: int, queue: int, offset: int, *, oneway: bool = False) -> bytes:
    ext = UpdateConsumerOffsetExt(
        consumer_group=f"group{group}",
        topic=_topic_of(job, group),
        queue_id=queue,
        commit_offset=QueueOffset(offset),
    )
    return encode_request(RequestCode.UPDATE_CONSUMER_OFFSET, 1, ext=ext.fields(), oneway=oneway)


async def _keep_alive(client: _NoisyClient, heartbeat: bytes, delay: float) -> None:
    await trio.sleep(delay)
    while True:
        await client.ask([heartbeat])
        await trio.sleep(_HEARTBEAT_SECONDS)


async def _spread(job: NeighbourJob, stream: trio.SocketStream) -> None:
    """Send messages to the queues of all topics in turn; a second later commit the offsets behind them."""
    begin = trio.current_time()
    count = 0
    while True:
        due = int((trio.current_time() - begin) * job.rate)
        frames: list[bytes] = []
        for number in range(count, due):
            frames.append(send_frame(number + 1, BODY_BYTES, _place(job, number)[1], topic=_topic_of(job, number)))
            if (read := number - job.rate) >= 0:
                topic, queue, offset = _place(job, read)
                frames.append(_offset_request(job, topic, queue, offset + 1, oneway=True))
        count = due
        await stream.send_all(b"".join(frames))
        await trio.sleep(_BURST_SECONDS)


def _place(job: NeighbourJob, number: int) -> tuple[int, int, int]:
    """The place of a message: the number of the topic, the queue, and the offset in it."""
    row, topic = divmod(number, job.topics)
    offset, queue = divmod(row, QUEUES)
    return topic, queue, offset


async def _discard(stream: trio.SocketStream) -> None:
    while await stream.receive_some(65536):
        pass


# -- hostile ones ------------------------------------------------------------------------------------------------------


def _heartbeat(body: bytes) -> bytes:
    return encode_request(RequestCode.HEART_BEAT, 1, body=body)


def _huge() -> bytes:
    return _heartbeat(b'{"clientID":"' + b"x" * HEARTBEAT_BYTES + b'"}')


def _subscriptions() -> bytes:
    subscriptions = [SubscriptionData(topic=f"topic-{number}") for number in range(_SUBSCRIPTIONS)]
    consumers = [
        ConsumerData(group=f"many{begin}", subscriptions=subscriptions[begin : begin + _SUBSCRIPTIONS_PER_GROUP])
        for begin in range(0, _SUBSCRIPTIONS, _SUBSCRIPTIONS_PER_GROUP)
    ]
    return _heartbeat(HeartbeatData(client_id="greedy", consumers=consumers).encode())


def _dialect() -> bytes:
    numbers = b",".join([b"1"] * ((_DIALECT_BYTES - 64) // 2))
    return _heartbeat(b'{"clientID":"greedy","more":{1:[' + numbers + b"]}}")


def _pulls() -> bytes:
    return b"".join(pull_frame(number, 0, 0, _PULLED_MESSAGES) for number in range(1, _PULLS + 1))


_REPEATED: dict[str, tuple[int, Callable[[], bytes], bool]] = {
    "heartbeats": (1, _huge, True),
    "subscriptions": (4, _subscriptions, True),
    "dialect": (4, _dialect, True),
    "pulls": (200, _pulls, False),
}
"""For each kind: connections, the frame that each repeats, and whether it reads the responses."""


async def _repeat(job: NeighbourJob, frames: bytes, reads: bool) -> None:
    """Send the same frames repeatedly, on a new connection when the broker has closed the last one."""
    while True:
        try:
            async with await trio.open_tcp_stream(job.host, job.port) as stream, trio.open_nursery() as nursery:
                if reads:
                    nursery.start_soon(_discard, stream)
                while True:
                    await stream.send_all(frames)
        except* (OSError, trio.BrokenResourceError):
            await trio.sleep(_PAUSE_SECONDS)


async def _hostile(job: NeighbourJob, at_work: Callable[[], None]) -> None:
    connections, make, reads = _REPEATED[job.kind]
    frames = make()
    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(_repeat, job, frames, reads)
        at_work()


def main() -> None:
    """Read a job, and do it until killed."""
    job = NeighbourJob(**json.load(sys.stdin))
    kind: Callable[[NeighbourJob, Callable[[], None]], Awaitable[None]] = _groups if job.kind == "groups" else _hostile
    try:
        run_trio(lambda: kind(job, lambda: print("at work", flush=True)))
    except (NeighbourFailed, OSError, trio.BrokenResourceError) as error:
        print(f"neighbours: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
