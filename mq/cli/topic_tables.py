"""`raftmq table`: keeps tables up to date from topics, with Spark."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, JsonLines, print_json
from mq.inspection.formatting import time_of

if TYPE_CHECKING:
    from spark.tables.pipeline import Pipeline

app = typer.Typer(help="Keep tables up to date from topics, with Spark.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The pipeline; docs/tables.md has all settings.")]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[*], or a cluster, such as spark://HOST:7077, yarn or k8s://https://HOST:6443; "
        "default: spark.master in the file, else local[*].",
    ),
]
DriverMemory = Annotated[
    str | None,
    typer.Option(
        "--driver-memory",
        metavar="SIZE",
        help="Memory of Spark's driver; default: spark.driver.memory in the file, else 2g.",
    ),
]


@app.command("run")
def run(file: File, master: Master = None, driver_memory: DriverMemory = None, as_json: JsonLines = False) -> None:
    """Write new messages into the table, each one once. The pipeline's trigger says how often.

    Run it again after it was stopped or killed: it continues where the table ends. Exit code 1 if it stopped at an
    offset, which it prints, 2 if it was refused before anything was written.
    """
    _follow("run", file, master, driver_memory, as_json)


@app.command("backfill")
def backfill(file: File, master: Master = None, driver_memory: DriverMemory = None, as_json: JsonLines = False) -> None:
    """Write messages older than the table. Each is written once. It is for a table that did not begin at the earliest.

    Stop the pipeline first. If this command was killed, run it again.
    """
    _follow("backfill", file, master, driver_memory, as_json)


def _follow(command: str, file: Path, master: str | None, driver_memory: str | None, as_json: bool) -> None:
    """Run a command of the driver, and print its progress. Raises CommandFailed."""
    pipeline = _pipeline(file)
    from spark.tables.submission import master_of

    process = start(command, file, pipeline, master, driver_memory)
    if not as_json:
        print(f"starting Spark on {master_of(pipeline, master)} ...", flush=True)
    failure: dict[str, Any] | None = None
    for report in _lines(process):
        if "error" in report:
            failure = report
        elif as_json:
            print(json.dumps(report), flush=True)
        elif line := _progress(report):
            print(line, flush=True)
    if failure is not None:
        raise CommandFailed(failure["error"], failure["code"])
    from spark.tables.pace import GAVE_UP

    if process.returncode == GAVE_UP:
        raise CommandFailed(
            "the commit that was being made was given up: nothing of it is in the table. Run it again: it continues "
            "where the table ends",
            EXIT_FAILED,
        )
    if process.returncode:
        raise CommandFailed(
            f"Spark ended with exit code {process.returncode}; its output is above. Run it again: it continues where "
            f"the table ends",
            EXIT_FAILED,
        )


@app.command("status")
def status(file: File, as_json: Json = False) -> None:
    """Show how far the table is behind its topic. It shows messages and seconds.

    Of Parquet it reads the directory. Of Delta and Iceberg it shows what the last run on this machine recorded.
    """
    pipeline = _pipeline(file)
    from spark.client import ServerError, Unreachable
    from spark.errors import DataLoss, ReadFailed
    from spark.plan import PlanInvalid
    from spark.positions import PositionInvalid
    from spark.tables.commits import CommitRefused
    from spark.tables.loop import Stopped
    from spark.tables.parquet_directory import DirectoryUnusable
    from spark.tables.status import table_status

    try:
        table = table_status(pipeline, int(time.time() * 1000))
    except (CommitRefused, PlanInvalid) as error:
        raise CommandFailed(str(error)) from error
    except (DataLoss, DirectoryUnusable, PositionInvalid, ReadFailed, ServerError, Stopped, Unreachable) as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error
    if as_json:
        print_json(table)
        return
    print(f"{table['pipeline']}: {table['topic']} to {table['format']} {table['table']}")
    print("running" if table["running"] else "not running")
    if table["commit"] is None:
        print("no commit yet")
        return
    at = time_of(table["committed_at_ms"])
    print(f"commit {table['commit']} at {at}")
    print(f"behind: {table['lag_messages']:,} messages, {table['lag_seconds']:,.1f} s")
    for queue in table["queues"]:
        lag = queue["end_offset"] - queue["next_offset"]
        print(f"  {queue['broker_name']}:{queue['queue_id']} at {queue['next_offset']:,}, {lag:,} behind")


@app.command("verify")
def verify(file: File, master: Master = None, driver_memory: DriverMemory = None, as_json: Json = False) -> None:
    """Compare the table with its topic. It compares counts and checksums of the messages that each queue still has.

    Exit code 1 if they differ; then it names the first rows of each queue that do.
    """
    comparison = _result("verify", file, master, driver_memory)
    if as_json:
        print_json(comparison)
    else:
        for queue in comparison["queues"]:
            verdict = "equal" if queue["equal"] else "DIFFERENT"
            print(
                f"{queue['broker_name']}:{queue['queue_id']} offsets {queue['begin']:,} to {queue['end'] - 1:,}: "
                f"{queue['messages']:,} messages, {queue['rows_expected']:,} rows expected, {queue['rows_found']:,} "
                f"found: {verdict}"
            )
            for each in queue["differences"]:
                print(f"  offset {each['queue_offset']:,}: {each['what']}")
    if not comparison["equal"]:
        raise CommandFailed("the table differs from its topic", EXIT_FAILED)
    if not as_json:
        print(f"the table and its topic are equal up to commit {comparison['commit']}")


@app.command("compact")
def compact(file: File, master: Master = None, driver_memory: DriverMemory = None, as_json: Json = False) -> None:
    """Rewrite small files into large ones. It is for Delta and Iceberg tables, whose old snapshots expire."""
    counts = _result("compact", file, master, driver_memory)
    if as_json:
        print_json(counts)
    else:
        print(f"{counts['rewritten']} files became {counts['added']}")


def _result(command: str, file: Path, master: str | None, driver_memory: str | None) -> dict[str, Any]:
    """Run a command of the driver and return its result. Raises CommandFailed if it failed or gave no result."""
    process = start(command, file, _pipeline(file), master, driver_memory)
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None
    for report in _lines(process):
        if "error" in report:
            failure = report
        else:
            result = report
    if failure is not None:
        raise CommandFailed(failure["error"], failure["code"])
    if result is None:
        raise CommandFailed("Spark ended without a result; its output is above", EXIT_FAILED)
    return result


def start(
    command: str, file: Path, pipeline: Pipeline, master: str | None, driver_memory: str | None
) -> subprocess.Popen[str]:
    """Start Spark's driver with one of our programs. Raises CommandFailed if Spark, Java, a package or another
    requirement is missing.
    """
    from spark.access import for_executors
    from spark.installed import missing
    from spark.tables.installed import SparkMissing, installed_spark, packages_of
    from spark.tables.pace import UNTIL_STDIN_CLOSES
    from spark.tables.submission import SparkUnavailable, is_local, master_of, python_of, submit_arguments

    where = master_of(pipeline, master)
    try:
        packages = packages_of(pipeline, installed_spark())
        if reason := missing():
            raise CommandFailed(reason.replace("raftmq[spark]", "raftmq[tables]"))
        arguments = submit_arguments(pipeline, where, driver_memory, packages, for_executors(), os.environ)
    except (SparkUnavailable, SparkMissing) as error:
        raise CommandFailed(str(error)) from error
    environment = {
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if is_local(where) else {}),
        **os.environ,
        "PYSPARK_PYTHON": python_of(pipeline, os.environ),
        "PYSPARK_SUBMIT_ARGS": f"{shlex.join(arguments)} pyspark-shell",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "spark.tables.job", command, str(file), UNTIL_STDIN_CLOSES],
        env=environment,
        stdin=subprocess.PIPE,  # nothing is written: it closes when this process ends, however it ends
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # ctrl-C is for this process, which asks Spark to end after its commit
    )
    signals: list[bool] = []

    def on_signal(*_: Any) -> None:
        if not signals:
            signals.append(True)
            process.terminate()
            if command in ("run", "backfill"):
                os.write(2, b"it ends after the commit that is being made; once more gives that commit up\n")
        elif process.stdin is not None:
            process.stdin.close()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    return process


def _pipeline(file: Path) -> Pipeline:
    try:
        from spark.tables.documents import DocumentInvalid
        from spark.tables.pipeline import read_pipeline
    except ModuleNotFoundError as error:
        raise CommandFailed(f"{error.name} is not installed: pip install 'raftmq[tables]'") from error
    from mq.credentials import CredentialsInvalid
    from spark.access import use

    try:
        pipeline = read_pipeline(file)
        use(pipeline.account)
    except (CredentialsInvalid, DocumentInvalid) as error:
        raise CommandFailed(str(error)) from error
    return pipeline


def _lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of the driver until it ends; Spark's own lines are copied to standard error."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            try:
                report = json.loads(line)
            except ValueError:
                report = None
            if isinstance(report, dict):
                yield report
            else:
                print(line, end="", file=sys.stderr)
    process.wait()


def _progress(event: dict[str, Any]) -> str | None:
    if "opened" in event:
        return f"{event['opened']}: continues after commit {event['commit']}"
    if "commit" in event:
        dead = f", {event['dead']:,} of them dead letters" if event["dead"] else ""
        return (
            f"commit {event['commit']}: {event['messages']:,} messages{dead} in {event['seconds']:.1f} s "
            f"({event['rate']:,}/s), {event['left']:,} left"
        )
    if "done" in event:
        dead = f", {event['dead']:,} of them dead letters" if event["dead"] else ""
        position = f"; the table has the messages before {event['position']}"
        return f"done: {event['messages']:,} messages{dead}{position}"
    return None
