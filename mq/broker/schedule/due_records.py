"""Verifies old due records and loads them into memory, in a worker thread, before they are copied.

A read that waits for the disk on the event loop, or for the checksums of old entries, lets everything else wait. Due
messages may have been stored hours ago, each in another part of the log. So before the first one that is not in memory
is read, a worker thread reads and verifies it, and with it those behind it in its queue, which are due next as a rule.

Correctness does not depend on it: the log verifies all records that it returns. What was loaded once may be read on the
event loop from then on, also if it is damaged, or was forgotten meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from mq.broker.consume.record_reader import RecordSpan
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.errors import StoreError
from raftlog import Job
from raftlog.segment import SegmentError

LOADED_AT_ONCE: Final = 128
"""The number of records of a queue that are loaded together, from the needed one on."""
LOADED_BYTES_MAX: Final = 512 * 1024
"""Maximum bytes of the log: it is not sure that later records are due next; they may be forgotten before they are."""
_VERIFIED_AT_ONCE: Final = 64 * 1024
"""The log verifies about so much for a record that lies far from others."""


class VerifyingLog(Protocol):
    """The part of `raftlog.segment.log_reader.LogReads` that this module needs. Any thread may call `load`."""

    @property
    def memory_pos(self) -> int: ...
    def has_verified(self, pos: int, length: int, /) -> bool: ...
    def load(self, pos: int, length: int, /) -> None: ...


class DueRecords:
    """Loads records for one delivery, one job at a time.

    Args:
        in_background: carries out a job in a worker thread, and its end on the event loop.

    Attributes:
        is_loading: whether a job is running.
    """

    def __init__(self, log: VerifyingLog, in_background: Callable[[Job], None]) -> None:
        self._log = log
        self._in_background = in_background
        self._memory: tuple[ConsumeQueue, range] | None = None
        self.is_loading = False

    def may_read(self, queue: ConsumeQueue, offset: QueueOffset, position: PhysicalOffset, size: int) -> bool:
        """Whether a record can be read without a wait for the disk, or a job has tried to load it."""
        if position >= self._log.memory_pos:
            return True
        if self._memory is not None and self._memory[0] is queue and offset in self._memory[1]:
            return True
        return self._log.has_verified(position, size)

    def load(self, queue: ConsumeQueue, offset: QueueOffset, then: Callable[[], None]) -> None:
        """Load the record at a queue offset and those after it, and then call ``then`` on the event loop.

        Raises StoreError, OSError if the queue cannot be read; then no job is running.
        """
        assert not self.is_loading, "records are being loaded already"
        places = self._places(queue, offset)
        assert places, f"{queue.key}: no record at {offset}, and the queue ends at {queue.max_offset}"
        self._memory = queue, range(offset, offset + len(places))
        self.is_loading = True
        log = self._log

        def on_end() -> None:
            assert self.is_loading, f"{len(places)} records were loaded twice"
            self.is_loading = False
            then()

        def job() -> Callable[[], None]:
            for position, size in places:
                with suppress(SegmentError):  # the next reader gets the error
                    log.load(position, size)
            return on_end

        self._in_background(job)

    def _places(self, queue: ConsumeQueue, offset: QueueOffset) -> list[RecordSpan]:
        try:
            entries = queue.read(offset, min(LOADED_AT_ONCE, queue.max_offset - offset))
        except StoreError:
            entries = queue.read(offset, 1)  # a damaged part of the queue lies behind it
        memory_pos, nbytes, end = self._log.memory_pos, 0, -_VERIFIED_AT_ONCE
        places: list[RecordSpan] = []
        for position, size, _ in QUEUE_ENTRY.iter_unpack(entries):
            nbytes += size + min(position - end, _VERIFIED_AT_ONCE)
            if places and (position >= memory_pos or nbytes > LOADED_BYTES_MAX):
                break
            places.append((position, size))
            end = position + size
        return places
