"""Leases on broker logs, which keep retention from deleting what a scan still reads. Drivers acquire, tasks renew them.

All tasks that read a topic from a broker group share one lease, from the start of the scan on. The driver acquires it
at each replica when it plans; a task acquires it again where it reads, and renews it while it does. It expires some
minutes after the last task. If a broker refuses because it has too many leases, the scan runs without; a broker whose
disk is almost full deletes files in spite of leases.

A streaming query has one lease for all of its micro-batches, which advances once a minute: so it also holds messages
that the query has read in the last minute.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from mq.protocol.codes import RequestCode
from spark.client import Connection, Unreachable
from spark.offset_survey import Survey
from spark.plan import LogRange

LEASE_SECONDS: Final = 600
LEASE_ANSWER_SECONDS_MAX: Final = 1.0
"""Seconds for which planning waits for a replica to grant a lease."""
RENEWAL_SECONDS: Final = 60.0


LeaseKey = tuple[str, str]
"""Topic and broker name."""


def new_lease_id() -> str:
    """Make a unique lease id."""
    return f"spark-{uuid.uuid4().hex}"


def lease_fields(part: LogRange, seconds: int = LEASE_SECONDS) -> dict[str, str]:
    """Return the header of a request that acquires or renews a partition's lease; 0 seconds release it."""
    return {"leaseId": part.lease_id, "position": str(part.lease_position), "seconds": str(seconds)}


def with_leases(parts: Sequence[LogRange], survey: Survey, id_of: Callable[[LeaseKey], str]) -> list[LogRange]:
    """Add their shared lease to the partitions of a scan whose positions in the log are known."""
    starts: dict[LeaseKey, dict[int, int]] = {}
    for part in parts:
        firsts = starts.setdefault(_key(part), {})
        for each in part.ranges:
            firsts[each.queue_id] = min(each.start, firsts.get(each.queue_id, each.start))
    leases = {
        key: (id_of(key), position)
        for key, firsts in starts.items()
        if (position := _position(survey, key, firsts)) is not None
    }
    return [
        replace(part, lease_id=lease[0], lease_position=lease[1]) if (lease := leases.get(_key(part))) else part
        for part in parts
    ]


def take_leases(
    parts: Iterable[LogRange],
    timeout: float,
    connect: Callable[[str, float], Connection] = Connection,
    *,
    seconds: int = LEASE_SECONDS,
) -> None:
    """Acquire the leases of the partitions at each replica that responds within ``timeout`` seconds."""
    leases = {(address, part.lease_id): part for part in parts if part.lease_id for address in part.replicas}
    for (address, _), part in leases.items():
        try:
            connection = connect(address, timeout)
        except Unreachable:
            continue
        try:
            connection.receive(connection.send(RequestCode.HOLD_LOG, lease_fields(part, seconds)))
        except Unreachable:
            continue
        finally:
            connection.close()


class StreamLeases:
    """The leases of a streaming query, one for each topic and broker group.

    Args:
        timeout: seconds to wait for the response of a replica.
        connect: creates a connection to an address with a timeout in seconds.
        new_id: creates a unique id.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        timeout: float,
        connect: Callable[[str, float], Connection],
        new_id: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._timeout = timeout
        self._connect = connect
        self._clock = clock
        self._ids: defaultdict[LeaseKey, str] = defaultdict(new_id)
        self._leased_parts: dict[LeaseKey, LogRange | None] = {}
        """The leases requested last; None where the position of the messages in the log is unknown."""
        self._renew_at = clock()

    def extend_to(self, parts: Sequence[LogRange], get_details: Callable[[], Survey]) -> list[LogRange]:
        """Return the partitions of a micro-batch with leases that cover them. Acquires leases at each replica when due.

        A lease of an earlier micro-batch covers a later one, too. ``get_details`` queries the positions of messages.
        """
        if not parts:
            return []
        keys = {_key(part) for part in parts}
        if self._clock() >= self._renew_at or not keys <= self._leased_parts.keys():
            new_parts = with_leases(parts, get_details(), self._ids.__getitem__)
            take_leases(new_parts, self._timeout, self._connect)
            by_key = {_key(part): part for part in new_parts if part.lease_id}
            self._leased_parts.update((key, by_key.get(key)) for key in keys)
            self._renew_at = self._clock() + RENEWAL_SECONDS
        return [
            part if (lease := self._leased_parts[_key(part)]) is None else _same_lease(part, lease) for part in parts
        ]

    def give_back(self) -> None:
        """Release the leases at the end of the query."""
        leases = [lease for lease in self._leased_parts.values() if lease is not None]
        self._leased_parts.clear()
        take_leases(leases, self._timeout, self._connect, seconds=0)


def _key(part: LogRange) -> LeaseKey:
    return part.topic, part.broker_name


def _same_lease(part: LogRange, other: LogRange) -> LogRange:
    return replace(part, lease_id=other.lease_id, lease_position=other.lease_position)


def _position(survey: Survey, key: LeaseKey, firsts: dict[int, int]) -> int | None:
    """The physical offset from which on the log is needed for these queue offsets; at most one file too early."""
    position: int | None = None
    places = survey.places.get(key, ())
    for at, offsets in zip(survey.positions.get(key, ()), ({}, *places), strict=False):
        if any(offsets.get(queue_id, 0) > first for queue_id, first in firsts.items()):
            break
        position = at
    return position
