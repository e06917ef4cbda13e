"""The cases of `make bench-store` that read, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import latency, store, store_follower, store_reads
from benchmarks.figures import Figure
from benchmarks.sizes import TEST_MIN
from benchmarks.store_load import Measure, Plan

pytestmark = [pytest.mark.process, pytest.mark.slow]

TINY = ["--quick", "--limit", "120"]


@pytest.fixture
def plan() -> Plan:
    """Short windows, few messages."""
    plan = store.STORE.parse_arguments(TINY)
    plan.sizes = TEST_MIN
    plan.windows, plan.seconds, plan.warmup = 1, 0.3, 0.3
    return plan


async def values(measure: Measure, plan: Plan, directory: Path) -> dict[str, float]:
    figures: list[Figure] = []
    await measure(plan, directory, figures.append)
    return {figure.name: figure.value for figure in figures}


@pytest.mark.trio
async def test_backlog(plan: Plan, tmp_path: Path) -> None:
    found = await values(store_reads.measure_backlog, plan, tmp_path)
    assert found["messages/s of 1 KiB, 1 queue"] > 0
    assert found["messages/s of 1 KiB, 8 queues"] > 0


@pytest.mark.nightly
@pytest.mark.trio
async def test_random(plan: Plan, tmp_path: Path) -> None:
    assert (await values(store_reads.measure_random, plan, tmp_path))["reads/s of 4 KiB"] > 0


@pytest.mark.nightly
@pytest.mark.trio
async def test_follower(plan: Plan, tmp_path: Path) -> None:
    found = await values(store_follower.measure_follower, plan, tmp_path)
    assert found["old messages"] >= 0.01
    assert found["messages/s produced with a reader, all cores shared"] > 0
    assert found["messages/s read, all cores shared"] > 0
    assert found["cost of the reader, all cores shared"] <= 100


@pytest.mark.nightly
@pytest.mark.trio
async def test_latency(plan: Plan, tmp_path: Path) -> None:
    found = await values(latency.measure_latency, plan, tmp_path)
    assert found["send to acknowledgement, p50"] > 0
    assert 0 < found["send to callback, p50"] <= found["send to callback, p99"] <= found["send to callback, longest"]


def test_every_case_is_known_to_the_command() -> None:
    for case in store.CASES:
        assert store.STORE.parse_arguments(["--case", case]).no_write
