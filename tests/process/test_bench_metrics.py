"""The cases of `make bench-metrics`, as small as they can be: they run, and their figures are possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scraping, store_load
from benchmarks.figures import Figure
from benchmarks.store_load import Measure, Plan

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.trio]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Short windows, few topics."""
    monkeypatch.setattr(store_load, "CONNECT_SECONDS", 0.5)
    plan = scraping.METRICS.parse_arguments(["--quick", "--limit", "120"])
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
