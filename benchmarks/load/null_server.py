"""A server that only acknowledges every frame: it shows the highest rate that the load generator can reach.

A broker's measurement is valid only where the generator could have been faster. Run as ``python -m
benchmarks.load.null_server PORT``; ends with its standard input.
"""

from __future__ import annotations

import select
import socket
import struct
import sys

from benchmarks.load.frames import OPAQUE, complete_bytes

_REPLY = b'{"code":0,"extFields":{"msgId":"7F00000100002A9F0000000000000000","queueId":"0","queueOffset":"0"},"flag":1,'


def reply(opaque: bytes) -> bytes:
    """Encode the acknowledgement of a send."""
    header = _REPLY + b'"opaque":%b}' % opaque
    return struct.pack(">II", 4 + len(header), len(header)) + header


def serve(port: int) -> None:
    """Answer every send until standard input ends. The generator has so few requests in flight that no write blocks."""
    listener = socket.create_server(("127.0.0.1", port))
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    epoll.register(sys.stdin.fileno(), select.EPOLLIN)
    connections: dict[int, tuple[socket.socket, bytearray]] = {}
    replies: dict[bytes, bytes] = {}
    buffer = memoryview(bytearray(256 * 1024))
    while True:
        for fd, _ in epoll.poll():
            if fd == sys.stdin.fileno():
                return
            if fd == listener.fileno():
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[sock.fileno()] = sock, bytearray()
                epoll.register(sock.fileno(), select.EPOLLIN)
                continue
            sock, data = connections[fd]
            try:
                size = sock.recv_into(buffer)
            except ConnectionResetError:
                size = 0
            if not size:
                epoll.unregister(fd)
                del connections[fd]
                sock.close()
                continue
            data += buffer[:size]
            _, end = complete_bytes(data)
            opaques = OPAQUE.findall(data[:end])
            del data[:end]
            for opaque in opaques:
                if opaque not in replies:
                    replies[opaque] = reply(opaque)
            sock.sendall(b"".join([replies[opaque] for opaque in opaques]))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
