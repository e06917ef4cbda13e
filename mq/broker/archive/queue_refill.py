"""Fetches queue entries of archived messages for a replica that is new or has lost queue files.

The archive is read backward from where the queues begin, a step of about a megabyte at a time, in the threads for the
archive. The entries of each step are put in front of the queues, some in each turn of the event loop. So this replica
serves more and more, and refuses to say that a queue begins where its own entries do, until it has all.

A restart continues behind the last step that a durable checkpoint has. A step may be done again: entries that a queue
has are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from mq.broker.base.archive_tier import QUEUES_FROM
from mq.broker.base.periodic_task import Periodic, now_if
from mq.broker.context import BrokerContext
from mq.broker.net.service import Service
from mq.broker.settings import BrokerSettings
from mq.broker.state.commands import decode_command
from mq.broker.state.table import CommandUnknown
from mq.broker.state.topic_deletion import queue_effects
from mq.store.archive.older_entries import OlderEntries, read_older
from mq.store.errors import QueueFileDamaged
from raftlog import SegmentError
from raftlog.segment import REFILLED

STEP_SECONDS: Final = 0.01
RUNS_AT_ONCE: Final = 64
"""Queues that get entries in one turn: some milliseconds with new files for all of them."""
LOG_AGAIN_SECONDS: Final = 60.0


class QueueRefill(Service):
    """Fetches queue entries that this replica lacks from the archive, and prepends them to its queues."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._settings = context.settings
        self._limits = context.limits.archive
        self._tier = context.tier
        self._replica = context.replica
        self._store = context.store
        self._metadata = context.metadata
        self._access = context.environment.archive
        self._segment_bytes = context.replica.log.files.segment_bytes
        self._clock = context.clock
        self._log = context.log
        self._is_reading = False
        self._step: OlderEntries | None = None
        self._next_run = 0
        self._wait_until = 0.0
        self._began_at: float | None = None
        self._failed_at = self._logged_at = -LOG_AGAIN_SECONDS
        self._is_done = False
        self._entries = 0
        if self._access is not None and self._tier.lacks_older:
            # The start may have set it. A follower of an idle leader writes nothing by itself, and a checkpoint of
            # queues that were derived again must not come to disk before the note that says where they begin.
            self._replica.remember(QUEUES_FROM, self._replica.log.notes.get(QUEUES_FROM))

    def periodic(self) -> Iterator[Periodic]:
        if self._access is not None:
            yield Periodic(self._limits.refill_look_seconds, self.continue_refill)
            yield Periodic(STEP_SECONDS, self.run_step, lambda: now_if(self._step is not None))

    def settings_changed(self, settings: BrokerSettings) -> None:
        self._settings = settings

    def counters(self) -> dict[str, int]:
        begin_pos = self._tier.begin_pos
        bytes_left = 0 if begin_pos is None else max(0, self._tier.queues_from - begin_pos)
        return {"archive_refill_bytes_left": bytes_left, "archive_refilled_entries": self._entries}

    # -- steps ---------------------------------------------------------------------------------------------------------

    def continue_refill(self) -> None:
        """Start the next step if entries are missing. A timer calls this."""
        if (durable := self._context.refilled_pos()) is not None and durable < self._tier.noted_pos:
            self._replica.remember(QUEUES_FROM, b"%d" % durable)
        if self._is_reading or self._step is not None or self._context.is_filling():
            return
        if not self._tier.lacks_older:
            self._complete()
            return
        if self._tier.lacks_older_for_good or self._clock() < self._wait_until:
            return
        if self._store.floors is None:
            self._wait_for_restart()
            return
        if self._began_at is None:
            self._began_at = self._clock()
            self._log.info("queue_refill_begun", begin_pos=self._tier.begin_pos, queues_from=self._tier.queues_from)
        self._read()

    def _read(self) -> None:
        access, begin_pos = self._access, self._tier.begin_pos
        assert access is not None, "queues are refilled, and no archive is read"
        assert begin_pos is not None, "queues are refilled, and no archive is served"
        end, fetch, size = self._tier.queues_from, access.fetch, self._segment_bytes

        def job() -> Callable[[], None]:
            try:
                return partial(self._on_read, read_older(fetch, end, begin_pos, size))
            except SegmentError as error:
                return partial(self._on_failure, error)

        self._is_reading = True
        access.in_background(job)

    def _on_read(self, step: OlderEntries) -> None:
        self._is_reading = False
        begin_pos = self._tier.begin_pos
        if begin_pos is None or step.begin < begin_pos or step.end != self._tier.queues_from:
            return  # the archive begins later by now
        assert self._step is None, f"entries from {step.begin} on are read while a step is under way"
        for body in step.commands:
            try:
                effects = queue_effects(decode_command(body), self._metadata, self._store.ends)
            except CommandUnknown as error:
                self._on_failure(error)
                return
            for row in effects.expired:
                self._store.raise_floor(*row)
        self._store.begin_refill(step.begin)
        self._tier.open_from(step.begin)
        self._step, self._next_run = step, 0
        self.run_step()

    def run_step(self) -> None:
        """Prepend some entries of the current step to their queues. A timer calls this. Raises OSError."""
        step = self._step
        if step is None or self._clock() < self._wait_until:
            return
        begin_pos = self._tier.begin_pos
        if begin_pos is None or step.begin < begin_pos:
            self._step = None  # what was added expires
            return
        stop = min(self._next_run + RUNS_AT_ONCE, len(step.runs))
        while self._next_run < stop:
            try:
                self._entries += self._store.prepend(step.runs[self._next_run])
            except (QueueFileDamaged, OSError) as error:
                self._on_failure(error)  # a damaged block is restored meanwhile
                return
            self._next_run += 1
        if stop == len(step.runs):
            self._step = None
            self._tier.refilled_from(step.begin)
            self._store.refilled_pos = step.begin
            self._pause(step.end - step.begin)
            self._log_progress()
            self.continue_refill()

    def _pause(self, nbytes: int) -> None:
        """Pause as archiving does, so that a new replica has capacity left for its clients."""
        assert nbytes >= 0, f"a step read {nbytes} bytes"
        if rate := self._settings.archive_bytes_per_second:
            self._wait_until = max(self._wait_until, self._clock()) + nbytes / rate

    def _complete(self) -> None:
        if self._is_done or self._began_at is None or self._tier.begin_pos is None:
            return
        self._is_done = True
        self._log.info("queue_refill_done", entries=self._entries, seconds=round(self._clock() - self._began_at, 1))

    def _log_progress(self) -> None:
        now = self._clock()
        if now >= self._logged_at + LOG_AGAIN_SECONDS:
            self._logged_at = now
            self._log.info(
                "queue_refill_progress",
                queues_from=self._tier.queues_from,
                bytes_left=self.counters()["archive_refill_bytes_left"],
                entries=self._entries,
            )

    def _on_failure(self, error: Exception) -> None:
        self._is_reading = False
        now = self._clock()
        self._wait_until = now + self._limits.read_retry_seconds
        if now >= self._failed_at + LOG_AGAIN_SECONDS:
            self._failed_at = now
            self._log.error("queue_refill_failed", queues_from=self._tier.queues_from, reason=str(error))

    def _wait_for_restart(self) -> None:
        """Stop refilling: the queues must be derived from the log at a restart, as it is unknown which messages have
        expired.
        """
        if not self._is_done:
            self._is_done = True
            self._replica.remember(REFILLED, b"1")
            self._log.warning("queue_refill_needs_restart", queues_from=self._tier.queues_from)

    def check_invariants(self) -> None:
        step = self._step
        assert step is None or not self._is_reading, "two steps are under way"
        assert step is None or self._next_run <= len(step.runs), f"run {self._next_run} of {len(step.runs)}"
