"""Chooses the reader of a task for its partition."""

from __future__ import annotations

from spark.bulk_reader import BulkTaskReader
from spark.plan import LogRange
from spark.task_reader import TaskOptions, TaskReader


def task_reader(part: LogRange, options: TaskOptions) -> TaskReader:
    """Return the reader for a partition and the read mode in the options."""
    if options.read_mode == "pull":
        return TaskReader(part, options)
    if part.archived_part is None:
        return BulkTaskReader(part, options)
    from spark.archive_reader import ArchiveTaskReader  # its imports need to be installed only where it is used

    return ArchiveTaskReader(part, options)
