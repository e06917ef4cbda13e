"""Reserves ports for servers, so that no other process chooses them at the same time.

A port that is free now may be chosen by another process, too, before a server listens there, or while that server is
restarted. So each process reserves blocks of ports until it ends, and chooses ports within them. A block is reserved by
binding an abstract Unix socket named after it: only one process can bind a name, the kernel frees it when that process
ends, and names are local to a network namespace, as ports are. Systems other than Linux have no such sockets: there a
process only draws its blocks at random.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
from contextlib import ExitStack

HOST = "127.0.0.1"
BLOCK_PORTS = 200
"""Ports of a block. Metrics ports are 100 above client ports, so only the first half is for servers."""
METRICS_ABOVE = 100
PORTS_MIN, PORTS_MAX = 12_000, 32_000
"""Half-open, and below the kernel's usual range for outgoing connections: one of them could take a port from that range
between the death of a broker and its restart."""
BLOCKS_KEPT = 5
"""A process reserves this number of blocks, one when the last is used up. Then it uses them in turn."""


class NoFreePorts(Exception):
    """Other processes reserved all blocks of ports, or other programs listen on their ports."""


class OwnPorts:
    """The blocks of ports that this process has reserved."""

    def __init__(self, first: int = PORTS_MIN, last: int = PORTS_MAX) -> None:
        self._bases = range(first, last, BLOCK_PORTS)
        self._descriptors: dict[int, int] = {}
        """By base port of each block of this process: the file descriptor of the socket that reserves it, or -1."""
        self._turn: list[int] = []
        """Blocks from which single runs are taken, in the order in which they are used."""
        self._next = 0
        """How many ports of the present block, the last of ``_turn``, were handed out."""
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def reserve(self, count: int, *, blocks: int = 1) -> int:
        """Reserve ``count`` consecutive ports, and return the first. They and those 100 above them are free.

        With ``blocks`` the same holds 200, 400, ... ports above, for each further block. The same ports are returned
        again after some hundred others. Raises NoFreePorts.
        """
        assert 0 < count <= METRICS_ABOVE, f"{count} ports of a block that has {METRICS_ABOVE}"
        with self._lock:
            if self._pid != os.getpid():  # a fork: the blocks are its parent's
                self._descriptors, self._turn, self._next, self._pid = {}, [], 0, os.getpid()
            if blocks > 1:
                return self._take_several(count, blocks)
            for _ in range(1 + 2 * BLOCKS_KEPT):  # each block once, also if it is the last to be reserved
                if self._turn:
                    base = self._turn[-1]
                    for port in range(base + self._next, base + METRICS_ABOVE - count + 1):
                        if _are_free(port, count):
                            self._next = port + count - base
                            return port
                self._open_block()
            raise NoFreePorts(self._refusal(count, 1))

    def release(self) -> None:
        """Release all blocks. Programs that still listen on their ports may be disturbed."""
        with self._lock:
            for descriptor in self._descriptors.values():
                if descriptor >= 0:
                    os.close(descriptor)
            self._descriptors, self._turn, self._next = {}, [], 0

    def _open_block(self) -> None:
        """Go on with another block."""
        if len(self._turn) < BLOCKS_KEPT and (base := self._reserve_some(1)) is not None:
            self._turn.append(base)
        elif self._turn:
            self._turn.append(self._turn.pop(0))
        self._next = 0

    def _take_several(self, count: int, blocks: int) -> int:
        while (base := self._reserve_some(blocks)) is not None:
            if all(_are_free(base + number * BLOCK_PORTS, count) for number in range(blocks)):
                return base
        raise NoFreePorts(self._refusal(count, blocks))

    def _reserve_some(self, blocks: int) -> int | None:
        """Reserve blocks that follow each other; returns the base of the first. None if there are none."""
        bases = list(self._bases[: len(self._bases) - blocks + 1])
        random.shuffle(bases)
        for base in bases:
            block_ports = [base + number * BLOCK_PORTS for number in range(blocks)]
            if self._descriptors.keys().isdisjoint(block_ports) and self._reserve(block_ports):
                return base
        return None

    def _reserve(self, bases: list[int]) -> bool:
        if sys.platform != "linux":
            self._descriptors.update(dict.fromkeys(bases, -1))
            return True
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in bases]
            try:
                for base, holder in zip(bases, sockets, strict=True):
                    holder.bind(f"\0raftmq-ports-{base}")
            except OSError:
                return False
            self._descriptors.update((base, holder.detach()) for base, holder in zip(bases, sockets, strict=True))
        return True

    def _refusal(self, count: int, blocks: int) -> str:
        row = f"{count} in a row" + (f", {blocks} times {BLOCK_PORTS} apart" if blocks > 1 else "")
        return f"no free ports ({row}) were found from {self._bases.start} to {self._bases.stop - 1}"


def is_free(port: int) -> bool:
    """Whether this port of the loopback address is free."""
    with socket.socket() as probe:
        # Remains of closed connections do not block a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _are_free(first: int, count: int) -> bool:
    return all(is_free(port + above) for port in range(first, first + count) for above in (0, METRICS_ABOVE))


OWN_PORTS = OwnPorts()
"""The ports of this process."""
