"""The cases of `make bench-metrics`, as small as they can be: they run, and their figures are possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scraping
from benchmarks.figures import Figure
from benchmarks.sizes import TEST_MIN
from benchmarks.store_load import Measure, Plan

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.trio]


@pytest.fixture
def plan() -> Plan:
    """Short windows, few topics."""
    plan = scraping.METRICS.parse_arguments(["--quick", "--limit", "120"])
    plan.sizes = TEST_MIN
    plan.windows, plan.seconds, plan.warmup = 1, 1.5, 0.3
    return plan


async def values(measure: Measure, plan: Plan, directory: Path) -> dict[str, float]:
    figures: list[Figure] = []
    await measure(plan, directory, figures.append)
    return {figure.name: figure.value for figure in figures}


async def test_cost(plan: Plan, tmp_path: Path) -> None:
    found = await values(scraping.measure_cost, plan, tmp_path)
    assert found["CPU of the broker, not scraped"] > 0
    assert found["CPU of the broker, scraped once a second"] > 0


@pytest.mark.nightly
async def test_large(plan: Plan, tmp_path: Path) -> None:
    found = await values(scraping.measure_large, plan, tmp_path)
    assert found["samples, 10 topics and groups"] > 10 * 6
    assert found["a scrape, median"] > 0
    assert found["a client's request during a scrape, median"] > 0
