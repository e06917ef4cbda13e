"""Opens the archive for readers of messages whose local files were deleted, and times out reads that wait too long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from mq.broker.base.archive_tier import ArchiveState
from mq.broker.base.disk import disk_used
from mq.broker.base.periodic_task import Periodic
from mq.broker.context import ArchiveAccess, BrokerContext
from mq.broker.limits import BrokerLimits
from mq.broker.net.service import Service
from mq.broker.settings import BrokerSettings
from mq.store.archive.cold_blocks import ColdBlocks, KnownLog
from mq.store.archive.disk_cache import DiskCache
from mq.store.archive.whole_files import JoiningReader, open_joining
from raftlog import Reactor, Workers, this_machine
from raftlog.segment.meta import Base
from raftlog.segment.s3_storage import open_s3

CACHE_DIRECTORY: Final = "archive-cache"


def open_archive(
    settings: BrokerSettings,
    state: ArchiveState,
    reactor: Reactor,
    limits: BrokerLimits,
    log_begin: Callable[[], Base],
) -> tuple[ArchiveAccess, Workers]:
    """Make a reader of the archive and its worker threads, without sending any request yet.

    Args:
        state: what the group knows of its archive.
        log_begin: where the local log begins; for any thread.
    """
    url = settings.archive_url
    assert url is not None, "archived messages are served, and there is no archive"
    known_log = KnownLog(settings.identity, settings.segment_bytes, lambda: state.end_at(url), log_begin)
    cache = DiskCache(
        str(settings.data_dir / CACHE_DIRECTORY),
        settings.archive_cache_bytes,
        lambda: disk_used(settings.data_dir) < settings.disk_expire_ratio,
    )
    blocks = ColdBlocks(
        partial(open_s3, url, settings.archive_endpoint_url, answer_seconds=limits.archive.read_answer_seconds),
        known_log,
        cache,
        blocks_max=limits.archive.read_blocks_max,
        clock=this_machine().thread_clock,
    )
    workers = Workers(reactor, limits.archive.read_threads)
    return ArchiveAccess(blocks.fetch, workers.put, lambda: cache.nbytes), workers


def open_archive_to_join(settings: BrokerSettings, limits: BrokerLimits, end: Base) -> JoiningReader:
    """Make a reader of the archive, up to ``end``, for a replica that joins its group. Call it in a thread."""
    url = settings.archive_url
    assert url is not None, "log files are taken from an archive, and there is none"
    return open_joining(
        end,
        open_store=partial(
            open_s3, url, settings.archive_endpoint_url, answer_seconds=limits.archive.read_answer_seconds
        ),
        identity=settings.identity,
        segment_bytes=settings.segment_bytes,
        name=url,
        blocks_max=limits.archive.read_blocks_max,
        clock=this_machine().thread_clock,
    )


class ArchiveWatch(Service):
    """Times out reads of the archive that wait too long, and counts reads for operators."""

    def __init__(self, context: BrokerContext) -> None:
        self._reads = context.archived_reads
        self._access = context.environment.archive
        self._limits = context.limits.archive
        if self._access is None:
            _drop_cache(context.settings)

    def periodic(self) -> Iterator[Periodic]:
        if self._reads is not None:
            yield Periodic(self._limits.expire_seconds, self._reads.expire, self._reads.next_deadline)

    def counters(self) -> dict[str, int]:
        names = ("archive_reads_waiting", "archive_read_bytes", "archive_read_failures", "archive_reads_refused")
        figures = dict.fromkeys(names, 0) if self._reads is None else self._reads.counters()
        return figures | {"archive_cache_bytes": 0 if self._access is None else self._access.cached_bytes()}

    def check_invariants(self) -> None:
        if self._reads is not None:
            self._reads.check_invariants()


def _drop_cache(settings: BrokerSettings) -> None:
    """Delete the disk cache of an archive, since no archive is configured."""
    directory = settings.data_dir / CACHE_DIRECTORY
    DiskCache(str(directory), 0, lambda: False)
    with suppress(OSError):  # it does not exist, or another program has put something into it
        directory.rmdir()
