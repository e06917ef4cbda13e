"""Workers of Celery whose queues are spread over two broker groups, one of which stops and comes back."""

from __future__ import annotations

from pathlib import Path

import anyio.from_thread
import pytest

from mq.local_cluster import Ports
from mq.local_cluster.groups import open_groups
from tests.support.celery_workers import Workers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.nightly]

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
