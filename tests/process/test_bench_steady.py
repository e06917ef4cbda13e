"""The cases of `make bench-steady`, as small as they can be: they run, and their figures are possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import steady
from benchmarks.store.sizes import TEST_MIN
from tests.support.benchmark_cases import values

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.nightly
async def test_steady_load_has_rates_and_costs_of_each_replica(tmp_path: Path) -> None:
    plan = steady.STEADY.parse_arguments(["--quick"])
    plan.sizes = TEST_MIN
    found = await values(steady.measure_pipelined, plan, tmp_path)
    assert found["messages/s, steady"] >= found["messages/s, steady, slowest window"] > 0
    assert found["CPU of the leader itself, steady"] > found["CPU of a follower itself, steady"] > 0
    assert found["CPU of a replica's child processes, steady"] >= 0
    assert found["stored by each replica"] > 0
    assert found["resident memory of the leader, at the end"] > 20
