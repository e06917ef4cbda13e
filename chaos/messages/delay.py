"""The workload "delay": messages at delay levels among plain ones.

What must hold: every delayed message that was stored becomes visible exactly once, never before its time by the clock
of the leader that shows it (and by no more than the clocks differ), and in the end all are visible.
"""

from __future__ import annotations

from chaos.history import Violation
from chaos.messages.cluster import BrokerCluster
from chaos.messages.ledger import Stored
from chaos.messages.workload import Workload
from mq.protocol import properties as props
from mq.protocol.delay import DELAY_LEVELS_MS
from mq.protocol.names import SCHEDULE_TOPIC


class Delay(Workload):
    """See the module."""

    name = "delay"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._waiting: dict[int, list[tuple[int, Stored]]] = {}
        """By value, copies that wait, each with its due time by the clock of the leader that stored it."""

    def act(self) -> None:
        """See `Workload.act`."""
        if self.rng.random() < 0.2:
            self.send(self.new("plain", {}))
        else:
            # What waits keeps the log from being dropped.
            level = 1 if "retention" in self.cluster.plan.kinds else self.rng.choice((1, 1, 1, 2, 2, 3))
            self.send(self.new("level", {props.DELAY: str(level)}))

    def stored(self, stored: Stored) -> None:
        """See `Workload.stored`."""
        record = stored.record
        if record.topic == SCHEDULE_TOPIC:
            due_ms = record.store_timestamp_ms + DELAY_LEVELS_MS[record.queue_id]
            self._waiting.setdefault(stored.value, []).append((due_ms, stored))
        elif record.topic == self.topic and self.ledger.sent[stored.value].kind != "plain":
            self._shown(stored)

    def _shown(self, stored: Stored) -> None:
        waiting = self._waiting.get(stored.value)
        if not waiting:
            raise Violation(f"duplicate: {stored.value} is visible once more in {stored.place}, nothing waited for it")
        due_ms, origin = min(waiting, key=lambda each: each[0])
        waiting.remove((due_ms, origin))
        if not waiting:
            del self._waiting[stored.value]
        early_ms = due_ms - stored.record.store_timestamp_ms
        if early_ms > 2 * self.cluster.plan.wall_skew_ms:
            raise Violation(f"early: {stored.value} is visible {early_ms} ms before its time in {stored.place}")
        if stored.record.properties.get(props.UNIQUE_KEY) != f"U{stored.value}":
            raise Violation(f"properties: {stored.value} is visible with {stored.record.properties}")
        delay = DELAY_LEVELS_MS[origin.record.queue_id] / 1000
        self.late("shown after its time", max(0.0, stored.at - origin.at - delay))

    def needed_from(self) -> int:
        """See `Workload.needed_from`."""
        waiting = (stored.record.physical_offset for each in self._waiting.values() for _, stored in each)
        return min(waiting, default=1 << 62)

    def is_settled(self) -> bool:
        """See `Workload.is_settled`."""
        return not self._waiting

    def check_end(self) -> None:
        """See `Workload.check_end`."""
        for sent in self.ledger.sent.values():
            topic = self.topic if sent.kind == "plain" else SCHEDULE_TOPIC
            stored = self.ledger.check_stored(topic, sent)
            shown = self.ledger.copies[self.topic][sent.value]
            if shown != stored:
                raise Violation(f"lost: {sent} is {stored} times in {topic} and {shown} times visible")
