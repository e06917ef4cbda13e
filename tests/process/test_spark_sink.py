"""A task of the Spark sink against three replicas whose leader is killed: what is written again adds nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from mq.client import Admin
from mq.local_cluster import DevCluster, Ports
from spark.numbering import WriteId
from spark.outgoing import sink_columns
from spark.writer import TaskWriter, WriterLimits, WriterOptions, WrittenRows
from tests.support.real_groups import SETTINGS
from tests.support.stored_bodies import stored_bodies
from tests.support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

QUEUES = 3
ROWS = 30_000
"""In requests of at most 50 rows: more of them than brokers know the places of."""


def rows_of(number: int) -> list[bytes]:
    return [b"%d/%d:" % (number, row) + bytes(row % 300) for row in range(ROWS)]


class Task:
    """A task of the sink in a thread of its own, as in an executor. ``fail_at`` is the row behind which Spark fails."""

    def __init__(self, cluster: DevCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number
        self.done_rows = 0

    async def run(self, fail_at: int = ROWS, **given: Any) -> WrittenRows:
        columns = sink_columns([("body", "binary")], "Out")
        options: dict[str, Any] = {"codec": "none", "in_flight_bytes_max": 1 << 20} | given
        options.setdefault("limits", WriterLimits(batch_rows=20))
        writer = TaskWriter(
            WriterOptions(
                namesrv=(self._cluster.namesrv,),
                columns=columns,
                request_seconds=5.0,
                deadline_seconds=100.0,
                client_id="spark",
                **options,
            ),
            WriteId("query", self._number),
            0,
        )
        return await trio.to_thread.run_sync(writer.write, self._batches(fail_at))

    def _batches(self, fail_at: int) -> Iterator[pa.RecordBatch]:
        bodies = rows_of(self._number)
        for at in range(0, ROWS, 100):
            if at >= fail_at:
                raise ValueError("the task fails")
            self.done_rows = at
            yield pa.record_batch([pa.array(bodies[at : at + 100], pa.binary())], ["body"])


async def kill_leader_at(cluster: DevCluster, task: Task, row: int) -> None:
    await until(lambda: task.done_rows >= row)
    node = await cluster.leader()
    cluster.kill(node)
    await until(lambda: not cluster.is_running(node))
    await cluster.start(node)


async def test_repeated_micro_batch_adds_nothing(tmp_path: Path) -> None:
    async with DevCluster.open(tmp_path, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic("Out", QUEUES)
        for number in range(2):
            task = Task(cluster, number)
            with pytest.raises(ValueError, match="the task fails"):
                await task.run(fail_at=ROWS // 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_leader_at, cluster, task := Task(cluster, number), ROWS // 4)
                written = await task.run()
            assert (written.rows, written.already_stored >= ROWS // 4) == (ROWS, True)
            await cluster.wait_ready()
            async with trio.open_nursery() as nursery:  # a twin at the same time, and the rows divided anew
                nursery.start_soon(Task(cluster, number).run)
                limits = WriterLimits(batch_rows=50)
                again = await Task(cluster, number).run(codec="zlib", in_flight_bytes_max=100_000, limits=limits)
            assert (again.rows, again.already_stored) == (ROWS, ROWS)
        found = await stored_bodies(cluster, "Out", QUEUES)
    expected = Counter(rows_of(0) + rows_of(1))
    assert expected - found == Counter()
    assert found - expected == Counter()
