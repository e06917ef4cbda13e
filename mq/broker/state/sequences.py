"""Which messages with a sequence number the log has: a table that every replica derives from the records themselves.

For each producer the messages with its highest sequence numbers are known, and a *floor*: of what is at or below it
nobody knows any more whether it was stored. The first record with a sequence number is the message; later ones are
copies that the broker made of it, such as the delivery of a delayed one, and change nothing.

The table is bounded: by messages of one producer, by producers, and by messages in all. Who stored nothing for longest
makes room first: of producers with many messages the older half goes, then producers go as a whole. No clock has a say
in this: one that is days ahead would make the table forget what producers are about to repeat.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto
from itertools import pairwise

import msgspec

from mq.broker.state.parts import PartCommand, SnapshotDamaged
from mq.protocol.sequencing import PRODUCER_ID_LENGTH_MAX

WINDOW = 1024
"""Messages of one producer."""
PRODUCERS_MAX = 10_000
MESSAGES_MAX = 1_000_000
"""In all: 16 bytes each, in memory and in a snapshot."""
NARROW = MESSAGES_MAX // PRODUCERS_MAX
"""What is left of a producer's messages when the table is full."""

_NONE = -1
_INT = "q"


class NotFound(Enum):
    """Why there is no message with a sequence number."""

    NEW = auto()
    """There is none; one may be on its way."""
    FORGOTTEN = auto()
    """Nobody knows any more whether there was one."""


class _Window:
    """What is known of one producer: sequence numbers, ascending, and where the messages are.

    ``latest_ms`` is the store time of the latest one, for those who read a snapshot; nothing is decided by it.
    """

    __slots__ = ("epoch", "floor", "latest_ms", "numbers", "positions")

    def __init__(self, epoch: int, floor: int, latest_ms: int, numbers: array[int], positions: array[int]) -> None:
        self.epoch = epoch
        self.floor = floor
        self.latest_ms = latest_ms
        self.numbers = numbers
        self.positions = positions

    def copy(self, epoch: int) -> _Window:
        return _Window(epoch, self.floor, self.latest_ms, self.numbers[:], self.positions[:])

    def row(self) -> tuple[int, int, bytes, bytes]:
        return self.floor, self.latest_ms, _pack(self.numbers), _pack(self.positions)

    def drop(self, count: int) -> None:
        self.floor = self.numbers[count - 1]
        del self.numbers[:count]
        del self.positions[:count]


class Sequences:
    """The table; see the module. Changes by `note` only."""

    COMMANDS: tuple[type[PartCommand], ...] = ()

    def __init__(self) -> None:
        self._windows: OrderedDict[str, _Window] = OrderedDict()
        """In the order in which producers stored their latest messages."""
        self._wide: OrderedDict[str, None] = OrderedDict()
        """In the same order those with more than `NARROW` messages here."""
        self._epoch = 0
        """Windows of an older one are being encoded, perhaps: another one takes their place before it changes."""
        self.count = 0
        """Messages in all."""

    @property
    def producers(self) -> int:
        """How many producers are known."""
        return len(self._windows)

    def find(self, producer: str, number: int) -> int | NotFound:
        """The physical offset of a producer's message, or why there is none."""
        window = self._windows.get(producer)
        if window is None:
            return NotFound.NEW
        if number <= window.floor:
            return NotFound.FORGOTTEN
        at = bisect_left(window.numbers, number)
        if at < len(window.numbers) and window.numbers[at] == number:
            return window.positions[at]
        return NotFound.NEW

    def note(self, producer: str, number: int, physical_offset: int, store_ms: int) -> None:
        """A record with this sequence number was committed."""
        window = self._windows.get(producer)
        if window is None:
            window = self._windows[producer] = _Window(self._epoch, _NONE, store_ms, array(_INT), array(_INT))
        at = bisect_left(window.numbers, number)
        if number <= window.floor or (at < len(window.numbers) and window.numbers[at] == number):
            return
        if window.epoch != self._epoch:
            window = self._windows[producer] = window.copy(self._epoch)
        window.numbers.insert(at, number)
        window.positions.insert(at, physical_offset)
        window.latest_ms = store_ms
        self.count += 1
        self._windows.move_to_end(producer)
        if len(window.numbers) > WINDOW:
            window.drop(1)
            self.count -= 1
        if len(window.numbers) > NARROW:
            self._wide[producer] = None
            self._wide.move_to_end(producer)
        self._make_room()

    def apply(self, command: PartCommand) -> None:
        """See `Part.apply`. There is no command: records say it all."""
        raise AssertionError(f"{type(command).__name__} is no command of sequence numbers")

    def _make_room(self) -> None:
        windows = self._windows
        while len(windows) > PRODUCERS_MAX:
            oldest, window = windows.popitem(last=False)
            self.count -= len(window.numbers)
            self._wide.pop(oldest, None)
        while self.count > MESSAGES_MAX:
            producer, _ = self._wide.popitem(last=False)
            window = windows[producer]
            if window.epoch != self._epoch:
                window = windows[producer] = window.copy(self._epoch)
            excess = len(window.numbers) - NARROW
            window.drop(excess)
            self.count -= excess

    def capture(self) -> Callable[[], object]:
        """See `Part.capture`."""
        self._epoch += 1
        windows = list(self._windows.items())
        return lambda: [(name, *window.row()) for name, window in windows] or None

    def restore(self, state: object) -> None:
        """See `Part.restore`."""
        rows = msgspec.convert(state or [], list[tuple[str, int, int, bytes, bytes]])
        windows: OrderedDict[str, _Window] = OrderedDict()
        for name, floor, latest_ms, packed_numbers, packed_positions in rows:
            if len(packed_numbers) != len(packed_positions) or not packed_numbers or len(packed_numbers) % 8:
                raise SnapshotDamaged(f"sequence numbers in {len(packed_numbers)} and {len(packed_positions)} bytes")
            numbers, positions = _unpack(packed_numbers), _unpack(packed_positions)
            if floor < _NONE or floor >= numbers[0] or any(one >= other for one, other in pairwise(numbers)):
                raise SnapshotDamaged(f"sequence numbers do not ascend from {floor}")
            if not 1 <= len(name) <= PRODUCER_ID_LENGTH_MAX or name in windows:
                raise SnapshotDamaged(f"sequence numbers of producer {name[:PRODUCER_ID_LENGTH_MAX]!r}")
            windows[name] = _Window(self._epoch, floor, latest_ms, numbers, positions)
        self._windows = windows
        self._wide = OrderedDict.fromkeys(name for name, window in windows.items() if len(window.numbers) > NARROW)
        self.count = sum(len(window.numbers) for window in windows.values())

    def topic_deleted(self, topic: str) -> None:
        """See `Part.topic_deleted`. A producer's numbers are not those of a topic."""

    def group_deleted(self, group: str) -> None:
        """See `Part.group_deleted`. Sequence numbers are of no group."""


def _pack(numbers: array[int]) -> bytes:
    return _little(numbers[:]).tobytes()


def _unpack(data: bytes) -> array[int]:
    return _little(array(_INT, data))


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
