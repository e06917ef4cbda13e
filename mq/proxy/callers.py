"""Finds the client that makes a call in the call's metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import trio
from google.protobuf.message import DecodeError, Message

from mq.client.errors import ClientError
from mq.proxy.grpc.status import CallRefused, Status
from mq.proxy.mapping.refusals import CodedError, refusal_of
from mq.proxy.wire import messaging_pb2 as pb

CLIENT_ID: Final = "x-mq-client-id"
CLIENT_VERSION: Final = "x-mq-client-version"
_CLIENT_ID_LENGTH_MAX: Final = 256

Fields = Mapping[str, str]
"""Header fields of a request to a broker."""

RequestT = TypeVar("RequestT", bound=Message)


class Call(Protocol):
    """A call, as `mq.proxy.grpc` or a test makes it."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of the call by lower-case name."""

    @property
    def peer(self) -> str:
        """The address of the client."""

    @property
    def deadline(self) -> float | None:
        """The deadline of the call on the event loop's clock; None without one."""

    @property
    def heard_at(self) -> float:
        """The time at which the client last sent something over this connection, on the event loop's clock."""

    @property
    def is_connection_lost(self) -> bool:
        """Whether the connection has ended."""

    async def receive(self) -> bytes | None:
        """Wait for the next message; None after the last one."""

    async def send(self, message: bytes) -> None:
        """Send an answer. Waits until there is room for it."""


Method = Callable[[Call], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that makes a call.

    Attributes:
        client_id: the id that it gives; with accounts, after its user and a slash: any client may give any id.
        peer: its address.
        version: of its library.
        deadline: of the call, on the clock of the event loop.
        extra: header fields for the requests to brokers that are made for it.
    """

    client_id: str
    peer: str
    version: str = ""
    deadline: float | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def seconds_left(self, usual: float) -> float:
        """Return the seconds for a request to a broker: until shortly before the deadline, at most `usual`."""
        if self.deadline is None:
            return usual
        return min(usual, max(self.deadline - trio.current_time() - 0.1, 0.001))


Identify = Callable[[Call], Awaitable[Caller]]
"""Finds out who makes a call. Raises CodedError, ClientError."""


def caller_of(call: Call) -> Caller:
    """Find the client that makes a call. Raises CodedError."""
    client_id = call.metadata.get(CLIENT_ID, "").strip()
    if not client_id:
        raise CodedError(pb.CLIENT_ID_REQUIRED, f"the call has no {CLIENT_ID} in its metadata")
    if len(client_id) > _CLIENT_ID_LENGTH_MAX:
        raise CodedError(pb.CLIENT_ID_REQUIRED, f"the client id has {len(client_id)} characters; maximum: 256")
    return Caller(client_id, call.peer, call.metadata.get(CLIENT_VERSION, ""), call.deadline)


def parse_request(kind: type[RequestT], data: bytes | None) -> RequestT:
    """Parse a request. Raises CallRefused if there is none, or if it is not of this kind."""
    if data is None:
        raise CallRefused(Status.INTERNAL, "the call has no request")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise CallRefused(Status.INTERNAL, f"the request is not a {kind.DESCRIPTOR.name}: {error}") from error


def unary(
    kind: type[RequestT],
    identify: Identify,
    serve: Callable[[RequestT, Caller], Awaitable[Message]],
    refuse: Callable[[pb.Status], Message],
) -> Method:
    """Make the method for calls with one request and one answer. `refuse` makes the answer for what `serve` refuses."""

    async def method(call: Call) -> None:
        request = parse_request(kind, await call.receive())
        try:
            response = await serve(request, await identify(call))
        except CodedError as error:
            response = refuse(error.status)
        except ClientError as error:
            response = refuse(refusal_of(error).status)
        await call.send(response.SerializeToString())

    return method
