"""The torture in small: the group survives what a seed decides, and keeps every promise."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from tests.process.torture import ENOUGH, torture

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_nothing_acknowledged_is_lost_under_kills_and_pauses(tmp_path: Path) -> None:
    verdict = trio.run(partial(torture, tmp_path, seconds=6, seed=5))
    assert verdict.violations == []
    assert verdict.summary["acknowledged"] >= ENOUGH


def test_short_logs_survive(tmp_path: Path) -> None:
    """While the log's base moves all the time."""
    kinds = ["kill_in_reset", "flip_many"]
    run = partial(torture, tmp_path, seconds=1, seed=2, kinds=kinds, retention_bytes=1_200_000)
    verdict = trio.run(run)
    assert verdict.violations == []
    assert verdict.summary["acknowledged"] >= ENOUGH
    assert max(verdict.summary["bases"].values()) > 0, f"no file was removed: {verdict.summary}"
