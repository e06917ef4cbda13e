"""The frame that the log's writer sends: which one it is, and that its connection stays in order."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from raftlog.net.after_sync import AfterSync
from raftlog.net.authentication import TAG_BYTES, Seal
from raftlog.net.reactor import Reactor
from raftlog.net.stream import StreamSocket

KEY = b"k" * 32


class HeldWriter:
    """A writer whose syncs end when the test says so; it may send only the beginning of a frame."""

    def __init__(self) -> None:
        self.done_ticket = 0
        self._frame: tuple[int, int, bytes] | None = None
        self._sent = 0

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        if ticket <= self.done_ticket:
            return False
        self._frame = ticket, fd, frame
        return True

    def take_back(self) -> int:
        self._frame = None
        sent, self._sent = self._sent, 0
        return sent

    def sync(self, ticket: int, bytes_max: int = 1 << 20) -> None:
        self.done_ticket = ticket
        if self._frame is not None and self._frame[0] <= ticket:
            with socket.socket(fileno=self._frame[1]) as sock:
                self._sent = sock.send(self._frame[2][:bytes_max])
                sock.detach()
            self._frame = None


class Pair:
    """A stream with its seal, and the other end, which checks what comes."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        near, self.far = socket.socketpair()
        self.far.setblocking(False)
        self.stream = StreamSocket(self.reactor, near, len, lambda reason: None)
        self.seal, self.check = Seal(KEY), Seal(KEY)

    def send(self, frame: bytes) -> None:
        self.stream.send(frame + self.seal.tag(frame))
        self.stream.flush()

    def came(self, size: int) -> list[bytes]:
        """The frames of ``size`` bytes that have come, each with the tag of its place."""
        data = self.far.recv(1 << 16)
        frames = []
        while data:
            frame, tag, data = data[:size], data[size : size + TAG_BYTES], data[size + TAG_BYTES :]
            self.check.check(tag, frame)
            frames.append(frame)
        return frames


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.stream.close("done")
    pair.far.close()
    pair.reactor.close()


@pytest.fixture
def writer() -> HeldWriter:
    return HeldWriter()


@pytest.fixture
def after(writer: HeldWriter) -> AfterSync:
    return AfterSync(writer)


def test_writer_sends_the_acknowledgement_once_durable(pair: Pair, writer: HeldWriter, after: AfterSync) -> None:
    assert after.put(pair.stream, pair.seal, b"ack 1", 1)
    writer.sync(1)
    assert after.has_left()
    pair.send(b"other")
    assert pair.came(5) == [b"ack 1", b"other"]


def test_other_frames_do_not_wait_for_the_synced_frame(pair: Pair, writer: HeldWriter, after: AfterSync) -> None:
    assert after.put(pair.stream, pair.seal, b"ack 1", 1)
    after.before_use(pair.stream)
    pair.send(b"other")
    writer.sync(1)
    assert not after.has_left(), "the caller sends it"
    pair.send(b"ack 1")
    assert pair.came(5) == [b"other", b"ack 1"]


def test_rest_of_a_part_is_sent_before_other_frames(pair: Pair, writer: HeldWriter, after: AfterSync) -> None:
    assert after.put(pair.stream, pair.seal, b"ack 1", 1)
    writer.sync(1, bytes_max=3)
    after.before_use(pair.stream)
    pair.send(b"other")
    assert after.has_left()
    assert pair.came(5) == [b"ack 1", b"other"]


def test_acknowledgement_does_not_overtake_unsent_bytes(pair: Pair, after: AfterSync) -> None:
    pair.stream.send(b"other" + pair.seal.tag(b"other"))
    assert not after.put(pair.stream, pair.seal, b"ack 1", 1)
    pair.stream.flush()
    assert pair.came(5) == [b"other"]


def test_only_one_frame_waits_for_the_sync(pair: Pair, writer: HeldWriter, after: AfterSync) -> None:
    assert after.put(pair.stream, pair.seal, b"ack 1", 1)
    assert not after.put(pair.stream, pair.seal, b"ack 2", 2)
    writer.sync(1)
    assert after.has_left()
    assert not after.put(pair.stream, pair.seal, b"ack 1", 1), "it is durable already"
    assert after.put(pair.stream, pair.seal, b"ack 2", 2)
    writer.sync(2)
    assert pair.came(5) == [b"ack 1", b"ack 2"]


def test_writer_thread_does_not_send_to_a_closed_connection(pair: Pair, writer: HeldWriter, after: AfterSync) -> None:
    assert after.put(pair.stream, pair.seal, b"ack 1", 1)
    after.forget(pair.stream)
    pair.stream.close("closed")
    writer.sync(1)
    assert not after.has_left()
    assert pair.far.recv(100) == b""
    assert not after.put(pair.stream, pair.seal, b"ack 2", 2)


def test_writer_thread_does_not_send_to_a_reused_descriptor(pair: Pair, writer: HeldWriter, after: AfterSync) -> None:
    """A stream may close by itself, and its descriptor belong to a client before anybody forgets it."""
    fd = pair.stream.raw_fd
    assert after.put(pair.stream, pair.seal, b"ack 1", 1)
    pair.stream.close("the peer is gone")
    client, other_end = socket.socketpair()
    with client, other_end:
        other_end.setblocking(False)
        assert fd in (client.fileno(), other_end.fileno()), "the descriptor is used again"
        writer.sync(1)
        for end in (client, other_end):
            end.setblocking(False)
            with pytest.raises(BlockingIOError):
                end.recv(100)
    after.forget(pair.stream)


def test_caller_sends_the_frame_if_no_descriptor_is_free(pair: Pair, after: AfterSync) -> None:
    """The acknowledgement is the first one on a new connection, and clients have taken all descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(pair.stream.raw_fd)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        assert not after.put(pair.stream, pair.seal, b"ack 1", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    pair.send(b"ack 1")
    assert after.put(pair.stream, pair.seal, b"ack 2", 2), "there are descriptors again"
    after.forget(pair.stream)
    assert pair.came(5) == [b"ack 1"]
