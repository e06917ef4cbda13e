"""How long a run is broken things in, when mending them takes longer than was planned."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from jepsen import nemeses
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep, Variant


class FakeCluster:
    async def leader(self) -> str:
        await trio.lowlevel.checkpoint()
        return "n0"


async def test_late_fault_steps_are_skipped_except_first_of_their_kind(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    done = []

    async def slow(injection: Injection, step: FaultStep, leader: str) -> None:
        done.append(step.kind)
        await trio.sleep(60)

    monkeypatch.setattr(nemeses, "NEMESES", {"kill": slow, "pause": slow})
    injection = Injection(cast("Any", FakeCluster()), cast("Any", None), Random(1), lambda _: None)
    variant = Variant("leader", 0, 0, majority=True)
    steps = [FaultStep(1, kind, variant, 0) for kind in ("kill", "kill", "pause", "kill")]
    await nemeses.run_schedule(injection, steps, 10)
    assert done == ["kill", "pause"]
