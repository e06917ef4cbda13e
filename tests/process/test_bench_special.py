"""The cases of `make bench-special`, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import delays_transactions_pop
from benchmarks.figures import Figure
from benchmarks.lateness import measure_lateness
from benchmarks.sizes import TEST_MIN
from benchmarks.store_load import Measure, Plan

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.trio]


@pytest.fixture
def plan() -> Plan:
    """Short windows, few messages."""
    plan = delays_transactions_pop.SPECIAL.parse_arguments(["--quick", "--limit", "120"])
    plan.sizes = TEST_MIN
    plan.windows, plan.seconds, plan.warmup = 1, 1.0, 0.3
    return plan


async def values(measure: Measure, plan: Plan, directory: Path) -> dict[str, float]:
    figures: list[Figure] = []
    await measure(plan, directory, figures.append)
    return {figure.name: figure.value for figure in figures}


@pytest.mark.nightly
async def test_lateness(plan: Plan, tmp_path: Path) -> None:
    found = await values(measure_lateness, plan, tmp_path)
    assert found["messages of level 1, 1,000 a second"] == 1000
    assert found["early"] == 0
    assert found["unsent, missing, or delivered twice"] == 0


@pytest.mark.nightly
async def test_transactions(plan: Plan, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_transactions, plan, tmp_path)
    assert found["transactions/s, 64 calls in flight"] > 0
    assert found["cost of a transaction in plain sends"] > 0


async def test_timers(plan: Plan, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_timers, plan, tmp_path)
    assert found["pending timers"] >= 1000
    assert found["pending timers lost in the kill"] == 0
    assert found["growth of resident memory"] < 100


@pytest.mark.nightly
async def test_pop(plan: Plan, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_pop, plan, tmp_path)
    assert found["messages/s popped and acknowledged"] > 0
