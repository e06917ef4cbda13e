"""Computes the age of log files, even if clocks were wrong when the files were written.

The age of a file is the age of its newest message. Its stored time may be in the future, or long ago, since the clock
of the leader was wrong. So three bounds hold the stored times in place:

- a file is no younger than a later file: if it has a time in the future, the next plausible time after it counts, or
  the time when this process first saw the file;
- a file is no older than an earlier file;
- a file is no older than the time since this process last saw it grow.

What this finds for clocks that were behind is kept for later processes: see `mq.broker.base.clock_corrections`.

The current time may be wrong too. What a jump ahead has added to it does not count for an hour: see `PlausibleTime`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final

from mq.broker.base.clock_corrections import TOLERATED_MS, ClockCorrections
from mq.broker.base.rate_limited_log import Log
from mq.protocol.messages.records import RecordError
from raftlog import SegmentError
from raftlog.segment import SegmentInfo

PROOF_SECONDS: Final = 3600.0
"""The time that a clock must run on after a jump ahead before files are deleted by it."""
JUMP_MS: Final = 60_000

Stamps = Callable[[SegmentInfo], Sequence[int]]
"""Store times of some messages of a file, the last one among them; none for a file without messages."""


class PlausibleTime:
    """Follows the wall clock, but not a recent jump ahead.

    Args:
        clock: monotonic seconds.
        newest_ms: the newest store time in the log at the start; before that, this replica may have been stopped or its
            clock set.
    """

    def __init__(self, clock: Callable[[], float], newest_ms: int | None, log: Log) -> None:
        self._clock = clock
        self._log = log
        self._last_reading: tuple[float, int] | None = None if newest_ms is None else (clock(), newest_ms)
        self._added_ms = 0
        self._proven_at = 0.0

    def plausible_ms(self, wall_ms: int) -> int:
        """Return the time by which files expire while the clock shows ``wall_ms``. Call it every few seconds."""
        now = self._clock()
        if self._last_reading is not None:
            jump_ms = wall_ms - self._last_reading[1] - round((now - self._last_reading[0]) * 1000)
            if jump_ms > JUMP_MS:
                self._added_ms += jump_ms
                self._proven_at = now + PROOF_SECONDS
                self._log.warning("retention_waits_for_clock", ahead_seconds=self._added_ms // 1000)
            elif jump_ms < -JUMP_MS:
                self._added_ms = max(self._added_ms + jump_ms, 0)
        self._last_reading = now, wall_ms
        if now >= self._proven_at:
            self._added_ms = 0
        assert self._added_ms >= 0, f"files are deleted by a time {-self._added_ms} ms ahead of the clock"
        return wall_ms - self._added_ms


class FileTimes:
    """Computes the times of the files of one log. Ask for them oldest first, after each `set_files`.

    Args:
        stamps: reads store times of a file.
        clock: monotonic seconds.
        corrections: what earlier processes have found.
    """

    def __init__(self, stamps: Stamps, clock: Callable[[], float], log: Log, corrections: ClockCorrections) -> None:
        self._stamps = stamps
        self._clock = clock
        self._log = log
        self.corrections = corrections
        self._ends: dict[int, int] = {}
        self._read: dict[int, Sequence[int]] = {}
        self._grew_at: dict[int, float] = {}
        self._first_seen: dict[int, float] = {}
        self._warned_starts: set[int] = set()
        self._segments: Sequence[SegmentInfo] = ()
        self._now_ms = self._wall_ms = 0
        self._earlier_ms = 0
        self._newest_by_start: dict[int, int | None] = {}

    def set_files(self, segments: Sequence[SegmentInfo], now_ms: int, wall_ms: int) -> None:
        """Set the files to examine at the time ``now_ms``. ``wall_ms`` is what the clock shows, plausible or not."""
        for older, newer in pairwise(segments):
            assert older.end <= newer.start, f"the file at {newer.start} follows one that ends at {older.end}"
        self._segments, self._now_ms, self._earlier_ms, self._newest_by_start = segments, now_ms, 0, {}
        self._wall_ms = wall_ms
        starts = {segment.start for segment in segments}
        for table in (self._read, self._grew_at, self._first_seen, self._ends):
            for start in table.keys() - starts:
                del table[start]
        self._warned_starts &= starts
        now = self._clock()
        closed_files = [segment for segment in segments if segment.closed]
        shift_ms = (
            self.corrections.check_clock(closed_files[0].start, closed_files[-1].end)
            if closed_files
            else self.corrections.check_clock(0, 0)
        )
        if shift_ms:
            self._log.warning("files_counted_by_uptime", seconds=round(shift_ms / 1000))
        for segment in segments:
            self._first_seen.setdefault(segment.start, now)
            if not segment.closed:
                if self._ends.get(segment.start) != segment.end:
                    self._ends[segment.start], self._grew_at[segment.start] = segment.end, now
            elif self._ends.pop(segment.start, None) is not None:
                self._record_growth(segment)
        if closed_files:
            self._limit_added(closed_files[-1])

    def newest_ms(self, segment: SegmentInfo) -> int | None:
        """Return when the newest message of a closed file was stored; None for a file without messages.

        To be called for the oldest file first.
        """
        if segment.start not in self._newest_by_start:
            self._newest_by_start[segment.start] = self._find(segment)
        return self._newest_by_start[segment.start]

    def _find(self, segment: SegmentInfo) -> int | None:
        stamps = self._stamps_of(segment)
        if not stamps:
            return None
        if max(stamps) <= self._now_ms:
            newest_ms = max(stamps)
        else:
            newest_ms = self._next_plausible(segment)
            if segment.start not in self._warned_starts:
                self._warned_starts.add(segment.start)
                self._log.warning(
                    "file_from_the_future", begin_pos=segment.start, newest_ms=max(stamps), counted_as_ms=newest_ms
                )
        newest_ms = min(newest_ms + self.corrections.get_ms(segment.start), self._now_ms)
        if (grew_at := self._grew_at.get(segment.start)) is not None:
            newest_ms = max(newest_ms, self._before_ms(grew_at))
        self._earlier_ms = max(self._earlier_ms, newest_ms)
        assert self._earlier_ms <= self._now_ms, f"{segment} has messages of {self._earlier_ms}, it is {self._now_ms}"
        return self._earlier_ms

    def _record_growth(self, segment: SegmentInfo) -> None:
        """Store a correction, for later processes, if a file just closed grew later than its messages say."""
        stamps = self._readable_stamps(segment)
        if stamps and max(stamps) <= self._now_ms:
            late_ms = self._before_ms(self._grew_at[segment.start]) - max(stamps)
            if late_ms > TOLERATED_MS:
                self.corrections.add(segment.start, segment.end, late_ms)

    def _limit_added(self, newest: SegmentInfo) -> None:
        """Reduce corrections that put the newest closed file into the future, because a reboot set the clock back."""
        added_ms = self.corrections.get_ms(newest.start)
        if added_ms and (stamps := self._readable_stamps(newest)) and max(stamps) <= self._wall_ms:
            ahead_ms = max(stamps) + added_ms - self._wall_ms
            if ahead_ms > 0:
                self.corrections.take_away(min(ahead_ms, added_ms))

    def _next_plausible(self, segment: SegmentInfo) -> int:
        """Return a time at which the file was certainly closed."""
        for later in self._segments:
            if later.start > segment.start:
                for stamp in self._stamps_of(later):
                    if stamp <= self._now_ms:
                        return stamp
        # All that follows is from the future too.
        return self._before_ms(self._first_seen[segment.start])

    def _before_ms(self, at: float) -> int:
        """Convert a time of the monotonic clock to epoch milliseconds."""
        return self._now_ms - round((self._clock() - at) * 1000)

    def _readable_stamps(self, segment: SegmentInfo) -> Sequence[int]:
        """Return the stamps of a file; none if it is damaged, which is reported when it would be deleted."""
        with suppress(SegmentError, RecordError):
            return self._stamps_of(segment)
        return ()

    def _stamps_of(self, segment: SegmentInfo) -> Sequence[int]:
        if not segment.closed:
            return self._stamps(segment)
        if segment.start not in self._read:
            self._read[segment.start] = self._stamps(segment)
        return self._read[segment.start]
