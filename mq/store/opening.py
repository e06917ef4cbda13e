"""Opens a replica's derived state after a start: from its checkpoint, from a snapshot, or empty.

While the log still has its first entry, everything can be derived from it. Once its beginning was deleted, the metadata
and the queues' ends before its base are known only from a checkpoint, or from the snapshot that came with a log fetched
from another replica. Such a *snapshot* is the metadata right after one entry and the ends of all queues there. The
queues' entries between the base and that entry are filled in from the log, skipping metadata commands in between.

The files, all in the format of a checkpoint: `checkpoint`, the previous one as `checkpoint.previous`, and `snapshot`,
which exists from when a replica starts from one until its next checkpoint is durable.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset
from mq.store.checkpoint import (
    CHECKPOINT_NAME,
    FORMER_QUEUE_DIRECTORY,
    PREVIOUS_NAME,
    SNAPSHOT_NAME,
    Checkpoint,
    load_checkpoint,
    open_queues,
    refuse_newer,
    reset_store,
    write_checkpoint,
)
from mq.store.errors import CheckpointDamaged, QueueFileDamaged, RunInvalid, StoreLost
from mq.store.queue_capture import QueueRow
from mq.store.queue_floors import load_floors, write_floors
from mq.store.queue_store import QueueStore, QueueStoreSettings
from raftlog import RealDisk
from raftlog.log_numbers import INDEX_MAX, NO_INDEX, LogIndex, Term


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The log that the state must match: its base, its last entry, and the term of an entry in between."""

    base_index: LogIndex = NO_INDEX
    base_pos: PhysicalOffset = LOG_BEGIN
    last_index: LogIndex = INDEX_MAX
    term_at: Callable[[LogIndex], Term] | None = None

    def why_unfit(self, checkpoint: Checkpoint, *, as_snapshot: bool) -> str | None:
        """Return why this log does not continue a checkpoint, as text, or None. A snapshot may be ahead of the log."""
        index, term = checkpoint.applied_index, checkpoint.applied_term
        if index < self.base_index:
            return f"the log begins after entry {index}, at {self.base_index}"
        if index > self.last_index:
            return None if as_snapshot else f"the log has no entry {index} of term {term}"
        if index > self.base_index and self.term_at is not None and self.term_at(index) != term:
            return f"the log has no entry {index} of term {term}"
        return None


class QueueCatchUp:
    """The phase until the log's entries have caught up with the snapshot from which a replica started."""

    __slots__ = ("_ends", "until_index")

    def __init__(self, snapshot: Checkpoint) -> None:
        self.until_index = snapshot.applied_index
        """Up to this entry, metadata commands are in the snapshot already."""
        self._ends = snapshot.queues

    def add_ends(self, queues: QueueStore) -> None:
        """Add the queues whose entries are all deleted to the table, and drop the queues of topics that can no longer
        be restored; called after entry ``until_index``.

        Raises RunInvalid if snapshot and log disagree about a queue.
        """
        for topic, rows in self._ends.items():
            for queue_id, _, end, _ in rows:
                queue = queues.get(topic, queue_id) or queues.add_empty(topic, queue_id, end)
                if queue.max_offset != end:
                    reason = f"ends at {queue.max_offset} after entry {self.until_index}, at {end} in the snapshot"
                    raise RunInvalid(topic, queue_id, reason)
        for topic in dict.fromkeys(topic for topic, _ in queues.all_keys() if topic not in self._ends):
            queues.drop_topic(topic)


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """The result of `open_store`."""

    checkpoint: Checkpoint
    """Apply the log from the entry after ``checkpoint.applied_index`` on, starting with the metadata in ``state``."""
    queues: QueueStore
    catch_up: QueueCatchUp | None = None
    """Set while the metadata is ahead of the queues."""
    rebuild_reason: str | None = None
    """The reason why existing files are rebuilt from the log; normally None."""
    is_fresh: bool = True
    """The queues have no entries yet: all are derived from the log as it is now."""


def open_store(
    directory: str,
    settings: QueueStoreSettings | None = None,
    *,
    log: LogBounds | None = None,
    incoming: str | None = None,
    is_refilled: bool = False,
) -> OpenedStore:
    """Open the derived state in a data directory, creating the directory if needed.

    If checkpoint or queue files are damaged, everything that the log still has is derived again.

    Args:
        log: the log that it must match; default: any that has its first entry.
        incoming: path of a snapshot that came with a fetched log, if there is one; it is taken over.
        is_refilled: older entries were put in front of the log, which the files do not cover: the queues are filled
            again from its beginning, with the metadata of the checkpoint.

    Raises:
        FormatTooNew: a newer version of the software wrote one of the files; nothing was changed.
        StoreLost: the beginning of the log is gone, and no checkpoint or snapshot covers it.
        OSError: no access, full disk.
    """
    settings, log = settings or QueueStoreSettings(), log or LogBounds()
    disk = RealDisk()
    disk.mkdir(directory)
    # Also of one that an earlier start has made: it may have ended before it could sync the name.
    disk.sync_directory(os.path.dirname(os.path.abspath(directory)))
    shutil.rmtree(os.path.join(directory, FORMER_QUEUE_DIRECTORY), ignore_errors=True)
    faults: list[str] = []
    checkpoint = _usable(directory, CHECKPOINT_NAME, log, faults, as_snapshot=False)
    shipped = None if incoming is None else _usable("", incoming, log, faults, as_snapshot=True)
    is_newer = shipped is None or checkpoint is None or shipped.applied_index <= checkpoint.applied_index
    if checkpoint is not None and is_newer and not is_refilled:
        try:
            queues = open_queues(directory, settings, checkpoint)
        except QueueFileDamaged as error:
            faults.append(str(error))
        else:
            index, low, high = checkpoint.applied_index, log.base_index, log.last_index
            assert low <= index <= high, f"entry {index} is applied, of a log from {low} to {high}"
            _remove(incoming)
            queues.floors = load_floors(directory, checkpoint.applied_index)
            return OpenedStore(checkpoint, queues, is_fresh=False)
    reason = "; ".join(faults) or None
    if log.base_index == 0 and shipped is None:
        _remove(incoming, os.path.join(directory, SNAPSHOT_NAME))
        return OpenedStore(Checkpoint(), reset_store(directory, settings), rebuild_reason=reason)
    names = (CHECKPOINT_NAME, SNAPSHOT_NAME, PREVIOUS_NAME)
    candidates = [shipped, *(_usable(directory, name, log, [], as_snapshot=True) for name in names)]
    newest = max((c for c in candidates if c is not None), key=lambda c: c.applied_index, default=None)
    if newest is None:
        raise StoreLost(directory, log.base_index, "; ".join(faults) or "there is no checkpoint")
    # Otherwise the queues' entries between both would be missing for ever.
    assert newest.applied_index >= log.base_index, f"snapshot of {newest.applied_index}, base is {log.base_index}"
    snapshot = msgspec.structs.replace(newest, queues=ends_of(newest.queues))
    # Durable before the checkpoint is removed: after a crash in between, one of the two exists.
    write_checkpoint(directory, SNAPSHOT_NAME, snapshot)
    queues = reset_store(directory, settings)
    _remove(incoming)
    begin = Checkpoint(applied_index=log.base_index, applied_pos=log.base_pos, state=snapshot.state)
    catch_up = QueueCatchUp(snapshot)
    if snapshot.applied_index > log.base_index:
        return OpenedStore(begin, queues, catch_up, reason)
    catch_up.add_ends(queues)
    return OpenedStore(begin, queues, rebuild_reason=reason)


def begin_to_note_floors(directory: str, queues: QueueStore) -> None:
    """Note the expiry of messages from now on: entries of older ones may be put in front of these fresh queues later.

    Raises OSError.
    """
    queues.floors = {}
    write_floors(directory, queues.floors, NO_INDEX)


def refuse_newer_formats(directory: str, incoming: str) -> None:
    """Refuse files of a newer version of the software, before anything is opened or changed.

    Arguments as for `open_store`. Raises FormatTooNew.
    """
    refuse_newer(incoming, *(os.path.join(directory, name) for name in (CHECKPOINT_NAME, PREVIOUS_NAME, SNAPSHOT_NAME)))


def ends_of(queues: dict[str, list[QueueRow]]) -> dict[str, list[QueueRow]]:
    """Return the ends of a snapshot's queues, without entries."""
    return {topic: [(queue_id, end, end, b"") for queue_id, _, end, _ in rows] for topic, rows in queues.items()}


def _usable(directory: str, name: str, log: LogBounds, faults: list[str], *, as_snapshot: bool) -> Checkpoint | None:
    try:
        checkpoint = load_checkpoint(directory, name)
    except CheckpointDamaged as error:
        faults.append(str(error))
        return None
    if checkpoint is not None and (why := log.why_unfit(checkpoint, as_snapshot=as_snapshot)) is not None:
        faults.append(f"{os.path.join(directory, name)}: {why}")
        return None
    return checkpoint


def _remove(*paths: str | None) -> None:
    for path in paths:
        if path is not None:
            with suppress(FileNotFoundError):
                os.unlink(path)
