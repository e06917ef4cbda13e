"""Somebody who calls the replication port by hand: says what a replica would say, or something else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import trio

from raftlog.net import authentication
from raftlog.net import frames as wire
from raftlog.net.authentication import NONCE_BYTES, TAG_BYTES, AuthenticationFailed, Keys, Seal
from raftlog.net.caller_handshake import PURPOSE
from raftlog.net.frames import Hello, Kind, Welcome


async def call(port: int, *data: bytes, source: str = "127.0.0.1") -> trio.SocketStream:
    """A connection from the address ``source`` on which ``data`` was sent."""
    stream = await trio.open_tcp_stream("127.0.0.1", port, local_address=source)
    with contextlib.suppress(trio.BrokenResourceError):
        await stream.send_all(b"".join(data))
    return stream


async def received(stream: trio.SocketStream) -> bytes:
    """Everything until the replica closes the connection."""
    data = bytearray()
    with trio.fail_after(60), contextlib.suppress(trio.BrokenResourceError):
        while chunk := await stream.receive_some():
            data += chunk
    await stream.aclose()
    return bytes(data)


class Caller:
    """A connection after the challenge; ``tagged`` makes frames as they go over it."""

    def __init__(self, stream: trio.SocketStream, called: bytes, challenged: bytes, keys: Keys) -> None:
        self.stream = stream
        self.called = called
        self.challenged = challenged
        self.keys = keys
        self._seal = Seal(keys.caller)

    @classmethod
    async def open(cls, port: int, secrets: Sequence[bytes], nonce: bytes | None = None) -> Caller:
        """Call a replica, and check its answer. Raises AuthenticationFailed."""
        called = authentication.call(nonce or os.urandom(NONCE_BYTES), secrets)
        stream = await call(port, wire.encode_opening(Kind.CALL, called))
        try:
            kind, frame, _ = await _frame(stream, 0)
            challenged = wire.decode_opening(Kind.CHALLENGE, kind, frame[8:])
            return cls(stream, called, challenged, authentication.accept(PURPOSE, called, challenged, secrets))
        except AuthenticationFailed:
            await trio.aclose_forcefully(stream)
            raise

    def tagged(self, *frames: bytes) -> bytes:
        """These frames, each with the tag that belongs there."""
        parts = []
        for frame in frames:
            ((kind, view, _),), _ = wire.split_tagged(memoryview(frame), 0)
            parts += [frame, self._seal.tag(*wire.tagged_parts(kind, view))]
        return b"".join(parts)

    async def greet(self, hello: Hello) -> Welcome:
        """Say hello, and return the answer."""
        await self.stream.send_all(self.tagged(wire.encode_cold(hello)))
        kind, frame, tag = await _frame(self.stream, TAG_BYTES)
        Seal(self.keys.listener).check(tag, frame)
        answer = wire.decode_cold(kind, frame[8:])
        assert isinstance(answer, Welcome)
        return answer


async def _frame(stream: trio.SocketStream, tag_bytes: int) -> tuple[Kind, memoryview, memoryview]:
    data = bytearray()
    with trio.fail_after(60):
        while not (frames := wire.split_tagged(memoryview(bytes(data)), tag_bytes)[0]):
            chunk = await stream.receive_some()
            assert chunk, "the replica closed the connection"
            data += chunk
    return frames[0]
