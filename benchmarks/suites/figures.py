"""Formats single figures and their goals as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_TIMES_MIN = 2.0
"""Beyond it, a distance is told as a factor."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number. ``goal``: the least value to reach, or with ``is_limit`` the most; None: no goal."""

    case: str
    name: str
    value: float
    unit: str
    goal: float | None = None
    is_limit: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the figure meets its goal; True without a goal."""
        if self.goal is None:
            return True
        return self.value <= self.goal if self.is_limit else self.value >= self.goal

    @property
    def distance(self) -> str:
        """The distance to the goal in words, such as "met: 3 % above"; empty without a goal."""
        if self.goal is None:
            return ""
        verdict = "met" if self.is_met else "missed"
        if not self.goal or not self.value:
            return verdict
        ratio = self.value / self.goal
        if ratio >= _TIMES_MIN or ratio <= 1 / _TIMES_MIN:
            return f"{verdict}: {max(ratio, 1 / ratio):.1f} times {'the goal' if ratio > 1 else 'less'}"
        return f"{verdict}: {100 * abs(ratio - 1):.0f} % {'above' if ratio > 1 else 'below'}"

    def __str__(self) -> str:
        text = f"{self.case}: {self.name}: {_format(self.value)} {self.unit}"
        return text if self.goal is None else f"{text} (goal: {self._goal()}, {'met' if self.is_met else 'MISSED'})"

    def _goal(self) -> str:
        if self.goal is None:
            return "-"
        return f"{'at most' if self.is_limit else 'at least'} {_format(self.goal)}"

    def row(self) -> str:
        """Return the figure as a row of the table."""
        suffix = "" if self.is_met else ", missed"
        return f"| {self.case} | {self.name} | {_format(self.value)} {self.unit} | {self._goal()}{suffix} |"


def table(figures: Sequence[Figure], *, command: str, machine: str, date: str, load_average: float) -> str:
    """Write the section: how the figures were measured, and a row for each."""
    return "\n".join(
        [
            f"Command: `{command}`. Date: {date}. Load average before: {load_average:.1f}.",
            f"Machine: {machine}; servers and clients share it.",
            "",
            "| case | figure | measured | goal |",
            "|---|---|---:|---|",
            *(figure.row() for figure in figures),
        ]
    )


def _format(value: float) -> str:
    if value == round(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
