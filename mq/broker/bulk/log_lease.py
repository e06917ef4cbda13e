"""Request code 9008: a reader leases the log from a position on, so that retention does not delete it first.

A lease is local to this replica and in memory: a reader requests one from each replica that it reads from, and renews
it before it expires. After a restart, readers request it again. An almost full disk overrides leases, see
`raftlog.segment.deletable_files`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.broker.setting_fields import BulkSettings
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.bulk import HoldLog, LeaseInfo, LeaseList, ListLeases, LogLeaseReply

NOTHING: Final = PhysicalOffset(2**63 - 1)
LEASE_ID_LENGTH_MAX: Final = 128


class LogLeases(Service):
    """Grants leases to readers. A lease keeps this replica from deleting the part of its log that they still read.

    Args:
        base_pos: where the log begins now, with its archived part if that is served.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, settings: BulkSettings, base_pos: Callable[[], PhysicalOffset], clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._base_pos = base_pos
        self._clock = clock
        self._leases: dict[str, tuple[PhysicalOffset, float]] = {}
        """The physical offset and the expiry time of each lease id."""

    def routes(self) -> Iterator[Route]:
        yield Route(HoldLog, self.handle)
        yield Route(ListLeases, self.handle_list)

    def counters(self) -> dict[str, int]:
        """Return the number of log leases, by name."""
        self._drop_over()
        return {"log_leases": len(self._leases)}

    def check_invariants(self) -> None:
        count, count_max = len(self._leases), self._settings.log_leases_max
        assert count <= count_max, f"{count} log leases; maximum: {count_max}"

    def first_pos(self) -> PhysicalOffset:
        """Return the lowest leased physical offset; NOTHING without leases."""
        self._drop_over()
        return min((position for position, _ in self._leases.values()), default=NOTHING)

    def handle(self, call: Call[HoldLog]) -> bytes:
        """Request code 9008: start, renew or end a lease of the log. Raises RequestRefused."""
        ext = call.request.ext
        if not 1 <= len(ext.lease_id) <= LEASE_ID_LENGTH_MAX:
            remark = f"the lease id has {len(ext.lease_id)} characters; allowed: 1 to {LEASE_ID_LENGTH_MAX}"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        if ext.position < 0 or ext.seconds < 0:
            remark = f"position is {ext.position} and seconds {ext.seconds}; allowed: 0 or more"
            raise RequestRefused(ResponseCode.INVALID_PARAMETER, remark)
        self._drop_over()
        base_pos = self._base_pos()
        seconds = min(float(ext.seconds), self._settings.log_lease_seconds_max)
        if not ext.seconds:
            self._leases.pop(ext.lease_id, None)
        elif ext.lease_id not in self._leases and len(self._leases) >= self._settings.log_leases_max:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY, f"the broker has its maximum of {len(self._leases)} log leases"
            )
        else:
            self._leases[ext.lease_id] = max(ext.position, base_pos), self._clock() + seconds
        return call.response(ext=LogLeaseReply(seconds=int(seconds), base_position=base_pos).fields())

    def handle_list(self, call: Call[ListLeases]) -> bytes:
        """Request code 9029: list the leases of the log."""
        self._drop_over()
        now = self._clock()
        leases = [
            LeaseInfo(lease_id=lease_id, position=position, seconds=int(until - now))
            for lease_id, (position, until) in sorted(self._leases.items(), key=lambda each: (each[1][0], each[0]))
        ]
        return call.response(body=LeaseList(leases=leases).encode())

    def _drop_over(self) -> None:
        now = self._clock()
        for lease_id in [lease_id for lease_id, (_, until) in self._leases.items() if until <= now]:
            del self._leases[lease_id]
