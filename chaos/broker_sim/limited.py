"""The workload "limited": clients send to a topic with a quota, as fast as they can.

What must hold: no leadership stores more than the rate of the quota gives in its time and a burst, whichever way the
messages come, by themselves or forwarded by a follower, in Python or compiled, and also after a restart from a
checkpoint or a snapshot. A refused message is not stored. A consumer with a quota of its own
gets everything in the end.
"""

from __future__ import annotations

from typing import Final

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss
from chaos.broker_sim.log_oracle import CommittedRecord
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.violation import Violation
from mq.broker.base.quota_buckets import BURST_SECONDS
from mq.protocol.codes import ResponseCode

_RATE: Final = 4
"""Messages per second that may be sent."""
_READ_RATE: Final = 40
"""Messages per second that may be read."""
_AT_ONCE: Final = 3
_CLOCK_RATE: Final = 1.2
"""The factor by which a broker's clock may be too fast; allows also for messages on their way."""


class LimitedSends(Workload):
    name = "limited"

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self._limited_at = -1.0
        self._total = 0

    def run_operation(self) -> None:
        """Send messages; while the topic has no quota, only set the quota."""
        if self._limited_at < 0:
            self._limit()
            return
        for _ in range(_AT_ONCE):
            self.send(self.new("plain", {}))

    def _limit(self) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            if self._limited_at < 0 and isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self._limited_at = self.cluster.now

        limits = f"+quota.produce.messages={_RATE},+quota.consume.messages={_READ_RATE}"
        self.create_topic(on_response, attributes=limits)

    def on_commit(self, commit: CommittedRecord) -> None:
        if commit.record.topic != self.topic:
            return
        self._total += 1
        self.counts["stored within the quota"] += 1
        leaderships = max((process.replica.core.term for process in self.cluster.brokers()), default=1)
        bursts = (_RATE * BURST_SECONDS + 1) * leaderships
        count_max = _CLOCK_RATE * _RATE * (self.cluster.now - self._limited_at) + bursts
        if self._total > count_max:
            raise Violation(
                f"quota: {self._total} messages in {self.cluster.now - self._limited_at:.1f} s and {leaderships} "
                f"leaderships, but only {count_max:.0f} are allowed"
            )

    def pending_count(self) -> int:
        """Return 1 until consumers have read everything, then 0."""
        return int(not self.has_read_all)
