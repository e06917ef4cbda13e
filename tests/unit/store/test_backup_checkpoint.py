"""Which checkpoint a backup takes as its snapshot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.backup_checkpoint import PENDING_NAME, keep_pending, snapshot_between
from mq.store.checkpoint import CHECKPOINT_NAME, PREVIOUS_NAME, Checkpoint, load_checkpoint, write_checkpoint
from raftlog.log_numbers import LogIndex, Term

QUEUES = {"T": [(0, QueueOffset(5), QueueOffset(9), bytes(40))]}


def write(directory: Path, name: str, index: int) -> None:
    write_checkpoint(
        str(directory), name, Checkpoint(LogIndex(index), Term(1), PhysicalOffset(index * 100), QUEUES, 0, b"state")
    )


def test_oldest_checkpoint_in_the_range_is_taken_with_its_queue_ends(tmp_path: Path) -> None:
    write(tmp_path, CHECKPOINT_NAME, 30)
    write(tmp_path, PREVIOUS_NAME, 20)
    found = snapshot_between(str(tmp_path), LogIndex(10), LogIndex(40))
    assert found is not None
    assert found.index == 20
    (tmp_path / "snapshot").write_bytes(found.data)
    loaded = load_checkpoint(str(tmp_path), "snapshot")
    assert loaded is not None
    assert (loaded.applied_index, loaded.queues, loaded.state) == (20, {"T": [(0, 9, 9, b"")]}, b"state")


def test_damaged_and_out_of_range_checkpoints_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, CHECKPOINT_NAME, 30)
    write(tmp_path, PREVIOUS_NAME, 20)
    newer = snapshot_between(str(tmp_path), LogIndex(21), LogIndex(40))
    assert newer is not None
    assert newer.index == 30
    assert snapshot_between(str(tmp_path), LogIndex(21), LogIndex(29)) is None
    (tmp_path / CHECKPOINT_NAME).write_bytes(b"rubbish")
    assert snapshot_between(str(tmp_path), LogIndex(21), LogIndex(40)) is None


def test_failed_checkpoint_does_not_use_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, CHECKPOINT_NAME, 30)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        keep_pending(str(tmp_path), LogIndex(1), LogIndex(40))
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT_NAME]
    keep_pending(str(tmp_path), LogIndex(1), LogIndex(40))
    assert (tmp_path / PENDING_NAME).exists()
