"""Counts the bytes of a topic's messages, and finds the oldest to expire when they exceed a limit.

The sizes of messages are in the entries of consume queues. They are counted once, in steps, and then only new entries:
the sums of *chunks* of entries are kept, so that what expired can be subtracted without reading it. Whole chunks
expire, never the last one of a queue: so a topic keeps at least its limit, and at most two chunks for each queue more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Final

from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY

CHUNK_BYTES: Final = 128 * 1024
CHUNK_ENTRIES: Final = 1024
_READ_ENTRIES: Final = 1024


@dataclass(slots=True)
class _EntryChunk:
    start: QueueOffset
    place: PhysicalOffset
    """The physical offset of its first record."""
    entries: int = 0
    nbytes: int = 0


class QueueBytes:
    """Counts the bytes of one queue's messages, up to ``end``.

    Attributes:
        nbytes: of all of them.
        end: the first entry that is not counted.
    """

    __slots__ = ("_chunks", "end", "nbytes")

    def __init__(self, queue: ConsumeQueue) -> None:
        self._chunks: deque[_EntryChunk] = deque()
        self.nbytes = 0
        self.end = queue.min_offset

    def count(self, queue: ConsumeQueue, entries_max: int) -> int:
        """Subtract expired entries, and count up to ``entries_max`` new ones. Returns the number of entries read.

        Raises OSError, QueueFileDamaged.
        """
        self._drop_before(queue.min_offset)
        read = 0
        if self._chunks and self._chunks[0].start < queue.min_offset:
            read += self._recount_first(queue)
        self.end = max(self.end, queue.min_offset)
        while self.end < queue.max_offset and read < entries_max:
            entries = queue.read(self.end, min(_READ_ENTRIES, entries_max - read))
            for place, size, _ in QUEUE_ENTRY.iter_unpack(entries):
                self._add(PhysicalOffset(place), size)
                read += 1
        return read

    def chunk(self, number: int) -> tuple[PhysicalOffset, int, PhysicalOffset, QueueOffset] | None:
        """Return a chunk's physical offset and bytes, and the next one's physical and queue offset; None for the last.

        Chunks are numbered from 0, the oldest.
        """
        if number + 1 >= len(self._chunks):
            return None
        this, successor = self._chunks[number], self._chunks[number + 1]
        return this.place, this.nbytes, successor.place, successor.start

    def check_invariants(self) -> None:
        """Assert that chunks are contiguous and their bytes summed up right, for tests."""
        end = self._chunks[0].start if self._chunks else self.end
        for chunk in self._chunks:
            assert chunk.start == end, f"a chunk begins at {chunk.start}, the one before ends at {end}"
            end = QueueOffset(end + chunk.entries)
        assert end == self.end, f"chunks end at {end}, counted is up to {self.end}"
        nbytes = sum(chunk.nbytes for chunk in self._chunks)
        assert nbytes == self.nbytes, f"chunks have {nbytes} bytes, counted were {self.nbytes}"

    def _add(self, place: PhysicalOffset, size: int) -> None:
        assert size > 0, f"the record of entry {self.end} has {size} bytes"
        last = self._chunks[-1] if self._chunks else None
        if last is None or last.nbytes >= CHUNK_BYTES or last.entries >= CHUNK_ENTRIES:
            last = _EntryChunk(self.end, place)
            self._chunks.append(last)
        last.entries += 1
        last.nbytes += size
        self.nbytes += size
        self.end = QueueOffset(self.end + 1)

    def _drop_before(self, low: QueueOffset) -> None:
        while self._chunks and self._chunks[0].start + self._chunks[0].entries <= low:
            self.nbytes -= self._chunks.popleft().nbytes

    def _recount_first(self, queue: ConsumeQueue) -> int:
        """Count the remaining entries of the first chunk, because its beginning has expired."""
        first, low = self._chunks[0], queue.min_offset
        entries = [*QUEUE_ENTRY.iter_unpack(queue.read(low, first.start + first.entries - low))]
        assert entries, f"nothing is left of a chunk that ends at {first.start + first.entries}, behind {low}"
        nbytes = sum(size for _, size, _ in entries)
        self.nbytes += nbytes - first.nbytes
        self._chunks[0] = _EntryChunk(low, PhysicalOffset(entries[0][0]), len(entries), nbytes)
        return len(entries)


class TopicBytes:
    """Counts the bytes of a topic's queues, which may have ``bytes_max`` together."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0, f"a topic may have {bytes_max} bytes"
        self.bytes_max = bytes_max
        self.queues: dict[int, QueueBytes] = {}

    @property
    def nbytes(self) -> int:
        """The counted bytes of all queues."""
        return sum(queue.nbytes for queue in self.queues.values())

    def count(self, queues: Iterable[ConsumeQueue], entries_max: int) -> int:
        """Count up to ``entries_max`` new entries. Returns how many were read. Raises OSError, QueueFileDamaged."""
        read = 0
        for queue in queues:
            queue_bytes = self.queues.get(queue.queue_id)
            if queue_bytes is None:
                queue_bytes = self.queues[queue.queue_id] = QueueBytes(queue)
            read += queue_bytes.count(queue, entries_max - read)
            if read >= entries_max:
                break
        return read

    def excess_begins(self, before: PhysicalOffset) -> Sequence[tuple[int, QueueOffset]]:
        """Return the new beginnings of the queues whose oldest chunks exceed the limit.

        Nothing from the physical offset ``before`` on exceeds it. What has expired is subtracted by `count`.
        """
        begins: dict[int, QueueOffset] = {}
        excess = self.nbytes - self.bytes_max
        oldest = [(*first_row, queue_id, 0) for queue_id, queue in self.queues.items() if (first_row := queue.chunk(0))]
        heapify(oldest)
        while oldest:
            _, nbytes, behind, start, queue_id, number = oldest[0]
            if nbytes > excess or behind > before:
                break
            assert begins.get(queue_id, -1) < start, f"queue {queue_id} is to begin at {start}, behind {begins}"
            begins[queue_id] = start
            excess -= nbytes
            chunk = self.queues[queue_id].chunk(number + 1)
            if chunk is None:
                heappop(oldest)
            else:
                heapreplace(oldest, (*chunk, queue_id, number + 1))
        return [*begins.items()]
