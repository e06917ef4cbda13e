"""The cases of `make bench-archive`, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.archive.__main__ import ARCHIVE, CASES
from benchmarks.figures import Figure
from benchmarks.store_load import Plan
from jepsen.deployments.object_storage import ENVIRONMENT

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.trio]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


async def values(case: str, directory: Path) -> dict[str, float]:
    plan: Plan = ARCHIVE.parse_arguments(["--quick", "--limit", "240"])
    figures: list[Figure] = []
    await CASES[case](plan, directory, figures.append)
    return {figure.name: figure.value for figure in figures}


async def test_archiving(tmp_path: Path) -> None:
    found = await values("archiving", tmp_path)
    assert found["waited to be archived"] > 0
    assert found["sends that failed"] == 0


async def test_cold(tmp_path: Path) -> None:
    found = await values("cold", tmp_path)
    assert found["read"] > 0
    assert found["consumed"] > 0
    assert found["requests to the store"] > 0


async def test_hot(tmp_path: Path) -> None:
    found = await values("hot", tmp_path)
    assert found["not acknowledged, or not delivered"] == 0
    assert found["requests to the store"] > 0


async def test_join(tmp_path: Path) -> None:
    found = await values("join", tmp_path)
    assert 0 < found["of them from the archive"] <= 100
    assert found["from the leader alone"] > 0
    assert found["share of what the disk writes"] > 0
