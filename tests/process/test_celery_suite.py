"""Celery's own integration tests, from its source distribution, against a real broker and with results in Redis.

docs/celery.md says what is left out, and why.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.celery_load.redis import open_redis, redis_missing
from tests.support.real_groups import Cluster
from tests.support.source_distributions import unpacked

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(redis_missing() is not None, reason=str(redis_missing())),
]

ROOT = Path(__file__).parent.parent.parent
FILES = {
    "tasks": ["test_tasks.py", "test_inspect.py", "test_worker.py::test_pidbox_reset_after_repeated_control_errors"],
    "canvas": ["test_canvas.py", "test_group_chains.py", "test_backend_leak_in_fixture_teardown.py"],
    "others": [
        "test_beat.py",
        "test_serialization.py",
        "test_upgrade.py",
        "test_worker.py::test_run_worker",
        "test_worker.py::test_concurrency_auto_sizes_prefork_pool",
    ],
}
LEFT_OUT = [
    # The worker is to have the task before it is due. Here the broker has it.
    "test_inspect.py::test_Inspect::test_scheduled",
]
ONE_WORKER = """
import functools

from celery.contrib.testing.manager import ManagerMixin

inner = ManagerMixin.wait_until_idle


def wait_until_idle(self):
    control, inspect = self.app.control, self.app.control.inspect
    control.inspect = functools.partial(inspect, limit=1)
    try:
        inner(self)
    finally:
        control.inspect = inspect


ManagerMixin.wait_until_idle = wait_until_idle
"""
"""After each test, the suite asks all workers whether they are idle. There is one: nobody waits a second for others."""
COUNTED = {"tasks": 72, "canvas": 250, "others": 37}
"""So many tests at least."""
SECONDS_MAX = 1800
REPEATED_MAX = 2
"""So many tests of a part may fail, if they pass when they are run again."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tests alone: Celery itself is the installed one."""
    directory = tmp_path_factory.mktemp("celery")
    found = unpacked("celery", directory) / "t"
    suite = directory / "suite" / "t"
    suite.mkdir(parents=True)
    for name in ("__init__.py", "canvas_helpers.py"):
        shutil.copy(found / name, suite)
    shutil.copytree(found / "integration", suite / "integration")
    # Some tests start workers of their own, whose applications do not know raftmq.
    (suite.parent / "sitecustomize.py").write_text("import raftmq.celery\n")
    (suite.parent / "one_worker.py").write_text(ONE_WORKER)
    return suite.parent


@pytest.mark.parametrize("part", FILES)
def test_integration_suite_of_celery_passes(sources: Path, cluster: Cluster, tmp_path: Path, part: str) -> None:
    # A part may take longer than other tests. What pytest prints about that after five minutes looks like a failure.
    faulthandler.cancel_dump_traceback_later()
    with open_redis(tmp_path) as (redis_port, _):
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(sources)]),
            "REDIS_PORT": str(redis_port),
            "TEST_BACKEND": f"redis://localhost:{redis_port}/0",
            "TEST_BROKER": f"raftmq://{cluster.namesrv}/{part}",
            "WORKER_LOGLEVEL": "INFO",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "--tb=short", "-c", os.devnull]
        command += ["--rootdir", str(sources), "-o", "python_classes=test_*", "-o", f"cache_dir={tmp_path / 'cache'}"]
        command += ["-p", "celery.contrib.pytest", "-p", "one_worker"]
        command += [word for test in LEFT_OUT for word in ("--deselect", f"t/integration/{test}")]
        command += [f"t/integration/{name}" for name in FILES[part]]

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*command, *arguments],
                cwd=sources,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS_MAX,
            )

        first = run()
        # Celery repeats most of its tests up to five times: they look at logs and clocks. Here it is once, of few.
        again = run("--last-failed") if first.returncode == 1 else None
    failed = re.search(r"(\d+) failed", first.stdout)
    assert failed is None or int(failed[1]) <= REPEATED_MAX, first.stdout[-10_000:]
    assert (again or first).returncode == 0, (again or first).stdout[-10_000:]
    passed = re.search(r"(\d+) passed", first.stdout)
    assert passed is not None
    assert int(passed[1]) >= COUNTED[part] - REPEATED_MAX, first.stdout[-1000:]
