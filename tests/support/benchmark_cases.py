"""Runs cases of a benchmark suite as small as they can be."""

from __future__ import annotations

from pathlib import Path

from benchmarks.store.sizes import TEST_MIN
from benchmarks.suites.case_load import Measure, Plan
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite


def tiny_plan(suite: Suite, seconds: float) -> Plan:
    """One short window, few messages."""
    plan = suite.parse_arguments(["--quick", "--limit", "120"])
    plan.sizes = TEST_MIN
    plan.windows, plan.seconds, plan.warmup = 1, seconds, 0.3
    return plan


async def values(measure: Measure, plan: Plan, directory: Path) -> dict[str, float]:
    """The figures of a case by name."""
    figures: list[Figure] = []
    await measure(plan, directory, figures.append)
    return {figure.name: figure.value for figure in figures}
