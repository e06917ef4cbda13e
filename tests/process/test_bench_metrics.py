"""The cases of `make bench-metrics`, as small as they can be: they run, and their figures are possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scraping
from benchmarks.suites.case_load import Plan
from tests.support.benchmark_cases import tiny_plan, values

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def plan() -> Plan:
    return tiny_plan(scraping.METRICS, 1.5)


async def test_scrape_costs_the_broker_processor_time(plan: Plan, tmp_path: Path) -> None:
    found = await values(scraping.measure_cost, plan, tmp_path)
    assert found["CPU of the broker, not scraped"] > 0
    assert found["CPU of the broker, scraped once a second"] > 0


@pytest.mark.nightly
async def test_large_broker_answers_scrapes_and_clients(plan: Plan, tmp_path: Path) -> None:
    found = await values(scraping.measure_large, plan, tmp_path)
    assert found["samples, 10 topics and groups"] > 10 * 6
    assert found["a scrape, median"] > 0
    assert found["a client's request during a scrape, median"] > 0
