"""A blocking connection to a name server or a broker, for programs that read one response after another.

Executors have the standard library only, and a Spark task does nothing else while it waits: so this is a socket with a
timeout, and frames of RocketMQ's remoting protocol with JSON headers.
"""

from __future__ import annotations

import json
import re
import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from mq.protocol.codes import PERM_READ, PERM_WRITE, RequestCode, ResponseCode
from mq.protocol.frames import JSON, encode_frame
from spark.access import access

if TYPE_CHECKING:
    import ssl

_T = TypeVar("_T")

FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
CONNECT_SECONDS_MAX: Final = 3.0

_PREFIX: Final = struct.Struct(">II")
_VERSION: Final = 453  # of RocketMQ 5.3: brokers derive a client's capabilities from it
_NUMBER_AS_KEY: Final = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


class Unreachable(Exception):
    """The server is unreachable, did not respond in time, or closed the connection.

    The request may be sent to another one.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address
        self.reason = reason


class ServerError(Exception):
    """The server responded with an error; ``code`` is RocketMQ's response code."""

    def __init__(self, address: str, code: int, remark: str) -> None:
        user = f", asked {access().who}" if code == ResponseCode.NO_PERMISSION else ""
        super().__init__(f"{address} answered {remark or 'without a reason'} (code {code}{user})")
        self.address = address
        self.code = code
        self.remark = remark


class BrokerResponse(NamedTuple):
    """The header and the body of a response. The connection does not reuse the body's memory."""

    code: int
    remark: str
    ext: dict[str, str]
    body: memoryview


class Connection:
    """A connection to a server. It matches responses, which arrive in any order, to requests by their number.

    Requests are signed, and encrypted, as the environment says (`spark.access`).

    Args:
        address: ``HOST:PORT``.
        timeout: seconds to wait for bytes; also for connecting, but at most 3.

    Raises:
        Unreachable: connecting failed.
        CredentialsInvalid: the environment names keys or files that cannot be used.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self.address = address
        self._opaque = 0
        self._answers: dict[int, BrokerResponse] = {}
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self._credentials, tls = access()
        self._socket: socket.socket
        try:
            self._socket = plain = socket.create_connection(
                (host, int(port)), timeout=min(timeout, CONNECT_SECONDS_MAX)
            )
            if tls is not None:
                try:
                    self._socket = tls.wrap_socket(plain, server_hostname=host)
                except OSError as error:
                    plain.close()
                    raise Unreachable(address, f"TLS fails, {error}; does it use TLS?") from error
        except (OSError, ValueError, UnicodeError) as error:
            raise Unreachable(address, f"cannot connect: {error}") from error
        self._is_encrypted = tls is not None
        self._socket.settimeout(timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = select.poll()
        self._input.register(self._socket, select.POLLIN)

    def send(self, code: int, ext: dict[str, str], body: bytes = b"") -> int:
        """Send a request. Returns its number, to pass to `receive`. Raises Unreachable."""
        self._opaque += 1
        if self._credentials is not None:
            ext = self._credentials.sign(code, ext, body)
        header = json.dumps(
            {
                "code": code,
                "language": "PYTHON",
                "version": _VERSION,
                "opaque": self._opaque,
                "flag": 0,
                "extFields": ext,
                "serializeTypeCurrentRPC": "JSON",
            }
        ).encode()
        try:
            self._socket.sendall(encode_frame(JSON, header, body))
        except OSError as error:
            raise Unreachable(self.address, f"cannot send: {error}") from error
        return self._opaque

    def receive(self, opaque: int) -> BrokerResponse:
        """Wait for the response to a request. Raises Unreachable."""
        while (answer := self._answers.pop(opaque, None)) is None:
            self._receive_one()
        return answer

    @property
    def has_input(self) -> bool:
        """Whether there are unread bytes, or the server has closed the connection."""
        return bool(self._answers) or bool(self._input.poll(0)) or self._has_decrypted()

    def ask(self, code: int, ext: dict[str, str]) -> BrokerResponse:
        """Send a request and wait for its response. Raises Unreachable, and ServerError unless it succeeded."""
        response = self.receive(self.send(code, ext))
        if response.code != ResponseCode.SUCCESS:
            raise ServerError(self.address, response.code, response.remark)
        return response

    def close(self) -> None:
        """Close the connection; pending requests get no response."""
        with suppress(OSError):
            self._socket.close()

    def _has_decrypted(self) -> bool:
        """Whether TLS has bytes that it has read from the socket already."""
        return self._is_encrypted and cast("ssl.SSLSocket", self._socket).pending() > 0

    def _receive_one(self) -> None:
        length, word = _PREFIX.unpack(self._receive_bytes(_PREFIX.size))
        header_bytes = word & 0xFFFFFF
        if word >> 24 or not header_bytes + 4 <= length <= FRAME_BYTES_MAX:
            raise Unreachable(
                self.address, f"sent data that is not a RocketMQ frame (length {length}, header word {word:#x})"
            )
        rest = self._receive_bytes(length - 4)
        try:
            header = json.loads(bytes(rest[:header_bytes]))
            is_answer, opaque, code = header["flag"] & 1, int(header["opaque"]), int(header["code"])
            ext = {name: str(value) for name, value in (header.get("extFields") or {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Unreachable(self.address, f"sent a header that cannot be read: {error}") from error
        if is_answer:  # brokers query their clients at times; this one has nothing to report
            self._answers[opaque] = BrokerResponse(code, str(header.get("remark") or ""), ext, rest[header_bytes:])

    def _receive_bytes(self, nbytes: int) -> memoryview:
        data = memoryview(bytearray(nbytes))
        at = 0
        while at < nbytes:
            try:
                count = self._socket.recv_into(data[at:])
            except OSError as error:
                reason = "did not answer in time" if isinstance(error, TimeoutError) else f"cannot receive: {error}"
                raise Unreachable(self.address, reason) from error
            if not count:
                raise Unreachable(self.address, "closed the connection")
            at += count
        return data


class TopicRoute(NamedTuple):
    """The route of a topic: its number of readable queues per broker group, and the brokers' addresses by id.

    ``cluster`` has the names of its clusters, separated by commas. ``write_queues`` is the number of writable queues
    per broker group.
    """

    read_queues: dict[str, int]
    addresses: dict[str, dict[int, str]]
    cluster: str
    write_queues: dict[str, int]


class NameServers:
    """The name servers of a cluster. Sends each request to one after another until one responds.

    Args:
        addresses: ``HOST:PORT`` of each.
        timeout: seconds to wait for one of them.
        connect: creates a connection.
    """

    def __init__(
        self, addresses: Sequence[str], timeout: float, connect: Callable[[str, float], Connection] = Connection
    ) -> None:
        self._addresses = tuple(addresses)
        self._timeout = timeout
        self._connect = connect

    def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic.

        Raises:
            ServerError: the topic does not exist.
            Unreachable: no name server responded.
        """
        return _route(
            self._ask(
                lambda connection: _ask_document(connection, RequestCode.GET_ROUTEINFO_BY_TOPIC, _route_fields(topic))
            )
        )

    def routes(self, topics: Sequence[str]) -> dict[str, TopicRoute]:
        """Return the routes of topics, with all requests in flight at once. Leaves out topics that do not exist.

        Raises Unreachable: no name server responded; ServerError: one refused for another reason.
        """
        return self._ask(lambda connection: dict(_routes(connection, topics)))

    def topics(self) -> list[str]:
        """Return the names of all topics. Raises Unreachable, ServerError."""
        return sorted(
            self._ask(
                lambda connection: _ask_document(connection, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
            ).get("topicList")
            or ()
        )

    def _ask(self, ask: Callable[[Connection], _T]) -> _T:
        failures: list[str] = []
        for address in self._addresses:
            try:
                connection = self._connect(address, self._timeout)
                try:
                    return ask(connection)
                finally:
                    connection.close()
            except Unreachable as error:
                failures.append(str(error))
        raise Unreachable(", ".join(self._addresses), f"no name server answered ({'; '.join(failures)})")


_ROUTES_AT_ONCE: Final = 64


def _route_fields(topic: str) -> dict[str, str]:
    return {"topic": topic, "acceptStandardJsonOnly": "true"}


def _ask_document(connection: Connection, code: int, ext: dict[str, str]) -> dict[str, Any]:
    return _parse(connection.address, connection.ask(code, ext).body)


def _routes(connection: Connection, topics: Sequence[str]) -> Iterator[tuple[str, TopicRoute]]:
    for begin in range(0, len(topics), _ROUTES_AT_ONCE):
        requests = [
            (topic, connection.send(RequestCode.GET_ROUTEINFO_BY_TOPIC, _route_fields(topic)))
            for topic in topics[begin : begin + _ROUTES_AT_ONCE]
        ]
        for topic, number in requests:
            response = connection.receive(number)
            if response.code == ResponseCode.SUCCESS:
                yield topic, _route(_parse(connection.address, response.body))
            elif response.code != ResponseCode.TOPIC_NOT_EXIST:
                raise ServerError(connection.address, response.code, response.remark)


def _route(route: dict[str, Any]) -> TopicRoute:
    return TopicRoute(
        {
            queues["brokerName"]: int(queues["readQueueNums"])
            for queues in route.get("queueDatas") or ()
            if int(queues["perm"]) & PERM_READ
        },
        {
            broker["brokerName"]: {int(number): address for number, address in broker["brokerAddrs"].items()}
            for broker in route.get("brokerDatas") or ()
        },
        ",".join(sorted({str(broker.get("cluster") or "") for broker in route.get("brokerDatas") or ()} - {""})),
        {
            queues["brokerName"]: int(queues["writeQueueNums"])
            for queues in route.get("queueDatas") or ()
            if int(queues["perm"]) & PERM_WRITE and int(queues.get("writeQueueNums") or 0)
        },
    )


def _parse(address: str, body: memoryview) -> dict[str, Any]:
    """Parse a response body of a name server. Older RocketMQ versions write numeric keys without quotes."""
    text = str(body, "utf-8", "replace")
    try:
        try:
            document = json.loads(text)
        except ValueError:
            document = json.loads(_NUMBER_AS_KEY.sub(r'\1"\2"\3', text))
    except (ValueError, RecursionError) as error:
        raise Unreachable(address, f"sent a body that cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise Unreachable(address, "sent a body that is not an object")
    return document
