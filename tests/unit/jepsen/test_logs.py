"""Logs of stopped brokers are compared as far as all of them reach; a replica that is behind is told by its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trio.testing import MockClock

from jepsen.logs import LogVerification, differences
from jepsen.nemeses.lagging_replica import behind
from jepsen.schedule import KINDS, FaultStep
from tests.unit.jepsen.fake_brokers import SEGMENT_BYTES, FakeCluster, injected

SIZE = 100
FILES = {0: b"a" * SIZE, SIZE: b"b" * SIZE, 2 * SIZE: b"c" * 40 + bytes(60)}


def log(
    directory: Path, node: str, files: Mapping[int, bytes] = FILES, *, begins_at: int = 0, ends_at: int = 240
) -> dict[str, tuple[Path, LogVerification]]:
    path = directory / node
    path.mkdir()
    for start, content in files.items():
        (path / f"{start:020d}").write_bytes(content)
    return {node: (path, LogVerification("intact", begins_at, ends_at, SIZE))}


def test_equal_logs_have_no_difference(tmp_path: Path) -> None:
    assert differences(log(tmp_path, "n0") | log(tmp_path, "n1") | log(tmp_path, "n2")) == []


def test_comparison_finds_one_differing_byte(tmp_path: Path) -> None:
    other = FILES | {SIZE: b"b" * 99 + b"x"}
    found = differences(log(tmp_path, "n0") | log(tmp_path, "n1", other) | log(tmp_path, "n2"))
    assert found == [f"the logs of n0 and n1 differ in the file {SIZE:020d}"]


def test_unused_rest_of_a_closed_file_belongs_to_the_log(tmp_path: Path) -> None:
    files = {0: b"a" * 80 + bytes(20), SIZE: b"b" * SIZE}
    other = files | {0: b"a" * 80 + b"x" * 20}
    assert differences(log(tmp_path, "n0", files, ends_at=200) | log(tmp_path, "n1", other, ends_at=200))


def test_logs_that_begin_and_end_elsewhere_agree_in_between(tmp_path: Path) -> None:
    longer = log(tmp_path, "n0", FILES | {2 * SIZE: b"c" * 60 + bytes(40)}, ends_at=260)
    shorter = log(tmp_path, "n1", {SIZE: FILES[SIZE], 2 * SIZE: FILES[2 * SIZE]}, begins_at=SIZE)
    assert differences(longer | shorter) == []


def test_logs_with_nothing_in_common_are_reported(tmp_path: Path) -> None:
    (found,) = differences(log(tmp_path, "n0", ends_at=100) | log(tmp_path, "n1", begins_at=SIZE))
    assert "nothing in common" in found


def test_unverified_log_is_left_out_of_the_comparison(tmp_path: Path) -> None:
    assert differences(log(tmp_path, "n0") | {"n1": (tmp_path / "missing", LogVerification("in use"))}) == []


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
        await behind(injection, FaultStep(0, "behind", AWAY, 0), "n0")
    assert cluster.running == {"n0", "n1", "n2"}
    return noted.seen


async def test_log_beginning_after_its_earlier_end_is_reported(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = Fetching(tmp_path, tables={"n0": {"raftmq.basePosition": str(Fetching.begins)}})
    assert "begins at 500" in str(await carried_out(cluster))


async def test_follower_that_keeps_its_log_was_not_behind(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = FakeCluster(tmp_path, tables={"n0": {"raftmq.basePosition": "500"}})
    assert await carried_out(cluster) is None


async def test_leader_that_removes_nothing_leaves_the_fault_unseen(tmp_path: Path, autojump_clock: MockClock) -> None:
    cluster = FakeCluster(tmp_path, tables={"n0": {"raftmq.basePosition": "0"}})
    assert await carried_out(cluster) is None
