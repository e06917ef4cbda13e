"""The sequence numbers of stored messages, which every replica derives from the records.

Numbers are stored as ranges, as they were sent: a single message is a range of one number, a batch a range of many. For
each producer the table has the ranges with the highest numbers, with the place of their first record, and a *floor*; at
or below it no places are known. A gapless sequence of numbers just below the floor is still known to be stored, at the
cost of one number: so everything from a producer without gaps is known, however much it sends. Whether lower numbers
were stored is unknown.

The first record with a sequence number is the message; later ones are internal copies, such as the delivery of a
delayed message, and change nothing.

It is bounded: by ranges per producer, by producers, and by total ranges. The producer that has not stored anything for
the longest time is trimmed first: most ranges of producers with many, then whole producers. No clock is involved: one
that is days ahead would evict what producers are about to repeat.

Producers with generated ids (`is_generated`) are a part of their own, with limits of its own. So short-lived processes
push out each other, and never an id that an application has chosen. This is so from format level 8 on: older software
knows one part only, and the replicas of a group have to forget the same producers.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import sub
from typing import Final, Literal, NamedTuple

import msgspec

from mq.broker.limits import DEFAULT, StateLimits
from mq.broker.state.format_level import LEVEL_OF_GENERATED_PRODUCERS
from mq.broker.state.table import SnapshotDamaged, StateTable
from mq.protocol.messages.sequencing import (
    GENERATED_MARK,
    PRODUCER_ID_LENGTH_MAX,
    SEQUENCE_MAX,
    SequenceRange,
    is_generated,
)
from mq.protocol.numbers import PhysicalOffset
from mq.store.sequenced import SequencedRun

_NONE = -1
_INT: Final = "q"
_UINT: Final = "I"
_UINT_BYTES: Final = 4
assert (array(_INT).itemsize, array(_UINT).itemsize) == (8, _UINT_BYTES)


class SequencedRange(NamedTuple):
    """A range of sequence numbers, from ``first`` to ``last``, whose messages are in the log.

    ``position`` is the physical offset of the first record of the range as stored, ``skip`` the number of records from
    there to this one; None if the place is unknown.
    """

    first: int
    last: int
    position: PhysicalOffset | None
    skip: int


_OldRow = tuple[str, int, int, bytes, bytes]
_OLD_COLUMNS = 5
_Row = tuple[str, int, int, bytes, bytes, bytes, int]
"""Producer, floor, time, first numbers, positions, further numbers, and the start of the gapless sequence up to the
floor. Snapshots of older versions lack the last two: they had no batches with numbers.
"""


class _SequenceWindow:
    """The known ranges of one producer, ascending and disjoint, and their places in the log.

    ``extras`` is the length of each range minus one. The first ``drop_count`` rows were dropped: they are removed from
    memory only from time to time. Everything from ``stored_from`` to ``floor`` is stored; ``last`` is the highest
    number. ``latest_ms`` is the store time of the latest message, for people who read a snapshot; no decision depends
    on it.
    """

    __slots__ = ("drop_count", "epoch", "extras", "firsts", "floor", "last", "latest_ms", "positions", "stored_from")

    def __init__(
        self,
        epoch: int,
        floor: int,
        latest_ms: int,
        firsts: array[int],
        positions: array[int],
        extras: array[int],
        stored_from: int,
    ) -> None:
        self.epoch = epoch
        self.floor = floor
        self.latest_ms = latest_ms
        self.firsts = firsts
        self.positions = positions
        self.extras = extras
        self.stored_from = stored_from
        self.drop_count = 0
        self.last = firsts[-1] + extras[-1] if firsts else floor

    @staticmethod
    def empty(epoch: int, store_ms: int) -> _SequenceWindow:
        return _SequenceWindow(epoch, _NONE, store_ms, array(_INT), array(_INT), array(_UINT), _NONE + 1)

    @property
    def count(self) -> int:
        """The number of known ranges."""
        return len(self.firsts) - self.drop_count

    def copy(self, epoch: int) -> _SequenceWindow:
        begin = self.drop_count
        firsts, positions, extras = self.firsts[begin:], self.positions[begin:], self.extras[begin:]
        return _SequenceWindow(epoch, self.floor, self.latest_ms, firsts, positions, extras, self.stored_from)

    def row(self, name: str) -> _Row:
        begin = self.drop_count
        ranges = _pack(self.firsts[begin:]), _pack(self.positions[begin:]), _pack(self.extras[begin:])
        return name, self.floor, self.latest_ms, *ranges, self.stored_from

    def find(self, first: int, last: int) -> list[SequencedRange] | None:
        ranges: list[SequencedRange] = []
        if first <= self.floor:
            if first < self.stored_from:
                return None
            ranges.append(SequencedRange(first, min(last, self.floor), None, 0))
        firsts, extras = self.firsts, self.extras
        at = max(bisect_right(firsts, first) - 1, self.drop_count)
        while at < len(firsts) and (start := firsts[at]) <= last:
            low, high = max(first, start), min(last, start + extras[at])
            if low <= high:
                ranges.append(SequencedRange(low, high, PhysicalOffset(self.positions[at]), low - start))
            at += 1
        return ranges

    def insert(self, first: int, last: int, position: PhysicalOffset) -> None:
        at = bisect_right(self.firsts, first)
        assert at >= self.drop_count, f"{first} is added below {self.floor}"
        self.firsts.insert(at, first)
        self.positions.insert(at, position)
        self.extras.insert(at, last - first)
        self.last = max(self.last, last)

    def extend(self, firsts: list[int], lasts: list[int], positions: list[int]) -> None:
        """Add ranges above all others, ascending."""
        self.last = last = lasts[-1]
        if len(firsts) == 1:
            first = firsts[0]
            self.firsts.append(first)
            self.positions.append(positions[0])
            self.extras.append(last - first)
            return
        self.firsts.fromlist(firsts)
        self.positions.fromlist(positions)
        if firsts == lasts:
            self.extras.frombytes(bytes(_UINT_BYTES * len(firsts)))
        else:
            self.extras.extend(map(sub, lasts, firsts))

    def drop(self, count: int) -> None:
        """Forget the lowest ``count`` ranges: only the floor tells that they are stored."""
        begin = self.drop_count
        end = begin + count
        firsts, extras, floor = self.firsts, self.extras, self.floor
        highest = firsts[end - 1] + extras[end - 1]
        if highest - floor != count + sum(extras[begin:end]):  # there are gaps
            for first, extra in zip(firsts[begin:end], extras[begin:end], strict=True):
                if first != floor + 1:
                    self.stored_from = first
                floor = first + extra
        self.floor = highest
        if 4 * end >= len(self.firsts) - end:
            del self.firsts[:end]
            del self.positions[:end]
            del self.extras[:end]
            end = 0
        self.drop_count = end


class _ProducerWindows:
    """The windows of some producers, and their limits, which `add_count` enforces.

    Attributes:
        windows: ordered by the time of the producers' latest messages, oldest first.
        wide: in the same order, producers with more than ``narrow`` ranges.
        count: total ranges.
    """

    def __init__(self, window_max: int, producers_max: int, narrow: int) -> None:
        self.windows: OrderedDict[str, _SequenceWindow] = OrderedDict()
        self.wide: OrderedDict[str, None] = OrderedDict()
        self.count = 0
        self.ranges_max = narrow * producers_max
        self._window_max, self._producers_max, self._narrow = window_max, producers_max, narrow

    def open_window(self, producer: str, epoch: int, store_ms: int) -> _SequenceWindow:
        """Return the window of a producer, which may be changed; create it if missing."""
        window = self.windows.get(producer)
        if window is None:
            window = self.windows[producer] = _SequenceWindow.empty(epoch, store_ms)
        elif window.epoch != epoch:
            window = self.windows[producer] = window.copy(epoch)
        return window

    def add_count(self, producer: str, window: _SequenceWindow, count: int, epoch: int) -> None:
        """Count new ranges of a producer, which is the latest one now, and drop its oldest above the limit."""
        windows = self.windows
        windows.move_to_end(producer)
        ranges = len(window.firsts) - window.drop_count
        excess = ranges - self._window_max
        if excess > 0:
            window.drop(excess)
            count -= excess
            ranges = self._window_max
        self.count += count
        if ranges > self._narrow:
            self.wide[producer] = None
            self.wide.move_to_end(producer)
        if len(windows) > self._producers_max or self.count > self.ranges_max:
            self.make_room(epoch)

    def make_room(self, epoch: int) -> None:
        """Trim the producers that have been idle for the longest time, down to the limits."""
        windows = self.windows
        while len(windows) > self._producers_max:
            oldest, window = windows.popitem(last=False)
            self.count -= window.count
            self.wide.pop(oldest, None)
            assert self.count >= 0, f"{self.count} ranges are left without {oldest}"
        while self.count > self.ranges_max:
            producer, _ = self.wide.popitem(last=False)
            window = self.open_window(producer, epoch, 0)
            excess = window.count - self._narrow
            assert excess > 0, f"{producer} is trimmed by {excess} ranges"
            window.drop(excess)
            self.count -= excess

    def replace(self, windows: OrderedDict[str, _SequenceWindow]) -> None:
        """Replace all windows, in this order."""
        self.windows = windows
        self.wide = OrderedDict.fromkeys(name for name, window in windows.items() if window.count > self._narrow)
        self.count = sum(window.count for window in windows.values())

    def check_invariants(self) -> None:
        """Assert the invariants that `ProducerSequences.check_invariants` explains; for tests."""
        for name, window in self.windows.items():
            rows = list(zip(window.firsts, window.extras, strict=True))[window.drop_count :]
            ends = [first + extra for first, extra in rows]
            for end, (first, _) in zip((window.floor, *ends), rows, strict=False):
                assert end < first, f"{name}: numbers from {first} on are stored twice, those up to {end} are"
            places = len(window.positions) - window.drop_count
            assert places == len(ends), f"{name}: {len(ends)} ranges at {places} places"
            assert 0 < len(ends) <= self._window_max, f"{name}: {len(ends)} ranges, at most {self._window_max} are kept"
            assert window.last == ends[-1], f"{name}: {window.last} is the highest number of {ends}"
            assert window.stored_from <= window.floor + 1, f"{name}: {window.stored_from} to {window.floor} are stored"
            is_wide = name in self.wide
            assert is_wide == (len(ends) > self._narrow), f"{name} has {len(ends)} ranges, is listed as wide: {is_wide}"
        count = sum(window.count for window in self.windows.values())
        assert self.count == count, f"{self.count} ranges were counted, there are {count}"
        assert self.count <= self.ranges_max, f"{self.count} ranges; maximum: {self.ranges_max}"
        assert len(self.windows) <= self._producers_max, f"{len(self.windows)} producers"


class ProducerSequences(StateTable):
    """The stored sequence numbers of producers. Only `add`, `add_run` and `reach` change it."""

    def __init__(self, limits: StateLimits = DEFAULT.state) -> None:
        self._own_ids = _ProducerWindows(
            limits.ranges_per_producer_max, limits.producers_max, limits.ranges_when_crowded
        )
        self._generated_ids = _ProducerWindows(
            limits.ranges_per_producer_max, limits.generated_producers_max, limits.generated_ranges_when_crowded
        )
        self._is_separate = False
        self._epoch = 0
        """Windows of an older epoch may be read by a capture: they are copied before a change."""

    @property
    def producers(self) -> int:
        """The number of known producers."""
        return len(self._own_ids.windows) + len(self._generated_ids.windows)

    @property
    def count(self) -> int:
        """The number of ranges of all producers."""
        return self._own_ids.count + self._generated_ids.count

    def reach(self, level: int) -> None:
        """Adapt to the format level: from level 8 on, producers with generated ids are limited separately."""
        if self._is_separate or level < LEVEL_OF_GENERATED_PRODUCERS:
            return
        self._is_separate = True
        self._split(self._own_ids.windows)
        self._generated_ids.make_room(self._epoch)  # its limits may be lower

    def _split(self, windows: OrderedDict[str, _SequenceWindow]) -> None:
        generated_windows: OrderedDict[str, _SequenceWindow] = OrderedDict()
        if self._is_separate:
            generated_windows = OrderedDict((name, window) for name, window in windows.items() if is_generated(name))
            windows = OrderedDict((name, window) for name, window in windows.items() if name not in generated_windows)
        self._own_ids.replace(windows)
        self._generated_ids.replace(generated_windows)

    def _part_of(self, producer: str) -> _ProducerWindows:
        # As `is_generated`, without a call for each message.
        return self._generated_ids if self._is_separate and producer.startswith(GENERATED_MARK) else self._own_ids

    def find(self, numbers: SequenceRange) -> list[SequencedRange] | None:
        """Return the stored ranges among these numbers, ascending. The others are not stored, or are in flight.

        None if it is unknown for some of them.
        """
        window = self._part_of(numbers.producer).windows.get(numbers.producer)
        return [] if window is None else window.find(numbers.first, numbers.last)

    def highest(self, producer: str) -> int:
        """Return the highest stored number of a producer; -1 if none is known."""
        window = self._own_ids.windows.get(producer) or self._generated_ids.windows.get(producer)
        return _NONE if window is None else window.last

    def add_run(self, run: SequencedRun) -> None:
        """Call `add` for each of these records, or add all in one step if they are new and nothing is trimmed."""
        producer, firsts, lasts, positions, store_ms = run
        count = len(firsts)
        assert count == len(positions), f"{count} ranges of {producer} at {len(positions)} places"
        part = self._part_of(producer)
        current = part.windows.get(producer)
        if (current is not None and firsts[0] <= current.last) or (count > 1 and part.count + count > part.ranges_max):
            for first, last, position in zip(firsts, lasts, positions, strict=True):
                self.add(producer, first, last, PhysicalOffset(position), store_ms)
            return
        window = (
            current
            if current is not None and current.epoch == self._epoch
            else part.open_window(producer, self._epoch, store_ms)
        )
        window.extend(firsts, lasts, positions)
        window.latest_ms = store_ms
        part.add_count(producer, window, count, self._epoch)

    def add(self, producer: str, first: int, last: int, physical_offset: PhysicalOffset, store_ms: int) -> None:
        """Record that messages with these numbers were committed, the first one at ``physical_offset``."""
        part = self._part_of(producer)
        window = part.windows.get(producer)
        if window is not None and first <= window.last and window.find(first, last) != []:
            return  # a copy: only new messages are stored otherwise
        window = part.open_window(producer, self._epoch, store_ms)
        window.insert(first, last, physical_offset)
        window.latest_ms = store_ms
        part.add_count(producer, window, 1, self._epoch)

    def check_invariants(self) -> None:
        """Assert that ranges, limits and counts agree; for tests, since it reads every range.

        The ranges of a producer ascend and do not overlap, because a search looks at one side of the first number only;
        those below the floor are gone. The limits hold, and so does the count that they are compared with. Each
        producer is in its part.
        """
        for part in (self._own_ids, self._generated_ids):
            part.check_invariants()
            for name in part.windows:
                assert self._part_of(name) is part, f"{name} is in the other part; separate: {self._is_separate}"

    def capture(self) -> Callable[[], object]:
        """Capture the ranges of all producers, first those of producers with chosen ids."""
        self._epoch += 1
        windows = [*self._own_ids.windows.items(), *self._generated_ids.windows.items()]
        return lambda: [window.row(name) for name, window in windows] or None

    def restore(self, state: object) -> None:
        """Replace the ranges of all producers. Until `reach` is called, all share one limit."""
        windows: OrderedDict[str, _SequenceWindow] = OrderedDict()
        for values in msgspec.convert(state or [], list[list[object]]):
            row = _row(values)
            name = row[0]
            if not 1 <= len(name) <= PRODUCER_ID_LENGTH_MAX or name in windows:
                raise SnapshotDamaged(
                    f"the producer {name[:PRODUCER_ID_LENGTH_MAX]!r} is repeated, or its id has a wrong length"
                )
            windows[name] = _restore_window(self._epoch, row)
        self._is_separate = False
        self._split(windows)


def _row(values: list[object]) -> _Row:
    if len(values) != _OLD_COLUMNS:
        row: _Row = msgspec.convert(values, _Row)
        return row
    name, floor, latest_ms, firsts, positions = msgspec.convert(values, _OldRow)
    return name, floor, latest_ms, firsts, positions, bytes(len(firsts) // 2), floor + 1


def _restore_window(epoch: int, row: _Row) -> _SequenceWindow:
    _, floor, latest_ms, firsts, positions, extras, stored_from = row
    if not firsts or len(firsts) % 8 or (len(positions), len(extras)) != (len(firsts), len(firsts) // 2):
        sizes = f"{len(firsts)}, {len(positions)} and {len(extras)}"
        raise SnapshotDamaged(f"the columns of sequence numbers do not fit each other: they have {sizes} bytes")
    window = _SequenceWindow(
        epoch, floor, latest_ms, _unpack(_INT, firsts), _unpack(_INT, positions), _unpack(_UINT, extras), stored_from
    )
    below = floor
    for first, extra in zip(window.firsts, window.extras, strict=True):
        if first <= below:
            raise SnapshotDamaged(f"sequence numbers do not ascend from {floor}")
        below = first + extra
    if not _NONE <= floor <= below <= SEQUENCE_MAX or not 0 <= stored_from <= floor + 1:
        raise SnapshotDamaged(f"sequence numbers out of bounds: from {stored_from}, all up to {floor}, highest {below}")
    return window


def _pack(numbers: array[int]) -> bytes:
    return _little(numbers[:]).tobytes()


def _unpack(kind: Literal["q", "I"], data: bytes) -> array[int]:
    return _little(array(kind, data))


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
