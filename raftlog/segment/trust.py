"""What only a person may decide: that a log which may lack acknowledged entries is to count as whole."""

from __future__ import annotations

import os

import msgspec

from raftlog.segment.directory import lock_directory
from raftlog.segment.disk import Disk
from raftlog.segment.errors import DirectoryUnusable, MetaCorrupt, StorageFailed
from raftlog.segment.meta import FILE_NAME, MetaFile
from raftlog.segment.notes import ABSTAINING


def trust(disk: Disk, directory: str) -> bool:
    """Let the replica of a directory that no process has open vote again, durably, although it was to abstain.

    What it acknowledged and lost is lost for good, unless another replica that votes has it.

    Returns:
        Whether it was to abstain; if not, nothing was changed.

    Raises:
        DirectoryLocked: a process has it open.
        DirectoryUnusable: there is no log in it.
        MetaCorrupt: term and vote are damaged.
        StorageFailed: the disk refused.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        if FILE_NAME not in disk.listdir(directory):
            raise DirectoryUnusable(directory, "there is no log in it")
        lock_fd = lock_directory(disk, directory)
        try:
            meta = MetaFile(disk, path)
            try:
                return _forget(meta)
            finally:
                meta.close()
        finally:
            disk.close(lock_fd)
    except OSError as error:
        raise StorageFailed(path, error.errno or 0, "trust") from error


def _forget(meta: MetaFile) -> bool:
    state = meta.state
    if state is None:
        raise MetaCorrupt(meta.path)
    if ABSTAINING not in state.notes:
        return False
    state = msgspec.structs.replace(state, notes={k: value for k, value in state.notes.items() if k != ABSTAINING})
    # Both slots, so that no damage to one of them brings it back.
    meta.write(state)
    meta.write(state)
    return True
