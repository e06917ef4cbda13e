"""The cases of `make bench-store` that read, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import latency
from benchmarks.store import __main__ as store
from benchmarks.store import follower, reads
from benchmarks.suites.case_load import Plan
from tests.support.benchmark_cases import tiny_plan, values

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def plan() -> Plan:
    return tiny_plan(store.STORE, 0.3)


async def test_backlog_is_read_from_one_and_from_many_queues(plan: Plan, tmp_path: Path) -> None:
    found = await values(reads.measure_backlog, plan, tmp_path)
    assert found["messages/s of 1 KiB, 1 queue"] > 0
    assert found["messages/s of 1 KiB, 8 queues"] > 0


@pytest.mark.nightly
async def test_random_reads_have_a_rate(plan: Plan, tmp_path: Path) -> None:
    assert (await values(reads.measure_random, plan, tmp_path))["reads/s of 4 KiB"] > 0


@pytest.mark.nightly
async def test_producer_continues_while_a_follower_is_read(plan: Plan, tmp_path: Path) -> None:
    found = await values(follower.measure_follower, plan, tmp_path)
    assert found["old messages"] >= 0.01
    assert found["messages/s produced with a reader, all cores shared"] > 0
    assert found["messages/s read, all cores shared"] > 0
    assert found["cost of the reader, all cores shared"] <= 100


@pytest.mark.nightly
async def test_latencies_of_sends_are_ordered(plan: Plan, tmp_path: Path) -> None:
    found = await values(latency.measure_latency, plan, tmp_path)
    assert found["send to acknowledgement, p50"] > 0
    assert 0 < found["send to callback, p50"] <= found["send to callback, p99"] <= found["send to callback, longest"]


def test_every_case_is_known_to_the_command() -> None:
    for case in store.CASES:
        assert store.STORE.parse_arguments(["--case", case]).no_write
