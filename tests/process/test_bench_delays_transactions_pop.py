"""The cases of `make bench-delays-transactions-pop`, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import delays_transactions_pop
from benchmarks.lateness import measure_lateness
from benchmarks.suites.case_load import Plan
from tests.support.benchmark_cases import tiny_plan, values

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def plan() -> Plan:
    return tiny_plan(delays_transactions_pop.DELAYS_TRANSACTIONS_POP, 1.0)


@pytest.mark.nightly
async def test_delayed_messages_are_neither_early_nor_lost(plan: Plan, tmp_path: Path) -> None:
    found = await values(measure_lateness, plan, tmp_path)
    assert found["messages of level 1, 1,000 a second"] == 1000
    assert found["early"] == 0
    assert found["unsent, missing, or delivered twice"] == 0


@pytest.mark.nightly
async def test_transactions_have_a_rate_and_a_cost(plan: Plan, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_transactions, plan, tmp_path)
    assert found["transactions/s, 64 calls in flight"] > 0
    assert found["cost of a transaction in plain sends"] > 0


async def test_no_timer_is_lost_when_its_broker_is_killed(plan: Plan, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_timers, plan, tmp_path)
    assert found["pending timers"] >= 1000
    assert found["pending timers lost in the kill"] == 0
    assert found["growth of resident memory"] < 100


@pytest.mark.nightly
async def test_pops_have_a_rate(plan: Plan, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_pop, plan, tmp_path)
    assert found["messages/s popped and acknowledged"] > 0
