"""What happened to a tortured group, and whether it kept its promises: pure.

Events carry the time at which they began and ended, all from one clock. A violation is a line of text; no violations
means that the promises held as far as this run could see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mq.protocol.records import decode_records

EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was given to the SDK; ``offset`` is None unless it was acknowledged.

    ``refused``: it was certainly not stored. ``repeated``: it may be stored more than once.
    """

    value: bytes
    producer: str
    began: float
    ended: float
    queue: int | None
    offset: int | None
    refused: bool = False
    repeated: bool = False


@dataclass(slots=True)
class History:
    """All events of a run."""

    sent: list[Sent] = field(default_factory=list)
    delivered: dict[tuple[int, int], bytes] = field(default_factory=dict)
    deliveries: int = 0
    stored_offsets: list[tuple[float, float, int, int, str]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def acknowledged(self) -> list[Sent]:
        """Messages with a promise."""
        return [message for message in self.sent if message.offset is not None]

    def deliver(self, queue: int, offset: int, value: bytes) -> None:
        """A consumer got a message; getting it again is allowed, getting another one is not."""
        self.deliveries += 1
        known = self.delivered.setdefault((queue, offset), value)
        if known != value:
            self.violations.append(f"queue {queue} offset {offset} was delivered as {known[:40]!r} and {value[:40]!r}")

    @property
    def undelivered(self) -> int:
        """Acknowledged messages that no consumer has got yet."""
        return sum((message.queue, message.offset) not in self.delivered for message in self.acknowledged)


Replicas = Mapping[str, Sequence[bytes]]
"""By node, for each queue the bytes of all its records."""


def judge(history: History, replicas: Replicas) -> list[str]:
    """Every way in which the promises were broken, a few examples each."""
    found = list(history.violations)
    for check in (
        _replicas_agree(replicas),
        _offsets_are_contiguous(replicas),
        _acknowledged_are_there(history, replicas),
        _refused_are_not_there(history, replicas),
        _order_holds(history),
        _everything_was_delivered(history, replicas),
        _stored_offsets_never_fall(history),
    ):
        found += check[:EXAMPLES_MAX]
        if len(check) > EXAMPLES_MAX:
            found.append(f"... and {len(check) - EXAMPLES_MAX} more like the last one")
    return found


def _replicas_agree(replicas: Replicas) -> list[str]:
    first, *others = replicas
    return [
        f"queue {queue}: {first} and {other} differ ({len(records)} and {len(replicas[other][queue])} bytes)"
        for other in others
        for queue, records in enumerate(replicas[first])
        if records != replicas[other][queue]
    ]


def _offsets_are_contiguous(replicas: Replicas) -> list[str]:
    found = []
    for node, queues in replicas.items():
        for queue, records in enumerate(queues):
            offsets = [record.queue_offset for record in decode_records(records)]
            if offsets != list(range(len(offsets))):
                found.append(f"queue {queue} of {node} has offsets {offsets[:20]}... of {len(offsets)} messages")
    return found


def _bodies(replicas: Replicas) -> dict[tuple[str, int, int], bytes]:
    return {
        (node, queue, record.queue_offset): bytes(record.body)
        for node, queues in replicas.items()
        for queue, records in enumerate(queues)
        for record in decode_records(records)
    }


def _acknowledged_are_there(history: History, replicas: Replicas) -> list[str]:
    bodies = _bodies(replicas)
    found = []
    for message in history.acknowledged:
        assert message.queue is not None, f"{message} was acknowledged in no queue"
        assert message.offset is not None, f"{message} was acknowledged at no offset"
        for node in replicas:
            there = bodies.get((node, message.queue, message.offset))
            if there != message.value:
                place = f"{message.queue}/{message.offset}"
                found.append(f"{message.value[:40]!r} acknowledged at {place}: {node} has {there and there[:40]!r}")
    return found


def _refused_are_not_there(history: History, replicas: Replicas) -> list[str]:
    there = set(_bodies(replicas).values())
    return [
        f"{m.value[:40]!r} was certainly refused, and is there" for m in history.sent if m.refused and m.value in there
    ]


def _order_holds(history: History) -> list[str]:
    """A message whose send began after another one of its queue was acknowledged lies behind it."""
    found = []
    queues: defaultdict[int | None, list[Sent]] = defaultdict(list)
    for message in history.acknowledged:
        queues[message.queue].append(message)
    for queue, messages in queues.items():
        messages.sort(key=lambda m: m.offset or 0)
        # From the end backwards: nothing may have begun after the earliest acknowledgement of what lies behind it.
        earliest, its = float("inf"), b""
        for message in reversed(messages):
            if message.began > earliest:
                found.append(
                    f"queue {queue}: {message.value[:40]!r} began after {its[:40]!r} was acknowledged, lies before it"
                )
            if message.ended < earliest:
                earliest, its = message.ended, message.value
    return found


def _everything_was_delivered(history: History, replicas: Replicas) -> list[str]:
    found = [
        f"{m.value[:40]!r} at {m.queue}/{m.offset} was never delivered"
        for m in history.acknowledged
        if (m.queue, m.offset) not in history.delivered
    ]
    bodies = _bodies(replicas)
    for (queue, offset), value in history.delivered.items():
        for node in replicas:
            if bodies.get((node, queue, offset)) != value:
                found.append(f"{value[:40]!r} was delivered from {queue}/{offset}, {node} has something else there")
    return found


def _stored_offsets_never_fall(history: History) -> list[str]:
    """An answer to a question that began after another answer came is not lower."""
    found = []
    queues: defaultdict[int, list[tuple[float, float, int, str]]] = defaultdict(list)
    for began, ended, queue, offset, node in history.stored_offsets:
        queues[queue].append((began, ended, offset, node))
    for queue, answers in queues.items():
        by_end = sorted(answers, key=lambda answer: answer[1])
        highest, at = (-1, ""), 0
        for began, _, offset, node in sorted(answers):
            while at < len(by_end) and by_end[at][1] < began:
                highest = max(highest, (by_end[at][2], by_end[at][3]))
                at += 1
            if offset < highest[0]:
                found.append(f"queue {queue}: {node} said offset {offset} after {highest[1]} had said {highest[0]}")
    return found
