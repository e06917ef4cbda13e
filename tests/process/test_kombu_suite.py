"""kombu's own tests of transports, from its source distribution, against a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_groups import Cluster
from tests.support.source_distributions import unpacked

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parent.parent.parent

SUITE = """
import os

import kombu
import pytest

import raftmq.celery
from t.integration import common

URL = os.environ["RAFTMQ_URL"]
NOBODY = "raftmq://127.0.0.1:1"


@pytest.fixture
def connection():
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection():
    return kombu.Connection(NOBODY)


@pytest.fixture
def failover_connection():
    return kombu.Connection([NOBODY, URL])


class TestBasicFunctionality(common.BasicFunctionality): ...
class TestExchangeTypes(common.BaseExchangeTypes): ...
class TestTimeToLive(common.BaseTimeToLive): ...
class TestPriority(common.BasePriority): ...
class TestMessage(common.BaseMessage): ...
class TestEventLoop(common.BaseEventLoop): ...
class TestFailover(common.BaseFailover): ...
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("kombu", tmp_path_factory.mktemp("kombu"))


def test_integration_suite_of_kombu_passes(sources: Path, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(sources)]),
        "RAFTMQ_URL": f"raftmq://{cluster.namesrv}",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        "--tb=short",
        "-c",
        os.devnull,
    ]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path / "test_suite.py")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    assert "47 passed" in done.stdout, done.stdout[-1000:]
