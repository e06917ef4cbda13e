"""Made-up histories that are judged for time and memory are what workloads would write, and valid."""

from __future__ import annotations

import pytest

from jepsen.speed import main, measure


def test_small_histories_are_judged_within_all_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--log", "2000", "--register", "1000"]) == 0
    told = capsys.readouterr().out
    assert "register: 1,000 operations" in told
    assert "log: 2,000 operations" in told
    assert told.count("loads nothing; valid: True") == 2


def test_figure_beyond_its_bound_is_reported() -> None:
    assert measure("log", 200, seconds_max=0.0) is False
