"""Pops of old messages wait for a thread that reads them; nobody else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.cold_disk import Reads
from tests.support.popping import again, pop, popped
from tests.support.running_broker import Client, broker_client, properties, running


async def send_some(directory: Path, messages: int, queues: int = 1) -> list[bytes]:
    """Sent to a broker that has ended."""
    bodies = [b"%04d" % number * 250 for number in range(messages)]
    async with broker_client(directory, queues=queues) as client:
        for number, body in enumerate(bodies):
            text = properties(TAGS="even" if number % 2 == 0 else "odd", n=str(number))
            assert (await client.send(e=number % queues, i=text, body=body)).code == 0
    return bodies


async def test_other_clients_are_served_during_a_cold_pop(tmp_path: Path, reads: Reads) -> None:
    bodies = await send_some(tmp_path, 20)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        slow, other = await broker.connect(), await broker.connect()
        got: list[bytes] = []

        async def take() -> None:
            got.extend([message.body for message in await popped(slow)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await reads.wait_asked()
            assert (await other.send(body=b"meanwhile")).code == 0
            assert got == []
            reads.gate.set()
        assert got == [*bodies, b"meanwhile"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, slice(None)),
        ({"exp": "even", "expType": "TAG"}, slice(0, None, 2)),
        ({"exp": "n >= 3 AND TAGS = 'odd'", "expType": "SQL92"}, slice(3, None, 2)),
    ],
    ids=["all", "by tag", "by properties"],
)
async def test_event_loop_pops_only_loaded_messages(
    tmp_path: Path, reads: Reads, given: dict[str, str], wanted: slice
) -> None:
    bodies = await send_some(tmp_path, 200, queues=4)
    async with broker_client(tmp_path) as client:
        reads.by_loop, got = 0, list[bytes]()
        while messages := await popped(client, **given):
            got += [message.body for message in messages]
        assert sorted(got) == bodies[wanted]
        assert reads.brought
        assert reads.by_loop == 0


async def test_old_messages_of_the_retry_topic_are_loaded_as_well(tmp_path: Path, reads: Reads) -> None:
    bodies = await send_some(tmp_path, 5)
    async with broker_client(tmp_path) as client:
        assert len(await popped(client, invisibleTime=1)) == 5
        await client.wait_for(lambda info: info["raftmq.popRevived"] == "5")
    async with broker_client(tmp_path) as client:
        reads.by_loop = 0
        assert sorted(message.body for message in await again(client)) == bodies
        assert reads.by_loop == 0


async def test_two_pops_waiting_for_cold_messages_divide_the_messages(tmp_path: Path, reads: Reads) -> None:
    bodies = await send_some(tmp_path, 60)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        clients = [await broker.connect() for _ in range(4)]
        got: list[bytes] = []

        async def take(number: int) -> None:
            got.extend([message.body for message in await popped(clients[number], maxMsgNums=15)])

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(take, number)
            await reads.wait_asked()
            reads.gate.set()
        assert sorted(got) == bodies


async def test_event_loop_pops_messages_if_threads_fail(tmp_path: Path, reads: Reads) -> None:
    bodies = await send_some(tmp_path, 5)
    async with running(tmp_path) as broker:
        reads.fails = True
        client = await broker.connect()
        assert [message.body for message in await popped(client)] == bodies
        assert reads.asked.is_set()


async def test_client_that_leaves_during_a_cold_pop_hides_no_message(tmp_path: Path, reads: Reads) -> None:
    bodies = await send_some(tmp_path, 5)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        gone, client = await broker.connect(), await broker.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pop, gone)
            await reads.wait_asked()
            nursery.cancel_scope.cancel()
        await gone.stream.aclose()
        assert (await client.send(body=b"so that it is noticed")).code == 0
        reads.gate.set()
        assert [message.body for message in await popped(client)] == [*bodies, b"so that it is noticed"]


async def test_event_loop_does_not_read_further_queues_from_disk(tmp_path: Path, reads: Reads) -> None:
    async with broker_client(tmp_path, queues=6) as client:
        await client.create_topic("between", 1)
        for number in range(6):
            assert (await client.send(e=number, body=b"%d" % number)).code == 0
            for _ in range(3):
                assert (await client.send("between", e=0, body=bytes(300_000))).code == 0
    async with broker_client(tmp_path) as client:
        reads.by_loop, got = 0, list[bytes]()
        while messages := await popped(client):
            got += [message.body for message in messages]
        assert sorted(got) == [b"%d" % number for number in range(6)]
        assert reads.by_loop == 0


async def peek(client: Client, **given: Any) -> list[bytes]:
    ext: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 32}
    answer = await client.request(RequestCode.PEEK_MESSAGE, ext | given)
    assert answer.code == 0, answer
    return [record.body for record in answer.records]


async def test_other_clients_are_served_during_a_cold_peek(tmp_path: Path, reads: Reads) -> None:
    bodies = await send_some(tmp_path, 20)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        reads.by_loop = 0
        slow, other = await broker.connect(), await broker.connect()
        got: list[bytes] = []

        async def look() -> None:
            got.extend(await peek(slow))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await reads.wait_asked()
            assert (await other.send(body=b"meanwhile")).code == 0
            assert got == []
            reads.gate.set()
        assert got == [*bodies, b"meanwhile"]
        assert reads.by_loop == 0
        assert [message.body for message in await popped(other)] == got, "a peek takes nothing"


async def test_event_loop_peeks_messages_if_threads_fail(tmp_path: Path, reads: Reads) -> None:
    bodies = await send_some(tmp_path, 5)
    async with running(tmp_path) as broker:
        reads.fails = True
        assert await peek(await broker.connect()) == bodies
        assert reads.asked.is_set()


async def test_cold_peek_of_a_topic_deleted_meanwhile_is_refused(tmp_path: Path, reads: Reads) -> None:
    await send_some(tmp_path, 5)
    async with running(tmp_path) as broker:
        reads.gate.clear()
        slow, other = await broker.connect(), await broker.connect()
        ext = {"consumerGroup": "G", "topic": "T", "queueId": -1, "maxMsgNums": 32}
        peeking = await slow.post(RequestCode.PEEK_MESSAGE, ext)
        await reads.wait_asked()
        assert (await other.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        reads.gate.set()
        refused = await slow.answer(peeking)
        assert (refused.code, refused.remark) == (ResponseCode.TOPIC_NOT_EXIST, "the topic T does not exist")
