"""Ports for servers that a test starts."""

from __future__ import annotations

from mq.local_cluster.port_reservation import OWN_PORTS


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens and that no other process chooses while this one lives, all different."""
    first = OWN_PORTS.reserve(count)
    return list(range(first, first + count))
