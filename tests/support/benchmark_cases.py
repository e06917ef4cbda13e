"""Runs cases of a benchmark suite as small as they can be."""

from __future__ import annotations

from pathlib import Path

from benchmarks.store.sizes import TEST_MIN
from benchmarks.suites.case_load import Arguments, Measure
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite


def tiny_plan(suite: Suite, seconds: float) -> Arguments:
    """One short window, few messages."""
    args = suite.parse_arguments(["--quick", "--limit", "120"])
    args.sizes = TEST_MIN
    args.windows, args.seconds, args.warmup = 1, seconds, 0.3
    return args


async def values(measure: Measure, args: Arguments, directory: Path) -> dict[str, float]:
    """The figures of a case by name."""
    figures: list[Figure] = []
    await measure(args, directory, figures.append)
    return {figure.name: figure.value for figure in figures}
