"""Holds all consume queues of a replica. The broker adds committed entries here, and pulls read them."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from mq.protocol.names import is_lite_queue, lite_queue
from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, PhysicalOffset, QueueOffset
from mq.store.annotation import ANNOTATION_FORMAT, RUN_HEAD, decode_runs
from mq.store.built_runs import BuiltRun
from mq.store.consume_queue import ENTRIES_PER_FILE, ConsumeQueue, topic_directory
from mq.store.dispatch import QUEUE_ENTRY_BYTES, QueueRun
from mq.store.dropped_queues import DROPPED, remove_unknown, restore_dropped
from mq.store.errors import QueueFileDamaged, RunInvalid
from mq.store.queue_blocks import ENTRIES_PER_BLOCK
from mq.store.queue_capture import QueueCapture, QueueRow
from mq.store.queue_files import OPEN_FILES_MAX, Changes, QueueFiles, outside

QueueKey = tuple[str, int]
"""Topic and queue id."""

QueueTable = Mapping[str, Sequence[QueueRow]]
"""The queues by topic."""

_CREATION_COST = 7
"""Writing a queue that needs a new file takes this many times longer: 180 us against 25."""

_GONE: Final = QueueOffset(-1)
"""The end of a dropped queue: no run begins there."""

_LITE_PREFIX: Final = lite_queue("", "")[:-1].encode()


@dataclass(frozen=True, slots=True)
class QueueStoreSettings:
    """Settings of queue files."""

    entries_per_file: int = ENTRIES_PER_FILE
    """Entries of 20 bytes in one file, whole blocks. Fixed for the life of a data directory."""
    entries_per_block: int = ENTRIES_PER_BLOCK
    """Entries that share a checksum. Fixed for the life of a data directory."""
    open_files_max: int = OPEN_FILES_MAX
    """Descriptors kept open over all queues."""
    flush_bytes: int = 4096
    """A queue with this many bytes in memory is written at the next flush: one page, a full disk block."""
    flush_age_calls: int = 150
    """A queue with fewer is written after this many flushes, since entries in memory enlarge each checkpoint."""

    def __post_init__(self) -> None:
        for name in ("entries_per_file", "entries_per_block", "open_files_max", "flush_bytes", "flush_age_calls"):
            assert getattr(self, name) >= 1, f"{name} is {getattr(self, name)}"


class DamagedBlock(NamedTuple):
    """A block of a queue, the queue offset at which it begins, and the error."""

    queue: ConsumeQueue
    start: QueueOffset
    reason: str


class _All:
    """Contains every queue."""

    def __contains__(self, key: object) -> bool:
        return True


class QueueStore:
    """Holds the consume queues by topic and queue id. For one thread.

    Entries accumulate in memory and are written to files a page at a time. A checkpoint makes the files durable and
    contains the entries that are still in memory, so that a queue with few messages costs neither a write nor a sync.
    There is no task, thread, timer or descriptor per queue.

    There may be very many queues of lite topics, with few messages each. They get a file, and with it a directory, only
    for a full page of entries; and they are not in the tables that serve topics with many messages.

    Attributes:
        lite_count: how many queues of lite topics there are.
        new_entries: those of watched queues that `take_new_entries` has not returned yet.
        floors: the first offsets of queues whose older messages have expired, as far as this has been noted since the
            queues were derived; None if it was not. Needed by `prepend`.
        refilled_pos: the queues have all entries from this physical offset on, as far as this process has put older
            ones in front of them; None before.
    """

    def __init__(self, root: str, settings: QueueStoreSettings, *, dropped_count: int = 0) -> None:
        self.root = root
        self.dropped_count = dropped_count
        """Number of dropped topics with queues in the life of this data directory."""
        self._settings = settings
        self._files = QueueFiles(root, settings.open_files_max)
        self.watched: Container[QueueKey] = _All()
        """The queues that `take_new_entries` reports: all by default. Empty containers disable it."""
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._queues_of: Counter[str] = Counter()
        self._by_name: dict[tuple[bytes, int], ConsumeQueue] = {}
        self.lite_count = 0
        self.floors: dict[QueueKey, QueueOffset] | None = None
        self.refilled_pos: PhysicalOffset | None = None
        # Queues with entries in memory, with the flush call before which the first entry arrived, oldest first.
        self._dirty: dict[QueueKey, int] = {}
        self._full: dict[QueueKey, None] = {}
        self._flush_call = 0
        self.new_entries: dict[QueueKey, bytearray] = {}
        self._to_expire: deque[QueueKey] = deque()
        self._expire_before = LOG_BEGIN
        self._captures = 0
        self._capture: QueueCapture | None = None

    @classmethod
    def open(
        cls,
        root: str,
        settings: QueueStoreSettings,
        *,
        queues: QueueTable,
        dropped_count: int,
        log_end: PhysicalOffset,
    ) -> QueueStore:
        """Restore the files to the state of a checkpoint; anything newer will be derived from the log again.

        Args:
            queues, dropped_count: from the checkpoint; empty and 0 to start empty, which removes all files.
            log_end: physical offset up to which the log was dispatched at the checkpoint.

        Raises QueueFileDamaged if files lack something that the checkpoint relies on (nothing is lost: start empty and
        derive all from the log), OSError.
        """
        os.makedirs(root, exist_ok=True)
        restore_dropped(root, queues, dropped_count)
        remove_unknown(root, queues)
        store = cls(root, settings, dropped_count=dropped_count)
        try:
            for topic, rows in queues.items():
                for row in rows:
                    store._add(topic, *row).check_files(log_end)
        except (QueueFileDamaged, OSError):
            store.close()
            raise
        return store

    def __len__(self) -> int:
        return len(self._queues)

    def has_queues(self, topic: str) -> bool:
        """Whether any queue of a topic has or had entries."""
        return self._queues_of[topic] > 0 or (topic, 0) in self._queues

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if it never had an entry."""
        return self._queues.get((topic, queue_id))

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the offset of the next committed message of this queue; 0 for a queue without entries."""
        queue = self._queues.get((topic, queue_id))
        return FIRST_OFFSET if queue is None else queue.max_offset

    def ends(self, topic: str) -> dict[int, QueueOffset]:
        """Return the offset of the next message for each queue of a topic that has or had entries."""
        if is_lite_queue(topic):
            queue = self._queues.get((topic, 0))
            return {} if queue is None else {0: queue.max_offset}
        return {queue_id: queue.max_offset for (name, queue_id), queue in self._queues.items() if name == topic}

    def queues(self) -> Iterator[ConsumeQueue]:
        """Return all queues that have or had entries, in order of creation."""
        return iter(self._queues.values())

    def all_keys(self) -> list[QueueKey]:
        """Return the keys of all queues, in order of creation."""
        return list(self._queues)

    def append_run(self, run: QueueRun) -> int:
        """Add the entries of one committed run to its queue; returns how many were new (0: a replay).

        Runs come in the order of the log.

        Raises:
            names.NameRefused: the topic is not valid as a directory.
            RunInvalid: the queue is invalid, or the run contradicts its content.
        """
        key = (run.topic, run.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            if run.queue_id < 0:
                raise RunInvalid(run.topic, run.queue_id, "the queue id is negative")
            queue = self._add(run.topic, run.queue_id, FIRST_OFFSET, FIRST_OFFSET, b"")
        if self._capture is not None:
            self._capture.capture_queue(queue)
        count = queue.append(run.first_offset, run.entries)
        if count:
            if key in self.watched:
                self.new_entries.setdefault(key, bytearray()).extend(run.entries[-count * QUEUE_ENTRY_BYTES :])
            self._note_tail(queue)
        return count

    def append_shipped(self, annotation: bytes) -> None:
        """`append_run` for each run of an annotation.

        With thousands of queues there is a run for nearly every message, so runs that continue a known queue, as nearly
        all do, are read directly from the bytes. Raises AnnotationDamaged, and the errors of `append_run`.
        """
        if self._capture is not None:
            for run in decode_runs(annotation):
                self.append_run(run)
            return
        size, head_bytes, unpack = len(annotation), RUN_HEAD.size, RUN_HEAD.unpack_from
        watched_queues, flush_bytes = self.watched, self._settings.flush_bytes
        is_watched = bool(watched_queues)
        position = 1
        while position + head_bytes < size and annotation[0] == ANNOTATION_FORMAT:
            topic_bytes, queue_id, first_offset, count = unpack(annotation, position)
            start = position + head_bytes + topic_bytes
            end = start + count * QUEUE_ENTRY_BYTES
            name = annotation[position + head_bytes : start]
            queue = self._by_name.get((name, queue_id))
            if queue is None and name.startswith(_LITE_PREFIX):
                queue = self._queues.get((name.decode("utf-8", "replace"), queue_id))
            if queue is None or queue.max_offset != first_offset or end > size or not count:
                break
            entries = annotation[start:end]
            pending_bytes = queue.extend(entries, count)
            if is_watched and queue.key in watched_queues:
                self.new_entries.setdefault(queue.key, bytearray()).extend(entries)
            if pending_bytes == end - start or pending_bytes >= flush_bytes:
                self._note_tail(queue)
            position = end
        if position != size or annotation[0] != ANNOTATION_FORMAT:
            for run in decode_runs(annotation[:1] + annotation[position:]):
                self.append_run(run)

    def append_built(self, runs: Sequence[BuiltRun]) -> None:
        """Append each run like `append_run`. A queue is looked up once, then cached in its writing end."""
        if self._capture is not None:
            for end, first_offset, _, _ in runs:
                if end.queue is not None and end.queue.max_offset == first_offset:
                    self._capture.capture_queue(end.queue)
        watched_queues, flush_bytes = self.watched, self._settings.flush_bytes
        is_watched = bool(watched_queues)
        for end, first_offset, count, entries in runs:
            queue = end.queue
            if queue is None:
                # The writing ends of most of very many lite topics are new with each message.
                queue = end.queue = self._queues.get((end.topic, end.queue_id))
                if queue is not None and self._capture is not None:
                    self._capture.capture_queue(queue)
            if queue is None or queue.max_offset != first_offset:
                self.append_run(QueueRun(end.topic, end.queue_id, first_offset, entries))
                end.queue = self._queues[end.topic, end.queue_id]
                continue
            pending_bytes = queue.extend(entries, count)
            if is_watched and queue.key in watched_queues:
                self.new_entries.setdefault(queue.key, bytearray()).extend(entries)
            if pending_bytes == len(entries) or pending_bytes >= flush_bytes:
                self._note_tail(queue)

    def add_empty(self, topic: str, queue_id: int, offset: QueueOffset) -> ConsumeQueue:
        """Create a queue whose entries have all expired; its next one gets ``offset``. The queue must not exist yet."""
        assert (topic, queue_id) not in self._queues, f"{topic}/{queue_id} exists"
        return self._add(topic, queue_id, offset, offset, b"")

    def begin_queue(self, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Make a queue begin at ``offset``: its earlier messages were a deleted topic's. Raises OSError."""
        if (topic, queue_id) not in self._queues:  # a message may have come before
            self.add_empty(topic, queue_id, offset)
        self.begin_at(topic, queue_id, offset)

    def raise_floor(self, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Set the lowest offset that `prepend` may still put in front of a queue; it never sinks."""
        if self.floors is not None and offset > self.floors.get((topic, queue_id), FIRST_OFFSET):
            self.floors[topic, queue_id] = offset

    def begin_refill(self, pos: PhysicalOffset) -> None:
        """Keep queue entries from expiring from the physical offset ``pos`` on: they will be put in front of queues."""
        self._expire_before = min(self._expire_before, pos)

    def prepend(self, run: QueueRun) -> int:
        """Put entries of older messages in front of a queue, as far as they continue it there; returns how many.

        Entries of queues that no longer exist, and of messages that have expired, are left out. Raises
        QueueFileDamaged, OSError, as `ConsumeQueue.prepend`.
        """
        assert self.floors is not None, f"{run.topic}: it is not known which messages have expired"
        key = run.topic, run.queue_id
        queue = self._queues.get(key)
        if queue is None:
            return 0
        first = max(run.first_offset, self.floors.get(key, FIRST_OFFSET))
        end = queue.min_offset
        if not first < end <= run.end_offset:
            return 0
        if self._capture is not None:
            self._capture.capture_queue(queue)
        skipped = first - run.first_offset
        queue.prepend(run.entries[skipped * QUEUE_ENTRY_BYTES : (end - run.first_offset) * QUEUE_ENTRY_BYTES])
        return end - first

    def take_new_entries(self) -> list[tuple[str, int, bytearray]]:
        """Watched queues with new entries since the last call, as (topic, queue id, the new entries).

        Waiting pulls need to check only these. Call it after each batch of runs; it holds 20 bytes for every entry
        since the last call.
        """
        queues, self.new_entries = self.new_entries, {}
        return [(topic, queue_id, entries) for (topic, queue_id), entries in queues.items()]

    @property
    def dirty_count(self) -> int:
        """Return the number of queues with entries that are in memory only."""
        return len(self._dirty)

    @property
    def is_flush_due(self) -> bool:
        """Whether the next `flush_some` would write something, if it stands for one call."""
        return self._next_due(self._flush_call + 1) is not None

    def flush_some(self, limit: int = 200, calls: int = 1) -> bool:
        """Write to the page cache: queues with a page or more in memory, then those with old entries.

        Called by a timer; its period is the unit of `QueueStoreSettings.flush_age_calls`. A timer that has rested while
        nothing was due says for how many ``calls`` this one stands. Writes ``limit`` queues at most, fewer when files
        have to be created for them. Returns whether more is due. Raises OSError; entries not written stay in memory.
        """
        assert limit > 0, f"{limit} queues are to be written"
        assert calls > 0, f"{calls} calls of the timer have passed"
        self._flush_call += calls
        remaining = limit
        while (key := self._next_due(self._flush_call)) is not None:
            if remaining <= 0:
                return True
            created_before = self._files.created_count
            self._flush(key)
            remaining -= 1 + _CREATION_COST * (self._files.created_count - created_before)
        return False

    def flush_all(self) -> None:
        """Write everything in memory to the page cache. Raises OSError; entries not written stay in memory."""
        while self._dirty:
            self._flush(next(iter(self._dirty)))

    def drop_topic(self, topic: str) -> None:
        """Drop the queues of a topic. Later ones of that name begin where `add_empty` or their first run says.

        The files are moved aside, not removed: until the next checkpoint, a restart returns to a state in which the
        topic exists, and finds them there. Raises OSError.
        """
        if is_lite_queue(topic):
            keys = [(topic, 0)] if (topic, 0) in self._queues else []
        else:
            lite = lite_queue(topic, "")
            keys = [key for key in self._queues if key[0] == topic or key[0].startswith(lite)]
        if not keys:
            return
        for key in keys:
            queue = self._queues[key]
            if self._capture is not None:
                self._capture.capture_queue(queue)
            del self._queues[key]
            if is_lite_queue(key[0]):
                self.lite_count -= 1
                assert self.lite_count >= 0, f"{self.lite_count} queues of lite topics without {key[0]}"
            else:
                self._queues_of[topic] -= 1
                assert self._queues_of[topic] >= 0, f"{self._queues_of[topic]} queues of {topic} without {key[1]}"
                del self._by_name[key[0].encode(), key[1]]
            queue.max_offset = _GONE
            self._files.forget_queue(queue)
            for table in (self._dirty, self._full, self.new_entries, self.floors or {}):
                table.pop(key, None)
        have_moved = [self._move_aside(name) for name in dict.fromkeys(name for name, _ in keys)]
        if any(have_moved) or not is_lite_queue(topic):
            # A checkpoint that is being written does not count then. Queues of lite topics end all the time.
            self.dropped_count += 1

    def _move_aside(self, topic: str) -> bool:
        directory = topic_directory(topic)
        source = os.path.join(self.root, directory)
        if not os.path.isdir(source):
            return False
        self._files.forget(directory)
        aside = os.path.join(self.root, DROPPED, f"{self.dropped_count:020d}")
        os.makedirs(aside, exist_ok=True)
        os.rename(source, os.path.join(aside, directory))
        # Before the next checkpoint syncs the root, which may already have a new topic of this name.
        self._files.note_new_names(os.path.relpath(aside, self.root))
        return True

    def begin_at(self, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Remove the entries of a queue before ``offset``, as far as it has them. Raises OSError."""
        self.raise_floor(topic, queue_id, offset)
        if (queue := self._queues.get((topic, queue_id))) is not None:
            queue.begin_at(offset)

    def expire_some(self, log_start: PhysicalOffset, limit: int = 40) -> int:
        """Move min_offset of up to ``limit`` queues past records before physical offset ``log_start``.

        Begins a new pass when ``log_start`` has grown. Returns how many queues are left in this pass; call again until
        0. A queue with a damaged block follows when that is restored. Raises OSError.
        """
        if log_start > self._expire_before:
            self._expire_before = log_start
            self._to_expire = deque(self._queues)
        for _ in range(min(limit, len(self._to_expire))):
            queue = self._queues.get(self._to_expire.popleft())
            if queue is not None:
                with suppress(QueueFileDamaged):
                    queue.expire(self._expire_before)
        return len(self._to_expire)

    @property
    def has_damage(self) -> bool:
        """Whether there are damaged blocks that are not restored yet."""
        return bool(self._files.damaged)

    def damaged_blocks(self) -> list[DamagedBlock]:
        """Damaged blocks that are not restored yet, in order of detection."""
        return [
            DamagedBlock(queue, start, reason)
            for (queue, start), reason in self._files.damaged.items()
            if isinstance(queue, ConsumeQueue)
        ]

    def restore(self, block: DamagedBlock, first: QueueOffset, entries: bytes) -> bool:
        """Rewrite a damaged block, with its entries from queue offset ``first`` on from the log.

        Returns whether it is complete then; not if it has grown in the meantime. Raises OSError.
        """
        queue = block.queue
        if self._queues.get(queue.key) is not queue:
            self._files.forget_queue(queue)  # its topic was deleted
            return True
        if not queue.restore(block.start, first, entries):
            return False
        if queue.pending_bytes:
            self._note_tail(queue)  # writing may have been blocked by this block
        if self._expire_before:
            self._to_expire.append(queue.key)
        return True

    def forget_blocks(self) -> None:
        """Drop all cached blocks: the next reads are verified again."""
        self._files.forget_blocks()

    def begin_capture(self) -> QueueCapture:
        """Start a capture of all queues as they are now, to be continued with `gather`, and read later in any thread.

        An earlier capture that is incomplete stays so.
        """
        self._captures += 1
        self._capture = QueueCapture(list(self._queues.values()), self._captures)
        return self._capture

    def gather(self, count: int) -> bool:
        """Capture some queues for the latest capture; returns whether there are more."""
        capture = self._capture
        if capture is not None:
            capture.gather(count)
            if capture.is_complete:
                self._capture = None
        return self._capture is not None

    def table(self) -> dict[str, list[QueueRow]]:
        """Return all queues by topic."""
        rows: dict[str, list[QueueRow]] = {}
        for queue in self._queues.values():
            rows.setdefault(queue.topic, []).append((queue.queue_id, queue.min_offset, queue.max_offset, queue.tail))
        return rows

    def capture_ends(self) -> Callable[[], dict[str, list[QueueRow]]]:
        """A function that returns all queues by topic, later and in any thread: their current ends, without entries.

        With 100,000 queues this takes a few milliseconds; only needed when a replica fetches a snapshot.
        """
        keys, offsets = list(self._queues), [queue.max_offset for queue in self._queues.values()]

        def ends() -> dict[str, list[QueueRow]]:
            rows: dict[str, list[QueueRow]] = {}
            for (topic, queue_id), offset in zip(keys, offsets, strict=True):
                rows.setdefault(topic, []).append((queue_id, offset, offset, b""))
            return rows

        return ends

    def take_changes(self) -> Changes:
        """Return the files that changed since the last call, for a checkpoint."""
        return self._files.take_changes()

    def remove_retired(self, durable: Changes, since: Changes) -> None:
        """Remove files that a durable checkpoint does not need. Raises OSError.

        ``durable`` are the checkpoint's changes, ``since`` those after it.
        """
        for path in outside(durable.retired, since.forgotten) - since.files:
            self._files.remove(path)

    def check_invariants(self) -> None:
        """Assert what holds between calls; for tests, since it looks at every queue.

        - Both tables have the same queues: the one by encoded names is for applied entries, the other for readers.
        - A queue with entries in memory is due to be written, and first if it has a page of them; only damage of its
          files holds it up. Otherwise every checkpoint would have to contain them for ever.
        - What is to be told to waiting pulls is of existing queues.
        - What holds for each queue.
        """
        names = {(name.decode(), queue_id): queue for (name, queue_id), queue in self._by_name.items()}
        usual = {key: queue for key, queue in self._queues.items() if not is_lite_queue(key[0])}
        counts = Counter(topic for topic, _ in usual)
        assert counts == +self._queues_of, f"{+self._queues_of} queues are counted, {counts} are there"
        assert names == usual, f"{len(names)} queues by encoded name, {len(usual)} by name"
        lite = len(self._queues) - len(usual)
        assert self.lite_count == lite, f"{self.lite_count} queues of lite topics were counted, {lite} are there"
        damaged_keys = {block.queue.key for block in self.damaged_blocks()}
        for key, queue in self._queues.items():
            assert queue.key == key, f"{queue} is listed as {key}"
            queue.check_invariants()
            is_small = is_lite_queue(key[0]) and queue.pending_bytes < self._settings.flush_bytes
            assert not queue.pending_bytes or key in self._dirty or key in damaged_keys or is_small, (
                f"{queue} has {queue.pending_bytes} bytes in memory, and is not due to be written"
            )
            assert queue.captured <= self._captures, f"{queue} is in capture {queue.captured} of {self._captures}"
        for what, keys in (("to be written", self._dirty), ("new", self.new_entries)):
            assert keys.keys() <= self._queues.keys(), f"{what}, and not there: {keys.keys() - self._queues.keys()}"
        stray = self._full.keys() - self._dirty.keys()
        assert not stray, f"a page in memory, and not to be written: {stray}"
        calls = list(self._dirty.values())
        assert calls == sorted(calls), f"queues are not written in the order of their first entries: {calls}"

    def close(self) -> None:
        """Close all descriptors. Entries in memory are dropped; the log has them."""
        self._files.close()

    def _note_tail(self, queue: ConsumeQueue) -> None:
        """Call when the first entry is in memory, and when they fill a page."""
        is_full = queue.pending_bytes >= self._settings.flush_bytes
        if is_full or not is_lite_queue(queue.key[0]):
            self._dirty.setdefault(queue.key, self._flush_call)
        if is_full:
            self._full[queue.key] = None

    def _add(
        self, topic: str, queue_id: int, min_offset: QueueOffset, max_offset: QueueOffset, tail: bytes
    ) -> ConsumeQueue:
        queue = ConsumeQueue(
            self._files,
            topic,
            queue_id,
            entries_per_file=self._settings.entries_per_file,
            entries_per_block=self._settings.entries_per_block,
            min_offset=min_offset,
            max_offset=max_offset,
            tail=tail,
        )
        queue.captured = self._captures
        self._queues[queue.key] = queue
        if is_lite_queue(topic):
            self.lite_count += 1
        else:
            self._queues_of[topic] += 1
            self._by_name[topic.encode(), queue_id] = queue
        if tail:
            self._note_tail(queue)
        return queue

    def _next_due(self, call: int) -> QueueKey | None:
        for key in self._full:
            return key
        for key, since in self._dirty.items():
            return key if since <= call - self._settings.flush_age_calls else None
        return None

    def _flush(self, key: QueueKey) -> None:
        queue = self._queues[key]
        if self._capture is not None:
            self._capture.capture_queue(queue)
        queue.flush()
        assert key in self._dirty, f"{queue} was written, and was not due"
        del self._dirty[key]
        self._full.pop(key, None)
