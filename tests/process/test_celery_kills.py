"""Celery's tasks while leaders and workers are killed: none is lost, and none comes before its time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio.from_thread
import pytest

from mq.cli.dev_cluster import DevCluster, Ports
from tests.support.celery_workers import ROOT, Workers
from tests.support.real_groups import Cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

TASKS = 1000
DELAYED_EACH = 5
VISIBILITY_SECONDS = 5
PRODUCER = f"""
from tests.support.celery_app import log
for number in range({TASKS}):
    countdown = number % 40 / 5 if number % {DELAYED_EACH} == 0 else None
    log.apply_async((f"task-{{number}}",), countdown=countdown)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with anyio.from_thread.start_blocking_portal("trio") as portal:
        opened = DevCluster.open(directory, ports=Ports.free(3))
        with portal.wrap_async_context_manager(opened) as inner:
            yield Cluster(inner, portal)


def test_no_task_is_lost_while_leaders_and_workers_are_killed(cluster: Cluster, tmp_path: Path) -> None:
    workers = Workers(f"raftmq://{cluster.namesrv}", tmp_path, {"visibility_timeout": VISIBILITY_SECONDS})
    ran: Counter[str] = Counter()

    def read() -> Counter[str]:
        ran.clear()
        if (tmp_path / "log").exists():
            ran.update(line.partition(" ")[0] for line in (tmp_path / "log").read_text().splitlines())
        return ran

    with contextlib.ExitStack() as stack:
        one = stack.enter_context(workers.worker("one"))
        stack.enter_context(workers.worker("two"))
        producer = stack.enter_context(
            subprocess.Popen([sys.executable, "-c", PRODUCER], cwd=ROOT, env=workers.environment)
        )
        for count in (TASKS // 10, TASKS // 3, TASKS // 2):
            wait_until(lambda count=count: len(read()) >= count)  # type: ignore[misc]
            leader = cluster.portal.call(cluster.inner.leader)
            cluster.portal.call(cluster.inner.kill, leader)
            wait_until(lambda leader=leader: not cluster.portal.call(cluster.inner.is_running, leader))  # type: ignore[misc]
            cluster.portal.call(cluster.inner.start, leader)
        os.killpg(one.pid, signal.SIGKILL)
        assert producer.wait(timeout=120) == 0
        wait_until(lambda: len(read()) >= TASKS, seconds=60)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    early = [line for line in lines if line[2] != "-" and float(line[1]) < float(line[2]) - 0.001]
    assert early == []
    assert set(ran) == {f"task-{number}" for number in range(TASKS)}
    # Only those that the killed worker had begun, or had not acknowledged yet.
    assert sum(ran.values()) - TASKS <= 2 * 4
