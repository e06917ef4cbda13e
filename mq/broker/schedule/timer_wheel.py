"""Orders the messages of the timer topic by due time, on the leader.

Theory of operation. Each queue of the topic is a *slot*, whose entries contain their due time. New entries are scanned
once to find the earliest due time of the slot (8 bytes per slot, not per message). Shortly before that, the slot's
entries that are due within a minute or so are gathered: packed into sorted arrays, 8 bytes each, with a heap over the
arrays. Correctness does not depend on the clock that chose the slots; it only keeps entries of the same minute
together.

Gathering runs in steps, so that a slot with a million entries blocks nothing. An entry may be gathered twice; the
caller checks whether it is done or in flight.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable
from typing import Final, Protocol

from mq.broker.base.message_times import TOLERANCE_MS
from mq.protocol.messages.delay import TIMER_SLOT_MS, TIMER_SLOTS, TURN_MS_MAX, timer_slot
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError

PIECE_ENTRIES: Final = 4096
"""Entries gathered in one step: about a millisecond."""
GATHERED_MAX: Final = 4_000_000
"""With this many entries gathered (32 MB), gathering pauses until some were taken."""
AHEAD_MS: Final = 5000
"""A slot is gathered this long before its first entry is due."""
NEVER: Final = 2**62

_INDEX_BITS: Final = 12
_TURN_MAX: Final = 2**50
_PIECES_HOT: Final = 2
_PIECES_ROUND: Final = 2
_SLOTS_PER_CALL: Final = 32
_SLOTS_PER_FIRST_CALLS: Final = 360
assert PIECE_ENTRIES == 1 << _INDEX_BITS


class SlotQueue(Protocol):
    """The part of a consume queue that `TimerWheel` needs."""

    @property
    def min_offset(self) -> QueueOffset: ...
    @property
    def max_offset(self) -> QueueOffset: ...
    def read(self, offset: QueueOffset, count: int) -> bytes: ...


class SlotMarks(Protocol):
    """The part of a queue's marks that `TimerWheel` needs."""

    @property
    def low(self) -> QueueOffset: ...
    def is_done(self, offset: QueueOffset) -> bool: ...


class _WheelSlot:
    """The state of one slot.

    Attributes:
        scan_end: entries below this offset were scanned.
        next_ms: no entry that was not gathered is due earlier.
        horizon_ms: scanned entries due up to this time are gathered.
        lost_to: unfinished entries below this offset were reported as lost.
    """

    __slots__ = ("horizon_ms", "lost_to", "next_ms", "scan_end")

    def __init__(self, scan_end: QueueOffset) -> None:
        self.scan_end = scan_end
        self.next_ms = NEVER
        self.horizon_ms = -1
        self.lost_to = FIRST_OFFSET


class _TimerBatch:
    """Gathered entries of one step: due time and index within the step, packed and sorted."""

    __slots__ = ("entries", "first_offset", "position", "queue_id")

    def __init__(self, queue_id: int, first_offset: QueueOffset, entries: array[int]) -> None:
        self.queue_id = queue_id
        self.first_offset = first_offset
        self.entries = entries
        self.position = 0


class TimerWheel:
    """Orders the timers by due time during one leadership.

    Args:
        queue: the consume queue of a slot, None if it never had an entry.
        marks: which of its entries are done.
        rescan_range: records in this range of physical offsets have their turn at once. So have all whose turn is
            further away than it ever is: a clock ahead has stamped them.

    Attributes:
        gathered_count: entries gathered and not taken.
        losses: slots whose entries up to an offset are gone from the log; the reader clears it.
    """

    def __init__(
        self,
        queue: Callable[[int], SlotQueue | None],
        marks: Callable[[int], SlotMarks],
        rescan_range: range = range(0),
    ) -> None:
        self._queue = queue
        self._marks = marks
        self._rescan_range = rescan_range
        self._turn_max_ms = NEVER
        self._slots: dict[int, _WheelSlot] = {}
        self._batches: list[tuple[int, int, _TimerBatch]] = []
        self._batch_number = 0
        self._next_slot = 0
        self._is_first_round = True
        self.gathered_count = 0
        self.losses: dict[int, QueueOffset] = {}

    def advance(self, now_ms: int) -> None:
        """Read some entries of the slots that are due soon, and of others in turn; called several times a second.

        Raises OSError, StoreError if a queue could not be read; the others were scanned all the same.
        """
        self._turn_max_ms = now_ms + TURN_MS_MAX + TOLERANCE_MS
        failure: OSError | StoreError | None = None
        pieces = _PIECES_HOT
        for shift in (-1, 0, 1):  # overdue entries first; that slot rarely gets new entries, the others may always
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
                break  # it may be unfinished
            self._next_slot += 1
            if self._next_slot == TIMER_SLOTS:
                self._next_slot, self._is_first_round = 0, False
        if failure is not None:
            raise failure

    @property
    def next_ms(self) -> int:
        """The due time of the first gathered entry, in epoch milliseconds; NEVER without one."""
        return self._batches[0][0] if self._batches else NEVER

    def head(self) -> tuple[int, QueueOffset]:
        """Return the queue id and the offset of the first gathered entry. There must be one."""
        batch = self._batches[0][2]
        return batch.queue_id, batch.first_offset + (batch.entries[batch.position] & (PIECE_ENTRIES - 1))

    def remove_first(self) -> None:
        """Remove the first gathered entry, which the caller handles."""
        _, number, batch = self._batches[0]
        batch.position += 1
        self.gathered_count -= 1
        assert self.gathered_count >= 0, f"{self.gathered_count} timers are gathered"
        if batch.position < len(batch.entries):
            heapq.heapreplace(self._batches, (batch.entries[batch.position] >> _INDEX_BITS, number, batch))
        else:
            heapq.heappop(self._batches)

    def scan_again(self, queue_id: int, at_ms: int) -> None:
        """Read a slot again from ``at_ms`` on: one of its entries was removed, but neither delivered nor recalled."""
        if (slot := self._slots.get(queue_id)) is not None:
            slot.next_ms = min(slot.next_ms, at_ms + AHEAD_MS)

    def _visit(self, queue_id: int, now_ms: int, pieces_max: int) -> int:
        """Scan a slot; returns the number of steps it took."""
        assert 0 <= queue_id < TIMER_SLOTS, f"slot {queue_id} of {TIMER_SLOTS}"
        queue = self._queue(queue_id)
        if queue is None:
            return 0
        slot = self._slots.get(queue_id)
        if slot is None:
            slot = self._slots[queue_id] = _WheelSlot(self._marks(queue_id).low)
        pieces = 0
        while pieces < pieces_max and self.gathered_count < GATHERED_MAX:
            if slot.scan_end < queue.max_offset:
                self._go_through(slot, queue, queue_id)
                pieces += 1
            elif slot.next_ms <= now_ms + AHEAD_MS:
                slot.scan_end = self._marks(queue_id).low
                slot.next_ms = NEVER
                slot.horizon_ms = now_ms + AHEAD_MS + TIMER_SLOT_MS
            else:
                break
        return pieces

    def _go_through(self, slot: _WheelSlot, queue: SlotQueue, queue_id: int) -> None:
        if slot.scan_end < queue.min_offset:
            if slot.lost_to < queue.min_offset:
                slot.lost_to = self.losses[queue_id] = queue.min_offset
            slot.scan_end = queue.min_offset
        first, next_ms, horizon_ms = slot.scan_end, slot.next_ms, slot.horizon_ms
        is_done = self._marks(queue_id).is_done
        ready: list[int] = []
        index = 0
        begin, end, turn_max_ms = self._rescan_range.start, self._rescan_range.stop, self._turn_max_ms
        for position, _, turn_ms in QUEUE_ENTRY.iter_unpack(queue.read(first, PIECE_ENTRIES)):
            if turn_ms > turn_max_ms or begin <= position < end:
                turn_ms = 0
            if turn_ms > horizon_ms:
                if turn_ms < next_ms:
                    next_ms = turn_ms
            elif not is_done(first + index):
                ready.append(min(max(turn_ms, 0), _TURN_MAX) << _INDEX_BITS | index)
            index += 1
        end_offset = queue.max_offset
        assert index > 0 or first == end_offset, f"slot {queue_id} has nothing at {first}, and ends at {end_offset}"
        slot.scan_end, slot.next_ms = first + index, next_ms
        if ready:
            ready.sort()
            self._batch_number += 1
            batch = _TimerBatch(queue_id, first, array("q", ready))
            heapq.heappush(self._batches, (ready[0] >> _INDEX_BITS, self._batch_number, batch))
            self.gathered_count += len(ready)
