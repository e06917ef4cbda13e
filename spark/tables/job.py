"""The Spark side of `raftmq table`, as a program: runs one pipeline until it is done or stopped, or checks its table.

Reports progress on standard output, one JSON object per line, and ends with an exit code: 0 done, 1 stopped at an
offset, 2 refused before anything was written. With ``--until-stdin-closes`` it ends at once when its standard input
does: the process that started it has ended, or gives up the current commit.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.files import SparkFiles
from pyspark.sql import SparkSession

from mq.credentials import CredentialsInvalid
from spark.client import ServerError, Unreachable
from spark.errors import DataLoss, ReadFailed, RowInvalid, WriteFailed
from spark.options import OptionInvalid
from spark.plan import PlanInvalid
from spark.positions import PositionInvalid
from spark.tables.commits import Commit, CommitRefused, check_owner, identity, messages_between, shown_position
from spark.tables.compaction import TableCommandRefused, compact
from spark.tables.documents import DocumentInvalid
from spark.tables.frames import Messages
from spark.tables.layout import SchemaInvalid
from spark.tables.loop import Loop, Stopped
from spark.tables.metrics import Metrics, PortUnusable
from spark.tables.pace import UNTIL_STDIN_CLOSES, StopCondition, StopSignal, end_with_input, keep_pace
from spark.tables.parquet_directory import DirectoryUnusable, Locked, ParquetDirectory
from spark.tables.parquet_target import ParquetTarget
from spark.tables.pipeline import Pipeline, read_pipeline
from spark.tables.shipped_code import is_in_archive, pack, stand_in
from spark.tables.state_directory import StateDirectory
from spark.tables.submission import is_local, session_settings
from spark.tables.topic import TopicSource
from spark.tables.verification import compare, kept_ranges

REFUSED: Final = (
    CommitRefused,
    CredentialsInvalid,
    DocumentInvalid,
    Locked,
    OptionInvalid,
    PlanInvalid,
    PortUnusable,
    SchemaInvalid,
    TableCommandRefused,
)
STOPPED: Final = (
    DataLoss,
    DirectoryUnusable,
    PositionInvalid,
    ReadFailed,
    ServerError,
    RowInvalid,
    Stopped,
    Unreachable,
    WriteFailed,
)
_OURS: Final = ("spark.", "raftlog.", "mq.")
"""The beginnings of the names of our own errors that a task raises."""
AFTER_FAILURE: Final = {
    "run": "this commit is not in the table",
    "backfill": "this commit is not in the table",
    "verify": "nothing was compared",
    "compact": "the rows of the table are as before; try again",
}


NOT_STARTED: Final = (
    "Spark did not start, and {}: a package that cannot be fetched, a setting that Spark refuses, or a cluster that "
    "cannot be reached; what Java said is above"
)


def print_json(**fields: Any) -> None:
    """Print one line for the program that started this one."""
    print(json.dumps(fields), flush=True)


def session(pipeline: Pipeline) -> SparkSession:
    """Open a Spark session with the data source registered. Executors of a cluster get its code."""
    builder = SparkSession.builder.appName(f"raftmq table {pipeline.name}")
    for name, value in session_settings(pipeline).items():
        builder = builder.config(name, value)
    with _where_python_is(os.environ.get("PYSPARK_PYTHON", sys.executable)):
        spark_session: SparkSession = builder.getOrCreate()
    spark_session.sparkContext.setLogLevel("ERROR")
    if not is_local(spark_session.sparkContext.master):
        # In Spark's own directory, which is removed at the end also if this process is killed.
        spark_session.sparkContext.addPyFile(str(pack(Path(SparkFiles.getRootDirectory()) / "shipped")))
    from spark.source import RaftmqDataSource

    spark_session.dataSource.register(RaftmqDataSource)
    return spark_session


@contextmanager
def _where_python_is(python: str) -> Iterator[None]:
    """Change to a directory that has this interpreter, in which Java is started, until the block ends."""
    here = Path.cwd()
    if not is_in_archive(python, here):
        yield
        return
    directory = tempfile.mkdtemp(prefix="raftmq-table-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    stand_in(python, Path(directory))
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(here)


def target_of(pipeline: Pipeline, spark: SparkSession, step: Callable[[str], None]) -> Any:
    """Return the target that writes the pipeline's table."""
    if pipeline.table.format == "parquet":
        assert pipeline.table.location is not None
        if pipeline.table.is_in_bucket:
            from spark.tables.object_directory import ObjectDirectory
            from spark.tables.object_target import ObjectTarget

            table = pipeline.table
            return ObjectTarget(pipeline, ObjectDirectory(pipeline.table.location, table.endpoint_url, step))
        return ParquetTarget(pipeline, ParquetDirectory(Path(pipeline.table.location), step))
    from spark.tables.lake_targets import DeltaTarget, IcebergTarget

    return DeltaTarget(pipeline, spark) if pipeline.table.format == "delta" else IcebergTarget(pipeline, spark)


def run(
    pipeline: Pipeline,
    spark: SparkSession,
    state: StateDirectory,
    stop: StopCondition,
    step: Callable[[str], None] = lambda _: None,
    *,
    backward: bool = False,
) -> None:
    """Run the pipeline until it is done or ``stop`` says so; ``step`` gets the name of each step.
    ``backward``: fill the table with older messages instead. Raises `main`'s errors, with a note of the progress.
    """
    source = TopicSource(pipeline, is_once=pipeline.trigger.is_once)
    target = target_of(pipeline, spark, step)
    metrics = Metrics(pipeline)
    metrics.serve()

    step("begin")
    oldest = source.earliest() if backward else None

    def remaining_count(commit: Commit) -> int:
        """The number of messages within the scope of this run that are not in the table."""
        newest = source.newest()
        if oldest is not None:
            return _count(oldest, commit.begin)
        return 0 if newest is None else _count(commit.end, newest)

    def on_commit(commit: Commit, seconds: float) -> None:
        figures = {
            "commits": loop.figures.commits,
            "messages": loop.figures.messages,
            "dead": loop.figures.dead,
            "seconds": round(loop.figures.seconds, 3),
        }
        state.keep_note(commit, figures)
        metrics.on_commit(commit, seconds, source.newest())
        rate = commit.messages / seconds if seconds else 0
        print_json(
            commit=commit.number,
            messages=commit.messages,
            dead=commit.dead,
            seconds=round(seconds, 3),
            rate=round(rate),
            left=remaining_count(commit),
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
        on_commit=on_commit,
    )

    def commit_next() -> bool:
        was_behind = loop.step()
        if not was_behind:
            metrics.on_caught_up()
        return was_behind

    def is_behind() -> bool:
        return remaining_count(loop.last) > 0

    try:
        if backward and pipeline.upsert is not None:
            raise TableCommandRefused(
                "older changes would replace newer rows: a table with upserts is not filled backward"
            )
        last = loop.open()
        metrics.on_open(last)
        print_json(opened=pipeline.table.where, commit=last.number)
        with _with_progress(loop):
            if backward:
                keep_pace(loop.backfill_step, None, is_behind, stop, time.monotonic)
            else:
                keep_pace(commit_next, pipeline.trigger.every_seconds, is_behind, stop, time.monotonic)
        position = shown_position(loop.last.end)
        print_json(done=True, messages=loop.figures.messages, dead=loop.figures.dead, position=position)
    finally:
        source.close()
        target.close()


@contextmanager
def _with_progress(loop: Loop) -> Iterator[None]:
    """Add the progress of the table to the error that ends a pipeline."""
    try:
        yield
    except Exception as error:
        if loop.status() not in str(error):
            error.add_note(loop.status())
        raise


def upkeep(command: str, pipeline: Pipeline, spark: SparkSession) -> int:
    """Verify or compact the table of a pipeline; returns the exit code."""
    target = target_of(pipeline, spark, lambda _: None)
    last = target.last()
    check_owner(last, identity(pipeline.name, pipeline.topic), pipeline.table.where)
    if last is None:
        raise TableCommandRefused(f"the table {pipeline.table.where} has no commit yet: there is nothing to {command}")
    if command == "compact":
        print_json(**compact(spark, pipeline, target, last))
        return 0
    queues = compare(spark, pipeline, last, kept_ranges(pipeline, last))
    is_equal = all(each["equal"] for each in queues)
    print_json(equal=is_equal, commit=last.number, queues=queues)
    return 0 if is_equal else 1


def main(arguments: list[str], step: Callable[[str], None] = lambda _: None) -> int:
    """Run, backfill, verify or compact the pipeline of a file, as ``arguments`` name; returns the exit code."""
    command, file = arguments
    writes = command in ("run", "backfill")
    stop = StopSignal()
    state: StateDirectory | None = None
    spark: SparkSession | None = None

    def ask(*_: object) -> None:
        if spark is None:  # a cluster may never answer
            print("Spark has not started yet: nothing was read or written", file=sys.stderr, flush=True)
            os._exit(0)
        stop.ask()

    for number in (signal.SIGTERM, signal.SIGINT) if writes else ():  # the others end at once, and harm nothing
        signal.signal(number, ask)
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
        print_json(error=text_of(error), code=2)
        return 2
    except STOPPED as error:
        print_json(error=text_of(error), code=1)
        return 1
    except (PySparkException, Py4JError) as error:
        consequence = AFTER_FAILURE[command]
        reason = spark_reason(error, consequence) if spark is not None else NOT_STARTED.format(consequence)
        print_json(error=text_of(error, reason), code=1)
        return 1
    finally:
        if spark is not None:
            spark.stop()
        if state is not None:
            state.close()
    return 0


def spark_reason(error: Exception, what_is_left: str) -> str:
    """Find the line of a failed Spark job that tells the reason, without Java's stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith((*_OURS, "Caused by:")) and ": " in line]
    last_line = (ours or lines or ["Spark failed"])[-1 if ours else 0]
    return f"Spark failed, and {what_is_left}: {last_line.removeprefix('Caused by: ')}"


def text_of(error: Exception, text: str = "") -> str:
    """Write an error as one text, with its notes."""
    message, notes = text or str(error), getattr(error, "__notes__", ())
    return " ".join([message if message.endswith(".") or not notes else f"{message}.", *notes])


def _count(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    return sum(high - low for low, high in messages_between(start, end).values())


if __name__ == "__main__":
    if UNTIL_STDIN_CLOSES in sys.argv:
        end_with_input()
    sys.exit(main([each for each in sys.argv[1:] if each != UNTIL_STDIN_CLOSES]))
