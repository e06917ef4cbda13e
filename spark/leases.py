"""Leases on the logs of brokers, so that retention does not overtake a scan: taken by the driver, renewed by its tasks.

All tasks that read a topic from a broker group share one lease, which reaches from the beginning of the scan on. The
driver takes it when it plans, at each replica; a task takes it anew where it reads, and renews it while it does. It
ends by itself, some minutes after the last task. A broker that refuses because it has too many leases is read as if
nobody had asked, and one whose disk is almost full deletes files all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from spark.client import HOLD_LOG, Connection, Unreachable
from spark.plan import LogRange
from spark.survey import Survey

LEASE_SECONDS: Final = 600
RENEWAL_SECONDS: Final = 60.0


def lease_fields(part: LogRange) -> dict[str, str]:
    """The header of a request that takes or renews the lease of a partition's scan."""
    return {"leaseId": part.lease_id, "position": str(part.lease_position), "seconds": str(LEASE_SECONDS)}


def with_leases(parts: Sequence[LogRange], found: Survey, new_id: Callable[[], str]) -> list[LogRange]:
    """The partitions of a scan with the leases that they share, as far as it is known where they lie in the log."""
    starts: dict[tuple[str, str], dict[int, int]] = {}
    for part in parts:
        firsts = starts.setdefault((part.topic, part.broker_name), {})
        for each in part.ranges:
            firsts[each.queue_id] = min(each.start, firsts.get(each.queue_id, each.start))
    leases = {
        key: (new_id(), position)
        for key, firsts in starts.items()
        if (position := _position(found, key, firsts)) is not None
    }
    return [
        replace(part, lease_id=lease[0], lease_position=lease[1])
        if (lease := leases.get((part.topic, part.broker_name)))
        else part
        for part in parts
    ]


def take_leases(
    parts: Iterable[LogRange], timeout: float, connect: Callable[[str, float], Connection] = Connection
) -> None:
    """Take each lease of these partitions at each replica that answers within ``timeout`` seconds."""
    wanted = {(address, part.lease_id): part for part in parts if part.lease_id for address in part.replicas}
    for (address, _), part in wanted.items():
        try:
            connection = connect(address, timeout)
        except Unreachable:
            continue
        try:
            connection.receive(connection.send(HOLD_LOG, lease_fields(part)))
        except Unreachable:
            continue
        finally:
            connection.close()


def _position(found: Survey, key: tuple[str, str], firsts: dict[int, int]) -> int | None:
    """Where the log begins that is needed from these queue offsets on; a place before it, at the furthest a file."""
    position: int | None = None
    places = found.places.get(key, ())
    for at, offsets in zip(found.positions.get(key, ()), ({}, *places), strict=False):
        if any(offsets.get(queue_id, 0) > first for queue_id, first in firsts.items()):
            break
        position = at
    return position
