"""The broker state for a backup of a log whose beginning was deleted by retention."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import msgspec

from mq.store.checkpoint import CHECKPOINT_NAME, PREVIOUS_NAME, SNAPSHOT_NAME, encode_checkpoint, load_checkpoint
from mq.store.errors import CheckpointDamaged
from mq.store.opening import ends_of
from raftlog.log_numbers import LogIndex
from raftlog.segment.backup_layouts import Snapshot

PENDING_NAME: Final = "archive-snapshot"
"""A checkpoint that waits in the data directory until the file with its entry is archived. Others are replaced every
some seconds: with small files, none would be of an entry in a complete file when that is archived.
"""


def keep_pending(directory: str, first_index: LogIndex, last_index: LogIndex) -> None:
    """Keep the oldest checkpoint in this range for later calls of `snapshot_between`, unless one is kept already.

    Without room on the disk nothing is kept. Raises OSError if a checkpoint cannot be read.
    """
    snapshot = snapshot_between(directory, first_index, last_index, pending=True)
    if snapshot is None or _index_of(directory, PENDING_NAME) == snapshot.index:
        return
    path = os.path.join(directory, PENDING_NAME)
    try:
        with open(f"{path}.new", "wb") as file:
            file.write(snapshot.data)
        os.rename(f"{path}.new", path)
    except OSError:
        with suppress(OSError):  # the log needs the rest of a full disk
            os.unlink(f"{path}.new")


def forget_pending(directory: str) -> None:
    """Delete the pending backup checkpoint at a broker's start: its log may be another one after a forced recovery."""
    for name in (PENDING_NAME, f"{PENDING_NAME}.new"):
        with suppress(OSError):
            os.unlink(os.path.join(directory, name))


def _index_of(directory: str, name: str) -> LogIndex | None:
    try:
        checkpoint = load_checkpoint(directory, name)
    except CheckpointDamaged:
        return None
    return None if checkpoint is None else checkpoint.applied_index


def snapshot_between(
    directory: str, first_index: LogIndex, last_index: LogIndex, *, pending: bool = False
) -> Snapshot | None:
    """The oldest checkpoint in a data directory that was taken after an entry in this range, both ends inclusive.

    The oldest, since a backup cannot be restored to an earlier time. The broker may be running: checkpoints are
    replaced atomically. With ``pending``, also the checkpoint that `keep_pending` has kept. None if there is none, or
    it is damaged. Raises OSError.
    """
    checkpoints = []
    for name in (CHECKPOINT_NAME, PREVIOUS_NAME, SNAPSHOT_NAME, *([PENDING_NAME] if pending else [])):
        try:
            checkpoint = load_checkpoint(directory, name)
        except CheckpointDamaged:
            continue
        if checkpoint is not None and first_index <= checkpoint.applied_index <= last_index:
            checkpoints.append(checkpoint)
    oldest = min(checkpoints, key=lambda each: each.applied_index, default=None)
    if oldest is None:
        return None
    return Snapshot(
        oldest.applied_index, encode_checkpoint(msgspec.structs.replace(oldest, queues=ends_of(oldest.queues)))
    )
