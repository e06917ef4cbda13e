"""A name server on loopback sockets in this process, and a peer that speaks frames."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.requests.namesrv import Route
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion, TopicConfig
from mq.protocol.wire.encoding import encode_request

SECONDS_MAX = 120.0
"""How long a test waits for something that happens at once; reached only when it never will."""

Address = tuple[str, int]


class Server:
    """A running name server, and the connections that a test makes to it."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.peers: list[Peer] = []

    async def connect(self, source: str | None = None) -> Peer:
        peer = Peer(await trio.open_tcp_stream(*self.address, local_address=source))
        self.peers.append(peer)
        return peer


@asynccontextmanager
async def name_server(**settings: Any) -> AsyncIterator[Server]:
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            given: dict[str, Any] = {"listen_host": "127.0.0.1", "listen_port": 0, "data_dir": None} | settings
            server = Server(await nursery.start(serve, NamesrvSettings(**given)))
            try:
                yield server
            finally:
                for peer in server.peers:
                    await trio.aclose_forcefully(peer.stream)
                nursery.cancel_scope.cancel()


class Peer:
    """One connection to a name server."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = b""

    async def ask(
        self,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 1,
        serialization: int = JSON,
    ) -> tuple[Response, bytes]:
        fields = {name: str(value) for name, value in ext.items()} if ext else None
        await self.stream.send_all(encode_request(code, opaque, ext=fields, body=body, serialization=serialization))
        (answer,) = await self.answers(1)
        assert answer[0].opaque == opaque
        return answer

    async def answers(self, count: int) -> list[tuple[Response, bytes]]:
        answers: list[tuple[Response, bytes]] = []
        while len(answers) < count:
            chunk = await self.stream.receive_some(65536)
            assert chunk, f"the connection was closed after {len(answers)} of {count} answers"
            self._received += chunk
            frames, consumed = split_frames(memoryview(self._received))
            for serialization, header, data in frames:
                response = decode_header(serialization, header)
                assert isinstance(response, Response)
                answers.append((response, bytes(data)))
            self._received = self._received[consumed:]
        return answers

    async def register(
        self,
        topic: str = "T1",
        *,
        broker_id: int = 0,
        address: str = "10.0.0.1:10911",
        group: str = "b-a",
        compressed: bool = False,
        crc: int | None = None,
    ) -> tuple[Response, bytes]:
        body = RegisterBrokerBody(topics={topic: TopicConfig(topic, 4, 4, 6)}, data_version=DataVersion(1, 2))
        data = body.encode_compressed() if compressed else body.encode()
        return await self.ask(
            RequestCode.REGISTER_BROKER,
            {
                **broker_fields(broker_id, address, group),
                "haServerAddr": "10.0.0.1:10912",
                "compressed": str(compressed).lower(),
                "bodyCrc32": zlib.crc32(data) & 0x7FFFFFFF if crc is None else crc,
            },
            data,
        )

    async def route(self, topic: str = "T1", *, serialization: int = JSON) -> Route | None:
        response, body = await self.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, serialization=serialization
        )
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert response.code == ResponseCode.SUCCESS, response
        return Route.decode(body)

    async def closed(self) -> bool:
        """Wait for the other side to hang up; False if it says something instead."""
        try:
            return await self.stream.receive_some(1) == b""
        except trio.BrokenResourceError:
            return True


def broker_fields(broker_id: int = 0, address: str = "10.0.0.1:10911", group: str = "b-a") -> dict[str, object]:
    return {"brokerName": group, "brokerAddr": address, "clusterName": "c1", "brokerId": broker_id}
