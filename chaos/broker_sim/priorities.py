"""Checks pops of a topic for messages with priorities, in half of the runs of the workload "pop".

Each message is in the queue of its priority, also when it comes again. Pops take the most urgent messages first, but
for the share of lower levels: under constant load of a higher level, they get something. Both are judged by the
committed messages, which a leader may know a moment later: so the order is judged over the whole run.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

from chaos.broker_sim.log_oracle import CommittedRecord, Ledger
from chaos.violation import Violation
from mq.broker.state.pop_checkpoints import PopMessages, offsets_of
from mq.protocol import properties as props

LEVELS: Final = 3
_KNOWN_SECONDS: Final = 1.0
"""The seconds after its commit within which every leader knows a message."""
_DECISIONS_MIN: Final = 100
_INVERSIONS_MAX: Final = 0.25
"""The share of pops against the order of waiting levels: a tenth is due to lower levels, some are chance."""
_STREAK_MAX: Final = 200
"""Messages of the first level in a row, while others wait: ten, one pop more, and that again after each election. Most
seen: 67.
"""


class Priorities:
    """Checks the order in which messages of a topic and its retry topic are popped."""

    def __init__(self, topic: str, retry_topic: str, ledger: Ledger, counts: Counter[str]) -> None:
        self._topic, self._retry_topic = topic, retry_topic
        self._ledger = ledger
        self._counts = counts
        self._next = [0] * LEVELS
        self._inversions = self._decisions = 0
        self._streak = 0

    def properties(self, rng: random.Random) -> dict[str, str]:
        """Choose random properties for a new message: most are urgent, some have no priority."""
        priority = rng.choice((None, 0, 1, 2, 2, 2, 2, 7))
        return {} if priority is None else {props.PRIORITY: str(priority)}

    def on_commit(self, commit: CommittedRecord) -> None:
        """Check that a committed record is in the queue of its priority."""
        record = commit.record
        if record.topic not in (self._topic, self._retry_topic):
            return
        level = min(int(record.properties.get(props.PRIORITY, "0")), LEVELS - 1)
        if record.queue_id != level:
            raise Violation(f"priority: {commit.place} has a message of level {level}")

    def check_pop(self, command: PopMessages, now: float) -> None:
        """Compare a committed pop with the messages that wait. Raises Violation if lower priorities starve."""
        messages = len(list(offsets_of(command.start, command.taken))) if command.taken else 0
        if messages:
            self._judge(command.queue_id, messages, now)
        if command.topic == self._topic:
            self._next[command.queue_id] = max(self._next[command.queue_id], command.next_offset)

    def _judge(self, level: int, messages: int, now: float) -> None:
        levels = [each for each in range(LEVELS) if self._waits(each, now)]
        above = any(each > level for each in levels)
        below = any(each < level for each in levels)
        if above or below:
            self._decisions += messages
            self._inversions += messages * above
            self._counts["popped while other priorities waited"] += messages
        if above or not below:
            self._streak = 0
            return
        self._streak += messages
        if self._streak > _STREAK_MAX:
            raise Violation(f"starved: {self._streak} messages of level {level} came in a row while lower ones waited")

    def _waits(self, level: int, now: float) -> bool:
        queue = self._ledger.queues[self._topic, level]
        return len(queue) > self._next[level] and queue[self._next[level]].at <= now - _KNOWN_SECONDS

    def check_end(self) -> None:
        """Check that, over the whole run, few messages overtook more urgent ones."""
        if self._decisions >= _DECISIONS_MIN and self._inversions > _INVERSIONS_MAX * self._decisions:
            raise Violation(f"order: {self._inversions} of {self._decisions} messages overtook more urgent ones")
