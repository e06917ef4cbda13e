"""Captures a snapshot of all queues at one moment, in steps between which entries are added.

A queue that gets entries, or is written to files, before its turn is captured right before that. So the result equals
an instantaneous capture, and adding entries only waits for the affected queues.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from mq.protocol.names import is_lite_queue
from mq.protocol.numbers import QueueOffset
from mq.store.consume_queue import ConsumeQueue

QueueRow = tuple[int, QueueOffset, QueueOffset, bytes]
"""A queue: queue_id, min_offset, max_offset, and its last entries, which are not in files."""

Rows = tuple[int, Iterator[tuple[str, list[QueueRow]]]]
"""The number of topics, and the queues of each."""


class QueueCapture:
    """Captures all queues for a checkpoint, in steps. `gather` and `capture_queue` run on the thread that owns the
    queues, `rows` afterwards on any.

    Args:
        queues: all queues.
        number: of this capture; must be new for these queues.
    """

    def __init__(self, queues: Sequence[ConsumeQueue], number: int) -> None:
        self._queues = queues
        self._number = number
        self._begin = 0
        # Columns, since a hundred thousand tuples would keep the garbage collector busy for 20 ms.
        self._targets: list[ConsumeQueue] = []
        self._offsets = array("q")
        self._tails: list[bytearray] = []

    @property
    def is_complete(self) -> bool:
        """Whether all queues were captured."""
        return self._begin >= len(self._queues)

    def gather(self, count: int) -> None:
        """Capture the next ``count`` queues."""
        assert count > 0, f"{count} queues are to be captured"
        begin = self._begin
        self._begin = begin + count
        for queue in self._queues[begin : begin + count]:
            self.capture_queue(queue)

    def capture_queue(self, queue: ConsumeQueue) -> None:
        """Capture one queue now, unless it was captured or is newer than this capture."""
        if queue.captured < self._number:
            queue.captured = self._number
            self._targets.append(queue)
            self._tails.append(queue.capture(self._offsets))
            columns = len(self._offsets), len(self._tails)
            assert columns == (3 * len(self._targets), len(self._targets)), (
                f"{len(self._targets)} queues, columns {columns}"
            )

    def rows(self) -> Rows:
        """Return the queues by topic."""
        assert self.is_complete, f"{self._begin} of {len(self._queues)} queues were gathered"
        # A lite topic has one queue: a list for each of a million of them would cost more memory than the queues.
        lite = array("q")
        topics: dict[str, list[int]] = {}
        for at, queue in enumerate(self._targets):
            if is_lite_queue(queue.topic):
                lite.append(at)
            else:
                topics.setdefault(queue.topic, []).append(at)
        return len(topics) + len(lite), self._rows_of(topics, lite)

    def _rows_of(self, topics: dict[str, list[int]], lite: array[int]) -> Iterator[tuple[str, list[QueueRow]]]:
        for topic, places in topics.items():
            yield topic, [self._row(at) for at in places]
        for at in lite:
            yield self._targets[at].topic, [self._row(at)]

    def _row(self, at: int) -> QueueRow:
        low, high, tail_bytes = self._offsets[3 * at : 3 * at + 3]
        assert tail_bytes <= len(self._tails[at]), f"{self._targets[at]}: {len(self._tails[at])} of {tail_bytes} bytes"
        return (
            self._targets[at].queue_id,
            QueueOffset(low),
            QueueOffset(high),
            bytes(self._tails[at][:tail_bytes]),
        )
