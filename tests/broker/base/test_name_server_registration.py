"""What name servers are told of a broker's topics, and when it is all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from mq.namesrv.route_table import BrokerId, RouteTable
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import split_frames
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.requests.registration import RegisterBroker, RegisterBrokerBody
from mq.protocol.wire.encoding import encode_response
from tests.support.running_broker import SECONDS_MAX, running
from tests.support.waiting import until


class Told(NamedTuple):
    """One registration."""

    whole: bool
    body: RegisterBrokerBody
    broker: BrokerId


class NameServer:
    """Notes what it is told, and keeps a table of it as a real one does."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.table = RouteTable()
        self.stream: trio.SocketStream | None = None

    async def serve(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        with suppress(trio.ClosedResourceError):
            await self._serve(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        received = b""
        async for chunk in stream:
            received += bytes(chunk)
            frames, consumed = split_frames(memoryview(received))
            for serialization, header, body in frames:
                request = decode_header(serialization, header)
                assert isinstance(request, RegisterBroker)
                ext = request.ext
                broker = BrokerId(ext.cluster, ext.broker_name, ext.broker_id, ext.address)
                told = Told(ext.whole, RegisterBrokerBody.decode(bytes(body)), broker)
                self.table.register_broker(0.0, broker, told.body, stream, whole=ext.whole)
                self.told.append(told)
                await stream.send_all(encode_response(request.opaque, ResponseCode.SUCCESS))
            received = received[consumed:]

    async def wait_for(self, topic: str, *, is_there: bool = True) -> None:
        await until(lambda: (topic in self.table.topic_list()) is is_there, seconds=SECONDS_MAX)


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, str]]:
    server = NameServer()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host="127.0.0.1"))
        yield server, f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_first_registration_sends_all_topics_and_later_ones_send_changes(tmp_path: Path) -> None:
    async with name_server() as (server, address), running(tmp_path, namesrv=address) as broker:
        client = await broker.connect()
        await client.create_topic("One", 1)
        await server.wait_for("One")
        told = len(server.told)
        assert server.told[0].whole
        await client.create_topic("Two", 2)
        await server.wait_for("Two")
        [news] = server.told[told:]
        assert not news.whole
        assert news.body.topics.keys() == {"Two"}
        assert news.body.topics["Two"].write_queue_nums == 2
        assert {"One", "Two", "TBW102"} <= set(server.table.topic_list())


async def test_all_topics_are_registered_when_one_is_deleted(tmp_path: Path) -> None:
    async with name_server() as (server, address), running(tmp_path, namesrv=address) as broker:
        client = await broker.connect()
        for topic in ("One", "Two"):
            await client.create_topic(topic, 1)
        await server.wait_for("Two")
        answer = await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "One"})
        assert answer.code == ResponseCode.SUCCESS
        await server.wait_for("One", is_there=False)
        assert server.told[-1].whole
        assert "Two" in server.told[-1].body.topics


async def test_all_topics_are_registered_on_reconnect_and_periodically(tmp_path: Path) -> None:
    async with name_server() as (server, address), running(tmp_path, namesrv=address, register_seconds=1) as broker:
        client = await broker.connect()
        await client.create_topic("One", 1)
        await server.wait_for("One")
        assert server.stream is not None
        server.table = RouteTable()
        await server.stream.aclose()
        await server.wait_for("One")
        assert server.told[-1].whole
        server.table = RouteTable()
        await server.wait_for("One")
        assert server.told[-1].whole


async def test_topics_created_in_quick_succession_are_all_registered(tmp_path: Path) -> None:
    async with name_server() as (server, address), running(tmp_path, namesrv=address) as broker:
        client = await broker.connect()
        asked = [
            await client.post(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {"topic": f"T{number}", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
                 "topicFilterType": "SINGLE_TAG"},
            )
            for number in range(200)
        ]  # fmt: skip
        for opaque in asked:
            await client.answer(opaque)
        await until(
            lambda: {f"T{number}" for number in range(200)} <= set(server.table.topic_list()), seconds=SECONDS_MAX
        )
