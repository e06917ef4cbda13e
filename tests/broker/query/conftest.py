"""Fixtures of the tests of queries."""

from __future__ import annotations

import pytest

from tests.support.timed_messages import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("raftlog.Machine.wall_clock_ms", clock)
    return clock
