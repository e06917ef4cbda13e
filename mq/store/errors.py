"""What can go wrong with files derived from the log. None of it loses a message: the log can always rebuild them."""

from __future__ import annotations


class StoreError(Exception):
    """Base of the errors of this package."""


class AnnotationDamaged(StoreError):
    """The queue runs shipped with a log entry cannot be read; scanning the entry's records yields the same runs."""

    def __init__(self, reason: str, position: int, size: int) -> None:
        super().__init__(f"annotation of {size} bytes, at byte {position}: {reason}")
        self.reason = reason
        self.position = position
        self.size = size


class RunRefused(StoreError):
    """What an entry of the log adds to a queue contradicts the queue, or itself. Nothing of this run was added."""

    def __init__(self, topic: str, queue_id: int, reason: str) -> None:
        super().__init__(f"{topic}/{queue_id}: {reason}")
        self.topic = topic
        self.queue_id = queue_id
        self.reason = reason


class QueueFileDamaged(StoreError):
    """A consume queue file is not what the checkpoint or the log says it is; rebuild the queues from the log."""

    def __init__(self, path: str, reason: str, expected: int, actual: int) -> None:
        super().__init__(f"{path}: {reason}: expected {expected}, found {actual}")
        self.path = path
        self.reason = reason
        self.expected = expected
        self.actual = actual


class CheckpointDamaged(StoreError):
    """The checkpoint file exists and cannot be used; everything it held can be derived from the log."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class CheckpointImpossible(StoreError):
    """An earlier sync of queue files failed, so nothing written since the last checkpoint may be relied on.

    The kernel drops dirty pages after a failed sync and reports success the next time. Only a restart, which falls
    back to the last good checkpoint and derives the rest from the log, makes the files trustworthy again.
    """

    def __init__(self, path: str, cause: str) -> None:
        super().__init__(f"{path}: no checkpoint after a failed sync ({cause})")
        self.path = path
        self.cause = cause


class StoreLost(StoreError):
    """The log begins behind its first entry, and nothing says any more what was before. Only another replica knows."""

    def __init__(self, path: str, base_index: int, reason: str) -> None:
        super().__init__(
            f"{path}: the log begins at entry {base_index + 1}, and what was derived from those before it is lost "
            f"({reason}); remove this replica from its group, empty the directory, and add it anew"
        )
        self.path = path
        self.base_index = base_index
        self.reason = reason
