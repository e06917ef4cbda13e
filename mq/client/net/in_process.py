"""Connects clients to servers in the same process without a network: those of the test kit, `mq.testing`.

A network has an IP address of its own. Clients that connect to it get one end of a pair of sockets, whichever event
loop they run on; others notice nothing.
"""

from __future__ import annotations

import errno
import socket
from typing import Protocol

import anyio.abc


class InProcessNetwork(Protocol):
    """A network of servers in this process. Any thread may use it."""

    def connect(self, port: int) -> socket.socket:
        """Return the client's end of a new connection. Raises OSError if no server listens at this port."""


in_process_networks: dict[str, InProcessNetwork] = {}
"""The networks by IP address. The opener of a network adds it here, and removes it."""


closed_networks: set[str] = set()
"""IP addresses of networks that were removed: no other network has them, so their clients need not wait for an answer.
"""


async def connect_in_process(host: str, port: int) -> anyio.abc.ByteStream | None:
    """Connect to a server in this process. Returns None if `host` is not one. Raises OSError."""
    network = in_process_networks.get(host)
    if network is None:
        if host in closed_networks:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the test kit of this server is closed")
        return None
    sock = network.connect(port)
    try:
        return await anyio.abc.SocketStream.from_socket(sock)
    except BaseException:
        sock.close()
        raise
