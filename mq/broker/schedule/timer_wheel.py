"""Which of the messages that wait in the timer topic are to be looked at next: the leader's view of its queues.

Theory of operation. Each queue of the topic is a *slot*, whose entries say when their turn comes. New entries are gone
through once, to know when the slot's next turn comes (8 bytes for a slot, not for a message). Shortly before that,
those of its entries are gathered whose turn comes within a minute or so: packed into sorted arrays, 8 bytes each, with
a heap over the arrays. Nothing depends on the clock that the entries' slots were chosen by: that only makes those of
one minute lie together.

Gathering goes on in pieces, so that a slot with a million entries holds up nobody. The same entry may be gathered
twice; who takes it must look whether it is done or under way already.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable
from typing import Final, Protocol

from mq.protocol.delay import TIMER_SLOT_MS, TIMER_SLOTS, timer_slot
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError

PIECE_ENTRIES: Final = 4096
"""Gathered at once: about a millisecond."""
GATHERED_MAX: Final = 4_000_000
"""With so many entries gathered (32 MB) no more are, until some were taken."""
AHEAD_MS: Final = 5000
"""So long before the turn of its first entry a slot is gone through."""
NEVER: Final = 2**62

_INDEX_BITS: Final = 12
_TURN_MAX: Final = 2**50
_PIECES_HOT: Final = 2
_PIECES_ROUND: Final = 2
_SLOTS_PER_CALL: Final = 32
_SLOTS_PER_FIRST_CALLS: Final = 360
assert PIECE_ENTRIES == 1 << _INDEX_BITS


class SlotQueue(Protocol):
    """What is needed of a consume queue."""

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    def read(self, offset: int, count: int) -> bytes: ...


class SlotMarks(Protocol):
    """What is needed of the marks of a queue."""

    @property
    def low(self) -> int: ...
    def is_done(self, offset: int) -> bool: ...


class _Slot:
    """What is known of one slot.

    Attributes:
        seen: entries below this offset were gone through.
        next_ms: of those that were not gathered, none has its turn earlier.
        horizon_ms: entries with a turn up to this time are gathered when they are gone through.
        lost_to: entries below this offset that are not done were reported as lost.
    """

    __slots__ = ("horizon_ms", "lost_to", "next_ms", "seen")

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.next_ms = NEVER
        self.horizon_ms = -1
        self.lost_to = 0


class _Run:
    """Gathered entries of one piece of a slot: turn and index in the piece, packed and sorted."""

    __slots__ = ("entries", "first_offset", "position", "queue_id")

    def __init__(self, queue_id: int, first_offset: int, entries: array[int]) -> None:
        self.queue_id = queue_id
        self.first_offset = first_offset
        self.entries = entries
        self.position = 0


class TimerWheel:
    """See the module. One is made for each leadership.

    Args:
        queue: the consume queue of a slot, None if it never had an entry.
        marks: which of its entries are done.

    Attributes:
        gathered: entries that were gathered and not taken.
        lost: slots whose entries up to an offset are gone from the log; whoever reads it empties it.
    """

    def __init__(self, queue: Callable[[int], SlotQueue | None], marks: Callable[[int], SlotMarks]) -> None:
        self._queue = queue
        self._marks = marks
        self._slots: dict[int, _Slot] = {}
        self._runs: list[tuple[int, int, _Run]] = []
        self._run_number = 0
        self._next_slot = 0
        self._is_first_round = True
        self.gathered = 0
        self.lost: dict[int, int] = {}

    def advance(self, now_ms: int) -> None:
        """Go through some entries: of the slots around now, and of others in turn. Call it some times a second.

        Raises OSError, StoreError when a queue could not be read; the others were gone through all the same.
        """
        failure: OSError | StoreError | None = None
        pieces = _PIECES_HOT
        for shift in (-1, 0, 1):  # what is late first; that slot has rarely anything new, and the others always may
            try:
                pieces -= self._visit(timer_slot(now_ms + shift * TIMER_SLOT_MS), now_ms, pieces)
            except (OSError, StoreError) as error:
                failure = error
        pieces = _PIECES_ROUND
        for _ in range(_SLOTS_PER_FIRST_CALLS if self._is_first_round else _SLOTS_PER_CALL):
            try:
                pieces -= self._visit(self._next_slot, now_ms, pieces)
            except (OSError, StoreError) as error:
                failure = error
            if pieces <= 0:
                break  # it may not be finished
            self._next_slot += 1
            if self._next_slot == TIMER_SLOTS:
                self._next_slot, self._is_first_round = 0, False
        if failure is not None:
            raise failure

    @property
    def next_ms(self) -> int:
        """When the first gathered entry has its turn; NEVER if there is none."""
        return self._runs[0][0] if self._runs else NEVER

    def head(self) -> tuple[int, int]:
        """Queue id and offset of the first gathered entry. There must be one."""
        run = self._runs[0][2]
        return run.queue_id, run.first_offset + (run.entries[run.position] & (PIECE_ENTRIES - 1))

    def take(self) -> None:
        """Leave the first gathered entry to the caller."""
        _, number, run = self._runs[0]
        run.position += 1
        self.gathered -= 1
        if run.position < len(run.entries):
            heapq.heapreplace(self._runs, (run.entries[run.position] >> _INDEX_BITS, number, run))
        else:
            heapq.heappop(self._runs)

    def look_again(self, queue_id: int, at_ms: int) -> None:
        """An entry that was taken is not done: gather those of its slot once more, not before ``at_ms``."""
        if (slot := self._slots.get(queue_id)) is not None:
            slot.next_ms = min(slot.next_ms, at_ms + AHEAD_MS)

    def _visit(self, queue_id: int, now_ms: int, pieces_max: int) -> int:
        """Go through what there is to go through of a slot; returns how many pieces that were."""
        queue = self._queue(queue_id)
        if queue is None:
            return 0
        slot = self._slots.get(queue_id)
        if slot is None:
            slot = self._slots[queue_id] = _Slot(self._marks(queue_id).low)
        pieces = 0
        while pieces < pieces_max and self.gathered < GATHERED_MAX:
            if slot.seen < queue.max_offset:
                self._go_through(slot, queue, queue_id)
                pieces += 1
            elif slot.next_ms <= now_ms + AHEAD_MS:
                slot.seen = self._marks(queue_id).low
                slot.next_ms = NEVER
                slot.horizon_ms = now_ms + AHEAD_MS + TIMER_SLOT_MS
            else:
                break
        return pieces

    def _go_through(self, slot: _Slot, queue: SlotQueue, queue_id: int) -> None:
        if slot.seen < queue.min_offset:
            if slot.lost_to < queue.min_offset:
                slot.lost_to = self.lost[queue_id] = queue.min_offset
            slot.seen = queue.min_offset
        first, next_ms, horizon_ms = slot.seen, slot.next_ms, slot.horizon_ms
        is_done = self._marks(queue_id).is_done
        ready: list[int] = []
        index = 0
        for _, _, turn_ms in QUEUE_ENTRY.iter_unpack(queue.read(first, PIECE_ENTRIES)):
            if turn_ms > horizon_ms:
                if turn_ms < next_ms:
                    next_ms = turn_ms
            elif not is_done(first + index):
                ready.append(min(max(turn_ms, 0), _TURN_MAX) << _INDEX_BITS | index)
            index += 1
        slot.seen, slot.next_ms = first + index, next_ms
        if ready:
            ready.sort()
            self._run_number += 1
            run = _Run(queue_id, first, array("q", ready))
            heapq.heappush(self._runs, (ready[0] >> _INDEX_BITS, self._run_number, run))
            self.gathered += len(ready)
