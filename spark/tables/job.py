"""The Spark side of `raftmq table`, as a program: runs one pipeline until it is done or stopped, or checks its table.

Reports progress on standard output, one JSON object per line, and ends with an exit code:
0 done, 1 stopped at an offset, 2 refused before anything was written.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.client import Refused, Unreachable
from spark.errors import DataLoss, ReadFailed, RowRefused, WriteFailed
from spark.options import OptionRefused
from spark.plan import PlanRefused
from spark.positions import PositionRefused
from spark.tables.commits import Commit, CommitRefused, check_owner, identity, messages_between, shown_position
from spark.tables.documents import DocumentRefused
from spark.tables.frames import Messages
from spark.tables.installed import settings_of
from spark.tables.layout import SchemaRefused
from spark.tables.loop import Loop, Stopped
from spark.tables.metrics import Metrics, PortUnusable
from spark.tables.parquet_directory import DirectoryUnusable, Locked, ParquetDirectory
from spark.tables.parquet_target import ParquetTarget
from spark.tables.pipeline import Pipeline, read_pipeline
from spark.tables.state_directory import StateDirectory
from spark.tables.topic import TopicSource
from spark.tables.upkeep import UpkeepRefused, compact, compare, kept_ranges

REFUSED: Final = (
    CommitRefused,
    DocumentRefused,
    Locked,
    OptionRefused,
    PlanRefused,
    PortUnusable,
    SchemaRefused,
    UpkeepRefused,
)
STOPPED: Final = (
    DataLoss,
    DirectoryUnusable,
    PositionRefused,
    ReadFailed,
    Refused,
    RowRefused,
    Stopped,
    Unreachable,
    WriteFailed,
)
IDLE_SECONDS: Final = 0.5


def say(**told: Any) -> None:
    """One line for the program that started this one."""
    print(json.dumps(told), flush=True)


def session(pipeline: Pipeline) -> SparkSession:
    """The Spark session, with the data source registered."""
    builder = SparkSession.builder.appName(f"raftmq table {pipeline.name}")
    for name, value in settings_of(pipeline).items():
        builder = builder.config(name, value)
    found: SparkSession = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    from spark.source import RaftmqDataSource

    found.dataSource.register(RaftmqDataSource)
    return found


def target_of(pipeline: Pipeline, spark: SparkSession, step: Callable[[str], None]) -> Any:
    """The pipeline's table."""
    if pipeline.table.format == "parquet":
        assert pipeline.table.location is not None
        return ParquetTarget(pipeline, ParquetDirectory(Path(pipeline.table.location), step))
    from spark.tables.lake_targets import DeltaTarget, IcebergTarget

    return DeltaTarget(pipeline, spark) if pipeline.table.format == "delta" else IcebergTarget(pipeline, spark)


def run(
    pipeline: Pipeline,
    spark: SparkSession,
    state: StateDirectory,
    stop: threading.Event,
    step: Callable[[str], None] = lambda _: None,
    *,
    backward: bool = False,
) -> None:
    """Run the pipeline until it is done or ``stop`` is set; ``step`` is told what is done next. ``backward``: fill the
    table with older messages instead. Raises what `main` reports.
    """
    source = TopicSource(pipeline, is_once=pipeline.trigger.is_once)
    target = target_of(pipeline, spark, step)
    metrics = Metrics(pipeline)
    metrics.serve()

    step("begin")

    def committed(commit: Commit, seconds: float) -> None:
        figures = {
            "commits": loop.figures.commits,
            "messages": loop.figures.messages,
            "dead": loop.figures.dead,
            "seconds": round(loop.figures.seconds, 3),
        }
        state.keep_note(commit, figures)
        metrics.committed(commit, seconds, source.newest())
        rate = commit.messages / seconds if seconds else 0
        say(
            commit=commit.number,
            messages=commit.messages,
            dead=commit.dead,
            seconds=round(seconds, 3),
            rate=round(rate),
            left=_left(commit, source.newest()),
            total=loop.figures.messages,
        )

    loop = Loop(
        pipeline,
        source,
        target,
        state,
        lambda ranges, known: Messages(spark, pipeline, ranges, known),
        run=uuid.uuid4().hex[:12],
        clock=time.monotonic,
        wall_clock_ms=lambda: int(time.time() * 1000),
        on_commit=committed,
    )
    try:
        last = loop.open()
        say(opened=pipeline.table.where, commit=last.number)
        if backward and pipeline.upsert is not None:
            raise UpkeepRefused("older changes would replace newer rows: a table with upserts is not filled backward")
        while backward and not stop.is_set() and loop.backfill_step():
            pass
        while not backward and not stop.is_set():
            began = time.monotonic()
            if loop.step():
                every = pipeline.trigger.every_seconds
                if every is not None and every > 0 and not _left(loop.last, source.newest()):
                    stop.wait(max(0.0, every - (time.monotonic() - began)))
            elif pipeline.trigger.is_once:
                break
            else:
                stop.wait(pipeline.trigger.every_seconds or IDLE_SECONDS)
        position = shown_position(loop.last.end)
        say(done=True, messages=loop.figures.messages, dead=loop.figures.dead, position=position)
    finally:
        source.close()
        target.close()


def upkeep(command: str, pipeline: Pipeline, spark: SparkSession) -> int:
    """Verify or compact the table of a pipeline; returns the exit code."""
    if command == "compact":
        say(**compact(spark, pipeline))
        return 0
    target = target_of(pipeline, spark, lambda _: None)
    last = target.last()
    check_owner(last, identity(pipeline.name, pipeline.topic), pipeline.table.where)
    if last is None:
        raise UpkeepRefused(f"the table {pipeline.table.where} has no commit yet: there is nothing to verify")
    queues = compare(spark, pipeline, last, kept_ranges(pipeline, last))
    is_equal = all(each["equal"] for each in queues)
    say(equal=is_equal, commit=last.number, queues=queues)
    return 0 if is_equal else 1


def main(arguments: list[str], step: Callable[[str], None] = lambda _: None) -> int:
    """What ``arguments`` name, run, backfill, verify or compact, for the pipeline of a file; returns the exit code."""
    command, file = arguments
    writes = command in ("run", "backfill")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT) if writes else ():  # the others end at once, and harm nothing
        signal.signal(number, lambda *_: stop.set())
    state: StateDirectory | None = None
    spark: SparkSession | None = None
    try:
        pipeline = read_pipeline(Path(file))
        state = StateDirectory(pipeline.state)
        if writes:
            state.open()
        spark = session(pipeline)
        if not writes:
            return upkeep(command, pipeline, spark)
        run(pipeline, spark, state, stop, step, backward=command == "backfill")
    except REFUSED as error:
        say(error=str(error), code=2)
        return 2
    except STOPPED as error:
        say(error=str(error), code=1)
        return 1
    except (PySparkException, Py4JError) as error:
        say(error=spark_reason(error), code=1)
        return 1
    finally:
        if spark is not None:
            spark.stop()
        if state is not None:
            state.close()
    return 0


def spark_reason(error: Exception) -> str:
    """The line of a failed Spark job that says why, without Java's stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("spark.", "Caused by:")) and ": " in line]
    said = (ours or lines or ["Spark failed"])[-1 if ours else 0]
    return f"Spark failed, and this commit is not in the table: {said.removeprefix('Caused by: ')}"


def _left(commit: Commit, newest: dict[str, Any] | None) -> int:
    if newest is None:
        return 0
    return sum(high - low for low, high in messages_between(commit.end, newest).values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
