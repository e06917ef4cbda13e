"""Corrects the age of log files whose messages have times of a slow clock. Corrections survive restarts. Pure.

Two things make a message seem older than it is: the clock of the leader that stamped it was behind, which a replica
notices while it sees the file grow; or the clock of this machine was set ahead afterwards. Both are a number of
milliseconds for some files. They are noted in the log, together with the distance of the wall clock from the time since
boot: so a process that starts later on the same boot notices that the clock was set meanwhile. After a reboot it cannot
know: it may have been switched off in between.

A replica that copies files gets the notes about them, too: its own clock says nothing of how they were stamped.

All files that exist when the clock is set ahead are taken for younger by that time, also files that a right clock has
stamped: they stay for longer, and none is deleted early. When the clock is set back, as much is taken away again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

FILE_TIMES: Final = "file_times"
"""The note of the log."""
TOLERATED_MS: Final = 60_000
"""Clocks drift, and files are looked at now and then: less than this is not noted."""
STEPS_MAX: Final = 40
"""The notes of a log have room for some kilobytes."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    boot_id: str
    offset_ms: int
    steps: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class BootClock:
    """Compares the wall clock with the clock since boot, which nobody can set.

    Attributes:
        boot_id: changes when the machine boots.
        offset_ms: from the time since boot, including suspension, to the wall clock, in milliseconds.
    """

    boot_id: str
    offset_ms: Callable[[], int]


class ClockCorrections:
    """Maps log files to the milliseconds by which a wrong clock made them look too old.

    Args:
        note: what `encode` returned, in this process or an earlier one; None for a log without.
    """

    def __init__(self, clock: BootClock, note: bytes | None) -> None:
        self._clock = clock
        self._steps: list[tuple[int, int]] = []
        self._boot_id, self._offset_ms = "", 0
        if note is not None:
            corrections = msgspec.msgpack.decode(note, type=_Note)
            self._boot_id, self._offset_ms, self._steps = (
                corrections.boot_id,
                corrections.offset_ms,
                [*corrections.steps],
            )

    def get_ms(self, begin: int) -> int:
        """Return the milliseconds to add to the time of the file that begins at ``begin``."""
        at = bisect_right(self._steps, (begin, 2**63)) - 1
        return 0 if at < 0 else self._steps[at][1]

    def check_clock(self, begin: int, end: int) -> int:
        """Check whether the clock was set, and correct the closed files from ``begin`` to ``end`` for that.

        Returns by how many milliseconds it was set, 0 if it was not.
        """
        assert begin <= end, f"files from {begin} to {end}"
        offset_ms = self._clock.offset_ms()
        shift_ms = offset_ms - self._offset_ms if self._boot_id == self._clock.boot_id else 0
        if shift_ms > TOLERATED_MS:
            if begin < end:
                self._put([(start, ms + shift_ms) for start, ms in self._between(begin, end)], end)
        elif shift_ms < -TOLERATED_MS:
            self.take_away(-shift_ms)
        elif self._boot_id == self._clock.boot_id:
            shift_ms = 0
            offset_ms = self._offset_ms
        self._boot_id, self._offset_ms = self._clock.boot_id, offset_ms
        self._forget_before(begin)
        return shift_ms

    def add(self, begin: int, end: int, ms: int) -> None:
        """Treat the file from ``begin`` to ``end`` as ``ms`` milliseconds younger than its messages say."""
        assert ms > 0, f"{ms} ms are added to the file at {begin}"
        if ms > self.get_ms(begin):
            self._put([(begin, ms)], end)

    def take_away(self, ms: int) -> None:
        """Reduce all corrections by ``ms`` milliseconds, because they made files younger than they can be."""
        assert ms > 0, f"{ms} ms are taken away"
        self._replace([(start, max(correction - ms, 0)) for start, correction in self._steps])

    def encode(self) -> bytes:
        """Encode the corrections for the next process."""
        return msgspec.msgpack.encode(_Note(self._boot_id, self._offset_ms, self._steps))

    def encode_for_copies(self) -> bytes:
        """Encode the corrections, without this machine's clock, for a replica that copies these files."""
        return msgspec.msgpack.encode(_Note("", 0, self._steps)) if self._steps else b""

    def take_copied(self, note: bytes) -> None:
        """Merge the corrections of the replica from which the files were copied. The larger one of a file counts.

        Raises msgspec.MsgspecError for a note of another release, which changes nothing.
        """
        other = ClockCorrections(self._clock, note)
        starts = sorted({start for start, _ in (*self._steps, *other._steps)})
        self._replace([(start, max(self.get_ms(start), other.get_ms(start))) for start in starts])

    def _between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the steps of the files from ``begin`` to ``end``, starting with that of the first file."""
        return [(begin, self.get_ms(begin)), *(step for step in self._steps if begin < step[0] < end)]

    def _put(self, steps: list[tuple[int, int]], end: int) -> None:
        """Replace the steps up to ``end``, and keep those behind it."""
        begin, behind = steps[0][0], self.get_ms(end)
        before = [step for step in self._steps if step[0] < begin]
        after = [step for step in self._steps if step[0] > end]
        self._replace([*before, *steps, (end, behind), *after])

    def _forget_before(self, begin: int) -> None:
        if self._steps and self._steps[0][0] < begin:
            self._replace([(begin, self.get_ms(begin)), *(step for step in self._steps if step[0] > begin)])

    def _replace(self, steps: list[tuple[int, int]]) -> None:
        """Replace all steps. Joins equal neighbours and, while there are too many, the two that differ least."""
        new_steps: list[tuple[int, int]] = []
        for start, ms in steps:
            if ms != (new_steps[-1][1] if new_steps else 0):
                new_steps.append((start, ms))
        while len(new_steps) > STEPS_MAX:
            at = min(range(1, len(new_steps)), key=lambda each: abs(new_steps[each][1] - new_steps[each - 1][1]))
            new_steps[at - 1 : at + 1] = [(new_steps[at - 1][0], max(new_steps[at - 1][1], new_steps[at][1]))]
        self._steps = new_steps
