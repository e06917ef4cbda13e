"""Many producers with a message each: they are received together, and served as if each had been alone."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from mq.broker.broker import Broker
from mq.broker.net.connection import ClientConnection
from mq.compiled import IS_COMPILED
from mq.protocol.codes import RequestCode, ResponseCode
from tests.support.running_broker import Answer, Client, RunningBroker, note_brokers, properties, running, send_ext
from tests.support.waiting import until

CODE = RequestCode.SEND_MESSAGE_V2
QUEUES = 4


class Producers:
    """A broker and its producers."""

    def __init__(self, running_broker: RunningBroker, broker: Broker, clients: list[Client]) -> None:
        self.running = running_broker
        self.broker = broker
        self.clients = clients

    @property
    def fast_senders(self) -> list[ClientConnection]:
        descriptors = self.broker.services.sends.receiver.fast_senders
        return [each for each in self.broker.connections if each.descriptor in descriptors]

    def connection_of(self, client: Client) -> ClientConnection:
        port = client.stream.socket.getsockname()[1]
        return next(each for each in self.broker.connections if each.peer.endswith(f":{port}"))

    async def send(self, clients: list[Client] | None = None) -> list[Answer]:
        """A message of each client; all of them are there before the first answer is read."""
        clients = self.clients if clients is None else clients
        posted = [await client.post(CODE, ext(number), b"body") for number, client in enumerate(clients)]
        return [await client.answer(opaque) for client, opaque in zip(clients, posted, strict=True)]


def ext(number: int = 0) -> dict[str, Any]:
    return send_ext(e=number % QUEUES, i=properties(UNIQ_KEY=f"0A{number:04X}", TAGS="a"))


@asynccontextmanager
async def producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int = 20, **given: Any
) -> AsyncIterator[Producers]:
    brokers = note_brokers(monkeypatch)
    async with running(tmp_path, **given) as running_broker:
        clients = [await running_broker.connect() for _ in range(count)]
        for client in clients:
            client.keys = running_broker._keys
        await clients[0].create_topic("T", QUEUES)
        both = Producers(running_broker, brokers[0], clients)
        for _ in range(2):  # the first message opens the topic
            assert {answer.code for answer in await both.send()} == {ResponseCode.SUCCESS}
        await until(lambda: len(both.fast_senders) == count)
        yield both


def count_together(both: Producers, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests came in each block from now on."""
    counts: list[int] = []
    add = both.broker.appender.add

    def counted(block: Any) -> None:
        counts.append(block.request_count)
        add(block)

    monkeypatch.setattr(both.broker.appender, "add", counted)
    return counts


async def test_every_message_is_stored_once_and_answered_to_its_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with producers(tmp_path, monkeypatch) as both:
        counts = count_together(both, monkeypatch)
        places = [
            (answer.ext["queueId"], int(answer.ext["queueOffset"])) for _ in range(5) for answer in await both.send()
        ]
        assert len(set(places)) == len(places) == 100
        assert sum(counts) == 100
        assert max(counts) > 1
        for queue_id in range(QUEUES):
            offsets = sorted(offset for number, offset in places if number == str(queue_id))
            assert offsets == list(range(offsets[0], offsets[0] + 25))


async def test_requests_are_served_after_the_sends_they_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with producers(tmp_path, monkeypatch, 5) as both:
        client = both.clients[0]
        frames = [client.frame(CODE, ext(number), b"body") for number in range(4)]
        (asked, question) = client.frame(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
        data = frames[0][1] + question + b"".join(frame for _, frame in frames[1:])
        await client.stream.send_all(data[:-50])
        others = await both.send(both.clients[1:])
        assert {answer.code for answer in others} == {ResponseCode.SUCCESS}
        for opaque in (frames[0][0], asked, frames[1][0], frames[2][0]):
            assert (await client.answer(opaque)).code == ResponseCode.SUCCESS
        assert both.connection_of(client) not in both.fast_senders
        assert both.connection_of(client).unfinished_bytes == len(frames[3][1]) - 50
        await client.stream.send_all(data[-50:])
        assert (await client.answer(frames[3][0])).code == ResponseCode.SUCCESS
        assert both.connection_of(client) in both.fast_senders


async def test_garbage_closes_only_its_own_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with producers(tmp_path, monkeypatch, 6) as both:
        await both.clients[0].stream.send_all(b"\xff" * 100)
        await both.clients[1].post(CODE, ext(), b"body")
        await both.clients[1].stream.send_all(b"\xff" * 100)
        assert {answer.code for answer in await both.send(both.clients[2:])} == {ResponseCode.SUCCESS}
        assert await both.clients[0].closed()
        assert await both.clients[1].closed()
        assert len(both.fast_senders) == 4


async def test_disconnected_producers_release_their_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with producers(tmp_path, monkeypatch, 8) as both:
        ended, half_closed, *rest = both.clients
        ended.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await ended.post(CODE, ext(), b"body")
        await ended.stream.aclose()  # with a reset, its message in the air
        await half_closed.post(CODE, ext(), b"body")
        await half_closed.stream.send_eof()
        assert {answer.code for answer in await both.send(rest)} == {ResponseCode.SUCCESS}
        await until(lambda: len(both.fast_senders) == 6)
        new = [await both.running.connect() for _ in range(2)]
        await until(lambda: len(both.broker.connections) == 8)
        assert len(both.fast_senders) == 6  # although one of the new ones may have the descriptor of one before
        both.clients = [*rest, *new]
        for _ in range(2):
            assert {answer.code for answer in await both.send()} == {ResponseCode.SUCCESS}
        assert set(both.fast_senders) == set(both.broker.connections)
        assert len(both.broker.services.sends.receiver.fast_senders) == 8


async def test_paused_connection_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with producers(tmp_path, monkeypatch, 3) as both:
        connection = both.connection_of(both.clients[0])
        connection.wait_for_reader(True)
        opaque = await both.clients[0].post(CODE, ext(), b"body")
        for _ in range(3):
            assert {answer.code for answer in await both.send(both.clients[1:])} == {ResponseCode.SUCCESS}
        with trio.move_on_after(0.05):
            await both.clients[0].answer(opaque)
            pytest.fail("a request of a client that must read first was served")
        connection.wait_for_reader(False)
        assert (await both.clients[0].answer(opaque)).code == ResponseCode.SUCCESS


async def test_resigning_leader_returns_all_messages_of_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with producers(tmp_path, monkeypatch, 6) as both:
        served: list[tuple[ClientConnection, int]] = []
        monkeypatch.setattr(both.broker.appender, "start_round", lambda: False)
        monkeypatch.setattr(
            ClientConnection, "dispatch", lambda own, request, *rest: served.append((own, request.code))
        )
        for client in both.clients:
            await client.post(CODE, ext(), b"body")
        await until(lambda: both.broker.appender.waiting_requests == 6)
        both.broker.appender.close()
        assert {own for own, _ in served} == set(both.fast_senders)
        assert [code for _, code in served] == [CODE] * 6


@pytest.mark.skipif(not IS_COMPILED, reason="in Python, signed sends are served one by one")
async def test_signatures_are_checked_with_the_keys_of_each_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n- {accessKey: administrator, secretKey: 1234567890, admin: true}\n")
    keys = ("administrator", "1234567890")
    async with producers(tmp_path / "n0", monkeypatch, 6, keys=keys, acl_file=path) as both:
        counts = count_together(both, monkeypatch)
        both.clients[2].keys = ("administrator", "1234567891")
        both.clients[4].keys = None
        codes = [answer.code for answer in await both.send()]
        denied, stored = ResponseCode.NO_PERMISSION, ResponseCode.SUCCESS
        assert codes == [stored, stored, denied, stored, denied, stored]
        assert sum(counts) == 4
        assert len(both.fast_senders) == 4
