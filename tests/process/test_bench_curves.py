"""The curves of `make bench-curves`, as small as they can be: they run, and their figures are possible."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from benchmarks.curves.__main__ import CURVES, parse_arguments, run_curve
from benchmarks.curves.sample import Measured, samples_of
from benchmarks.store.sizes import TEST_MIN

pytestmark = [pytest.mark.process, pytest.mark.slow]

ALWAYS_RUN = "log"
"""The cheapest one; all go the same way."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == ALWAYS_RUN else pytest.mark.nightly) for name in CURVES]
)
async def test_bench_measures_each_curve(name: str, tmp_path: Path) -> None:
    plan = parse_arguments(["--quick"])
    plan.sizes = TEST_MIN
    measured: list[Measured] = []
    with trio.fail_after(120):
        assert await run_curve(name, plan, tmp_path, measured.append)
    samples = samples_of(measured)
    assert len(samples) >= 2
    for sample in samples:
        assert sample.messages_per_second.median > 0
        assert sample.leader_us.median > 0
        assert sample.follower_us is None or sample.follower_us.median > 0
        assert sample.p99_ms >= sample.p50_ms > 0
        assert sample.rss_mib > 20
