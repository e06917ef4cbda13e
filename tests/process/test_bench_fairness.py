"""The cases of `make bench-fairness`, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fairness
from tests.support.benchmark_cases import values

pytestmark = [pytest.mark.process, pytest.mark.slow]

ALWAYS_RUN = ("pulls",)
"""The others differ in what demanding clients do, if there are any."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in ALWAYS_RUN else pytest.mark.nightly) for case in fairness.CASES]
)
async def test_case_measures_both_latencies(case: str, tmp_path: Path) -> None:
    plan = fairness.FAIRNESS.parse_arguments(["--quick", "--limit", "120"])
    found = await values(fairness.CASES[case], plan, tmp_path)
    assert 0 < found["acknowledged, p50"] <= found["acknowledged, p99"] <= found["acknowledged, longest"]
    assert 0 < found["delivered, p50"] <= found["delivered, longest"]
    # A machine on which others are at work may take longer than our client waits.
    assert 0 <= found["not acknowledged, or not delivered"] <= 2 * fairness.RATE * plan.seconds
    assert found["longest delay at the leader"] > 0
