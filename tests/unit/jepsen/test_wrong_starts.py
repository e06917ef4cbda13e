"""A broker that is started with what is not its own, or with an empty directory, harms nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from jepsen.nemeses.members import look_at_wiped
from jepsen.nemeses.wrong_starts import wrong_start
from jepsen.schedule import KINDS, FaultStep, Variant
from tests.unit.jepsen.fake_brokers import FakeCluster, injected

VARIANTS = KINDS["wrong-start"]
OFFLINE = [variant for variant in VARIANTS if not variant.what.startswith("a second process")]


async def carried_out(cluster: FakeCluster, variant: Variant) -> tuple[list[str], str | None]:
    with injected(cluster) as (injection, noted):
        await wrong_start(injection, FaultStep(0, "wrong-start", variant, 0), "n0")
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


def table(role: str, last_index: int) -> dict[str, str]:
    return {"raftmq.role": role, "raftmq.term": "3", "raftmq.lastIndex": str(last_index)}


async def looked_at(directory: Path, wiped: dict[str, str], other: dict[str, str]) -> tuple[list[str], str | None]:
    cluster = FakeCluster(directory, tables={"n1": wiped, "n2": other})
    with injected(cluster) as (injection, noted):
        async with injection.fault("members", "wiped", ("n1",)) as number:
            await look_at_wiped(injection, number, "n1", "n2")
    return noted.misbehaved, noted.seen


async def test_two_that_wait_for_the_leader_are_right(tmp_path: Path) -> None:
    misbehaved, seen = await looked_at(tmp_path, table("follower", 0), table("pre_candidate", 70))
    assert misbehaved == []
    assert seen == "the last entry of n1 is 0"


async def test_leader_elected_by_an_empty_replica_misbehaves(tmp_path: Path) -> None:
    misbehaved, _ = await looked_at(tmp_path, table("follower", 0), table("leader", 70))
    assert misbehaved == ["n2 leads in term 3 while n1 has nothing"]


async def test_empty_replica_must_not_get_entries_before_its_readmission(tmp_path: Path) -> None:
    misbehaved, _ = await looked_at(tmp_path, table("follower", 5), table("follower", 70))
    assert misbehaved == ["n1 got 5 entries before it was added anew"]
