"""The workload "dedup": producers that number their messages, and send many of them again and again.

What must hold: each number of a producer is stored once at most, and once if one of its sends was acknowledged; all
acknowledgements of it tell the same place; a delayed one is delivered once, and that counts as no repeat.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from chaos.history import Violation
from chaos.messages.clients import Answer
from chaos.messages.cluster import BrokerCluster
from chaos.messages.ledger import Sent, Stored
from chaos.messages.workload import Workload
from mq.broker.state.commands import AdvanceDelay
from mq.protocol import properties as props
from mq.protocol.names import SCHEDULE_TOPIC

_PRODUCERS = 3


class Dedup(Workload):
    """See the module."""

    name = "dedup"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._numbers: Counter[int] = Counter()
        self._first: dict[int, Stored] = {}
        self._waiting = 0

    def act(self) -> None:
        """See `Workload.act`."""
        if self.rng.random() < 0.1:
            self.send(self.new("plain", {}))
            return
        producer = self.rng.randrange(_PRODUCERS)
        self._numbers[producer] += self.rng.choice((1, 1, 1, 3))
        properties = {props.PRODUCER_ID: f"p{producer}", props.SEQUENCE: str(self._numbers[producer])}
        if self.rng.random() < 0.2:
            properties[props.DELAY] = "1"
        sent = self.new("numbered", properties)
        self.send(sent)
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            later = self.rng.choice((0.0, self.rng.uniform(0.0, 0.1), self.rng.uniform(0.0, 5.0)))
            self.cluster.at(self.cluster.now + later, self._repeat, sent)

    def _repeat(self, sent: Sent) -> None:
        if not self.stopped:
            self.counts["repeats"] += 1
            self.send(sent)

    def acknowledged(self, sent: Sent, offset: int, position: int) -> None:
        """See `Workload.acknowledged`: of what the log dropped only the position is known."""
        if offset < 0 and position < self.cluster.dropped_pos:
            self.counts["acknowledged, and dropped by then"] += 1
            offset = self.ledger.at_position[position].record.queue_offset
        super().acknowledged(sent, offset, position)

    def was_sent(self, sent: Sent, answer: Answer) -> None:
        """See `Workload.was_sent`."""
        if sent.kind == "numbered" and len(set(sent.acked)) > 1:
            raise Violation(f"dedup: {sent} was acknowledged at several places")

    def stored(self, stored: Stored) -> None:
        """See `Workload.stored`."""
        topic = stored.record.topic
        if topic == SCHEDULE_TOPIC:
            self._waiting += 1
        if topic not in (SCHEDULE_TOPIC, self.topic) or self.ledger.sent[stored.value].kind != "numbered":
            return
        first = self._first.setdefault(stored.value, stored)
        copies = self.ledger.copies[topic][stored.value]
        if copies > 1 or (first is not stored and first.record.topic != SCHEDULE_TOPIC):
            raise Violation(f"duplicate: {self.ledger.sent[stored.value]} is in {stored.place} and in {first.place}")

    def command(self, command: Any) -> None:
        """See `Workload.command`."""
        if isinstance(command, AdvanceDelay):
            self._waiting = len(self.ledger.queues[SCHEDULE_TOPIC, 0]) - command.offset

    def needed_from(self) -> int:
        """See `Workload.needed_from`."""
        queue = self.ledger.queues[SCHEDULE_TOPIC, 0]
        return queue[-self._waiting].record.physical_offset if self._waiting else 1 << 62

    def is_settled(self) -> bool:
        """See `Workload.is_settled`."""
        return not self._waiting

    def check_end(self) -> None:
        """See `Workload.check_end`."""
        for sent in self.ledger.sent.values():
            if sent.kind == "plain":
                self.ledger.check_stored(self.topic, sent)
                continue
            is_stored = sent.value in self._first
            visible = self.ledger.copies[self.topic][sent.value]
            if sent.acked and not is_stored:
                raise Violation(f"lost: {sent}")
            if is_stored and not sent.copies_max:
                raise Violation(f"duplicate: {sent} was refused, and it is in {self._first[sent.value].place}")
            if visible != is_stored:
                raise Violation(f"lost: {sent} is {visible} times visible")
