"""Decides the fate of each packet on a link that is slow, loses packets, or reorders them. Pure."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

OUTSIDE_CARD, OUTSIDE_PORT = "rmqf-out", -1
"""The network card outside of all namespaces, and its port number at the switch."""
QUEUE_SECONDS_MAX = 0.5
"""Maximum queueing time on a link of low rate; packets that would wait longer are lost."""


class Shape(msgspec.Struct, frozen=True):
    """The delay, loss and other faults of the packets of a link in one direction.

    Attributes:
        delay: seconds for each packet.
        jitter: plus or minus up to this many seconds, independently per packet, so that packets overtake each other.
        loss: fraction lost, 0 to 1.
        duplicate: fraction delivered twice.
        reorder: fraction that is not delayed, and overtakes earlier packets.
        rate: bytes per second, 0 for no limit.
        large: larger packets are lost, 0 for none.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    rate: float = 0.0
    large: int = 0


class PacketPath:
    """One direction of a link between two ports.

    Attributes:
        counts: the numbers of packets delayed, lost, duplicated, reordered, or kept waiting for the link.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.counts: Counter[str] = Counter()
        self._free_at = 0.0

    def due(self, now: float, nbytes: int, rng: Random) -> list[float]:
        """Return the arrival times of a packet sent at ``now``: none if it is lost, two if it is duplicated."""
        shape = self.shape
        if shape.large and nbytes > shape.large:
            self.counts["lost"] += 1
            return []
        if shape.loss and rng.random() < shape.loss:
            self.counts["lost"] += 1
            return []
        at = now
        if shape.rate:
            begins = max(now, self._free_at)
            if begins - now > QUEUE_SECONDS_MAX:
                self.counts["lost"] += 1
                return []
            self.counts["waited"] += begins > now
            self._free_at = at = begins + nbytes / shape.rate
        if shape.delay:
            if shape.reorder and rng.random() < shape.reorder:
                self.counts["reordered"] += 1
            else:
                self.counts["delayed"] += 1
                at += max(0.0, shape.delay + rng.uniform(-shape.jitter, shape.jitter))
        if shape.duplicate and rng.random() < shape.duplicate:
            self.counts["duplicated"] += 1
            return [at, at]
        return [at]
