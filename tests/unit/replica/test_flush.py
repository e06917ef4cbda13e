"""What many streams have to send at the end of a turn, in both forms of flushing."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest
import trio

from raftlog import Reactor, SniffingSocket, StreamSocket


class Peer:
    """A connection that only sends."""

    def __init__(self, reactor: Reactor, sock: socket.socket) -> None:
        self.stream = StreamSocket(reactor, sock, len, lambda reason: None, patient=True)


@pytest.fixture(params=[True, False], ids=["as installed", "in Python"])
def flushing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of flushing; they are the same where nothing is compiled."""
    if not request.param:
        monkeypatch.setattr("raftlog.net.flush.send_single_buffers", lambda streams, calls: streams)


@contextlib.contextmanager
def many(count: int, *, small_buffers: bool = False) -> Iterator[tuple[Reactor, list[Peer], list[socket.socket]]]:
    """A reactor that does not run, with ``count`` connections, and their other ends."""
    reactor, servers, clients = Reactor(), list[Peer](), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(count):
            client = socket.create_connection(listener.getsockname())
            sock, _ = listener.accept()
            if small_buffers:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            clients.append(client)
            servers.append(Peer(reactor, sock))
    try:
        yield reactor, servers, clients
    finally:
        for client, server in zip(clients, servers, strict=True):
            client.close()
            server.stream.close("the test is over")
        reactor.close()


@pytest.mark.usefixtures("flushing")
async def test_turn_sends_the_bytes_of_every_stream() -> None:
    with many(300) as (reactor, servers, clients):
        for number, server in enumerate(servers):
            for part in range(number % 3):
                server.stream.send(b"%d/%d " % (number, part))
        reactor.end_turn()
        assert not any(server.stream.out_bytes for server in servers)
        for number, client in enumerate(clients):
            if number % 3:
                client.settimeout(60)
                assert client.recv(100) == b"".join(b"%d/%d " % (number, part) for part in range(number % 3))
        servers[1].stream.send(b"again")
        reactor.end_turn()
        assert clients[1].recv(100) == b"again"


@pytest.mark.usefixtures("flushing")
async def test_data_queued_after_an_early_flush_is_sent_once() -> None:
    """The stream is marked twice in such a turn."""
    with many(3) as (reactor, servers, clients):
        for server in servers:
            server.stream.send(b"one ")
            server.stream.flush()
            server.stream.send(b"two ")
        servers[2].stream.flush()
        reactor.end_turn()
        assert reactor.unsent.nbytes == 0
        for server, client in zip(servers, clients, strict=True):
            server.stream.send(b"three")
            reactor.end_turn()
            client.settimeout(60)
            received = b""
            while not received.endswith(b"three"):
                received += client.recv(100)
            assert received == b"one two three"


@pytest.mark.usefixtures("flushing")
async def test_stalled_reader_gets_the_rest_later_and_does_not_delay_others() -> None:
    data = bytes(range(256)) * 4000
    with many(3, small_buffers=True) as (reactor, servers, clients):
        servers[0].stream.send(data)
        servers[1].stream.send(b"one")
        servers[2].stream.send(b"two")
        reactor.end_turn()
        left = servers[0].stream.out_bytes
        assert 0 < left < len(data)
        assert reactor.unsent.nbytes == left
        assert (clients[1].recv(10), clients[2].recv(10)) == (b"one", b"two")
        servers[0].stream.send(b"the end")  # behind the rest
        reactor.end_turn()
        assert reactor.unsent.nbytes == servers[0].stream.out_bytes >= left
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            received = bytearray()
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(clients[0].dup()))
            with trio.fail_after(60):
                while len(received) < len(data) + len(b"the end"):
                    received += await stream.receive_some()
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(stream)
        assert received == data + b"the end"
        assert reactor.unsent.nbytes == 0


@pytest.mark.usefixtures("flushing")
async def test_closing_a_connection_does_not_close_others() -> None:
    with many(4) as (reactor, servers, clients):
        _reset(clients[0])
        clients[1].shutdown(socket.SHUT_WR)  # it still reads
        for server in servers:
            server.stream.send(b"reply")
        servers[2].stream.close("closed in the turn that sends")
        reactor.end_turn()
        servers[0].stream.send(b"more")
        reactor.end_turn()
        assert [server.stream.closed for server in servers] == [True, False, True, False]
        assert clients[1].recv(10) == clients[3].recv(10) == b"reply"
        assert clients[2].recv(10) == b""


def _reset(client: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.usefixtures("flushing")
async def test_possible_tls_socket_is_flushed_by_its_own_methods() -> None:
    with many(2) as (reactor, peers, clients), socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
        sniffing = SniffingSocket(sock, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), lambda reason: None)
        stream = StreamSocket(reactor, sniffing, len, lambda reason: None, patient=True)
        assert stream.raw_fd == -1
        for each in (stream, *[peer.stream for peer in peers]):
            each.send(b"reply")
        reactor.end_turn()
        # It does not know yet whether to encrypt.
        assert [each.out_bytes for each in (stream, *[peer.stream for peer in peers])] == [5, 0, 0]
        assert [other.recv(10) for other in clients] == [b"reply", b"reply"]
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(10)
        stream.close("the test is over")
        client.close()
