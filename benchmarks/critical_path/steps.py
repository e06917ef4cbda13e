"""Derives from the events of all replicas the steps of one entry: which threads waited, and for how long. Pure."""

from __future__ import annotations

import bisect
import enum
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec


class Point(enum.IntEnum):
    """A place in a replica that an entry passes."""

    TURN_BEGINS = 0
    TURN_ENDS = 1
    SENDING = 2
    SENT = 3
    APPENDED = 4
    WRITE_QUEUED = 5
    WRITE_BEGAN = 6
    WRITE_ENDED = 7
    DURABLE = 8
    ENTRIES_RECEIVED = 9
    ACKNOWLEDGEMENT_RECEIVED = 10
    APPLIED = 11
    ENTRIES_SENT = 12


class Event(msgspec.Struct, array_like=True, gc=False):
    """An entry passed a point. ``at``: seconds of CLOCK_MONOTONIC. ``index``: all entries up to this one have passed; 0
    for points without. ``peer``: the replica that sent something, or got it.
    """

    at: float
    point: Point
    index: int
    peer: str


Trace = Sequence[Event]


class Lane(enum.StrEnum):
    """Names the thread that does a step, or the kernel."""

    LEADER = "leader: event loop"
    LEADER_WRITER = "leader: writer"
    WIRE = "kernel, scheduler"
    FOLLOWER = "faster follower: event loop"
    FOLLOWER_WRITER = "faster follower: writer"
    OTHER = "slower follower: event loop"
    OTHER_WRITER = "slower follower: writer"


@dataclass(frozen=True, slots=True)
class Step:
    """A part of an entry's path. ``begin``, ``end``: seconds since the leader woke up with the request.

    ``is_critical``: the reply waits for it.
    """

    lane: Lane
    name: str
    begin: float
    end: float
    is_critical: bool

    @property
    def seconds(self) -> float:
        """The duration of the step in seconds."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Path:
    """The steps of one entry, in the order of their begin. ``seconds``: until the kernel got the response."""

    steps: tuple[Step, ...]
    seconds: float


class _Turns:
    """Events of one replica, for look-ups."""

    def __init__(self, trace: Trace) -> None:
        self._begins = [event.at for event in trace if event.point is Point.TURN_BEGINS]
        self._send_events = [event for event in trace if event.point in (Point.SENDING, Point.SENT)]
        self._sent_at = [event.at for event in self._send_events]
        self._by_point: dict[tuple[Point, str], tuple[list[int], list[float]]] = {}
        for event in trace:
            if event.index:
                for peer in {"", event.peer}:
                    indices, times = self._by_point.setdefault((event.point, peer), ([], []))
                    if not indices or event.index > indices[-1]:
                        indices.append(event.index)
                        times.append(event.at)

    def time_of(self, point: Point, index: int, peer: str = "") -> float:
        """The time at which entry ``index`` passed the point. Raises KeyError."""
        indices, times = self._by_point[point, peer]
        place = bisect.bisect_left(indices, index)
        if place == len(indices):
            raise KeyError(index)
        return times[place]

    def turn_of(self, at: float) -> float:
        """The time at which the turn began that contains ``at``. Raises KeyError."""
        place = bisect.bisect_right(self._begins, at)
        if not place:
            raise KeyError(at)
        return self._begins[place - 1]

    def sending_after(self, at: float) -> tuple[float, float]:
        """The begin and end of the first sending after ``at``. Raises KeyError."""
        place = bisect.bisect_left(self._sent_at, at)
        while place + 1 < len(self._send_events):
            if self._send_events[place].point is Point.SENDING:
                return self._send_events[place].at, self._send_events[place + 1].at
            place += 1
        raise KeyError(at)

    def entries(self) -> list[int]:
        """All entries appended here as the leader."""
        return self._by_point.get((Point.APPENDED, ""), ([], []))[0]

    def turns(self) -> int:
        """The number of turns."""
        return len(self._begins)


def paths(leader: Trace, followers: Mapping[str, Trace]) -> list[Path]:
    """Return the path of each entry that the traces of all replicas have completely, not only a part."""
    of_leader = _Turns(leader)
    of_followers = {name: _Turns(trace) for name, trace in followers.items()}
    all_paths = list[Path]()
    for index in of_leader.entries():
        try:
            all_paths.append(_path(index, of_leader, of_followers))
        except KeyError:
            continue
    return all_paths


def _path(index: int, leader: _Turns, followers: Mapping[str, _Turns]) -> Path:
    append_time = leader.time_of(Point.APPENDED, index)
    begin = leader.turn_of(append_time)
    queue_time = leader.time_of(Point.WRITE_QUEUED, index)
    came = sorted((leader.time_of(Point.ACKNOWLEDGEMENT_RECEIVED, index, name), name) for name in followers)
    apply_time = leader.time_of(Point.APPLIED, index)
    _, response_time = leader.sending_after(apply_time)
    send_times = {name: leader.time_of(Point.ENTRIES_SENT, index, name) for name in followers}
    to_faster = send_times[came[0][1]]
    steps = [
        Step(Lane.LEADER, "receive, check, frame", begin, append_time, True),
        Step(Lane.LEADER, "queue the write", append_time, queue_time, True),
        Step(Lane.LEADER, "build and send to the faster follower", queue_time, to_faster, True),
        *_write_steps(leader, index, Lane.LEADER_WRITER, queue_time, is_critical=False),
    ]
    # A majority of three is the leader and one follower, or both followers.
    for (ack_time, name), (lane, writer) in zip(
        came, ((Lane.FOLLOWER, Lane.FOLLOWER_WRITER), (Lane.OTHER, Lane.OTHER_WRITER)), strict=False
    ):
        steps += _follower_steps(index, followers[name], lane, writer, send_times[name], leader.turn_of(ack_time))
    first = came[0][0]
    turn = leader.turn_of(first)
    steps += [
        Step(Lane.LEADER, "receive the acknowledgement", turn, first, True),
        Step(Lane.LEADER, "commit and apply", first, apply_time, True),
        Step(Lane.LEADER, "send the reply", apply_time, response_time, True),
    ]
    own = leader.time_of(Point.DURABLE, index)
    if own < apply_time and leader.turn_of(own) != turn:
        steps.append(Step(Lane.LEADER, "note its own write", leader.turn_of(own), own, False))
    relative_steps = [Step(s.lane, s.name, s.begin - begin, s.end - begin, s.is_critical) for s in steps]
    return Path(tuple(sorted(relative_steps, key=lambda step: step.begin)), response_time - begin)


def _write_steps(replica: _Turns, index: int, lane: Lane, queue_time: float, *, is_critical: bool) -> list[Step]:
    begin, end = replica.time_of(Point.WRITE_BEGAN, index), replica.time_of(Point.WRITE_ENDED, index)
    # The writer may begin before the event loop, which has woken it, continues and notes that.
    return [
        Step(lane, "wake up", min(queue_time, begin), begin, is_critical),
        Step(lane, "write and sync", begin, end, is_critical),
    ]


def _follower_steps(
    index: int, replica: _Turns, lane: Lane, writer: Lane, send_time: float, take_time: float
) -> list[Step]:
    """The steps from the leader's sending to its turn with the acknowledgement."""
    is_critical = lane is Lane.FOLLOWER
    receive_time = replica.time_of(Point.ENTRIES_RECEIVED, index)
    turn = replica.turn_of(receive_time)
    queue_time = replica.time_of(Point.WRITE_QUEUED, index)
    end_time = replica.time_of(Point.WRITE_ENDED, index)
    durable = replica.time_of(Point.DURABLE, index)
    woke = replica.turn_of(durable)
    steps = [
        Step(lane, "wake up with the entries", send_time, turn, is_critical),
        Step(lane, "receive and check the entries", turn, receive_time, is_critical),
        Step(lane, "queue the write", receive_time, queue_time, is_critical),
        *_write_steps(replica, index, writer, queue_time, is_critical=is_critical),
    ]
    name, answer_time = "the leader wakes up", end_time
    if woke < take_time:
        answer_time = replica.sending_after(durable)[1]
        steps += [
            Step(lane, "wake up after the write", end_time, woke, is_critical),
            Step(lane, "build and send the acknowledgement", woke, answer_time, is_critical),
        ]
    else:
        name = "the writer sends the acknowledgement, the leader wakes up"  # the event loop noted the write later
    if is_critical:
        steps.append(Step(Lane.WIRE, name, answer_time, max(take_time, answer_time), True))
    return steps


@dataclass(frozen=True, slots=True)
class Row:
    """A step over all paths, in microseconds: the medians of its begin, of its end, and of its duration."""

    lane: Lane
    name: str
    begin_us: float
    end_us: float
    median_us: float
    p90_us: float
    is_critical: bool


COMMON_SHARE: Final = 0.5
"""A step that fewer paths have is left out."""


def rows(entry_paths: Sequence[Path]) -> list[Row]:
    """Return each step over all paths, in the order of the median of its begin."""
    of: dict[tuple[Lane, str], list[Step]] = {}
    for path in entry_paths:
        for step in path.steps:
            of.setdefault((step.lane, step.name), []).append(step)
    table_rows = [
        Row(
            lane,
            name,
            _median(step.begin for step in steps),
            _median(step.end for step in steps),
            _median(step.seconds for step in steps),
            1e6 * sorted(step.seconds for step in steps)[int(0.9 * (len(steps) - 1))],
            steps[0].is_critical,
        )
        for (lane, name), steps in of.items()
        if len(steps) >= COMMON_SHARE * len(entry_paths)
    ]
    return sorted(table_rows, key=lambda row: row.begin_us)


def _median(seconds: Iterable[float]) -> float:
    return 1e6 * statistics.median(seconds)


def turns_per_entry(trace: Trace, entries: int) -> float:
    """Return the number of turns of the event loop per entry."""
    return _Turns(trace).turns() / max(entries, 1)
