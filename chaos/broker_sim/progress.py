"""Decides whether a run whose faults have ended still makes progress. A run that stands still is a violation."""

from __future__ import annotations

from typing import Final

_PATIENCES_MAX: Final = 10
"""The number of patiences after which a run that only just makes progress is given up, as users would."""


class Progress:
    """Tracks figures that must fall to 0: sends that may still be stored, then things that clients have not finished.

    A stored send is one thing more to finish, so unfinished things are compared only among moments with equally many
    sends left. A replica that catches up is progress, too. Each figure can fall only a limited number of times: things
    that recur for ever are not progress.

    Args:
        now: the time at which the faults ended, in seconds of the simulation.
        patience: seconds without progress after which the run is given up.
    """

    def __init__(self, now: float, patience: float) -> None:
        self._patience = patience
        self._end = now + _PATIENCES_MAX * patience
        self._deadline = now + patience
        self._figures: tuple[int, int] | None = None
        self._behind: int | None = None

    def see(self, now: float, *, missing_count: int, open_count: int, behind: int) -> None:
        """Record the figures at ``now``. ``behind`` is the number of entries that the slowest replica lacks.

        The first figures are progress, too.
        """
        figures = missing_count, open_count
        if self._figures is None or figures < self._figures:
            self._figures, self._deadline = figures, now + self._patience
        if self._behind is None or behind < self._behind:
            self._behind, self._deadline = behind, now + self._patience

    def may_go_on(self, now: float) -> bool:
        """Return whether the last progress is less than one patience ago, and the end of the faults less than ten."""
        return now < min(self._deadline, self._end)
