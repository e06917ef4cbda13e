"""Processes of sink tasks that are killed, or stopped and woken when the query is further: each row is stored once.

What Spark does about its tasks without Spark, so that many can be killed within a minute: a micro-batch that was not
written to its end is written again. ``RAFTMQ_SINK_KILLS=300`` for more of them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
import trio

from mq.client import Admin
from mq.local_cluster import DevCluster, Ports
from spark import writer
from spark.numbering import WriteId
from spark.outgoing import sink_columns
from tests.support.real_groups import SETTINGS
from tests.support.stored_bodies import stored_bodies
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

KILLS: Final = int(os.environ.get("RAFTMQ_SINK_KILLS", "20"))
QUEUES: Final = 3
ROWS: Final = 600
ROWS_PER_REQUEST: Final = 20


def rows_of(number: int) -> list[bytes]:
    return [b"%d/%d" % (number, row) for row in range(ROWS)]


def write(namesrv: str, number: int) -> None:
    """What a task does with micro-batch ``number``, slowly enough to be killed in it."""
    task = writer.WriterOptions(
        namesrv=(namesrv,),
        columns=sink_columns([("body", "binary")], "Out"),
        codec="none",
        in_flight_bytes_max=4 << 20,
        request_seconds=10.0,
        deadline_seconds=300.0,
        client_id="spark",
        limits=writer.WriterLimits(batch_rows=ROWS_PER_REQUEST),
    )
    bodies = rows_of(number)

    def batches() -> list[pa.RecordBatch]:
        whole = pa.record_batch([pa.array(bodies, pa.binary())], ["body"])
        return [whole.slice(at, ROWS_PER_REQUEST) for at in range(0, ROWS, ROWS_PER_REQUEST)]

    writer.TaskWriter(task, WriteId("query", number), 0).write(batches())


async def ended(process: ForkServerProcess) -> None:
    await until(lambda: not process.is_alive())


def sent(process: ForkServerProcess, number: signal.Signals) -> bool:
    """Send a signal; returns False if the process has ended a moment ago."""
    try:
        os.kill(process.pid or 0, number)
    except ProcessLookupError:
        return False
    return True


async def test_killed_tasks_lose_and_repeat_nothing(tmp_path: Path) -> None:
    rng = random.Random(3)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spark.writer"])
    stopped: list[ForkServerProcess] = []
    number = kills = stored_after_all = 0
    took = 1.0
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Out", QUEUES)
        try:
            while kills < KILLS or stopped:
                task = context.Process(target=write, args=(cluster.namesrv, number))
                began = time.perf_counter()
                task.start()
                # As long as a task takes by now: some are killed before their first row and some behind their last.
                with trio.move_on_after(rng.random() * took if kills < KILLS else 300):
                    await ended(task)
                if not task.is_alive():
                    assert task.exitcode == 0, f"the task of micro-batch {number} failed"
                    took = 1.2 * (time.perf_counter() - began)
                    number += 1
                    if stopped and (kills == KILLS or rng.random() < 0.5):
                        late = stopped.pop(0)
                        was_stopped = sent(late, signal.SIGCONT)
                        with trio.fail_after(300):
                            await ended(late)
                        stored_after_all += was_stopped and late.exitcode == 0
                    continue
                kills += 1
                took *= 1.1
                if len(stopped) < 3 and kills % 3 == 0:
                    sent(task, signal.SIGSTOP)
                    stopped.append(task)
                else:
                    task.kill()
                    await ended(task)
            found = await stored_bodies(cluster, "Out", QUEUES)
        finally:
            for task in stopped:
                task.kill()
    expected = Counter(body for each in range(number) for body in rows_of(each))
    assert (expected - found, found - expected) == (Counter(), Counter())
    assert stored_after_all, "no task went on behind later micro-batches"
