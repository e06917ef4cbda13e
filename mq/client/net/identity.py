"""The client's id: `ip@pid#number`, as in every RocketMQ client.

A client gets its identity when it is opened, not when it is made: the process may have been forked in between.
"""

from __future__ import annotations

import itertools
import os
import random
import socket
import time

from mq.protocol.message_ids import UniqKeyGenerator

# Process ids repeat (every container has a process 1), but ids within a group must be unique: numbers count up from the
# start time of the process.
_numbers = itertools.count(time.time_ns())


def local_ip() -> str:
    """Return the address from which this host sends packets, if possible IPv4; 127.0.0.1 without a network."""
    # Addresses for documentation: routed like any other; connecting sends nothing.
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def new_client_id() -> str:
    """Make an id that no other client in the cluster has."""
    return f"{local_ip()}@{os.getpid()}#{next(_numbers)}"


def new_random(generator: random.Random | None, made_in: int) -> random.Random:
    """Return the random generator for a client that is opened now: the given one, or a new one.

    `made_in` is the process in which the client was made; a process that was forked from it has a copy of the
    generator, which would give the same numbers.
    """
    if generator is None:
        return random.Random()
    if made_in == os.getpid():
        return generator
    return random.Random(f"{generator.getrandbits(64)} {os.getpid()}")


def new_unique_keys(rng: random.Random) -> UniqKeyGenerator:
    """Make the generator of the unique keys of one client's messages."""
    return UniqKeyGenerator(
        ip=local_ip(), pid=os.getpid(), salt=rng.getrandbits(32), wall_clock_ms=lambda: time.time_ns() // 1_000_000
    )
