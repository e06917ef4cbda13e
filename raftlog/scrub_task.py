"""The task that periodically verifies a running node's log, with a rate limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from raftlog.log_numbers import LogIndex
from raftlog.net.machine import this_machine
from raftlog.segment.errors import EntryGone, StorageCorrupt
from raftlog.segment.log import SegmentLog
from raftlog.segment.scrub import BYTES_PER_SECOND, Scrub

FIRST_ROUND_SECONDS: Final = 0.0
ROUND_SECONDS: Final = 7 * 24 * 3600.0
_NOTHING_YET_SECONDS: Final = 1.0
"""The pause before the next check while nothing is known to be committed yet."""


async def scrub_log(
    segment_log: SegmentLog,
    committed_index: Callable[[], LogIndex],
    *,
    log: structlog.stdlib.BoundLogger,
    first_round_seconds: float = FIRST_ROUND_SECONDS,
    round_seconds: float = ROUND_SECONDS,
    bytes_per_second: float = BYTES_PER_SECOND,
) -> None:
    """Verify repeatedly, until cancelled; the first pass begins after ``first_round_seconds``.

    After each pass it logs how many bytes were intact, and how many of them were read from the disk, not from the page
    cache.

    Raises:
        StorageCorrupt: an entry is damaged.
        StorageFailed: a disk error.
    """
    scrub = Scrub(segment_log)
    await trio.sleep(first_round_seconds)
    while True:
        start = trio.current_time()
        verified_before, from_disk = scrub.verified_bytes, scrub.disk_bytes
        scrub.begin(committed_index())
        while True:
            try:
                result = await this_machine().in_thread(scrub.step)
            except (EntryGone, StorageCorrupt):
                if scrub.is_current():
                    raise
                break  # the file was deleted in the meantime
            segment_log.scrubbed_bytes += result.nbytes
            if result.finished or not scrub.is_current():
                break
            await trio.sleep(result.nbytes / bytes_per_second)
        if scrub.verified_bytes == verified_before and scrub.is_current():
            await trio.sleep(_NOTHING_YET_SECONDS)
            continue
        segment_log.scrubs += scrub.is_current()
        log.info(
            "log_scrubbed",
            nbytes=scrub.verified_bytes - verified_before,
            from_disk=scrub.disk_bytes - from_disk,
            seconds=round(trio.current_time() - start, 1),
            rounds=scrub.rounds,
        )
        await trio.sleep(round_seconds if scrub.is_current() else 0.0)
