"""The chaos run of Celery with few tasks: `make bench-celery-chaos` is the whole one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.celery_load.redis import redis_missing

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(redis_missing() is not None, reason=str(redis_missing())),
]

ROOT = Path(__file__).parent.parent.parent
TASKS = 3000
SECONDS_MAX = 900


def test_celery_loses_no_task_while_processes_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "celery-chaos", "--tasks", str(TASKS), "--no-write"]
    done = subprocess.run(
        [*command, "--dir", str(tmp_path / "run")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"| tasks that were sent | {TASKS:,} |" in done.stdout
    assert "- leader killed: 0 times" not in done.stdout
    assert "- worker killed: 0 times" not in done.stdout
