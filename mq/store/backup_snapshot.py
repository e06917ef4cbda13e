"""The broker state for a backup of a log whose beginning was deleted by retention."""

from __future__ import annotations

import msgspec

from mq.store.checkpoint import CHECKPOINT_NAME, PREVIOUS_NAME, SNAPSHOT_NAME, encode_checkpoint, load_checkpoint
from mq.store.errors import CheckpointDamaged
from mq.store.opening import ends_of
from raftlog.log_numbers import LogIndex
from raftlog.segment.backup_layouts import Snapshot


def snapshot_between(directory: str, first_index: LogIndex, last_index: LogIndex) -> Snapshot | None:
    """The oldest checkpoint in a data directory that was taken after an entry in this range, both ends inclusive.

    The oldest, since a backup cannot be restored to an earlier time. The broker may be running: checkpoints are
    replaced atomically. None if there is none, or it is damaged. Raises OSError.
    """
    found = []
    for name in (CHECKPOINT_NAME, PREVIOUS_NAME, SNAPSHOT_NAME):
        try:
            checkpoint = load_checkpoint(directory, name)
        except CheckpointDamaged:
            continue
        if checkpoint is not None and first_index <= checkpoint.applied_index <= last_index:
            found.append(checkpoint)
    oldest = min(found, key=lambda each: each.applied_index, default=None)
    if oldest is None:
        return None
    return Snapshot(
        oldest.applied_index, encode_checkpoint(msgspec.structs.replace(oldest, queues=ends_of(oldest.queues)))
    )
