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

    ``pos`` is its record's place in the log. ``refused``: it was certainly not stored. ``repeated``: it may be stored
    more than once.
    """

    value: bytes
    producer: str
    began: float
    ended: float
    queue: int | None
    offset: int | None
    pos: int = -1
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

    def undelivered(self, firsts: Sequence[int]) -> int:
        """Acknowledged messages that no consumer has got yet, but for those below the first ones of their queues."""
        return sum(
            message.offset >= firsts[message.queue] and (message.queue, message.offset) not in self.delivered
            for message in self.acknowledged
            if message.queue is not None and message.offset is not None
        )


@dataclass(frozen=True, slots=True)
class Queue:
    """What a replica serves of a queue: the offset of its first message, and the bytes of all records."""

    first: int
    records: bytes


@dataclass(frozen=True, slots=True)
class Served:
    """What a replica serves, and where its log began before it was read; 0 if it is whole."""

    base_pos: int
    queues: Sequence[Queue]


Replicas = Mapping[str, Served]


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
    """Equal, but that one may have removed more from the front than another one."""
    first, *others = replicas
    found = []
    for other in others:
        for number, (a, b) in enumerate(zip(replicas[first].queues, replicas[other].queues, strict=True)):
            longer, shorter = (a, b) if a.first <= b.first else (b, a)
            if not longer.records.endswith(shorter.records) or (a.first == b.first and a.records != b.records):
                found.append(
                    f"queue {number}: {first} and {other} differ "
                    f"({len(a.records)} bytes from {a.first} on and {len(b.records)} bytes from {b.first} on)"
                )
    return found


def _offsets_are_contiguous(replicas: Replicas) -> list[str]:
    found = []
    for node, served in replicas.items():
        for number, queue in enumerate(served.queues):
            offsets = [record.queue_offset for record in decode_records(queue.records)]
            begins = queue.first if served.base_pos else 0
            if offsets != list(range(begins, begins + len(offsets))):
                found.append(
                    f"queue {number} of {node} from {begins} on has offsets {offsets[:20]}... of {len(offsets)}"
                )
    return found


def _bodies(replicas: Replicas) -> dict[tuple[str, int, int], bytes]:
    return {
        (node, number, record.queue_offset): bytes(record.body)
        for node, served in replicas.items()
        for number, queue in enumerate(served.queues)
        for record in decode_records(queue.records)
    }


def _acknowledged_are_there(history: History, replicas: Replicas) -> list[str]:
    """All of them, but for those that lie below the base of the log."""
    bodies = _bodies(replicas)
    found = []
    for message in history.acknowledged:
        assert message.queue is not None, f"{message} was acknowledged in no queue"
        assert message.offset is not None, f"{message} was acknowledged at no offset"
        for node, served in replicas.items():
            there = bodies.get((node, message.queue, message.offset))
            if there != message.value and (message.pos >= served.base_pos or there is not None):
                place = f"{message.queue}/{message.offset} (log {message.pos})"
                has = f"{there and there[:40]!r}, its log begins at {served.base_pos}"
                found.append(f"{message.value[:40]!r} acknowledged at {place}: {node} has {has}")
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
    """Consumers got all that is still there, and nothing else."""
    base_pos = min(served.base_pos for served in replicas.values())
    found = [
        f"{m.value[:40]!r} at {m.queue}/{m.offset} was never delivered"
        for m in history.acknowledged
        if m.pos >= base_pos and (m.queue, m.offset) not in history.delivered
    ]
    bodies = _bodies(replicas)
    for (number, offset), value in history.delivered.items():
        for node, served in replicas.items():
            there = bodies.get((node, number, offset))
            if there != value and (offset >= served.queues[number].first or there is not None):
                found.append(f"{value[:40]!r} was delivered from {number}/{offset}, {node} has something else there")
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
