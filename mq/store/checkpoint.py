"""Checkpoints: durable state derived from the log, so that a restart replays only later entries.

A checkpoint names an applied log entry and the state right after it: how far each consume queue reached, the queue
entries that are not in files yet, and the replicated metadata. It is written only after the queue files it relies on
are synced. Losing it loses nothing: without one, everything is derived from the log again.

Taking one has three steps. `Checkpointer.prepare` runs on the event loop between two entries and fixes the state to
capture. `PendingCheckpoint.gather`, called there repeatedly, captures a few queues per call while later entries are
applied. Neither waits for the disk; `PendingCheckpoint.commit` does, in a worker thread.

The file is: magic (8 bytes), CRC-32 of the payload (u32), size of the payload (u64), payload (CBOR). The last character
of the magic number is the format version. In later versions the checksum includes the magic number, so that a flipped
bit in it is not taken for a newer version.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Annotated

import cbor2
import msgspec
from msgspec import Meta

from mq.protocol.names import NameRefused, check_queue_name
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset
from mq.store.dispatch import QUEUE_ENTRY_BYTES, QUEUE_OFFSET_MAX
from mq.store.dropped_queues import remove_dropped
from mq.store.errors import CheckpointDamaged, CheckpointImpossible
from mq.store.queue_capture import QueueCapture, QueueRow
from mq.store.queue_files import Changes, sync
from mq.store.queue_floors import write_floors
from mq.store.queue_store import QueueStore, QueueStoreSettings
from raftlog import RealDisk
from raftlog.log_numbers import NO_INDEX, NO_TERM, LogIndex, Term
from raftlog.safe_cbor import decode_safe
from raftlog.segment import FormatTooNew

CHECKPOINT_NAME = "checkpoint"
PREVIOUS_NAME = "checkpoint.previous"
SNAPSHOT_NAME = "snapshot"

QUEUE_DIRECTORY = "queues"
FORMER_QUEUE_DIRECTORY = "consumequeue"
"""Queue files without checksums, from an earlier version: removed, since the log has their content."""
_MAGIC = b"RAFTMQC1"
_HEAD = Struct(">8sIQ")
_QUEUES_IN_PIECE = 100


_BOUNDS = Meta(ge=0, le=2**63 - 1)
_Number = Annotated[int, _BOUNDS]


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state derived from the log up to and including one entry. The default is the empty state."""

    applied_index: Annotated[LogIndex, _BOUNDS] = NO_INDEX
    """Index of the last applied entry."""
    applied_term: Annotated[Term, _BOUNDS] = NO_TERM
    """The term of that entry: if the log has another entry there, the state was not derived from this log."""
    applied_pos: Annotated[PhysicalOffset, _BOUNDS] = LOG_BEGIN
    """Physical offset of its end; the next entry is there or after padding."""
    queues: dict[str, list[QueueRow]] = {}
    """The consume queues of each topic as (queue_id, min_offset, max_offset, entries not in files)."""
    dropped_count: _Number = 0
    """Number of dropped topics with queues."""
    state: bytes = b""
    """Snapshot of the replicated metadata; empty before the first."""


_SECONDS_PER_QUEUE = 0.0001


def seconds_between_checkpoints(usual: float, queues: int) -> float:
    """Return the pause before the next checkpoint: `usual` seconds, longer with more than 100,000 queues.

    A checkpoint takes some 3 us of CPU for each queue: with a million lite topics and 10 s between checkpoints, a third
    of a processor. With 100 s it is a thirtieth, and a start applies more of the log.
    """
    return max(usual, queues * _SECONDS_PER_QUEUE)


Rows = Iterable[tuple[str, Sequence[QueueRow]]]


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of the checkpoint file."""
    payload = b"".join(_payload(checkpoint, len(checkpoint.queues), checkpoint.queues.items()))
    return _HEAD.pack(_MAGIC, zlib.crc32(payload), len(payload)) + payload


def _payload(checkpoint: Checkpoint, topics: int, rows: Rows) -> Iterator[bytes]:
    """The payload in pieces; ``rows`` replace ``checkpoint.queues``.

    Encoding one piece takes about a tenth of a millisecond: no other thread runs meanwhile. A piece for each of a
    million lite topics would take twice as long.
    """
    fields: dict[str, object] = msgspec.structs.asdict(checkpoint)
    del fields["queues"]
    yield _cbor_map(len(fields) + 1)
    for name, value in fields.items():
        yield cbor2.dumps(name)
        yield cbor2.dumps(value)
    yield cbor2.dumps("queues")
    yield _cbor_map(topics)
    some: dict[str, Sequence[QueueRow]] = {}
    room = _QUEUES_IN_PIECE
    for topic, queues in rows:
        some[topic] = queues
        room -= max(1, len(queues))
        if room <= 0:
            yield _cbor_pairs(some)
            some, room = {}, _QUEUES_IN_PIECE
    if some:
        yield _cbor_pairs(some)


def _cbor_pairs(pairs: Mapping[str, object]) -> bytes:
    """Alternating keys and values, without the head of a map."""
    assert 0 < len(pairs) <= _QUEUES_IN_PIECE < 256, f"{len(pairs)} pairs in a piece"
    return cbor2.dumps(pairs)[1 if len(pairs) < 24 else 2 :]


def _cbor_map(pairs: int) -> bytes:
    """The head of a map with this many pairs; alternating keys and values follow."""
    return b"\xba" + pairs.to_bytes(4, "big")


def load_checkpoint(directory: str, name: str = CHECKPOINT_NAME) -> Checkpoint | None:
    """Load a checkpoint from a data directory; None if there is none.

    Raises:
        CheckpointDamaged: it is damaged.
        FormatTooNew: a newer version of the software wrote it.
        OSError: it cannot be read.
    """
    path = os.path.join(directory, name)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise CheckpointDamaged(path, "the disk cannot read it") from error
    if len(data) < _HEAD.size:
        raise CheckpointDamaged(path, f"the file has {len(data)} bytes, fewer than a header")
    magic, crc, size = _HEAD.unpack_from(data)
    payload = data[_HEAD.size :]
    if _is_newer(magic) and len(payload) == size and zlib.crc32(payload, zlib.crc32(magic)) == crc:
        raise FormatTooNew(path, "the checkpoint", _version(magic), _version(_MAGIC))
    if magic != _MAGIC:
        raise CheckpointDamaged(path, f"the file begins with {magic!r} instead of {_MAGIC!r}")
    if len(payload) != size:
        raise CheckpointDamaged(path, f"the payload has {len(payload)} bytes, but {size} were written")
    if zlib.crc32(payload) != crc:
        raise CheckpointDamaged(
            path, f"the checksum of the payload is {zlib.crc32(payload):#010x}, but {crc:#010x} was written"
        )
    try:
        checkpoint = msgspec.convert(decode_safe(payload), Checkpoint)
        _check_queues(checkpoint.queues)
    except (ValueError, msgspec.ValidationError, NameRefused) as error:
        raise CheckpointDamaged(path, str(error)) from error
    return checkpoint


def _is_newer(magic: bytes) -> bool:
    return magic[:-1] == _MAGIC[:-1] and magic > _MAGIC


def _version(magic: bytes) -> int:
    return magic[-1] - ord("0")


def refuse_newer(*paths: str) -> None:
    """Check the first bytes of existing checkpoints. Raises FormatTooNew; nothing is written."""
    for path in paths:
        try:
            with open(path, "rb") as file:
                is_newer = _is_newer(file.read(len(_MAGIC)))
            if is_newer:
                load_checkpoint("", path)
        except (OSError, CheckpointDamaged):
            continue  # opening the store finds it again and handles it


def _check_queues(queues: Mapping[str, Sequence[QueueRow]]) -> None:
    """Raises ValueError or NameRefused for invalid queues: a snapshot comes from another replica."""
    for topic, rows in queues.items():
        check_queue_name(topic)
        for queue_id, low, high, tail in rows:
            count, rest = divmod(len(tail), QUEUE_ENTRY_BYTES)
            if not (
                0 <= queue_id < 2**31 and 0 <= low <= high <= QUEUE_OFFSET_MAX and count <= high - low and not rest
            ):
                raise ValueError(f"queue {topic}/{queue_id} [{low}, {high}) and its last {len(tail)} bytes do not fit")
        if len({row[0] for row in rows}) < len(rows):
            raise ValueError(f"a queue of {topic} is repeated")


def reset_store(directory: str, settings: QueueStoreSettings | None = None) -> QueueStore:
    """Remove everything derived from the log and start empty. Raises OSError.

    Called when the log does not contain the entry that the checkpoint names.
    """
    RealDisk().mkdir(directory)
    path = os.path.join(directory, CHECKPOINT_NAME)
    # First, and durably: a checkpoint must never outlive the files it relies on.
    if os.path.exists(path):
        os.unlink(path)
        _sync_directory(directory)
    return open_queues(directory, settings or QueueStoreSettings(), Checkpoint())


def open_queues(directory: str, settings: QueueStoreSettings, checkpoint: Checkpoint) -> QueueStore:
    """Open the queues of a checkpoint. Raises QueueFileDamaged, OSError."""
    return QueueStore.open(
        os.path.join(directory, QUEUE_DIRECTORY),
        settings,
        queues=checkpoint.queues,
        dropped_count=checkpoint.dropped_count,
        log_end=checkpoint.applied_pos,
    )


class PendingCheckpoint:
    """A checkpoint that is prepared but not yet on disk."""

    def __init__(
        self,
        directory: str,
        queues: QueueStore,
        checkpoint: Checkpoint,
        state: Callable[[], bytes],
        changes: Changes,
        queues_at_once: int,
    ) -> None:
        self.checkpoint = checkpoint
        """The content except queues and state, which may be large."""
        self.changes = changes
        self.committed = False
        """Whether it is durable: then restarts no longer need the log before ``checkpoint.applied_pos``."""
        self.sync_failure: OSError | None = None
        self.refilled_pos = queues.refilled_pos
        """The queue store's `refilled_pos` at that moment."""
        self._floors = None if queues.floors is None else queues.floors.copy()
        self._directory = directory
        self._queues = queues
        self._queues_at_once = queues_at_once
        self._capture: QueueCapture | None = queues.begin_capture()
        self._state = state

    def gather(self) -> bool:
        """Capture some of the queues; on the thread that owns the queue store. Returns whether more are left.

        Queues may change in the meantime: the captured state is the state at `prepare`.
        """
        assert not self.committed, f"checkpoint {self.checkpoint.applied_index} is committed already"
        return self._queues.gather(self._queues_at_once)

    def commit(self) -> bool:
        """Sync the queue files, write the checkpoint, remove dropped topics. Blocks; for a worker thread.

        All queues must be captured. Returns whether the checkpoint is durable. It is not if a topic was dropped in the
        meantime; the next one will be. Raises OSError; if syncing queue files failed, this process cannot take further
        checkpoints.
        """
        capture = self._capture
        assert capture is not None, f"checkpoint {self.checkpoint.applied_index} is committed twice"
        assert capture.is_complete, f"checkpoint {self.checkpoint.applied_index} lacks queues"
        try:
            sync(self._queues.root, self.changes)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._is_overtaken():
                return False
            self.sync_failure = error
            raise
        if self._is_overtaken():
            return False
        whole = msgspec.structs.replace(self.checkpoint, state=self._state())
        if self._floors is not None:
            write_floors(self._directory, self._floors, whole.applied_index)
        _keep_previous(self._directory)
        _write_durably(self._directory, CHECKPOINT_NAME, _payload(whole, *capture.rows()))
        self.committed = True
        self._capture = None  # it may be large
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self._directory, SNAPSHOT_NAME))
        remove_dropped(self._queues.root, self.checkpoint.dropped_count)
        return True

    def _is_overtaken(self) -> bool:
        """Whether a topic was dropped in the meantime: its files were moved, possibly before they were synced."""
        return self._queues.dropped_count != self.checkpoint.dropped_count


class Checkpointer:
    """Takes checkpoints of one replica, one at a time.

    Args:
        queues_at_once: captured in one step; takes about a millisecond.
    """

    def __init__(self, directory: str, queues: QueueStore, *, queues_at_once: int = 1000) -> None:
        self._directory = directory
        self._queues = queues
        self._queues_at_once = queues_at_once
        self._last: PendingCheckpoint | None = None
        self._durable = [_applied_pos(directory, PREVIOUS_NAME), _applied_pos(directory, CHECKPOINT_NAME)]
        self._last_committed: PendingCheckpoint | None = None
        self._refilled_pos: PhysicalOffset | None = None

    @property
    def floor_pos(self) -> PhysicalOffset:
        """Physical offset below which neither of the last two durable checkpoints needs the log."""
        last = self._last
        if last is not None and last.committed and last is not self._last_committed:
            self._durable = [self._durable[1], last.checkpoint.applied_pos]
            self._last_committed = last
            self._refilled_pos = last.refilled_pos
        return min(self._durable)

    @property
    def refilled_pos(self) -> PhysicalOffset | None:
        """`QueueStore.refilled_pos` in the last durable checkpoint of this process."""
        _ = self.floor_pos
        return self._refilled_pos

    def prepare(
        self, *, applied_index: LogIndex, applied_term: Term, applied_pos: PhysicalOffset, state: Callable[[], bytes]
    ) -> PendingCheckpoint:
        """Fix the state right after the entry ``applied_index``; on the thread that owns the queue store.

        Call it when all runs up to this entry and none after it are in the store, and not before ``commit`` of the
        previous one has returned. ``applied_pos`` is the physical offset of the entry's end; the entry must be durable
        in this replica's own log, or a crash would leave a checkpoint ahead of the log. ``state`` returns the snapshot
        of the current metadata; the worker calls it, since encoding is slow. Raises CheckpointImpossible, OSError (try
        again later).
        """
        last = self._last
        _ = self.floor_pos  # record the last one before it is replaced
        if last is not None:
            before = last.checkpoint
            assert before.applied_index <= applied_index, f"checkpoint {applied_index} behind {before.applied_index}"
            assert before.applied_pos <= applied_pos, f"checkpoint at {applied_pos} behind {before.applied_pos}"
        if last is not None and last.sync_failure is not None:
            raise CheckpointImpossible(self._queues.root, str(last.sync_failure))
        changes = self._queues.take_changes()
        since = changes
        if last is not None and not last.committed:
            changes = last.changes.merge(changes)
        checkpoint = Checkpoint(
            applied_index=applied_index,
            applied_term=applied_term,
            applied_pos=applied_pos,
            dropped_count=self._queues.dropped_count,
        )
        self._last = PendingCheckpoint(self._directory, self._queues, checkpoint, state, changes, self._queues_at_once)
        if last is not None and last.committed:
            # Not in the worker, where a new topic of the same name could be writing to the same path.
            self._queues.remove_retired(last.changes, since)
        return self._last


def _applied_pos(directory: str, name: str) -> PhysicalOffset:
    try:
        checkpoint = load_checkpoint(directory, name)
    except CheckpointDamaged:
        return LOG_BEGIN
    return LOG_BEGIN if checkpoint is None else checkpoint.applied_pos


def _keep_previous(directory: str) -> None:
    """Keep the checkpoint that is about to be replaced under another name, in case the new one gets damaged."""
    path, previous_path = os.path.join(directory, CHECKPOINT_NAME), os.path.join(directory, PREVIOUS_NAME)
    if os.path.exists(path):
        with suppress(FileNotFoundError):
            os.unlink(previous_path)
        os.link(path, previous_path)


def write_checkpoint(directory: str, name: str, checkpoint: Checkpoint) -> None:
    """Replace a file durably by this checkpoint. Raises OSError."""
    _write_durably(directory, name, _payload(checkpoint, len(checkpoint.queues), checkpoint.queues.items()))


def _write_durably(directory: str, name: str, payload: Iterable[bytes]) -> None:
    """Replace a file so that after a crash it is completely the old or the new one."""
    path = os.path.join(directory, name)
    temporary = path + ".tmp"
    crc = size = 0
    with open(temporary, "wb") as file:
        file.write(bytes(_HEAD.size))
        for piece in payload:
            file.write(piece)
            crc, size = zlib.crc32(piece, crc), size + len(piece)
        file.seek(0)
        file.write(_HEAD.pack(_MAGIC, crc, size))
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    _sync_directory(directory)


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
