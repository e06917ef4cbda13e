"""A voter that comes back with an empty directory must neither lead nor help anybody else to."""

from __future__ import annotations

from pathlib import Path

from jepsen.nemeses.members import look_at_wiped
from tests.unit.jepsen.fake_brokers import FakeCluster, injected


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
