"""A follower that is behind what the others keep is told by its files; whoever has all of its own is not behind."""

from __future__ import annotations

from pathlib import Path

from trio.testing import MockClock

from jepsen.nemeses.lagging_replica import behind
from jepsen.schedule import KINDS, Step
from tests.unit.jepsen.fake_brokers import SEGMENT_BYTES, FakeCluster, injected

AWAY, _ = KINDS["behind"]


class Fetching(FakeCluster):
    """A follower that starts has the files of its leader."""

    begins = 5 * SEGMENT_BYTES

    async def start(self, node: str) -> None:
        await super().start(node)
        log = self.data_dir(node) / "commitlog"
        (log / f"{0:020d}").unlink()
        (log / f"{self.begins:020d}").write_bytes(b"y" * SEGMENT_BYTES)


async def carried_out(cluster: FakeCluster) -> str | None:
    with injected(cluster) as (injection, noted):
        await behind(injection, Step(0, "behind", AWAY, 0), "n0")
    assert cluster.running == {"n0", "n1", "n2"}
    return noted.seen


async def test_log_that_begins_behind_its_former_end_is_seen(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = Fetching(tmp_path, tables={"n0": {"raftmq.basePosition": str(Fetching.begins)}})
    assert "begins at 500" in str(await carried_out(cluster))


async def test_follower_that_keeps_its_log_was_not_behind(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = FakeCluster(tmp_path, tables={"n0": {"raftmq.basePosition": "500"}})
    assert await carried_out(cluster) is None


async def test_leader_that_removes_nothing_leaves_the_fault_unseen(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = FakeCluster(tmp_path, tables={"n0": {"raftmq.basePosition": "0"}})
    assert await carried_out(cluster) is None
