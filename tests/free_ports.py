"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different.

    They lie below the range from which the kernel takes ports for outgoing connections: one from that range could be
    lost to such a connection before the server listens.
    """
    rng = random.Random()
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            port = rng.randrange(12_000, 32_000)
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    return ports
