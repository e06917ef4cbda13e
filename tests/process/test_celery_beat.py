"""Celery's beat with the scheduler of raftmq, as real processes: beats and leaders are killed, and a worker runs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.client.sync import SyncAdmin
from tests.support.celery_workers import ROOT, Workers
from tests.support.real_groups import Cluster, cluster_in_thread
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

BEAT = ("beat", "--scheduler", "raftmq.celery:ScheduleScheduler", "--pidfile=", "--loglevel", "info")
NAME = "celery/celery/tests/tick"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with cluster_in_thread(tmp_path / "cluster") as running:
        yield running


def test_each_tick_runs_once_while_beats_and_leaders_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    workers = Workers(f"raftmq://{cluster.namesrv}", tmp_path, beat_seconds=1)
    command = [sys.executable, "-m", "celery", "-A", "tests.support.celery_app", *BEAT]

    def ids() -> list[str]:
        return (tmp_path / "ticks").read_text().split() if (tmp_path / "ticks").exists() else []

    with contextlib.ExitStack() as stack:
        stack.enter_context(workers.worker("one"))
        beats = [subprocess.Popen(command, cwd=ROOT, env=workers.environment) for _ in range(3)]
        try:
            wait_until(lambda: len(ids()) >= 3)
            leader = cluster.portal.call(cluster.inner.leader)
            cluster.portal.call(cluster.inner.kill, leader)
            wait_until(lambda: not cluster.portal.call(cluster.inner.is_running, leader))
            cluster.portal.call(cluster.inner.start, leader)
        finally:
            for each in beats:
                each.kill()
                each.wait()
        after = len(ids())
        wait_until(lambda: len(ids()) >= after + 5)  # without any beat
        with SyncAdmin(cluster.namesrv) as admin:
            admin.schedules.pause(NAME)
            status = admin.schedules.get(NAME)
            wait_until(lambda: len(ids()) >= status.sent)
    assert len(set(ids())) == len(ids()) == status.sent
