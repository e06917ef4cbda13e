"""Decisions about a stopped replica that only an operator may take: to trust its log, cut it, or change its term."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec

from raftlog.log_numbers import Term
from raftlog.segment.directory import lock_directory
from raftlog.segment.disk import Disk
from raftlog.segment.errors import DirectoryUnusable, MetaCorrupt, StorageFailed
from raftlog.segment.meta import FILE_NAME, MetaFile, MetaState
from raftlog.segment.note_names import ABSTAINING
from raftlog.segment.recovery import LogDamaged
from raftlog.segment.repair import Repair

TERM_MARGIN: Final = 2**20
"""The difference between a lowered term and the term of the log's last entry.

Elections since that entry, here or at another replica, may have produced votes and logs in later terms. None of those
may be used again; a million elections without an entry on this replica do not happen.
"""


def lowered_term(last_term: Term) -> int:
    """The term for a replica whose log ends with an entry of ``last_term``."""
    return last_term + TERM_MARGIN


def trust(disk: Disk, directory: str) -> bool:
    """Let the abstaining replica of a directory that no process has open vote again, durably.

    Entries that it acknowledged and lost are lost for good, unless another voting replica has them.

    Returns:
        Whether it was to abstain; if not, nothing was changed.

    Raises:
        DirectoryLocked: a process has it open.
        DirectoryUnusable: it contains no log.
        MetaCorrupt: term and vote are damaged.
        StorageFailed: a disk error.
    """

    def forget(state: MetaState) -> MetaState:
        notes = {key: value for key, value in state.notes.items() if key != ABSTAINING}
        return msgspec.structs.replace(state, notes=notes)

    return _change(disk, directory, forget)


def cut(disk: Disk, damage: LogDamaged) -> int:
    """Discard everything after the first damage of a log that no process has open, durably, intact or not.

    The replica abstains then: it does not vote until it has caught up, or is trusted.

    Returns:
        The physical offset of the new end of the log.

    Raises:
        DirectoryLocked: a process has it open.
        MetaCorrupt: term and vote are damaged.
        StorageFailed: a disk error; the log is damaged as before, or cut.
    """
    repair = Repair(disk, damage, peers=())
    try:
        repair.cut()
        assert repair.cut_at is not None, f"{damage.directory}: nothing was cut"
        repair.finish()
        return repair.cut_at
    finally:
        repair.close()


def set_term(disk: Disk, directory: str, term: Term) -> bool:
    """Set the term of the replica of a directory that no process has open, durably, and clear its vote.

    A higher term is always safe. A lower one is safe only if every replica of the group is stopped, gets a term from
    `lowered_term` or never had the high one, and none starts before: otherwise two leaders may be elected in one term.

    Returns:
        Whether the term was different; if not, nothing was changed.

    Raises:
        As `trust`.
    """

    def change(state: MetaState) -> MetaState:
        return state if state.term == term else msgspec.structs.replace(state, term=term, voted_for=None)

    return _change(disk, directory, change)


def _change(disk: Disk, directory: str, change: Callable[[MetaState], MetaState]) -> bool:
    """Change the content of the vote file; returns whether it changed."""
    path = os.path.join(directory, FILE_NAME)
    try:
        if FILE_NAME not in disk.listdir(directory):
            raise DirectoryUnusable(directory, "the directory contains no log")
        lock_fd = lock_directory(disk, directory)
        try:
            meta = MetaFile(disk, path)
            try:
                if meta.state is None:
                    raise MetaCorrupt(meta.path)
                if (state := change(meta.state)) == meta.state:
                    return False
                # Both slots, so that damage to one of them cannot restore the old state.
                meta.write(state)
                meta.write(state)
                return True
            finally:
                meta.close()
        finally:
            disk.close(lock_fd)
    except OSError as error:
        raise StorageFailed(path, error.errno or 0, "writing the vote file") from error
