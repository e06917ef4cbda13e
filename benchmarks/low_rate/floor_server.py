"""The floor of all systems: a server that only writes each request to a file, syncs it, and responds.

A loop of epoll, receive, write, fdatasync and send, for one client after the other. Any more time that a broker takes
is its own. Run as ``python -m benchmarks.low_rate.floor_server PORT FILE``.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from contextlib import suppress

from benchmarks.load.frames import OPAQUE, complete_bytes
from benchmarks.load.null_server import reply

_FILE_BYTES = 64 * 2**20


def serve(port: int, path: str) -> None:
    """Respond to requests until the process is killed. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, _FILE_BYTES)
    os.fsync(fd)
    position = 0
    listener = socket.create_server(("127.0.0.1", port))
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    sockets: dict[int, socket.socket] = {}
    data = b""
    while True:
        for ready, _ in epoll.poll():
            if ready == listener.fileno():
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sockets[sock.fileno()] = sock
                epoll.register(sock.fileno(), select.EPOLLIN)
                continue
            sock = sockets[ready]
            try:
                chunk = sock.recv(65536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                epoll.unregister(ready)
                sockets.pop(ready).close()
                data = b""
                continue
            data += chunk
            _, end = complete_bytes(data)
            requests, data = data[:end], data[end:]
            if requests:
                if position + len(requests) > _FILE_BYTES:
                    position = 0
                position += os.pwrite(fd, requests, position)
                os.fdatasync(fd)
                with suppress(ConnectionError):  # the client has ended; its socket is ready again
                    sock.sendall(b"".join([reply(opaque) for opaque in OPAQUE.findall(requests)]))


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
