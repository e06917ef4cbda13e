"""Pulls of old messages wait for a thread that reads them; nobody else does."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from raftlog import SegmentLog
from tests.support.cold_disk import Reads
from tests.support.running_broker import Answer, Client, broker_client, properties, pull_ext, running, send_ext


async def stored(directory: Path, messages: int, body_bytes: int = 1000, queues: int = 1) -> list[list[bytes]]:
    """Bodies by queue, of a broker that has ended."""
    bodies: list[list[bytes]] = [[] for _ in range(queues)]
    async with broker_client(directory, queues=queues) as client:
        posted: list[int] = []
        for number in range(messages):
            body = b"%08d" % number * (body_bytes // 8)
            text = properties(TAGS="even" if number // queues % 2 == 0 else "odd", n=str(number // queues))
            posted.append(await client.post(RequestCode.SEND_MESSAGE_V2, send_ext(e=number % queues, i=text), body))
            bodies[number % queues].append(body)
            if len(posted) == 20:
                assert [(await client.answer(opaque)).code for opaque in posted] == [0] * len(posted)
                posted.clear()
        assert [(await client.answer(opaque)).code for opaque in posted] == [0] * len(posted)
    return bodies


async def walk(client: Client, queue_id: int, **given: Any) -> list[bytes]:
    """All that pulls of a queue bring, from its first message to its last."""
    bodies: list[bytes] = []
    offset = 0
    while True:
        pulled = await client.pull(queue_id=queue_id, offset=offset, **given)
        if pulled.code == ResponseCode.PULL_NOT_FOUND:
            return bodies
        assert pulled.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), pulled
        bodies += [record.body for record in pulled.records] if pulled.code == ResponseCode.SUCCESS else []
        offset = int(pulled.ext["nextBeginOffset"])


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_other_clients_are_served_during_a_cold_read(tmp_path: Path, reads: Reads, serialization: int) -> None:
    (bodies,) = await stored(tmp_path, 20)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        slow, other = await broker.connect(), await broker.connect()
        answers: list[Answer] = []

        async def pull() -> None:
            answers.append(await slow.request(RequestCode.PULL_MESSAGE, pull_ext(), serialization=serialization))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await reads.wait_asked()
            assert (await other.send(body=b"meanwhile")).code == 0
            assert [record.body for record in (await other.pull(offset=20)).records] == [b"meanwhile"]
            assert answers == []
            reads.gate.set()
        (answer,) = answers
        assert answer.code == ResponseCode.SUCCESS
        assert answer.serialization == serialization
        assert {name: answer.ext[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")} == {
            "nextBeginOffset": "21",
            "minOffset": "0",
            "maxOffset": "21",
        }
        assert [record.body for record in answer.records] == [*bodies, b"meanwhile"]


EVEN = {"subscription": "even"}
SQL = {"subscription": "n >= 3 AND TAGS = 'odd'", "expressionType": "SQL92"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body_bytes", "queues", "messages"), [(1000, 1, 1000), (1000, 4, 1000), (40_000, 8, 200)], ids=str
)
async def test_event_loop_reads_only_prefetched_messages(
    tmp_path: Path, reads: Reads, body_bytes: int, queues: int, messages: int
) -> None:
    bodies = await stored(tmp_path, messages, body_bytes, queues)
    async with broker_client(tmp_path) as client:
        reads.by_loop = 0
        for queue_id in range(queues):
            assert await walk(client, queue_id) == bodies[queue_id]
        assert await walk(client, 0, **EVEN) == bodies[0][::2]
        assert await walk(client, 0, **SQL) == bodies[0][3::2]
        assert reads.brought
        assert reads.by_loop == 0, "the event loop reads verified bytes out of memory"


async def test_event_loop_reads_messages_if_threads_fail(tmp_path: Path, reads: Reads) -> None:
    (bodies,) = await stored(tmp_path, 5)
    async with running(tmp_path) as broker:
        reads.fails = True
        client = await broker.connect()
        assert await walk(client, 0) == bodies
        assert reads.asked.is_set()


async def test_verified_messages_in_memory_are_read_at_once(tmp_path: Path, reads: Reads) -> None:
    bodies = await stored(tmp_path, 200, queues=2)
    async with broker_client(tmp_path) as client:
        assert [await walk(client, queue_id) for queue_id in range(2)] == bodies
        reads.asked, reads.by_loop = threading.Event(), 0
        assert [await walk(client, queue_id) for queue_id in range(2)] == bodies
        assert await walk(client, 0, **SQL) == bodies[0][3::2]
        assert not reads.asked.is_set()
        assert reads.by_loop == 0


async def test_client_may_disconnect_during_a_cold_read(tmp_path: Path, reads: Reads) -> None:
    (bodies,) = await stored(tmp_path, 5)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        gone, client = await broker.connect(), await broker.connect()
        await gone.post(RequestCode.PULL_MESSAGE, pull_ext())
        await reads.wait_asked()
        await gone.stream.aclose()
        await client.send(body=b"so that it is noticed")
        reads.gate.set()
        assert await walk(client, 0) == [*bodies, b"so that it is noticed"]


async def test_broker_stops_during_a_cold_read(tmp_path: Path, reads: Reads) -> None:
    (bodies,) = await stored(tmp_path, 5)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        client = await broker.connect()
        await client.post(RequestCode.PULL_MESSAGE, pull_ext())
        await reads.wait_asked()
        threading.Timer(0.05, reads.gate.set).start()
    async with running(tmp_path) as again:
        assert await walk(await again.connect(), 0) == bodies


async def test_messages_in_memory_are_not_prefetched(tmp_path: Path, reads: Reads) -> None:
    async with broker_client(tmp_path, queues=1, slow_consumer_bytes=1) as client:
        for _ in range(3):
            assert (await client.send(body=b"new")).code == 0
        assert await walk(client, 0) == [b"new"] * 3
        assert not reads.asked.is_set()


async def test_messages_beyond_memory_are_prefetched(
    tmp_path: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log = SegmentLog.open

    def with_little_memory(*given: Any, **named: Any) -> SegmentLog:
        return open_log(*given, **named, tail_bytes_max=10_000)

    monkeypatch.setattr(SegmentLog, "open", with_little_memory)
    async with broker_client(tmp_path, queues=1, slow_consumer_bytes=50_000) as client:
        bodies = [b"%0500d" % number for number in range(200)]
        for body in bodies:
            assert (await client.send(body=body)).code == 0
        assert (await client.pull(offset=190)).code == 0
        assert not reads.asked.is_set(), "those are near the end"
        assert (await client.pull()).records[0].body == bodies[0]
        assert reads.asked.is_set()
