"""Celery on raftmq: real workers, and a real broker."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.celery_workers import Workers
from tests.support.real_groups import Cluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

VISIBILITY_SECONDS = 3


@pytest.fixture
def workers(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Workers:
    url = f"raftmq://{cluster.namesrv}/{request.node.name}"
    return Workers(url, tmp_path, {"visibility_timeout": VISIBILITY_SECONDS})


def test_prefork_worker_runs_all_kinds_of_tasks(workers: Workers) -> None:
    with workers.worker("one") as process:
        results = workers.run("""
import time
from celery import chord, group
pings = app.control.ping(timeout=30, limit=1)
began = time.time()
later = note.apply_async(("later",), countdown=2)
revoked = note.apply_async(("revoked",), countdown=2)
app.control.revoke(revoked.id)
sums = chord((add.s(i, i) for i in range(10)), total.s())()
queues = app.control.inspect(timeout=30, limit=1).active_queues()
print(json.dumps([pings, sums.get(timeout=30), [*queues], began, later.get(timeout=30)]))
""")
        assert results[:3] == [[{"one@host": {"ok": "pong"}}], 90, ["one@host"]]
        [(_, ran_at)] = workers.notes("later")
        assert ran_at >= results[3] + 2
        # A process of its pool dies: another one gets the task, as Celery wants it.
        workers.run("print(json.dumps(at_the_second_attempt.delay('work').id))")
        wait_until(lambda: workers.notes("work"))
        [(child, _)] = workers.notes("work")
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: workers.notes("work.done"))
        assert len(workers.notes("work")) == 2
        assert len(workers.notes("work.done")) == 1
        workers.run("print(json.dumps(app.control.shutdown()))")
        assert process.wait(timeout=30) == 0
    assert workers.notes("revoked") == []


@pytest.mark.nightly
def test_tasks_of_a_worker_that_was_killed_run_elsewhere(workers: Workers) -> None:
    with workers.worker("one") as process:
        workers.run("print(json.dumps(work.delay('work', 2 * 3600).id))")
        wait_until(lambda: workers.notes("work"))
        with workers.worker("two", "--pool", "threads"):
            os.killpg(process.pid, signal.SIGKILL)
            killed_at = time.time()
            wait_until(lambda: len(workers.notes("work")) == 2, seconds=30)
            assert workers.notes("work")[1][1] - killed_at < 2 * VISIBILITY_SECONDS
            workers.run("print(json.dumps(work.delay('long', 2.5 * 3).id))")
            wait_until(lambda: workers.notes("long.done"))
            assert len(workers.notes("long")) == 1  # though it takes longer than its visibility
