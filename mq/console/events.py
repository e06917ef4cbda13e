"""Finds events in broker groups by comparing two states. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mq.inspection.cluster import UNREACHABLE, GroupStatus, ReplicaStatus

EVENTS_MAX: Final = 500
FULL_RATIO: Final = 0.9
"""A disk that is fuller than this is worth an event."""
COUNTED: Final = {
    "queueBlocksRestored": "restored {count:,} damaged blocks of its queues from its log",
    "clockJumps": "has a clock that jumped",
    "timersExpired": "deleted {count:,} timed messages before they were due",
    "transactionsGivenUp": "gave up {count:,} transactions",
}
"""Figures that count what happened to a replica, and what an increase means."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event: its time on the event loop's clock, its subject, and a text. ``is_bad``: it needs attention."""

    at: float
    subject: str
    what: str
    is_bad: bool


class Events:
    """Keeps the events of all broker groups since the console was opened."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._before: dict[str, GroupStatus] | None = None

    def add(self, groups: Sequence[GroupStatus], moment: float) -> None:
        """Add the events between the previous state of all broker groups and this one."""
        now = {group.group: group for group in groups}
        if self._before is not None:
            for event in changes(self._before, now, moment):
                self._events.appendleft(event)
        self._before = now

    def all(self) -> list[Event]:
        """Return the events, the newest first."""
        return list(self._events)


def changes(before: Mapping[str, GroupStatus], now: Mapping[str, GroupStatus], at: float) -> Iterator[Event]:
    """Yield the events between two states of the cluster."""
    for name in sorted(before.keys() - now.keys()):
        yield Event(at, name, "is no longer registered at the name servers", True)
    for name, group in sorted(now.items()):
        if name not in before:
            yield Event(at, name, "is registered at the name servers", False)
            continue
        yield from _of_group(before[name], group, at)


def _of_group(before: GroupStatus, now: GroupStatus, at: float) -> Iterator[Event]:
    if before.leader != now.leader:
        if now.leader is None:
            yield Event(at, now.group, f"has lost its leader {before.leader}", True)
        else:
            term = next((each.term for each in now.replicas if each.node_id == now.leader), None)
            after = f" after {before.leader}" if before.leader is not None else ""
            yield Event(at, now.group, f"is led by {now.leader}{after}, in term {term}", False)
    old = {each.node_id: each for each in before.replicas}
    new = {each.node_id: each for each in now.replicas}
    for node in sorted(old.keys() - new.keys()):
        yield Event(at, now.group, f"{node} is no longer a replica", True)
    for node, replica in sorted(new.items()):
        if node not in old:
            yield Event(at, now.group, f"{node} is a replica now", False)
            continue
        for what, is_bad in _of_replica(old[node], replica):
            yield Event(at, now.group, f"{node} {what}", is_bad)


def _of_replica(before: ReplicaStatus, now: ReplicaStatus) -> Iterator[tuple[str, bool]]:
    if before.role != UNREACHABLE and now.role == UNREACHABLE:
        yield "no longer answers", True
        return
    if before.role == UNREACHABLE:
        if now.role != UNREACHABLE:
            yield "answers again", False
        return
    if before.member != now.member and now.member is not None and before.member is not None:
        yield f"is a {now.member}, before a {before.member}", False
    if now.abstaining != before.abstaining:
        yield ("has lost acknowledged entries, and does not vote" if now.abstaining else "votes again"), now.abstaining
    was_full, is_full = ((each.disk_used or 0.0) >= FULL_RATIO for each in (before, now))
    if was_full != is_full:
        yield (f"has a disk that is {now.disk_used:.0%} full" if is_full else "has room on its disk again"), is_full
    if before.figures.get("bootTimestamp") != now.figures.get("bootTimestamp"):
        yield "was started again", False
        return
    missing_count = count_of(now, "missingEntries")
    if missing_count and not count_of(before, "missingEntries"):
        yield f"deleted {missing_count:,} entries early that other replicas have", True
    for name, words in COUNTED.items():
        count = count_of(now, name) - count_of(before, name)
        if count > 0:
            yield words.format(count=count), True


def count_of(replica: ReplicaStatus, name: str) -> int:
    """Return a figure of a replica; 0 if the replica does not report it."""
    text = replica.figures.get(f"raftmq.{name}", "0")
    return int(text) if text.isascii() and text.isdigit() else 0
