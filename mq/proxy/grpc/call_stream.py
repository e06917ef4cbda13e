"""The HTTP/2 stream of one call, as `GrpcConnection` keeps it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from mq.proxy.grpc.framing import MessageReader
from mq.proxy.grpc.request_headers import NoGrpc, RequestHead
from mq.proxy.grpc.status import CallRefused, Status


class StreamConnection(Protocol):
    """The part of `GrpcConnection` that a call uses; see its methods."""

    @property
    def heard_at(self) -> float: ...
    @property
    def is_lost(self) -> bool: ...
    def take(self, stream: CallStream) -> bytes | None: ...
    def send(self, stream: CallStream, frame: bytes) -> bool: ...
    def abandon(self, stream: CallStream) -> None: ...
    def give_back(self, stream: CallStream) -> None: ...
    def refuse(self, stream: CallStream, refusal: CallRefused) -> None: ...


def _ignore() -> None:
    pass


class CallStream:
    """The HTTP/2 stream of one call. `GrpcConnection` has its methods; the caller sets its callbacks.

    Attributes:
        messages: what has arrived, and nobody has taken yet.
        half_closed: the client sends no more.
        closed: nothing more can be sent: the call is finished, or its client is gone.
        refusal: why the transport ends the call; `on_end` is called then.
        on_message: called when a message has arrived, or no more can arrive.
        on_sent: called when all that was sent has left the stream.
        on_end: called when the method must stop: the client is gone (``closed``), or the call is refused.
    """

    __slots__ = (
        "closed",
        "connection",
        "half_closed",
        "head",
        "headers_sent",
        "is_finishing",
        "is_waiting",
        "messages",
        "on_end",
        "on_message",
        "on_sent",
        "reader",
        "refusal",
        "stream_id",
        "text",
        "trailers",
        "unacked_bytes",
        "unsent",
    )

    def __init__(self, connection: StreamConnection, stream_id: int, head: RequestHead | None, bytes_max: int) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.head = head
        self.reader = MessageReader("identity" if head is None else head.encoding, bytes_max)
        self.messages: deque[bytes] = deque()
        self.half_closed = False
        self.closed = False
        self.refusal: CallRefused | None = None
        self.on_message: Callable[[], None] = _ignore
        self.on_sent: Callable[[], None] = _ignore
        self.on_end: Callable[[], None] = _ignore
        self.unacked_bytes = 0
        self.is_waiting = False
        self.headers_sent = False
        self.text: NoGrpc | None = None
        self.unsent: memoryview = memoryview(b"")
        self.trailers = b""
        self.is_finishing = False

    # What `PartialRequests` needs.

    @property
    def unfinished_bytes(self) -> int:
        """The number of received bytes of the incomplete message."""
        return self.reader.unfinished_bytes

    def on_admit(self) -> None:
        """Receive the rest of the message: memory is reserved for it now."""
        self.is_waiting = False
        self.connection.give_back(self)

    def close(self, reason: str, /) -> None:
        """Refuse the call, because its message did not arrive in time."""
        self.connection.refuse(self, CallRefused(Status.RESOURCE_EXHAUSTED, reason))
