"""Counts the instructions of a broker with one replica and its client, in one process with one event loop.

Nothing is left to chance, so that each run has the same instructions: the clock stops while instructions are counted,
so no timer runs; messages are acknowledged from memory, and the log is written without a thread of its own
(`log_writer` measures that), so nothing depends on the speed of the disk; tasks run in the same order each time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import structlog
import trio
from trio.testing import MockClock

from benchmarks.gate.counting import Counting
from benchmarks.load.frames import CODE, QUEUES, TOPIC, complete_bytes, pull_frame, request_frame, send_frame, topic_ext
from mq.broker.server import serve
from mq.broker.settings import BrokerSettings
from mq.local_cluster import HOST, Ports
from mq.local_cluster.any_disk import ANY_DISK
from mq.protocol.codes import RequestCode
from raftlog.segment.writer import InlineWriter

BODY_BYTES = 1024
IN_FLIGHT = 32
"""The number of requests that the broker receives at once."""
BATCH, BATCHES_IN_FLIGHT = 32, 8
PULLED = 32
WARM_UP, ROUNDS, ATTEMPTS = 10, 6, 3
_RETRY_SECONDS = 0.2
_READY_SECONDS_MAX = 120.0


async def ask(stream: trio.SocketStream, frames: Sequence[bytes]) -> list[bytes]:
    """Send all frames at once, and wait for all responses. Returns their codes."""
    await stream.send_all(b"".join(frames))
    data, codes = b"", list[bytes]()
    while len(codes) < len(frames):
        data += await stream.receive_some(1 << 20)
        count, end = complete_bytes(data)
        if count:
            codes += _codes(data[:end])
            data = data[end:]
    return codes


def _codes(frames: bytes) -> list[bytes]:
    """The codes of replies, from the headers only: bodies may hold anything."""
    codes, at = list[bytes](), 0
    while at < len(frames):
        match = CODE.search(frames, at + 8)
        assert match is not None, f"a reply without a code: {frames[at : at + 100]!r}"
        codes.append(match[1])
        at += 4 + int.from_bytes(frames[at : at + 4], "big")
    return codes


async def create_topic(stream: trio.SocketStream) -> None:
    """Wait until the broker leads, and create the topic."""
    frame = request_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, 1, topic_ext(TOPIC))
    with trio.fail_after(_READY_SECONDS_MAX):
        while await ask(stream, [frame]) != [b"0"]:  # noqa: ASYNC110 - no event to wait for
            await trio.sleep(_RETRY_SECONDS)


def _writer(
    done_fd: int, on_failed: Callable[[Exception], None], observe: object, *, sync_bytes_max: int
) -> InlineWriter:
    """Replaces `threaded_writer`; reports in the same way, which the event loop reads in its next turn.

    It syncs after each write, so nothing is gathered up to ``sync_bytes_max``.
    """
    del sync_bytes_max
    return InlineWriter(lambda ticket: os.eventfd_write(done_fd, 1), on_failed)


def count_whole_broker(counter: Counting, directory: Path) -> None:
    """Count the instructions of sends (32 in flight), of batches (8 in flight), and of pulls of 32 messages each."""
    clock = MockClock(rate=1.0)
    # Trio lets chance decide which of its tasks comes first.
    trio._core._run._r.seed(1)
    with patch("raftlog.net.machine.threaded_writer", _writer):
        trio.run(_count, counter, directory, clock, clock=clock)


async def _count(counter: Counting, directory: Path, clock: MockClock) -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    ports = Ports.free(1)
    settings = BrokerSettings(
        listen=f"{HOST}:{ports.clients[0]}",
        peers=f"n0@{HOST}:{ports.replication[0]}",
        data_dir=directory,
        durability="quorum-memory",
        metrics_listen="off",
        key_index_poll_seconds=3600.0,
        **{name: float(value) for name, value in ANY_DISK.items()},  # type: ignore[arg-type]
    )
    sends = [send_frame(slot, BODY_BYTES, slot % QUEUES) for slot in range(1, IN_FLIGHT + 1)]
    batches = [
        send_frame(slot, BODY_BYTES, slot % QUEUES, batch=BATCH)
        for slot in range(IN_FLIGHT + 1, IN_FLIGHT + BATCHES_IN_FLIGHT + 1)
    ]
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, settings)
        stream = await trio.open_tcp_stream(HOST, ports.clients[0])
        await create_topic(stream)
        clock.rate = 0.0

        async def send(frames: Sequence[bytes], rounds: int) -> None:
            for _ in range(rounds):
                assert set(await ask(stream, frames)) == {b"0"}, "a message was refused"

        async def pull(rounds: int) -> None:
            for number in range(rounds):
                frame = pull_frame(number, 0, 0, PULLED)
                assert await ask(stream, [frame]) == [b"0"], "nothing was found"

        await send(sends, WARM_UP)
        for _ in range(ATTEMPTS):
            with counter.count("send, through a whole broker", ROUNDS * IN_FLIGHT):
                await send(sends, ROUNDS)
        await send(batches, WARM_UP)
        for _ in range(ATTEMPTS):
            with counter.count("batch, through a whole broker", ROUNDS * BATCHES_IN_FLIGHT * BATCH):
                await send(batches, ROUNDS)
        await pull(WARM_UP)
        for _ in range(ATTEMPTS):
            with counter.count("pull, through a whole broker", ROUNDS * PULLED):
                await pull(ROUNDS)
        clock.rate = 1.0
        await stream.aclose()
        nursery.cancel_scope.cancel()
