"""The cases of `make bench-archive`, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.archive.__main__ import ARCHIVE, CASES
from jepsen.deployments.object_storage import ENVIRONMENT
from tests.support.benchmark_cases import values as case_values

pytestmark = [pytest.mark.process, pytest.mark.nightly]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # A new replica takes the length of files from its group, where it is shorter than in other tests with processes.
    monkeypatch.delenv("RAFTMQ_BROKER_SEGMENT_BYTES")


async def values(case: str, directory: Path) -> dict[str, float]:
    return await case_values(CASES[case], ARCHIVE.parse_arguments(["--quick", "--limit", "240"]), directory)


async def test_archiving_case_archives_its_messages(tmp_path: Path) -> None:
    found = await values("archiving", tmp_path)
    assert found["waited to be archived"] > 0
    assert found["sends that failed"] == 0


async def test_cold_case_reads_from_the_store(tmp_path: Path) -> None:
    found = await values("cold", tmp_path)
    assert found["read"] > 0
    assert found["consumed"] > 0
    assert found["requests to the store"] > 0


async def test_hot_case_delivers_every_message(tmp_path: Path) -> None:
    found = await values("hot", tmp_path)
    assert found["not acknowledged, or not delivered"] == 0
    assert found["requests to the store"] > 0


async def test_join_case_fills_a_replica_from_the_archive(tmp_path: Path) -> None:
    found = await values("join", tmp_path)
    assert 0 < found["of them from the archive"] <= 100
    assert found["from the leader alone"] > 0
    assert found["share of what the disk writes"] > 0
    assert found["share of these ranges"] > 0
    assert found["CPU of raftmq restore for each GB"] > 0
