"""Opens the archive of a broker group, for drivers and tasks. A program that uses it needs the extra ``s3``."""

from __future__ import annotations

import time
from collections.abc import Callable

from mq.store.archive.topic_blocks import ArchivedRecords, ArchivePlace, ArchiveUnreadable, LogPlace, TopicBlocks
from spark.plan import ArchivedLog

__all__ = ["ArchiveUnreadable", "ArchivedRecords", "LogPlace", "OpenArchive", "TopicBlocks", "open_archive"]

OpenArchive = Callable[[ArchivedLog, float], TopicBlocks]
"""Opens an archive, whose store may take a number of seconds for an answer."""


def open_archive(archive: ArchivedLog, answer_seconds: float) -> TopicBlocks:
    """Open an archive with credentials from the environment of this process. Sends no request yet."""
    return TopicBlocks(
        ArchivePlace(*archive),
        answer_seconds=answer_seconds,
        clock=time.monotonic,  # noqa: TID251 - the edge of the process
    )
