"""The queue entries of archived messages, from the end of the archive backward: for a replica that lacks them.

The log is read in steps of some blocks, from where the queues of the replica begin toward older messages. Each step
gives the entries of the blocks for each queue, which continue in front of the queue's entries; so after each step the
replica serves more. What commands do to queues is found on the way: it comes before the messages that it concerns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mq.protocol.messages.records import RecordError
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.dispatch import QUEUE_ENTRY_BYTES, QueueRun, scan_runs
from mq.store.errors import RunInvalid
from raftlog.segment.codec import HEADER, HEADER_BYTES, NORMAL
from raftlog.segment.errors import EntryUnusable

STEP_BYTES: Final = 1024 * 1024
"""One step begins about this number of bytes before the previous one."""

Fetch = Callable[[int, int], Sequence[tuple[int, bytes]]]
"""Fetches blocks as `mq.store.archive.cold_blocks.ColdBlocks.fetch` does."""


@dataclass(frozen=True, slots=True)
class OlderEntries:
    """The queue entries and commands of the log from the physical offset ``begin`` to where the last step began.

    ``runs`` has one run for each queue with messages there; its offsets end where the queue's next ones begin.
    ``commands`` are the bodies of the metadata's commands, in order.
    """

    begin: PhysicalOffset
    end: PhysicalOffset
    runs: list[QueueRun]
    commands: list[bytes]


def read_older(
    fetch: Fetch, end: int, begin_pos: int, segment_bytes: int, step_bytes: int = STEP_BYTES
) -> OlderEntries:
    """Read the blocks before the physical offset ``end``, in one file, not before ``begin_pos``. For a thread.

    Raises SegmentError, also if the content of the archive cannot be used.
    """
    assert 0 <= begin_pos < end, f"entries from {begin_pos} on are wanted, before {end}"
    file_start = (end - 1) // segment_bytes * segment_bytes
    blocks = fetch(max(file_start, end - step_bytes, begin_pos), end)
    assert blocks, f"the archive has no block before {end}"
    runs: dict[tuple[str, int], tuple[QueueOffset, bytearray]] = {}
    commands: list[bytes] = []
    for begin, data in blocks:
        _add_block(begin, data, runs, commands)
    queue_runs = [QueueRun(*key, first, bytes(entries)) for key, (first, entries) in runs.items()]
    return OlderEntries(PhysicalOffset(blocks[0][0]), PhysicalOffset(end), queue_runs, commands)


def _add_block(
    begin: int, data: bytes, runs: dict[tuple[str, int], tuple[QueueOffset, bytearray]], commands: list[bytes]
) -> None:
    at, view = 0, memoryview(data)
    while at < len(data):
        kind, size, index, term, *_ = HEADER.unpack_from(data, at)
        if kind == NORMAL:
            pos = PhysicalOffset(begin + at + HEADER_BYTES)
            try:
                new_runs, bodies = scan_runs(view[at + HEADER_BYTES : at + size], pos)
            except (RecordError, RunInvalid, UnicodeDecodeError) as error:
                raise EntryUnusable(index, term, begin + at, str(error)) from error
            commands += bodies
            for run in new_runs:
                key = run.topic, run.queue_id
                first, entries = runs.get(key, (run.first_offset, bytearray()))
                if first + len(entries) // QUEUE_ENTRY_BYTES != run.first_offset:  # a queue of this name began again
                    first, entries = run.first_offset, bytearray()
                entries += run.entries
                runs[key] = first, entries
        at += size
