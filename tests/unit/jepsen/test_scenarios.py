"""Scenarios: what they break, and what they take for a broker's fault."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from trio.testing import MockClock

from jepsen.damage.file_damage import FILES, MANNERS, break_files, describe_damage
from jepsen.deployments import earlier
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.needs import needs
from jepsen.scenarios import SCENARIOS
from jepsen.scenarios.backup import differences
from jepsen.scenarios.membership import look_at_minority
from jepsen.workloads import WORKLOADS
from tests.unit.jepsen.fake_brokers import FakeCluster, injected

CONTENT = bytes(range(1, 251)) * 4


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in (
        *(f"commitlog/{at:020d}" for at in (0, 1000, 2000)),
        "commitlog/00000000000000000000.index",
        "checkpoint",
        "checkpoint.previous",
        "snapshot",
        "queues/Log/0/00000000000000000000",
        "index/20260101000000000",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
    return tmp_path


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("manner", MANNERS)
def test_every_kind_of_file_is_damaged_in_every_manner(directory: Path, kind: str, manner: str) -> None:
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    damaged = break_files(Random(1), directory, kind, manner)
    assert describe_damage(damaged)
    for each in damaged:
        assert each.before == before[each.path]
        assert each.path.exists() is (manner != "it is missing")
    others = before.keys() - {each.path for each in damaged}
    assert all(path.read_bytes() == before[path] for path in others)


def test_only_closed_log_files_must_be_restored_byte_by_byte(directory: Path) -> None:
    returning = {
        kind for kind in FILES if any(each.returns for each in break_files(Random(1), directory, kind, MANNERS[0]))
    }
    assert returning == {"closed log file"}


def test_undamaged_file_is_not_reported_as_damaged(directory: Path) -> None:
    (damaged,) = break_files(Random(1), directory, "checkpoint", MANNERS[0])
    damaged.path.write_bytes(damaged.before)
    assert describe_damage([damaged]) == ""
    assert describe_damage([]) == ""


def test_every_card_is_drawn_before_one_repeats() -> None:
    injection = Injection(cast("Any", None), cast("Any", None), Random(1), lambda _: None)
    cards = [(letter,) for letter in "abcd"]
    drawn = [injection.draw("letters", cards) for _ in range(8)]
    assert set(drawn[:4]) == set(drawn[4:]) == set(cards)


@pytest.mark.parametrize(("role", "anomalies"), [("follower", 0), ("pre_candidate", 0), ("leader", 1)])
async def test_leader_of_a_minority_misbehaves(
    tmp_path: Path, autojump_clock: MockClock, role: str, anomalies: int
) -> None:
    cluster = FakeCluster(tmp_path, tables={"n1": {"raftmq.role": role, "raftmq.term": "7"}})
    with injected(cluster) as (injection, noted):
        await look_at_minority(injection, ("n1", "n2"), of=5)
    assert len(noted.misbehaved) == anomalies


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda each: each.name)
def test_scenario_has_a_workload_and_brokers(scenario: Any) -> None:
    assert scenario.workload in WORKLOADS
    assert needs(scenario.kinds, brokers=scenario.brokers).count == scenario.brokers


@pytest.mark.skipif(earlier.unavailable() is not None, reason="no git history with the earlier release")
async def test_earlier_release_is_another_tree(tmp_path: Path) -> None:
    release = await earlier.check_out_earlier(tmp_path / "earlier")
    assert release == earlier.earlier_release()
    assert (tmp_path / "earlier" / "mq" / "cli" / "__main__.py").exists()
    assert not (tmp_path / "earlier" / "jepsen").exists()


@pytest.mark.parametrize(("change", "problems"), [("", []), ("flip", ["file 00000000000000000000 differs"])])
def test_restored_log_is_compared_file_by_file(tmp_path: Path, change: str, problems: list[str]) -> None:
    for name in ("restored", "original"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
        for at in (0, 1000):
            (tmp_path / name / "commitlog" / f"{at:020d}").write_bytes(CONTENT)
    (tmp_path / "restored" / "commitlog" / f"{1000:020d}").write_bytes(CONTENT + b"the new group")
    if change:
        (tmp_path / "restored" / "commitlog" / f"{0:020d}").write_bytes(CONTENT[:-1] + b"x")
    assert differences(tmp_path / "restored", tmp_path / "original") == problems


def test_restored_log_without_entries_is_not_a_backup(tmp_path: Path) -> None:
    for name in ("restored", "original"):
        (tmp_path / name / "commitlog").mkdir(parents=True)
        (tmp_path / name / "commitlog" / f"{0:020d}").write_bytes(bytes(100))
    assert differences(tmp_path / "restored", tmp_path / "original") == ["log is empty"]
