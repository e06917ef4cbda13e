"""The workload "expiring": the messages of a topic expire some seconds after they were stored; the log keeps them.

What must hold: all replicas have the same first message of each queue once they have applied the same entries, however
they got there: by the log, from a snapshot, or by deriving their queues again. Nothing expires before its time, as far
as clocks agree. Readers miss only expired messages. In the end, everything expires.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.limits import override
from chaos.violation import Violation
from checkers import Checker
from checkers.append_log import check_log
from checkers.send_order import check_order
from mq.broker.admin import topic_expiry
from mq.broker.state.commands import DeleteTopic
from mq.broker.state.expired_messages import ExpireMessages
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.retention_attributes import RESERVE_TIME

_KEPT_MS: Final = 2000
_AGAIN: Final = 0.02
"""The share of operations that create the topic again."""


class Expiring(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = (check_log, check_order)
    name = "expiring"

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self._is_limited = False
        self._begins: dict[tuple[str, int], int] = {}
        self._expiry_rows: list[tuple[str, int, int]] = []

    def changed_limits(self) -> AbstractContextManager[None]:
        """Shorten an hour to `_KEPT_MS`, so that messages expire during the run."""
        return override(topic_expiry, "_HOUR_MS", _KEPT_MS)

    def run_operation(self) -> None:
        if not self._is_limited or self.rng.random() < _AGAIN:
            self._limit()
        self.send(self.new("plain", {}))

    def _limit(self) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            self._is_limited |= isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS

        self.create_topic(on_response, attributes=f"+{RESERVE_TIME}=1")

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_command(self, command: Any) -> None:
        assert not isinstance(command, DeleteTopic), f"{command}: nobody deletes a topic here"
        if isinstance(command, ExpireMessages):
            self._expiry_rows += command.rows

    def on_entry_end(self) -> None:
        """Apply the commands of an entry, which come after its messages."""
        rows, self._expiry_rows = self._expiry_rows, []
        for topic, queue_id, first in rows:
            before = self._begins.get((topic, queue_id), 0)
            for commit in self.ledger.queues.get((topic, queue_id), [])[before:first]:
                age_ms = self.cluster.true_ms() - commit.record.store_timestamp_ms
                if age_ms < _KEPT_MS - 4 * self.cluster.plan.wall_skew_ms:
                    raise Violation(
                        f"expired: {commit.place} expired after {age_ms} ms, but must be kept for {_KEPT_MS}"
                    )
            self._begins[topic, queue_id] = begin = max(before, min(first, self.ledger.end(topic, queue_id)))
            self.counts["expired"] += begin - before

    # -- the end -------------------------------------------------------------------------------------------------------

    def pending_count(self) -> int:
        """Return the number of messages that have not expired."""
        return sum(
            self.ledger.end(self.topic, queue_id) - self._begins.get((self.topic, queue_id), 0)
            for queue_id in range(self.queues)
        )

    def _check_records(self, queue_id: int, offset: int, response: ClientResponse) -> None:
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            next_offset = int(response.ext["nextBeginOffset"])
            for commit in self.ledger.queues.get((self.topic, queue_id), [])[offset:next_offset]:
                is_gone = commit.record.physical_offset < self.cluster.dropped_pos
                if commit.record.queue_offset >= self._begins.get((self.topic, queue_id), 0) and not is_gone:
                    raise Violation(
                        f"skipped: a reader of queue {queue_id} goes on at {next_offset}, behind {commit.place}"
                    )
        super()._check_records(queue_id, offset, response)

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        """Check also that the queues of each replica begin at their first message that has not expired."""
        super().check_replicas(processes)
        for process in processes:
            base_pos = process.log.base_pos
            for (topic, queue_id), begin in self._begins.items():
                queue = process.queues.get(topic, queue_id)
                low = 0 if queue is None else queue.min_offset
                if low < begin:
                    raise Violation(f"unexpired: {topic}/{queue_id} of {process.node_id} begins at {low}, not {begin}")
                if queue is not None and begin < low < queue.max_offset:
                    before = self.ledger.queues[topic, queue_id][low - 1].record.physical_offset
                    if before >= base_pos:
                        raise Violation(f"expired alone: {topic}/{queue_id} of {process.node_id} at {low}, not {begin}")
