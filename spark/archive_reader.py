"""Reads archived messages from object storage, and the others from replicas, in the order of the log.

Both return the same messages in the same order. So a task may continue at brokers wherever the archive ends for it, and
a task that runs again may read a message from the other source.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from mq.protocol.hashes import tag_code
from spark.archive_blocks import ArchivedRecords, ArchiveUnreadable, TopicBlocks, open_archive
from spark.bulk_reader import BulkTaskReader
from spark.errors import ReadFailed
from spark.leases import LEASE_ANSWER_SECONDS_MAX, RENEWAL_SECONDS, take_leases
from spark.plan import ArchivedPart, QueueRange
from spark.task_reader import PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, Chunk

log = logging.getLogger(__name__)


class ArchiveTaskReader(BulkTaskReader):
    """Reads one partition that begins in the archive. Has the arguments of `TaskReader`."""

    open_archive = staticmethod(open_archive)
    """Replaceable by tests."""

    def read(self) -> Iterator[Any]:
        """Read all messages of the partition as record batches, in log order.

        Raises as `TaskReader.read`; ReadFailed also if the archive cannot be read, unless the options say otherwise.
        """
        part = self._part.archived_part
        self._remaining = {each.queue_id: each for each in self._part.ranges}
        if part is not None and not self._offsets_suffice():
            blocks = self.open_archive(part.archive, self._options.fetch_seconds)
            try:
                yield from self._read_archive(blocks, part)
            finally:
                blocks.close()
        if self._remaining:
            yield from self._read_left(self._remaining)

    def _read_archive(self, blocks: TopicBlocks, part: ArchivedPart) -> Iterator[Any]:
        tags = self._options.tags
        codes = None if tags is None else frozenset(map(tag_code, tags))
        self._progress_at = self._clock()
        pause = PAUSE_SECONDS_MIN
        while True:
            ranges = {queue_id: (each.start, each.end) for queue_id, each in self._remaining.items()}
            try:
                for records in blocks.read(self._part.topic, ranges, part.begin_pos, part.archive.end[2], codes):
                    self._renew_lease()
                    self._on_records(records, part)
                    pause = PAUSE_SECONDS_MIN
                    if records.sizes:
                        yield from self._batches(Chunk(memoryview(records.data), records.sizes, 0))
            except ArchiveUnreadable as error:
                if error.is_deleted:
                    return  # brokers tell which messages are deleted
                if error.may_pass and self._clock() - self._progress_at < self._options.deadline_seconds:
                    self._sleep(pause)
                    pause = min(pause * 2, PAUSE_SECONDS_MAX)
                    continue
                self._give_up(error)
            return

    def _on_records(self, records: ArchivedRecords, part: ArchivedPart) -> None:
        self._remaining = {
            queue_id: QueueRange(queue_id, offset, each.end)
            for queue_id, each in self._remaining.items()
            if (offset := records.next_offsets[queue_id]) < each.end
        }
        self._progress_at = self._clock()
        statistics, url = self.statistics, part.archive.url
        statistics.nbytes += len(records.data)
        statistics.replicas[url] = statistics.replicas.get(url, 0) + len(records.data)

    def _give_up(self, error: ArchiveUnreadable) -> None:
        """Raise ReadFailed, unless brokers may be read instead."""
        each = next(iter(self._remaining.values()))
        where = (
            f"topic {self._part.topic!r}, queue {self._part.broker_name}:{each.queue_id}, from offset {each.start} on"
        )
        if self._options.on_archive_failure == "fail":
            raise ReadFailed(
                f"{where}: the archive cannot be read: {error}. Mend it (`raftmq archive verify` names what is "
                "damaged), or set onArchiveFailure=brokers"
            ) from error
        log.warning("%s: reading from brokers, since the archive cannot be read: %s", where, error)

    def _renew_lease(self) -> None:
        """Hold the files on all replicas: the one that leads must not delete them in the archive."""
        if self._part.lease_id and self._clock() >= self._hold_at:
            self._hold_at = self._clock() + RENEWAL_SECONDS
            take_leases([self._part], min(LEASE_ANSWER_SECONDS_MAX, self._options.fetch_seconds), self._connect)
