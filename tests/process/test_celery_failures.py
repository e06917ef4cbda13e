"""Celery while beats, leaders and whole broker groups stop: real processes, and each task runs once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio.from_thread
import pytest

from mq.client.sync import SyncAdmin
from mq.local_cluster import Ports
from mq.local_cluster.groups import open_groups
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


COUNT = 40


def test_tasks_run_once_when_one_broker_group_stops(tmp_path: Path) -> None:
    (results := tmp_path / "results").mkdir()
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        opened = open_groups(tmp_path / "brokers", 2, nodes=1, ports=Ports.free(1, groups=2))
        with portal.wrap_async_context_manager(opened) as groups:
            workers = Workers(f"raftmq://{groups[0].namesrv}/groups", results)
            with workers.worker("a"), workers.worker("b"):
                sums = workers.run(
                    "from celery import chord, group\n"
                    f"added = [add.delay(each, 1) for each in range({COUNT})]\n"
                    f"for each in range({COUNT}): note.apply_async([f'late{{each}}'], countdown=3)\n"
                    f"summed = chord([add.s(each, each) for each in range(10)])(total.s())\n"
                    "print(json.dumps([sum(each.get(timeout=50) for each in added), summed.get(timeout=50)]))\n"
                )
                assert sums == [sum(range(COUNT)) + COUNT, 2 * sum(range(10))]
                names = workers.run("print(json.dumps(sorted(app.control.inspect(timeout=5).ping())))")
                assert names == ["a@host", "b@host"]
                late = [f"late{each}" for each in range(COUNT)]
                wait_until(lambda: all(workers.notes(each) for each in late))

                portal.call(groups[1].kill, "n0")
                workers.run(
                    f"for each in range({COUNT}): note.delay(f'without{{each}}')\n"
                    f"for each in range({COUNT}): note.apply_async([f'held{{each}}'], countdown=5)\n"
                    "print(json.dumps(None))\n"
                )
                without = [f"without{each}" for each in range(COUNT)]
                wait_until(lambda: all(workers.notes(each) for each in without))
                portal.call(groups[1].start, "n0")
                held = [f"held{each}" for each in range(COUNT)]
                wait_until(lambda: all(workers.notes(each) for each in held))
                workers.run(f"for each in range({COUNT}): note.delay(f'again{{each}}')\nprint(json.dumps(None))\n")
                again = [f"again{each}" for each in range(COUNT)]
                wait_until(lambda: all(workers.notes(each) for each in again))
                for name in [*late, *without, *held, *again]:
                    assert len(workers.notes(name)) == 1, name
