"""Sequence numbers of stored messages: a table that every replica derives from the records themselves.

Numbers are stored as ranges, as they were sent: a single message is a range of one number, a batch a range of many. For
each producer the table has the ranges with the highest numbers, with the place of their first record, and a *floor*; at
or below it no places are known. A gapless sequence of numbers just below the floor is still known to be stored, at the
cost of one number: so everything from a producer without gaps is known, however much it sends. Whether lower numbers
were stored is unknown.

The first record with a sequence number is the message; later ones are internal copies, such as the delivery of a
delayed message, and change nothing.

The table is bounded: by ranges per producer, by producers, and by total ranges. The producer that has not stored
anything for the longest time is trimmed first: most ranges of producers with many, then whole producers. No clock is
involved: one that is days ahead would evict what producers are about to repeat.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from operator import lt, sub
from typing import Final, Literal, NamedTuple

import msgspec

from mq.broker.limits import DEFAULT, StateLimits
from mq.broker.state.table import SnapshotDamaged, TableCommand
from mq.protocol.messages.sequencing import PRODUCER_ID_LENGTH_MAX, SEQUENCE_MAX, SequenceRange
from mq.protocol.numbers import PhysicalOffset
from mq.store.sequenced import SequencedRun

_NONE = -1
_INT: Final = "q"
_UINT: Final = "I"
assert (array(_INT).itemsize, array(_UINT).itemsize) == (8, 4)


class Stored(NamedTuple):
    """Messages with numbers from ``first`` to ``last`` are in the log.

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


class _Window:
    """The known ranges of one producer, ascending and disjoint, and their places in the log.

    ``extras`` is the length of each range minus one. Everything from ``stored_from`` to ``floor`` is stored.
    ``latest_ms`` is the store time of the latest message, for people who read a snapshot; no decision depends on it.
    """

    __slots__ = ("epoch", "extras", "firsts", "floor", "latest_ms", "positions", "stored_from")

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

    @staticmethod
    def empty(epoch: int, store_ms: int) -> _Window:
        return _Window(epoch, _NONE, store_ms, array(_INT), array(_INT), array(_UINT), _NONE + 1)

    @property
    def last(self) -> int:
        """The highest number."""
        return self.firsts[-1] + self.extras[-1] if self.firsts else self.floor

    def copy(self, epoch: int) -> _Window:
        firsts, positions, extras = self.firsts[:], self.positions[:], self.extras[:]
        return _Window(epoch, self.floor, self.latest_ms, firsts, positions, extras, self.stored_from)

    def row(self, name: str) -> _Row:
        ranges = _pack(self.firsts), _pack(self.positions), _pack(self.extras)
        return name, self.floor, self.latest_ms, *ranges, self.stored_from

    def find(self, first: int, last: int) -> list[Stored] | None:
        found: list[Stored] = []
        if first <= self.floor:
            if first < self.stored_from:
                return None
            found.append(Stored(first, min(last, self.floor), None, 0))
        firsts, extras = self.firsts, self.extras
        at = max(bisect_right(firsts, first) - 1, 0)
        while at < len(firsts) and (start := firsts[at]) <= last:
            low, high = max(first, start), min(last, start + extras[at])
            if low <= high:
                found.append(Stored(low, high, PhysicalOffset(self.positions[at]), low - start))
            at += 1
        return found

    def insert(self, first: int, last: int, position: PhysicalOffset) -> None:
        at = bisect_right(self.firsts, first)
        self.firsts.insert(at, first)
        self.positions.insert(at, position)
        self.extras.insert(at, last - first)

    def extend(self, firsts: Sequence[int], lasts: Sequence[int], positions: Sequence[int]) -> None:
        """Add ranges above all others, ascending."""
        self.firsts.extend(firsts)
        self.positions.extend(positions)
        self.extras.extend(map(sub, lasts, firsts))

    def drop(self, count: int) -> None:
        for first, extra in zip(self.firsts[:count], self.extras[:count], strict=True):
            if first != self.floor + 1:
                self.stored_from = first
            self.floor = first + extra
        del self.firsts[:count]
        del self.positions[:count]
        del self.extras[:count]


class ProducerSequences:
    """The table; see the module. Only `note` changes it."""

    COMMANDS: tuple[type[TableCommand], ...] = ()

    def __init__(self, limits: StateLimits = DEFAULT.state) -> None:
        self._window_max, self._producers_max = limits.window, limits.producers_max
        self._ranges_max, self._narrow = limits.ranges_max, limits.narrow
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        """Ordered by the time of the producers' latest messages, oldest first."""
        self._wide: OrderedDict[str, None] = OrderedDict()
        """In the same order, producers with more ranges than `StateLimits.narrow`."""
        self._epoch = 0
        """Windows of an older epoch may be read by a capture: they are copied before a change."""
        self.count = 0
        """Total ranges."""

    @property
    def producers(self) -> int:
        """Number of known producers."""
        return len(self._windows)

    def find(self, numbers: SequenceRange) -> list[Stored] | None:
        """Which of these messages are stored, ascending; the others are not, unless they are in flight.

        None if it is unknown for some of them.
        """
        window = self._windows.get(numbers.producer)
        return [] if window is None else window.find(numbers.first, numbers.last)

    def highest(self, producer: str) -> int:
        """The highest number of this producer that is known to be stored; -1 without any."""
        window = self._windows.get(producer)
        return _NONE if window is None else window.last

    def note_run(self, run: SequencedRun) -> None:
        """`note` for each of these records. All at once if they ascend, are new, and nothing has to be trimmed."""
        producer, firsts, lasts, positions, store_ms = run
        count = len(firsts)
        assert count == len(lasts) == len(positions), f"{count} ranges of {producer} at {len(positions)} places"
        if (
            count == 1
            or firsts[0] <= self.highest(producer)
            or self.count + count > self._ranges_max
            or not all(map(lt, lasts, islice(firsts, 1, None)))
        ):
            for first, last, position in zip(firsts, lasts, positions, strict=True):
                self.note(producer, first, last, PhysicalOffset(position), store_ms)
            return
        window = self._windows.get(producer)
        if window is None:
            window = self._windows[producer] = _Window.empty(self._epoch, store_ms)
        elif window.epoch != self._epoch:
            window = self._windows[producer] = window.copy(self._epoch)
        window.extend(firsts, lasts, positions)
        window.latest_ms = store_ms
        self.count += count
        self._moved(producer, window)

    def note(self, producer: str, first: int, last: int, physical_offset: PhysicalOffset, store_ms: int) -> None:
        """The messages with these numbers were committed, beginning with the record at that offset."""
        window = self._windows.get(producer)
        if window is None:
            window = self._windows[producer] = _Window.empty(self._epoch, store_ms)
        elif first <= window.last and window.find(first, last) != []:  # a copy: only new messages are stored otherwise
            return
        if window.epoch != self._epoch:
            window = self._windows[producer] = window.copy(self._epoch)
        window.insert(first, last, physical_offset)
        window.latest_ms = store_ms
        self.count += 1
        self._moved(producer, window)

    def _moved(self, producer: str, window: _Window) -> None:
        """A producer has new ranges: it is the latest one, and old ranges are dropped."""
        self._windows.move_to_end(producer)
        excess = len(window.firsts) - self._window_max
        if excess > 0:
            window.drop(excess)
            self.count -= excess
        if len(window.firsts) > self._narrow:
            self._wide[producer] = None
            self._wide.move_to_end(producer)
        self._make_room()

    def apply(self, command: TableCommand) -> None:
        """See `StateTable.apply`. There are no commands: the records contain everything."""
        raise AssertionError(f"{type(command).__name__} is no command of sequence numbers")

    def _make_room(self) -> None:
        windows = self._windows
        while len(windows) > self._producers_max:
            oldest, window = windows.popitem(last=False)
            self.count -= len(window.firsts)
            self._wide.pop(oldest, None)
            assert self.count >= 0, f"{self.count} ranges are left without {oldest}"
        while self.count > self._ranges_max:
            producer, _ = self._wide.popitem(last=False)
            window = windows[producer]
            if window.epoch != self._epoch:
                window = windows[producer] = window.copy(self._epoch)
            excess = len(window.firsts) - self._narrow
            assert excess > 0, f"{producer} is trimmed by {excess} ranges"
            window.drop(excess)
            self.count -= excess

    def check_invariants(self) -> None:
        """Assert what holds between two records; for tests, since it looks at every range.

        The ranges of a producer ascend and do not overlap, because a search looks at one side of the first number only;
        those below the floor are gone. The limits hold, and so does the count that they are compared with.
        """
        for name, window in self._windows.items():
            ends = [first + extra for first, extra in zip(window.firsts, window.extras, strict=True)]
            for end, first in zip((window.floor, *ends), window.firsts, strict=False):
                assert end < first, f"{name}: numbers from {first} on are stored twice, those up to {end} are"
            assert len(window.positions) == len(ends), f"{name}: {len(ends)} ranges at {len(window.positions)} places"
            assert 0 < len(ends) <= self._window_max, f"{name}: {len(ends)} ranges, at most {self._window_max} are kept"
            assert window.stored_from <= window.floor + 1, f"{name}: {window.stored_from} to {window.floor} are stored"
            is_wide = name in self._wide
            assert is_wide == (len(ends) > self._narrow), f"{name} has {len(ends)} ranges, is listed as wide: {is_wide}"
        count = sum(len(window.firsts) for window in self._windows.values())
        assert self.count == count, f"{self.count} ranges were counted, there are {count}"
        assert len(self._windows) <= self._producers_max, f"{len(self._windows)} producers"

    def capture(self) -> Callable[[], object]:
        """See `StateTable.capture`."""
        self._epoch += 1
        windows = list(self._windows.items())
        return lambda: [window.row(name) for name, window in windows] or None

    def restore(self, state: object) -> None:
        """See `StateTable.restore`."""
        windows: OrderedDict[str, _Window] = OrderedDict()
        for given in msgspec.convert(state or [], list[list[object]]):
            row = _row(given)
            name = row[0]
            if not 1 <= len(name) <= PRODUCER_ID_LENGTH_MAX or name in windows:
                raise SnapshotDamaged(f"sequence numbers of producer {name[:PRODUCER_ID_LENGTH_MAX]!r}")
            windows[name] = _restored(self._epoch, row)
        self._windows = windows
        self._wide = OrderedDict.fromkeys(name for name, window in windows.items() if len(window.firsts) > self._narrow)
        self.count = sum(len(window.firsts) for window in windows.values())

    def topic_deleted(self, topic: str) -> None:
        """See `StateTable.topic_deleted`. Sequence numbers do not depend on topics."""

    def group_deleted(self, group: str) -> None:
        """See `StateTable.group_deleted`. Sequence numbers do not depend on groups."""


def _row(given: list[object]) -> _Row:
    if len(given) != _OLD_COLUMNS:
        row: _Row = msgspec.convert(given, _Row)
        return row
    name, floor, latest_ms, firsts, positions = msgspec.convert(given, _OldRow)
    return name, floor, latest_ms, firsts, positions, bytes(len(firsts) // 2), floor + 1


def _restored(epoch: int, row: _Row) -> _Window:
    _, floor, latest_ms, firsts, positions, extras, stored_from = row
    if not firsts or len(firsts) % 8 or (len(positions), len(extras)) != (len(firsts), len(firsts) // 2):
        sizes = f"{len(firsts)}, {len(positions)} and {len(extras)}"
        raise SnapshotDamaged(f"sequence numbers in {sizes} bytes")
    window = _Window(
        epoch, floor, latest_ms, _unpack(_INT, firsts), _unpack(_INT, positions), _unpack(_UINT, extras), stored_from
    )
    below = floor
    for first, extra in zip(window.firsts, window.extras, strict=True):
        if first <= below:
            raise SnapshotDamaged(f"sequence numbers do not ascend from {floor}")
        below = first + extra
    if not _NONE <= floor <= below <= SEQUENCE_MAX or not 0 <= stored_from <= floor + 1:
        raise SnapshotDamaged(f"sequence numbers up to {below}, stored from {stored_from} to {floor}")
    return window


def _pack(numbers: array[int]) -> bytes:
    return _little(numbers[:]).tobytes()


def _unpack(kind: Literal["q", "I"], data: bytes) -> array[int]:
    return _little(array(kind, data))


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
