"""Simulated clients: connections to brokers, and requests that end with a response or an unknown outcome."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, NamedTuple

from chaos.broker_sim.sockets import SimConnection, SocketWorld, stops_midway
from chaos.log_sim.node import Node
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.wire.encoding import encode_request, encode_response

PATIENCE_SECONDS = 3.0
_SUBSCRIPTION = 4


class LostResponse(Enum):
    """The reason why a client got no response to a request."""

    UNREACHABLE = auto()
    """The request was never sent: certainly nothing happened."""
    UNKNOWN = auto()
    """The connection broke, or no response came in time."""


class ClientResponse(NamedTuple):
    """The response of a broker to a request."""

    code: int
    ext: dict[str, str]
    remark: str | None
    body: bytes


ResponseOrLoss = ClientResponse | LostResponse
OnResponse = Callable[[ResponseOrLoss], None]
OnRequest = Callable[["Connection", Any, bytes], None]


class Connection:
    """A client's connection to one broker."""

    def __init__(self, cluster: SocketWorld, client: Client, node: Node, line: SimConnection) -> None:
        self.node = node
        self._cluster = cluster
        self.open = True
        self._client = client
        self._line = line
        self._buffer = bytearray()
        self._callbacks: dict[int, OnResponse] = {}
        line.ends[0] = self

    def request(self, opaque: int, frame: bytes, on_response: OnResponse | None) -> None:
        """Send a request; ``on_response`` is called at most once."""
        if on_response is not None:
            self._callbacks[opaque] = on_response
        nbytes = stops_midway(self._cluster, frame)
        self._line.carry(0, frame[:nbytes])
        if nbytes is not None:
            self.close()

    def reply(self, opaque: int, body: bytes) -> None:
        """Send the response to a request of the broker."""
        self._line.carry(0, encode_response(opaque, 0, body=body))

    def give_up(self, opaque: int) -> None:
        """Stop waiting for a response: the request ends with `LostResponse.UNKNOWN`."""
        if (on_response := self._callbacks.pop(opaque, None)) is not None:
            on_response(LostResponse.UNKNOWN)

    def close(self) -> None:
        """Close the connection: requests without a response end with `LostResponse.UNKNOWN`."""
        if self.open:
            self._line.cut(0)
            self._line.carry(0, None)
            self.on_hangup()

    # -- End -----------------------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> None:
        self._buffer += data
        with memoryview(bytes(self._buffer)) as view:
            frames, consumed = split_frames(view)
            messages = [(decode_header(encoding, header), bytes(body)) for encoding, header, body in frames]
        del self._buffer[:consumed]
        for header, body in messages:
            if not isinstance(header, Response):
                self._client.on_request(self, header, body)
            elif (on_response := self._callbacks.pop(header.opaque, None)) is not None:
                on_response(ClientResponse(header.code, header.ext, header.remark, body))

    def on_hangup(self) -> None:
        self.open = False
        self._client.forget(self)
        callbacks, self._callbacks = self._callbacks, {}
        for on_response in callbacks.values():
            on_response(LostResponse.UNKNOWN)


class Client:
    """One client process: a connection to each broker that it uses.

    Args:
        number: distinguishes clients; part of its address.
        on_request: receives the requests of brokers.
    """

    def __init__(self, cluster: SocketWorld, number: int, on_request: OnRequest = lambda *_: None) -> None:
        self._cluster = cluster
        self.address = (f"10.1.{number // 250}.{number % 250 + 1}", 50_000)
        self.on_request = on_request
        self._connections: dict[Node, Connection] = {}
        self._opaques = itertools.count(1)

    def connection(self, node: Node) -> Connection | None:
        """Return the connection to a broker, opened if necessary; None while the broker does not run."""
        if (current := self._connections.get(node)) is not None:
            return current
        if node.process is None:
            return None
        line = SimConnection(self._cluster, (None, node))
        new = self._connections[node] = Connection(self._cluster, self, node, line)
        self._cluster.accept(node, line, 1, self.address)
        return new

    def request(
        self,
        node: Node,
        code: int,
        ext: dict[str, Any] | None,
        body: bytes,
        on_response: OnResponse | None,
        *,
        seconds: float = PATIENCE_SECONDS,
        serialization: int = JSON,
    ) -> None:
        """Send a request to a broker. Without ``on_response`` it is one-way."""
        connection = self.connection(node)
        if connection is None:
            if on_response is not None:
                self._cluster.at(
                    self._cluster.now + self._cluster.client_latency(), on_response, LostResponse.UNREACHABLE
                )
            return
        opaque = next(self._opaques)
        fields = None if ext is None else {name: _text(value) for name, value in ext.items() if value is not None}
        frame = encode_request(
            code,
            opaque,
            ext=fields,
            body=body,
            oneway=on_response is None,
            serialization=serialization,
            language="JAVA",
        )
        connection.request(opaque, frame, on_response)
        self._cluster.at(self._cluster.now + seconds, connection.give_up, opaque)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        if self._connections.get(connection.node) is connection:
            del self._connections[connection.node]

    def reset(self) -> None:
        """Close all connections, also those with requests in flight."""
        for connection in list(self._connections.values()):
            connection.close()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def pull_fields(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    count: int,
    *,
    sys_flag: int = 0,
    commit_offset: int = 0,
    wait_ms: int = 1000,
) -> dict[str, Any]:
    """Return the header of a pull of all messages, with its subscription."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": count,
        "sysFlag": sys_flag | _SUBSCRIPTION,
        "commitOffset": commit_offset,
        "suspendTimeoutMillis": wait_ms,
        "subVersion": 0,
        "subscription": "*",
    }
