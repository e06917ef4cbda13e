"""The index of an archived log file: what each block contains, so that readers need not read the whole file.

A block is a run of entries of about a megabyte. The index has the chain before each, so a block can be verified without
those before it. For each queue with messages in a block it has their offsets, and their tag codes if there are few.
Everything in it can be derived from the log file.
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Final, TypeVar

import msgspec

from mq.protocol.messages.records import RecordError, latest_store_timestamp
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.archive.entries_to_index import consecutive_messages
from mq.store.dispatch import QUEUE_ENTRY_BYTES, QueueRun, scan_runs
from mq.store.errors import RunInvalid
from raftlog.log_numbers import LogIndex
from raftlog.segment.backup_store import BackupDamaged
from raftlog.segment.codec import HEADER_BYTES, NORMAL, EntryRef
from raftlog.segment.entry_runs import EntryRun
from raftlog.segment.errors import EntryUnusable, FormatTooNew
from raftlog.segment.meta import Base

TAGS_MAX: Final = 16
"""A queue with more different tags in one block has none in the index."""

_Index = TypeVar("_Index", "FileIndex", "_Places")

_MAGIC: Final = b"rfqarch"
_VERSION: Final = b"1"


class QueueRange(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive messages of one queue in a block; ``tags`` are their tag codes, ascending, or None for too many."""

    topic: str
    queue_id: int
    first_offset: QueueOffset
    count: int
    tags: tuple[int, ...] | None

    @property
    def end_offset(self) -> QueueOffset:
        """Return the queue offset behind the last message."""
        return self.first_offset + self.count


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Contiguous entries of one archived file, which are read together.

    ``before`` is the log before the first one, which begins at its ``pos``. ``newest_ms`` is the latest time at which
    one of its messages was stored (ms since 1970), 0 without messages.
    """

    before: Base
    nbytes: int
    last_index: LogIndex
    newest_ms: int
    queues: tuple[QueueRange, ...]


class FileIndex(msgspec.Struct, frozen=True, array_like=True):
    """All blocks of a file, in order, and the log behind it, which begins at the next file."""

    blocks: tuple[Block, ...]
    end: Base

    @property
    def begin(self) -> Base:
        """Return the place in the log where the file begins."""
        return self.blocks[0].before


class BlockPlace(msgspec.Struct, frozen=True, array_like=True):
    """A `Block` for readers that know the place in the log; ``queues`` are not decoded."""

    before: Base
    nbytes: int
    last_index: LogIndex
    newest_ms: int
    queues: msgspec.Raw


class _Places(msgspec.Struct, frozen=True, array_like=True):
    blocks: tuple[BlockPlace, ...]
    end: Base


class FileIndexBuilder:
    """Builds the index of one file from all its entries.

    Args:
        begin: the log before the file.
        tags_max: of a range with more tags none are named.

    Raises (`add`):
        EntryUnusable: an entry has other content than messages.
    """

    def __init__(self, begin: Base, segment_bytes: int, *, tags_max: int = TAGS_MAX) -> None:
        self._tags_max = tags_max
        self._last = begin.ref
        self._file_end = begin.pos + segment_bytes
        self._blocks: list[Block] = []

    def add(self, run: EntryRun) -> None:
        """Add the next entries as one block."""
        if not run.entries:
            return
        last, oldest, newest = self._last, run.entries[0], run.entries[-1]
        assert oldest.index == last.index + 1, f"entry {oldest.index} is indexed behind {last.index}"
        assert last.pos + last.size <= oldest.pos <= newest.pos < self._file_end, (
            f"entries at {oldest.pos} to {newest.pos} are indexed behind {last.pos + last.size} in a file that ends at "
            f"{self._file_end}"
        )
        ranges: list[QueueRange] = []
        open_ranges: dict[tuple[str, int], tuple[QueueOffset, int, set[int]]] = {}
        newest_ms = 0
        for entry in run.entries:
            if entry.kind != NORMAL:
                continue
            try:
                queue_messages, latest_ms = _messages(run.body(entry), PhysicalOffset(entry.pos + HEADER_BYTES))
            except (RecordError, RunInvalid, UnicodeDecodeError) as error:
                raise EntryUnusable(entry.index, entry.term, entry.pos, str(error)) from error
            newest_ms = max(newest_ms, latest_ms)
            for topic, queue_id, begin, more, more_tags in queue_messages:
                key = topic, queue_id
                first, count, tags = open_ranges.get(key, (begin, 0, set()))
                if first + count != begin:  # a topic of this name was created again
                    ranges.append(self._range(*key, first, count, tags))
                    first, count, tags = begin, 0, set()
                tags |= more_tags
                open_ranges[key] = first, count + more, tags
        ranges += [self._range(*key, first, count, tags) for key, (first, count, tags) in sorted(open_ranges.items())]
        nbytes = sum(entry.size for entry in run.entries)
        self._blocks.append(Block(_base(last), nbytes, newest.index, newest_ms, tuple(ranges)))
        self._last = newest

    def _range(self, topic: str, queue_id: int, first: QueueOffset, count: int, tags: set[int]) -> QueueRange:
        assert 0 < len(tags) <= count, f"{len(tags)} tags of the {count} messages of {topic}/{queue_id} from {first} on"
        return QueueRange(topic, queue_id, first, count, tuple(sorted(tags)) if len(tags) <= self._tags_max else None)

    @property
    def index(self) -> FileIndex:
        """Return the index of the entries that were added."""
        end = Base(self._last.index, self._last.term, self._file_end, self._last.chain)
        return FileIndex(tuple(self._blocks), end)

    def content(self) -> bytes:
        """Return the index as bytes."""
        return encode_file_index(self.index)


def encode_file_index(index: FileIndex) -> bytes:
    """Encode an index as the content of its object."""
    return _MAGIC + _VERSION + msgspec.msgpack.encode(index)


def decode_file_index(content: bytes, path: str) -> FileIndex:
    """Decode an index. Raises BackupDamaged unless `encode_file_index` made it, FormatTooNew for a newer version."""
    return _decode(content, path, FileIndex)


def decode_block_places(content: bytes, path: str) -> tuple[list[tuple[Base, int]], Base]:
    """The log before each block with the size of the block, and the log behind all. Raises as `decode_file_index`.

    Takes a tenth of the time with many queues.
    """
    index = _decode(content, path, _Places)
    return [(each.before, each.nbytes) for each in index.blocks], index.end


def _decode(content: bytes, path: str, kind: type[_Index]) -> _Index:
    magic, version = content[: len(_MAGIC)], content[len(_MAGIC) : len(_MAGIC) + 1]
    if magic == _MAGIC and version > _VERSION:
        raise FormatTooNew(path, "the index", int(version, 36), int(_VERSION))
    if magic != _MAGIC or version != _VERSION:
        raise BackupDamaged(path, "it is not the index of a log file")
    try:
        index = msgspec.msgpack.decode(content[len(_MAGIC) + 1 :], type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BackupDamaged(path, str(error)) from error
    blocks = index.blocks
    if not blocks or any(each.before.pos + each.nbytes != after.before.pos for each, after in pairwise(blocks)):
        raise BackupDamaged(path, "its blocks do not follow each other")
    return index


def _messages(body: bytes, begin: PhysicalOffset) -> tuple[list[tuple[str, int, QueueOffset, int, set[int]]], int]:
    """The messages of an entry: topic, queue id, first offset, count and tag codes of each queue, and the latest time
    at which one was stored. Raises RecordError, RunInvalid, UnicodeDecodeError.
    """
    if (by_queue := consecutive_messages(body, begin)) is not None:
        messages, newest_ms = by_queue
        return [
            (topic.decode(), queue_id, each.first_offset, each.end_offset - each.first_offset, each.tags)
            for (topic, queue_id), each in messages.items()
        ], newest_ms
    runs, _ = scan_runs(body, begin)
    return [
        (each.topic, each.queue_id, each.first_offset, len(each.entries) // QUEUE_ENTRY_BYTES, _tags(each))
        for each in runs
    ], latest_store_timestamp(body)


def _base(last: EntryRef) -> Base:
    return Base(last.index, last.term, last.pos + last.size, last.chain)


def _tags(queue: QueueRun) -> set[int]:
    nbytes = len(queue.entries)
    assert nbytes % QUEUE_ENTRY_BYTES == 0, f"{nbytes} bytes of queue entries of {queue.topic}/{queue.queue_id}"
    words = array("q")
    for at in range(QUEUE_ENTRY_BYTES - 8, nbytes, QUEUE_ENTRY_BYTES):
        words.append(int.from_bytes(queue.entries[at : at + 8], "big", signed=True))
    return set(words)
