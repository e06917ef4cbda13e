"""One gRPC call, as its method sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import trio

from mq.proxy.grpc.call_stream import CallStream
from mq.proxy.grpc.framing import frame_message
from mq.proxy.grpc.status import BrokenCall


class Call:
    """One gRPC call of a client.

    Attributes:
        path: ``/package.Service/Method``.
        metadata: of the client, by lower-case key; values of a repeated key are joined by a comma.
        binary_metadata: those whose keys end in ``-bin``, decoded.
        peer: ``address:port`` of the client; behind HAProxy as HAProxy names it.
        local_address: host and port to which the client connected; ("", 0) if that is not known.
        authority: the name by which the client knows the server, usually host:port.
        secure: the connection uses TLS.
        deadline: when the client gives up, in trio's time; None if never.
        drain_event: set when the server stops: long calls should end then.
    """

    __slots__ = (
        "_send_seconds_max",
        "_sent_event",
        "_stream",
        "_wake",
        "_woken",
        "authority",
        "binary_metadata",
        "deadline",
        "drain_event",
        "local_address",
        "metadata",
        "path",
        "peer",
        "secure",
    )

    def __init__(
        self,
        stream: CallStream,
        *,
        peer: str,
        local_address: tuple[str, int],
        secure: bool,
        deadline: float | None,
        drain_event: trio.Event,
        wake_writer: Callable[[], None],
        send_seconds_max: float,
    ) -> None:
        assert stream.head is not None, "an answer that is no call has no method"
        self.path = stream.head.path
        self.metadata: Mapping[str, str] = stream.head.metadata
        self.binary_metadata: Mapping[str, bytes] = stream.head.binary_metadata
        self.authority = stream.head.authority
        self.peer = peer
        self.local_address = local_address
        self.secure = secure
        self.deadline = deadline
        self.drain_event = drain_event
        self._stream = stream
        self._wake = wake_writer
        self._send_seconds_max = send_seconds_max
        self._woken = trio.Event()
        self._sent_event = trio.Event()
        stream.on_message = self._on_message
        stream.on_sent = self._on_sent

    @property
    def heard_at(self) -> float:
        """The time at which the client last sent something over this connection, in trio's time."""
        return self._stream.connection.heard_at

    @property
    def is_connection_lost(self) -> bool:
        """Whether the connection has ended."""
        return self._stream.connection.is_lost

    async def receive(self) -> bytes | None:
        """Wait for the client's next message; None when it sends no more. If cancelled, no message is lost."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            message = self._stream.connection.take(self._stream)
            if message is not None:
                self._wake()
                return message
            if self._stream.half_closed:
                return None
            if self._stream.closed:
                raise BrokenCall("the client has cancelled the call, or is gone")
            self._woken = trio.Event()
            await self._woken.wait()

    async def send(self, message: bytes) -> None:
        """Send a message. Waits until flow control and socket take all of it. Only one task may call it at a time.

        Raises BrokenCall: the client is gone, or has not read for too long; it may have the message or not. Cancelled,
        the call can only be ended.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        stream = self._stream
        compress = stream.head is not None and stream.head.gzip_answers
        self._sent_event = trio.Event()
        is_sent = stream.connection.send(stream, frame_message(message, compress=compress))
        self._wake()
        if not is_sent:
            with trio.move_on_after(self._send_seconds_max) as send_scope:
                await self._sent_event.wait()
            if send_scope.cancelled_caught:
                stream.connection.abandon(stream)
                self._wake()
                raise BrokenCall(f"the client has not read for {self._send_seconds_max:g} s")
            if stream.unsent:
                raise BrokenCall("the client has cancelled the call, or is gone")

    def _on_message(self) -> None:
        self._woken.set()

    def _on_sent(self) -> None:
        self._sent_event.set()
