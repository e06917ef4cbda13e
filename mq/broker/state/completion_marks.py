"""Marks finished messages of the broker's internal queues, whose messages do not finish in order.

A timed or half message is finished at its own time, not in the order of its queue. So each such queue has a *low*
offset below which all are finished, and a bitmap from there on. A million waiting messages take 125 KB, without an
object per message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from mq.broker.state.table import CommandInvalid, CommandUnknown, SnapshotDamaged, StateTable, TableCommand, check_range
from mq.protocol.names import check_topic
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset, offset_range
from mq.protocol.wire.fields import INT32_MAX

_OFFSET_MAX = 2**63 - 1
_SPAN_MAX = 2**31
"""Distance from the first unfinished offset to the last finished one: 256 MiB of bits."""
_ALL = 0xFF


class CompleteEntries(TableCommand, frozen=True, tag="complete_entries"):
    """Mark the messages at these offsets of a queue as finished. A repetition changes nothing."""

    topic: str
    queue_id: int
    offsets: list[QueueOffset]

    def check(self) -> None:
        check_topic(self.topic)
        check_range("queue_id", self.queue_id, 0, INT32_MAX)
        if not self.offsets:
            raise CommandInvalid(f"the command completes no offset of {self.topic}/{self.queue_id}")
        check_range("offset", min(self.offsets), 0, _OFFSET_MAX)
        check_range("offset", max(self.offsets), 0, _OFFSET_MAX)


class SkipEntries(TableCommand, frozen=True, tag="skip_entries"):
    """Mark all messages below ``offset`` as finished, or deleted by retention. A lower offset changes nothing."""

    topic: str
    queue_id: int
    offset: QueueOffset

    def check(self) -> None:
        check_topic(self.topic)
        check_range("queue_id", self.queue_id, 0, INT32_MAX)
        check_range("offset", self.offset, 0, _OFFSET_MAX)


class QueueMarks:
    """Marks the finished messages of one queue.

    Attributes:
        low: all offsets below are done; this one is not.
        bits: bit ``i % 8`` of byte ``i // 8`` is set when offset ``low - low % 8 + i`` is done; those below ``low`` are
            0. Its last byte is not 0.
    """

    __slots__ = ("bits", "low")

    def __init__(self, low: QueueOffset = FIRST_OFFSET, bits: bytes = b"") -> None:
        self.low = low
        self.bits = bytearray(bits)

    def is_done(self, offset: QueueOffset) -> bool:
        """Whether the message at ``offset`` is finished."""
        if offset < self.low:
            return True
        at = offset - (self.low & ~7)
        return at >> 3 < len(self.bits) and bool(self.bits[at >> 3] >> (at & 7) & 1)

    def open_offsets(self, begin: QueueOffset, end: QueueOffset) -> Iterator[QueueOffset]:
        """Yield the unfinished offsets in ``[start, end)``, ascending. Do not change the marks during the iteration."""
        offset = max(begin, self.low)
        base, bits = self.low - (self.low & 7), self.bits
        marked_end = min(end, base + 8 * len(bits))
        while offset < marked_end:
            at = offset - base
            byte = bits[at >> 3]
            if byte == _ALL:
                offset = base + (at | 7) + 1
                continue
            if not byte >> (at & 7) & 1:
                yield offset
            offset += 1
        yield from offset_range(max(offset, marked_end), end)

    def count_open(self, end: QueueOffset) -> int:
        """Return the number of unfinished offsets below ``end``."""
        if end <= self.low:
            return 0
        base = self.low & ~7
        bit_count = min(end - base, 8 * len(self.bits))
        done_bits = int.from_bytes(self.bits, "little") & ((1 << bit_count) - 1)
        below = (1 << (self.low - base)) - 1
        return end - self.low - (done_bits & ~below).bit_count()

    def complete(self, offsets: Sequence[QueueOffset]) -> None:
        """Mark the messages at ``offsets`` as finished."""
        bits, low = self.bits, self.low
        base = low & ~7
        for offset in offsets:
            if offset < low:
                continue
            at = offset - base
            missing_bytes = (at >> 3) + 1 - len(bits)
            if missing_bytes > 0:
                bits += bytes(missing_bytes)
            bits[at >> 3] |= 1 << (at & 7)
        self._advance_low(low)
        assert self.low >= low, f"everything was finished below {low}, now below {self.low}"

    def skip_to(self, offset: QueueOffset) -> None:
        """Mark all messages below ``offset`` as finished."""
        if offset > self.low:
            drop = (offset >> 3) - (self.low >> 3)
            del self.bits[:drop]
            self.low = offset
            self._advance_low(offset)
            assert self.low >= offset, f"everything is finished below {offset}, marked below {self.low}"

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests.

        ``low`` is open, for it moves past finished ones at once; nothing below it is marked, and no byte at the end is
        empty. So equal marks are equal byte for byte, in memory and in snapshots.
        """
        bits, at = self.bits, self.low & 7
        assert self.low >= 0, f"finished below {self.low}"
        assert not bits or bits[-1], f"{len(bits)} bytes of marks from {self.low} on end with an empty one"
        assert not bits or not bits[0] & (1 << at) - 1, f"marks below {self.low}: {bits[0]:#x}"
        assert not bits or not bits[0] >> at & 1, f"{self.low} is finished, everything below it is as well"

    def _advance_low(self, low: QueueOffset) -> None:
        """Move ``low`` past finished offsets, and drop the bits before it."""
        bits = self.bits
        at = low & 7
        count = len(bits)
        byte = 0
        while byte < count:
            value = bits[byte] >> at
            ones = (~value & (value + 1)).bit_length() - 1  # number of trailing set bits
            at += ones
            if at < 8:
                break
            byte, at = byte + 1, 0
        self.low = low - (low & 7) + (8 * byte + at)
        del bits[:byte]
        if bits:
            bits[0] &= _ALL << at & _ALL
            while bits and not bits[-1]:
                bits.pop()


class CompletionMarks(StateTable):
    """The marks of all internal queues whose messages do not finish in order."""

    COMMANDS: tuple[type[TableCommand], ...] = (CompleteEntries, SkipEntries)

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], QueueMarks] = {}

    def get(self, topic: str, queue_id: int) -> QueueMarks:
        """Return the marks of a queue, read only. In an unknown queue, no message is finished."""
        return self.queues.get((topic, queue_id)) or QueueMarks()

    def apply(self, command: TableCommand) -> None:
        assert isinstance(command, CompleteEntries | SkipEntries), type(command).__name__
        key = command.topic, command.queue_id
        marks = self.queues.get(key)
        if marks is None:
            marks = self.queues[key] = QueueMarks()
        if isinstance(command, SkipEntries):
            marks.skip_to(command.offset)
            return
        span = max(command.offsets) - marks.low
        if span >= _SPAN_MAX:
            raise CommandUnknown(
                f"{command.topic}/{command.queue_id}: {span} offsets from {marks.low} on are completed"
            )
        marks.complete(command.offsets)

    def capture(self) -> Callable[[], object]:
        rows = [(topic, queue, marks.low, bytes(marks.bits)) for (topic, queue), marks in self.queues.items()]
        return lambda: sorted(rows) or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[tuple[str, int, QueueOffset, bytes]])
        if any(low < 0 for _, _, low, _ in rows):
            raise SnapshotDamaged("a mark has a negative offset")
        self.queues = {(topic, queue): QueueMarks(low, bits) for topic, queue, low, bits in rows}

    def topic_deleted(self, topic: str) -> None:
        for key in [key for key in self.queues if key[0] == topic]:
            del self.queues[key]

    def check_invariants(self) -> None:
        for marks in self.queues.values():
            marks.check_invariants()
