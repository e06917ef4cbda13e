"""A broker that is started with what is not its own must be refused, and must change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from jepsen.nemeses.wrong_starts import wrong_start
from jepsen.schedule import KINDS, Step, Variant
from tests.unit.jepsen.fake_brokers import FakeCluster, injected

VARIANTS = KINDS["wrong-start"]
OFFLINE = [variant for variant in VARIANTS if not variant.what.startswith("a second process")]


async def carried_out(cluster: FakeCluster, variant: Variant) -> tuple[list[str], str | None]:
    with injected(cluster) as (injection, noted):
        await wrong_start(injection, Step(0, "wrong-start", variant, 0), "n0")
    return noted.misbehaved, noted.seen


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.what)
async def test_refusal_is_seen_and_the_broker_runs_in_the_end(
    tmp_path: Path, variant: Variant, autojump_clock: MockClock
) -> None:
    code = 2 if variant in OFFLINE else 1
    cluster = FakeCluster(
        tmp_path, refusal=(code, "in use by process 7; made for node, made for cluster, made for segment")
    )
    misbehaved, seen = await carried_out(cluster, variant)
    assert misbehaved == []
    assert seen is not None
    assert seen.startswith(f"exit code {code}: ")
    assert cluster.running == {"n0", "n1", "n2"}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.what)
async def test_broker_that_starts_despite_the_mistake_misbehaves(
    tmp_path: Path, variant: Variant, autojump_clock: MockClock
) -> None:
    misbehaved, seen = await carried_out(FakeCluster(tmp_path, refusal=None), variant)
    assert seen is None
    assert len(misbehaved) == 1


async def test_refusal_for_another_reason_is_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    misbehaved, _ = await carried_out(FakeCluster(tmp_path, refusal=(1, "Traceback")), VARIANTS[0])
    assert len(misbehaved) == 1


@pytest.mark.parametrize("variant", OFFLINE, ids=lambda variant: variant.what)
async def test_refused_broker_that_changes_a_file_misbehaves(
    tmp_path: Path, variant: Variant, autojump_clock: MockClock
) -> None:
    (found,), _ = await carried_out(FakeCluster(tmp_path, left_by_refused=b"vote"), variant)
    assert "changed commitlog/meta" in found
