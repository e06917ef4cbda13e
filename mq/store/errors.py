"""Errors of files derived from the log. None of them loses a message: the log can always rebuild the files."""

from __future__ import annotations

from raftlog.log_numbers import LogIndex


class StoreError(Exception):
    """Base of the errors of this package."""


class AnnotationDamaged(StoreError):
    """The queue runs shipped with a log entry are damaged; scanning the entry's records gives the same runs."""

    def __init__(self, reason: str, position: int, size: int) -> None:
        super().__init__(f"annotation of {size} bytes, at byte {position}: {reason}")
        self.reason = reason
        self.position = position
        self.size = size


class RunInvalid(StoreError):
    """The queue entries of a log entry contradict the queue, or each other. Nothing of this run was added."""

    def __init__(self, topic: str, queue_id: int, reason: str) -> None:
        super().__init__(f"{topic}/{queue_id}: {reason}")
        self.topic = topic
        self.queue_id = queue_id
        self.reason = reason


class QueueFileDamaged(StoreError):
    """A consume queue file does not match the checkpoint or the log; rebuild the queues from the log."""

    def __init__(self, path: str, reason: str, expected: int, actual: int) -> None:
        super().__init__(f"{path}: {reason}: expected {expected}, found {actual}")
        self.path = path
        self.reason = reason
        self.expected = expected
        self.actual = actual


class CheckpointDamaged(StoreError):
    """The checkpoint file exists but is unusable; its content can be derived from the log."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CheckpointImpossible(StoreError):
    """An earlier sync of queue files failed, so nothing written since the last checkpoint is reliable.

    The kernel drops dirty pages after a failed sync and reports success the next time. Only a restart, which returns to
    the last good checkpoint and replays the log from there, makes the files reliable again.
    """

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(f"{path}: no checkpoint after a failed sync ({cause})")
        self.path = path
        self.cause = cause


class StoreLost(StoreError):
    """The log's beginning was deleted, and no checkpoint or snapshot covers it. Only another replica has the state."""

    def __init__(self, path: str, base_index: LogIndex, reason: str) -> None:
        super().__init__(
            f"{path}: the log begins at entry {base_index + 1}, and what was derived from those before it is lost "
            f"({reason}); remove this replica from its group, empty the directory, and add it anew"
        )
        self.path = path
        self.base_index = base_index
        self.reason = reason
