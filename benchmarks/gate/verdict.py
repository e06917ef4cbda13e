"""Compares instructions per message with a baseline. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RISE_MAX = 0.10
_SUMMARY = re.compile(r"^(?:summary|totals): (\d+)", re.MULTILINE)


class DumpUnreadable(Exception):
    """A file of callgrind has no number of instructions, or is missing."""


def instructions_in(dump: str) -> int:
    """Read the number of instructions from a dump of callgrind. Raises DumpUnreadable."""
    match = _SUMMARY.search(dump)
    if match is None:
        raise DumpUnreadable("a dump of callgrind has no summary")
    return int(match[1])


def per_message(cases: Sequence[tuple[str, int]], instructions: Sequence[int]) -> dict[str, float]:
    """Compute the instructions per message by name. If a name was counted several times, the least count is used.

    ``instructions`` are those between one mark and the next, from the start on: before the first counted block, in it,
    between it and the next, and so on. Raises DumpUnreadable.
    """
    if len(instructions) < 2 * len(cases):
        raise DumpUnreadable(f"callgrind wrote {len(instructions)} dumps, {2 * len(cases)} were asked for")
    least: dict[str, float] = {}
    for number, (name, messages) in enumerate(cases):
        figure = instructions[2 * number + 1] / messages
        least[name] = min(figure, least.get(name, figure))
    return least


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The verdict on one figure. ``before``: its baseline; None if it has none yet."""

    name: str
    now: float
    before: float | None

    @property
    def change(self) -> float:
        """The change as a fraction: 0.1 for ten percent more."""
        return 0.0 if self.before is None else self.now / self.before - 1

    @property
    def is_good(self) -> bool:
        """Whether the figure has not risen beyond `RISE_MAX`."""
        return self.before is None or self.now <= self.before * (1 + RISE_MAX)

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.name:<38} {self.now:>10,.0f}   no baseline"
        mark = "" if self.is_good else f"   MORE THAN +{100 * RISE_MAX:.0f} %"
        return f"{self.name:<38} {self.now:>10,.0f}   {self.before:>10,.0f}   {100 * self.change:+6.1f} %{mark}"


def judge(now: Mapping[str, float], baseline: Mapping[str, float]) -> list[GateVerdict]:
    """Compare each figure with its baseline. Returns the verdicts in the order of the figures."""
    return [GateVerdict(name, value, baseline.get(name)) for name, value in now.items()]
