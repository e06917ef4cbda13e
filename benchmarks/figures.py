"""Single figures with their goals, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``goal`` is what it should reach: at least that, or at most if ``is_limit``; None for no goal."""

    case: str
    name: str
    value: float
    unit: str
    goal: float | None = None
    is_limit: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached; true without one."""
        if self.goal is None:
            return True
        return self.value <= self.goal if self.is_limit else self.value >= self.goal

    def __str__(self) -> str:
        text = f"{self.case}: {self.name}: {_number(self.value)} {self.unit}"
        return text if self.goal is None else f"{text} (goal: {self._goal()}, {'met' if self.is_met else 'MISSED'})"

    def _goal(self) -> str:
        if self.goal is None:
            return "-"
        return f"{'at most' if self.is_limit else 'at least'} {_number(self.goal)}"

    def row(self) -> str:
        """A row of the table."""
        missed = "" if self.is_met else ", missed"
        return f"| {self.case} | {self.name} | {_number(self.value)} {self.unit} | {self._goal()}{missed} |"


def table(figures: Sequence[Figure], *, command: str, machine: str, date: str, load_average: float) -> str:
    """The section: how it was measured, and a row for each figure."""
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


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
