"""Reads an archive, or a backup in object storage, without brokers. Verifies everything that it returns.

The manifest names each object with its SHA-256. An index is read as a whole, and compared with that. It has the chain
before each block of its log file, so of the file only the blocks are read that may have wanted messages, and the
chain is verified from there. A file without an index, such as the newest one of a backup, is read as a whole.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from mq.protocol.messages.records import StoredMessage, decode_record, scan_fixed
from mq.protocol.numbers import QueueOffset
from mq.store.archive.file_index import Block, FileIndex, FileIndexBuilder, QueueRange, decode_file_index
from mq.store.dispatch import enters_queue
from raftlog.log_numbers import LogIndex
from raftlog.segment.backup import Backup
from raftlog.segment.backup_manifest import StoredObject, StoredState
from raftlog.segment.backup_store import BackupDamaged, BackupRefused, BackupStore, NotStored
from raftlog.segment.codec import NORMAL, EntryRef
from raftlog.segment.entry_runs import EntryRun, entry_runs
from raftlog.segment.errors import EntryTooNew, FormatTooNew, FrameCorrupt
from raftlog.segment.meta import Base


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of the log. ``index`` is None without one; ``begin`` is the place where the file begins."""

    stored: StoredObject
    begin: Base
    last_index: LogIndex
    index: FileIndex | None


class MessageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The messages to read; None for all. ``since_ms`` and ``until_ms`` are store times, both ends inclusive."""

    topic: str
    queue_id: int | None = None
    first_offset: QueueOffset | None = None
    tag_code: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def may_be_in(self, block: Block) -> bool:
        """Whether a block may have wanted messages."""
        if self.since_ms is not None and block.newest_ms < self.since_ms:
            return False
        return any(
            each.topic == self.topic
            and self.queue_id in (None, each.queue_id)
            and (self.first_offset is None or each.end_offset > self.first_offset)
            and (self.tag_code is None or each.tags is None or self.tag_code in each.tags)
            for each in block.queues
        )

    def matches(self, message: StoredMessage) -> bool:
        """Whether a message is wanted, apart from its topic, queue, offset and tag code."""
        stored_ms = message.store_timestamp_ms
        return (self.since_ms is None or self.since_ms <= stored_ms) and (
            self.until_ms is None or stored_ms <= self.until_ms
        )


class ArchiveReader:
    """Reads an archive. Call `close` at the end, which also closes the store.

    Raises:
        BackupRefused: there is none in the store.
        BackupDamaged, FormatTooNew: its manifest cannot be decoded, or it is not in object storage.
        StorageFailed, StoreFailed: an error of the store.
    """

    def __init__(self, store: BackupStore) -> None:
        self._store = store
        self.backup = Backup(store)
        self.manifest = self.backup.manifest
        objects = self.manifest.objects
        if objects is msgspec.UNSET:
            raise BackupDamaged(store.name, "it is a backup in a directory, not in object storage")
        self._objects = objects

    def close(self) -> None:
        """Release the block that was read last."""
        self.backup.close()

    def files(self) -> Iterator[ArchivedFile]:
        """All files, in the order of the log, with their indexes; one without an index is read.

        Raises:
            BackupDamaged, FormatTooNew: an index, or a file without one, is damaged or of a newer version.
            StorageFailed, StoreFailed: an error of the store.
        """
        begin = self.manifest.base
        for file in self._objects.files:
            index = self._index(file)
            if index is None:
                last = begin.ref
                for run in self._runs(file, begin):
                    last = run.entries[-1] if run.entries else last
                end = Base(last.index, last.term, file.start + self.manifest.segment_bytes, last.chain)
            else:
                end = index.end
                if index.begin != begin:
                    raise BackupDamaged(self._path(file), f"its index does not follow entry {begin.index}")
            yield ArchivedFile(file, begin, end.index, index)
            begin = end
        if begin.index != self.manifest.last.index or begin.chain != self.manifest.last.chain:
            raise BackupDamaged(
                self._store.name,
                f"its files end with entry {begin.index}, but its manifest with entry {self.manifest.last.index}",
            )

    def messages(self, query: MessageQuery) -> Iterator[StoredMessage]:
        """Wanted messages in the order of the log. Raises as `files`; all messages before an error are intact."""
        name = query.topic.encode()
        for file in self.files():
            for run in self._wanted_runs(file, query):
                for entry in run.entries:
                    if entry.kind == NORMAL:
                        yield from _messages(run.body(entry), name, query)

    def derived_index(self, file: ArchivedFile, read: Callable[[int], None] = lambda nbytes: None) -> bytes:
        """The index of a complete file that has none, from its verified content. Raises as `files`.

        ``read`` is called with the bytes of each piece.
        """
        builder = FileIndexBuilder(file.begin, self.manifest.segment_bytes)
        for run in self._runs(file.stored, file.begin):
            builder.add(run)
            read(len(run.data))
        return builder.content()

    def queue_ranges(self) -> Iterator[QueueRange]:
        """Yield the ranges of messages in the order of the log, block by block. Raises as `files`."""
        for file in self.files():
            if file.index is not None:
                for block in file.index.blocks:
                    yield from block.queues
            else:
                builder = FileIndexBuilder(file.begin, self.manifest.segment_bytes)
                for run in self._runs(file.stored, file.begin):
                    builder.add(run)
                for block in builder.index.blocks:
                    yield from block.queues

    def verify(self, read: Callable[[int], None] = lambda nbytes: None) -> int:
        """Read everything, check every entry and its chain, and derive each index again.

        ``read`` is called with the bytes of each verified piece. Returns how many files have an index. Raises as
        `files`.
        """
        indexes = {each.start: each for each in self._objects.files if each.index is not None}
        size = self.manifest.segment_bytes
        builder: FileIndexBuilder | None = None
        start, last = -1, self.manifest.base.ref

        def finish() -> None:
            if builder is not None and builder.content() != self._index_content(indexes[start]):
                raise BackupDamaged(
                    self._path(indexes[start]), "the index does not match the content of the files: archive it again"
                )

        for run in self.backup.runs():
            if (its_start := run.pos - run.pos % size) != start:
                finish()
                start = its_start
                begin = Base(last.index, last.term, start, last.chain)
                builder = FileIndexBuilder(begin, size) if start in indexes else None
            if builder is not None:
                builder.add(run)
            last = run.entries[-1] if run.entries else last
            read(len(run.data))
        finish()
        self.backup.snapshot()
        for state in self._objects.states:
            self._check_state(state)
        return len(indexes)

    def _check_state(self, state: StoredState) -> None:
        path = self._store.path(state.name)
        try:
            data = self._store.read(state.name, state.nbytes + 1, 0)
        except NotStored as error:
            if isinstance(meaning := self.backup.missing_error(error), BackupRefused):
                return  # the archive begins later by now, and needs it no more
            raise meaning from error
        if (len(data), zlib.crc32(data)) != (state.nbytes, state.crc):
            raise BackupDamaged(path, "its content differs from what was written")

    def _wanted_runs(self, file: ArchivedFile, query: MessageQuery) -> Iterator[EntryRun]:
        if file.index is None:
            yield from self._runs(file.stored, file.begin)
            return
        blocks = file.index.blocks
        for number, block in enumerate(blocks):
            if query.may_be_in(block):
                after = blocks[number + 1].before if number + 1 < len(blocks) else file.index.end
                last = block.before.ref
                for run in self._runs(file.stored, block.before, block.last_index):
                    yield run
                    last = run.entries[-1] if run.entries else last
                if (last.index, last.chain) != (after.index, after.chain):
                    raise BackupDamaged(
                        self._path(file.stored),
                        f"its index names entry {after.index} with a chain that differs from its content",
                    )

    def _runs(self, file: StoredObject, begin: Base, last_index: LogIndex | None = None) -> Iterator[EntryRun]:
        """Verified entries of one file after ``begin``, up to ``last_index`` or its end."""
        last: EntryRef = begin.ref
        end = file.start + self.manifest.segment_bytes
        limit = self.manifest.last.index if last_index is None else last_index
        try:
            for run in entry_runs(self._reading(file), begin.ref, limit, self.manifest.segment_bytes):
                if run.pos >= end:
                    break
                yield run
                last = run.entries[-1] if run.entries else last
        except EntryTooNew as error:
            raise FormatTooNew(self._path(file), f"the entry after {last.index}", error.found, error.newest) from error
        except FrameCorrupt as error:
            raise BackupDamaged(self._path(file), str(error)) from error

    def _reading(self, file: StoredObject) -> Callable[[int, int], bytes]:
        def read(pos: int, length: int) -> bytes:
            try:
                if pos - pos % self.manifest.segment_bytes != file.start:
                    return self.backup.read(pos, length)
                return self._store.read(file.name, length, pos - file.start).ljust(length, b"\0")
            except NotStored as error:
                raise self.backup.missing_error(error) from error

        return read

    def _index(self, file: StoredObject) -> FileIndex | None:
        if file.index is None:
            return None
        return decode_file_index(self._index_content(file), self._store.path(file.index.name))

    def _index_content(self, file: StoredObject) -> bytes:
        index = file.index
        assert index is not None, f"{file.name} has no index"
        path = self._store.path(index.name)
        try:
            content = self._store.read(index.name, index.nbytes, 0)
        except NotStored as error:
            raise self.backup.missing_error(error) from error
        if len(content) != index.nbytes or hashlib.sha256(content).hexdigest() != index.sha256:
            raise BackupDamaged(path, "its content differs from what was written")
        return content

    def _path(self, file: StoredObject) -> str:
        return self._store.path(file.name)


def _messages(body: bytes, topic: bytes, query: MessageQuery) -> Iterator[StoredMessage]:
    view = memoryview(body)
    for at, size, queue_id, offset, _, sys_flag, its_topic, tag_code in scan_fixed(body):
        if (
            its_topic == topic
            and enters_queue(sys_flag)
            and query.queue_id in (None, queue_id)
            and (query.first_offset is None or offset >= query.first_offset)
            and query.tag_code in (None, tag_code)
        ):
            message = decode_record(view[at : at + size])
            assert (message.queue_id, message.queue_offset) == (queue_id, offset), (
                f"message {offset} of queue {queue_id} was decoded as {message.queue_offset} of {message.queue_id}"
            )
            if query.matches(message):
                yield message
