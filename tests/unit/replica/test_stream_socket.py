"""Chunks in, buffers out: connections of a reactor against real sockets."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest
import trio
import trio.testing

from raftlog import Listener, Reactor, StreamSocket
from raftlog.net.reactor import RECEIVE_BYTES, Mailbox
from tests.support.waiting import until


class Server:
    """The end that the reactor serves: takes frames of a 4-byte length and that many bytes."""

    def __init__(self, reactor: Reactor, sock: socket.socket, *, patient: bool = False) -> None:
        self.frames: list[bytes] = []
        self.seen: list[int] = []
        self.closed: list[str] = []
        self.on_frame: Callable[[bytes], None] = self.frames.append
        self._changed = trio.Event()
        self.stream = StreamSocket(reactor, sock, self._on_data, self._on_closed, patient=patient)

    def _on_data(self, data: memoryview) -> int:
        self.seen.append(len(data))
        at = 0
        while len(data) - at >= 4:
            (length,) = struct.unpack_from(">I", data, at)
            if len(data) - at < 4 + length:
                break
            self.on_frame(bytes(data[at + 4 : at + 4 + length]))
            at += 4 + length
            if self.stream.closed:
                break
        self._notify()
        return at

    def _on_closed(self, reason: str) -> None:
        self.closed.append(reason)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, done: Callable[[], bool]) -> None:
        with trio.fail_after(60):
            while not done():
                await self._changed.wait()


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


@contextlib.asynccontextmanager
async def reacting() -> AsyncIterator[Reactor]:
    reactor = Reactor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reactor.run)
        yield reactor
        nursery.cancel_scope.cancel()
    reactor.close()


@contextlib.asynccontextmanager
async def connected(
    reactor: Reactor, *, send_buffer: int | None = None
) -> AsyncIterator[tuple[Server, trio.SocketStream]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
    if send_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, send_buffer)
    client.setblocking(False)
    server = Server(reactor, sock)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
    try:
        yield server, stream
    finally:
        await trio.aclose_forcefully(stream)
        server.stream.close("the test is over")


async def read_all(stream: trio.SocketStream) -> bytes:
    received = bytearray()
    with trio.fail_after(60):
        while chunk := await stream.receive_some():
            received += chunk
    return bytes(received)


# -- in ----------------------------------------------------------------------------------------------------------------


async def test_frames_cut_at_every_place_come_whole() -> None:
    data = framed(b"first", b"", b"third one")
    async with reacting() as reactor, connected(reactor) as (server, client):
        for cut in range(1, len(data)):
            server.frames.clear()
            server.seen.clear()
            await client.send_all(data[:cut])
            await server.until(lambda: bool(server.seen))
            await client.send_all(data[cut:])
            await server.until(lambda: len(server.frames) == 3)
            assert server.frames == [b"first", b"", b"third one"]
            # What was taken is not shown again, what was not is shown in front of what comes.
            taken = sum(4 + len(frame) for frame in server.frames)
            assert server.seen[-1] <= taken
            assert len(server.seen) == 2


@pytest.mark.parametrize(
    "sizes",
    [
        [RECEIVE_BYTES - 5, RECEIVE_BYTES - 4, RECEIVE_BYTES - 3],
        [2 * RECEIVE_BYTES - 4, 2 * RECEIVE_BYTES, 2 * RECEIVE_BYTES + 1],
        [3_000_000, 0, 1, 3_000_000, 7],
        [70_000] * 50,
        [10] * 20_000,
    ],
    ids=["a receive", "two receives", "large", "many large", "many small"],
)
async def test_small_frames_arrive_behind_large_frames(sizes: list[int]) -> None:
    bodies = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    async with reacting() as reactor, connected(reactor) as (server, client):
        with trio.fail_after(60):
            await client.send_all(framed(*bodies))
            await server.until(lambda: len(server.frames) == len(bodies))
        assert server.frames == bodies
        await client.send_all(framed(b"more"))
        await server.until(lambda: len(server.frames) > len(bodies))
        assert server.frames[-1] == b"more"


@pytest.mark.parametrize(("patient", "turns"), [(False, 1), (True, 3)], ids=["replica", "client"])
async def test_chunks_of_a_replica_are_received_in_one_turn(patient: bool, turns: int) -> None:
    frame = framed(bytes(2 * RECEIVE_BYTES + 1000))
    reactor = Reactor()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        with socket.create_connection(listener.getsockname()) as client:
            sock, _ = listener.accept()
            server = Server(reactor, sock, patient=patient)
            client.sendall(frame)
            await until(lambda: _waiting_bytes(sock) == len(frame))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reactor.run)
                await server.until(lambda: bool(server.frames))
                nursery.cancel_scope.cancel()
    assert server.frames == [frame[4:]]
    assert reactor.turns == turns
    server.stream.close("the test is over")
    reactor.close()


def _waiting_bytes(sock: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, bytes(4)))
    return int(count)


async def test_connections_do_not_see_each_others_bytes() -> None:
    """All of them are received into the same memory."""
    async with reacting() as reactor, contextlib.AsyncExitStack() as stack:
        pairs = [await stack.enter_async_context(connected(reactor)) for _ in range(5)]
        bodies = [bytes([65 + number]) * 30_000 for number in range(5)]
        for cut in range(0, 30_004, 5000):
            for (_, client), body in zip(pairs, bodies, strict=True):
                await client.send_all(framed(body)[cut : cut + 5000])
        for (server, _), body in zip(pairs, bodies, strict=True):
            await server.until(lambda server=server: bool(server.frames))  # type: ignore[misc]
            assert server.frames == [body]


# -- out ---------------------------------------------------------------------------------------------------------------


async def test_buffers_leave_in_order_and_once() -> None:
    async with reacting() as reactor, connected(reactor) as (server, client):
        server.stream.send(b"one")
        server.stream.send_all([b"", memoryview(b"two"), b"three"], 8)
        assert server.stream.out_bytes == 11
        reactor.wake()
        with trio.fail_after(60):
            assert await client.receive_some(100) == b"onetwothree"
        assert server.stream.out_bytes == 0


async def test_slow_reader_gets_all_output_eventually() -> None:
    buffers: list[bytes | memoryview] = [bytes([number % 251]) * (1 + 2 * number) for number in range(1200)]
    expected = b"".join(buffers)
    async with reacting() as reactor, connected(reactor, send_buffer=65536) as (server, client):
        server.stream.send_all(list(buffers), len(expected))
        reactor.end_turn()
        waiting = server.stream.out_bytes
        assert 0 < waiting < len(expected), "the kernel took everything, or nothing"
        # More to send while it waits is kept in order, and costs no turn of its own.
        server.stream.send(b"behind")
        reactor.end_turn()
        assert server.stream.out_bytes == waiting + 6
        received = bytearray()
        with trio.fail_after(60):
            while len(received) < len(expected) + 6:
                received += await client.receive_some()
        assert bytes(received) == expected + b"behind"
        assert server.stream.out_bytes == 0
        # Nothing waits to be written any more, so an idle connection costs no turns.
        with trio.fail_after(60):
            await trio.testing.wait_all_tasks_blocked()
            turns = reactor.turns
            await trio.testing.wait_all_tasks_blocked(0.005)
        assert reactor.turns == turns
        server.stream.send(b"again")
        reactor.wake()
        with trio.fail_after(60):
            assert await client.receive_some(100) == b"again"


async def test_slow_reader_is_heard_meanwhile() -> None:
    async with reacting() as reactor, connected(reactor, send_buffer=8192) as (server, client):
        server.stream.send(bytes(4_000_000))
        reactor.end_turn()
        assert server.stream.out_bytes > 0
        await client.send_all(framed(b"hello"))
        await server.until(lambda: server.frames == [b"hello"])


async def test_answers_of_a_turn_leave_at_its_end() -> None:
    order: list[str] = []
    async with reacting() as reactor, connected(reactor) as (server, client):
        reactor.at_turn_end(lambda: order.append(f"{server.stream.out_bytes} wait"))
        server.on_frame = lambda body: server.stream.send(body[::-1])
        await client.send_all(framed(b"abc", b"def"))
        with trio.fail_after(60):
            assert await client.receive_some(100) == b"cbafed"
        assert "6 wait" in order


# -- other tasks ----------------------------------------------------------------------------------------------------


async def test_other_tasks_run_while_events_never_stop() -> None:
    async with reacting() as reactor:
        ends_at = time.monotonic() + 30
        is_busy = True

        def keep_busy() -> None:
            nonlocal is_busy
            is_busy = is_busy and time.monotonic() < ends_at
            if is_busy:
                reactor.wake()

        reactor.at_turn_end(keep_busy)
        reactor.wake()
        for _ in range(20):
            await trio.sleep(0.001)
        assert is_busy, "no other task ran until the events stopped"
        is_busy = False


# -- turns that are due ------------------------------------------------------------------------------------------------


async def turn_after(reactor: Reactor, seconds: float) -> float:
    """Request a turn from within another one; how long it took, if nothing else happens."""
    times: list[float] = []
    done = trio.Event()

    def end() -> None:
        times.append(trio.current_time())
        if len(times) == 1:
            reactor.turn_within(seconds)
        else:
            done.set()

    reactor.at_turn_end(end)
    reactor.wake()
    with trio.fail_after(60):
        await done.wait()
    reactor._turn_end.remove(end)
    return times[1] - times[0]


async def test_requested_turn_comes_without_any_event() -> None:
    async with reacting() as reactor:
        for seconds in (0.0, 0.0004, 0.002):
            assert await turn_after(reactor, seconds) >= seconds


async def test_turn_requested_between_turns_comes_too() -> None:
    """Timers end turns outside of the reactor's task."""
    async with reacting() as reactor:
        await trio.testing.wait_all_tasks_blocked()
        came = trio.Event()
        reactor.at_turn_end(came.set)
        reactor.turn_within(0.001)
        with trio.fail_after(60):
            await came.wait()


async def test_each_turn_ends_the_request() -> None:
    async with reacting() as reactor:
        await turn_after(reactor, 0.0005)
        await trio.testing.wait_all_tasks_blocked(0.005)
        turns = reactor.turns
        await trio.testing.wait_all_tasks_blocked(0.005)
        assert reactor.turns == turns


async def test_input_before_a_requested_turn_is_served_first() -> None:
    async with reacting() as reactor, connected(reactor) as (server, client):
        asked = False

        def end() -> None:
            nonlocal asked
            if not asked:
                asked = True
                reactor.turn_within(30.0)

        reactor.at_turn_end(end)
        # From another thread, since no other task runs until the turn.
        thread = threading.Timer(0.01, os.write, (client.socket.fileno(), framed(b"early")))
        thread.start()
        reactor.wake()
        await server.until(lambda: server.frames == [b"early"])
        thread.join()


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, RECEIVE_BYTES + 1, 2_000_000])
async def test_closing_in_a_handler_drops_later_frames(size: int) -> None:
    """What came behind the frame that closed the connection is dropped, whatever memory it lay in."""
    async with reacting() as reactor, connected(reactor) as (server, client):

        def close(body: bytes) -> None:
            server.frames.append(body)
            server.stream.close("enough")

        server.on_frame = close
        with contextlib.suppress(trio.BrokenResourceError):
            await client.send_all(framed(bytes(size), b"never"))
        await server.until(lambda: bool(server.closed))
        assert server.frames == [bytes(size)]
        assert server.closed == ["enough"]
        server.stream.close("again")
        server.stream.send(b"x")
        server.stream.send_all([b"x"], 1)
        server.stream.flush()
        assert server.closed == ["enough"]
        assert server.stream.closed
        assert server.stream.out_bytes == 0
        with contextlib.suppress(trio.BrokenResourceError):
            assert await read_all(client) == b""


async def test_handler_may_close_another_connection_of_the_same_turn() -> None:
    async with reacting() as reactor, connected(reactor) as (one, first), connected(reactor) as (other, second):
        one.on_frame = lambda body: other.stream.close("by the first")
        other.on_frame = lambda body: one.stream.close("by the second")
        await first.send_all(framed(b"x"))
        await second.send_all(framed(b"x"))
        await one.until(lambda: bool(one.closed or other.closed))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(one.closed + other.closed) in (["by the first"], ["by the second"])


async def test_peer_closing_ends_stream() -> None:
    async with reacting() as reactor, connected(reactor) as (server, client):
        await client.send_all(framed(b"whole") + b"\x00\x00")
        await client.aclose()
        await server.until(lambda: bool(server.closed))
        assert server.frames == [b"whole"]
        assert server.closed == ["closed by peer"]


async def test_unread_client_waits_and_may_disconnect() -> None:
    async with reacting() as reactor, connected(reactor) as (server, client):
        await client.send_all(framed(b"one") + b"\x00\x00")
        await server.until(lambda: server.frames == [b"one"])
        assert server.stream.unfinished_bytes == 2
        server.stream.stop_reading()
        await client.send_all(b"\x00\x01x")
        server.stream.send(b"answer")  # it may still be written to
        reactor.end_turn()
        assert await client.receive_some(6) == b"answer"
        await trio.testing.wait_all_tasks_blocked()
        assert server.frames == [b"one"]
        server.stream.go_on_reading()
        await server.until(lambda: server.frames == [b"one", b"x"])
        server.stream.stop_reading()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
        await server.until(lambda: bool(server.closed))


async def test_unsent_bytes_are_counted() -> None:
    async with reacting() as reactor, connected(reactor, send_buffer=8192) as (server, client):
        assert reactor.unsent.nbytes == 0
        server.stream.send(bytes(400_000))
        assert reactor.unsent.nbytes == 0  # not even tried
        reactor.end_turn()
        assert 0 < reactor.unsent.nbytes == server.stream.out_bytes < 400_000
        server.stream.send(bytes(100_000))
        reactor.end_turn()
        assert 400_000 < reactor.unsent.nbytes == server.stream.out_bytes
        received = 0
        with trio.fail_after(60):
            while received < 500_000:
                received += len(await client.receive_some())
        assert (received, reactor.unsent.nbytes) == (500_000, 0)
        server.stream.send(bytes(400_000))
        reactor.end_turn()
        assert reactor.unsent.nbytes > 0
        server.stream.close("enough")
        assert reactor.unsent.nbytes == 0


async def test_peer_resetting_ends_stream() -> None:
    async with reacting() as reactor, connected(reactor, send_buffer=8192) as (server, client):
        server.stream.send(bytes(4_000_000))
        reactor.end_turn()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
        await server.until(lambda: bool(server.closed))
        assert len(server.closed) == 1
        assert "failed: " in server.closed[0]
        assert server.stream.out_bytes == 0


async def test_aborting_resets_the_connection() -> None:
    async with reacting() as reactor, connected(reactor) as (server, client):
        server.stream._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.stream.close("abort")
        with pytest.raises(trio.BrokenResourceError) as broken, trio.fail_after(60):
            await client.receive_some()
        assert isinstance(broken.value.__cause__, ConnectionResetError)


# -- listening, and values of other threads ----------------------------------------------------------------------------


async def test_listener_hands_over_every_connection() -> None:
    async with reacting() as reactor:
        servers: list[Server] = []
        listener = Listener(reactor, "127.0.0.1", 0, lambda sock: servers.append(Server(reactor, sock)))
        clients = [await trio.open_tcp_stream("127.0.0.1", listener.port) for _ in range(3)]
        for client in clients:
            await client.send_all(framed(b"x"))
        with trio.fail_after(60):
            while len(servers) < 3:
                await trio.testing.wait_all_tasks_blocked()
        assert {server.stream.peer for server in servers} == {client.socket.getsockname() for client in clients}
        with pytest.raises(OSError, match="in use") as in_use:
            Listener(reactor, "127.0.0.1", listener.port, lambda sock: None)
        assert in_use.value.errno == errno.EADDRINUSE
        listener.close()
        assert listener.closed
        with pytest.raises(OSError, match=r"refused|connect"):
            await trio.open_tcp_stream("127.0.0.1", listener.port)
        await clients[0].send_all(framed(b"still here"))
        (served,) = [server for server in servers if server.stream.peer == clients[0].socket.getsockname()]
        await served.until(lambda: served.frames[-1:] == [b"still here"])
        for client in clients:
            await client.aclose()
        for server in servers:
            server.stream.close("the test is over")


async def test_values_of_threads_arrive_in_order() -> None:
    async with reacting() as reactor:
        received: list[object] = []
        arrived = trio.Event()

        def deliver(value: object) -> None:
            received.append(value)
            if value == 999:
                arrived.set()

        mailbox = Mailbox(reactor, deliver)

        def put_all() -> None:
            for number in range(1000):
                mailbox.put(number)

        await trio.to_thread.run_sync(put_all)
        with trio.fail_after(60):
            await arrived.wait()
        assert received == list(range(1000))
        mailbox.close()
