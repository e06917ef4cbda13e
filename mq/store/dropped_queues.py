"""The queue files of dropped topics: moved aside until a durable checkpoint lacks them, or moved back by a restart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Final

from mq.store.queue_capture import QueueRow

DROPPED: Final = ".dropped"
"""Not a possible topic name: names contain no dots."""


def remove_dropped(root: str, dropped_count: int) -> None:
    """Remove the files of all topics dropped before the count was ``dropped_count``. Blocks. Raises OSError."""
    for number, directory in _dropped_files(root):
        if number < dropped_count:
            shutil.rmtree(directory)


def _dropped_files(root: str) -> list[tuple[int, str]]:
    directory = os.path.join(root, DROPPED)
    if not os.path.isdir(directory):
        return []
    return [(int(name), os.path.join(directory, name)) for name in sorted(os.listdir(directory)) if name.isdigit()]


def restore_dropped(root: str, queues: Mapping[str, Sequence[QueueRow]], dropped_count: int) -> None:
    """Move back queues that were dropped after the checkpoint: the log's replay drops them again at its place.

    Raises OSError.
    """
    remove_dropped(root, dropped_count)
    restored_topics: set[str] = set()
    for _, directory in _dropped_files(root):
        for topic in os.listdir(directory):
            if topic in queues and topic not in restored_topics:
                # Only the oldest belongs to the checkpoint; the others were created after it.
                restored_topics.add(topic)
                target = os.path.join(root, topic)
                if os.path.isdir(target):
                    shutil.rmtree(target)
                os.rename(os.path.join(directory, topic), target)
        shutil.rmtree(directory)


def remove_unknown(root: str, queues: Mapping[str, Sequence[QueueRow]]) -> None:
    """Remove the files of queues that the checkpoint does not have. Raises OSError."""
    for name in os.listdir(root):
        if name == DROPPED:
            continue
        directory = os.path.join(root, name)
        rows = queues.get(name)
        if rows is None:
            _remove(directory)
            continue
        queue_names = {str(queue_id) for queue_id, *_ in rows}
        for child in os.listdir(directory):
            if child not in queue_names:
                _remove(os.path.join(directory, child))


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
