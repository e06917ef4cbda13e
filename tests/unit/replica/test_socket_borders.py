"""What Linux does with receives and sends of TCP sockets that do not block, as simulated sockets assume."""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Iterator

import pytest

Pair = tuple[socket.socket, socket.socket]
WAIT_SECONDS = 30.0


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a connection, with small buffers; the first one does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for sock in (server, client):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    server.setblocking(False)
    client.settimeout(WAIT_SECONDS)
    with server, client:
        yield server, client


def wait_for(sock: socket.socket, *, writable: bool = False) -> None:
    found = select.select([] if writable else [sock], [sock] if writable else [], [], WAIT_SECONDS)
    assert any(found), "nothing happened"


def test_receive_fills_its_buffer_across_sends(pair: Pair) -> None:
    server, client = pair
    client.sendall(b"first")
    client.sendall(b"second")
    buffer, received = bytearray(3), b""
    while len(received) < len(b"firstsecond"):
        wait_for(server)
        received += buffer[: server.recv_into(buffer)]
    assert received == b"firstsecond"
    with pytest.raises(BlockingIOError) as refused:
        server.recv_into(buffer)
    assert refused.value.errno == errno.EAGAIN


def test_send_blocks_until_the_peer_reads(pair: Pair) -> None:
    server, client = pair
    data = bytes(8 << 20)
    sent = server.send(data)
    assert 0 < sent < len(data)
    blocked = False
    while not blocked:
        try:
            sent += server.send(data)
        except BlockingIOError as error:
            blocked = error.errno == errno.EAGAIN
    received = 0
    while received < sent:
        received += len(client.recv(1 << 20))
    wait_for(server, writable=True)
    assert server.send(b"more") == 4


def test_reset_is_raised_after_the_received_bytes(pair: Pair) -> None:
    server, client = pair
    client.sendall(b"before")
    wait_for(server)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while not poll.poll(1000 * WAIT_SECONDS)[0][1] & select.POLLERR:
        pass
    assert server.recv(100) == b"before"
    with pytest.raises(ConnectionResetError):
        server.recv(100)
    with pytest.raises(BrokenPipeError):
        server.send(b"reply")
    assert server.recv(100) == b"", "a second receive sees the end"
