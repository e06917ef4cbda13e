"""Runs the Spark demonstration of `make demo-spark`.

Three replicas, half a million lines of text, and a Spark that reads them as they arrive. Meanwhile a follower is
killed, and later leadership is transferred; at the end everything is counted. Then the topic becomes a table of Apache
Iceberg, while a follower and Spark's driver are killed.

The parent sends, kills and reports; name server, replicas and Spark are separate processes.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import trio
import typer
from rich.console import Console
from rich.table import Table

from mq.cli.client_errors import client_errors
from mq.cli.demo_text import source_directory, source_lines
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.client.message import Message, SendResult
from mq.client.produce.producer import Producer
from mq.local_cluster import DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK
from mq.protocol.requests.raft_group import GroupCommand
from spark.demo_iceberg import INSTALLED, IcebergMissing, fetch_iceberg
from spark.demo_table import UNREADABLE, TableMade, make_table
from spark.installed import missing

TOPIC = "Lines"
SECOND_TOPIC = "Definitions"
QUEUES = 8
PRODUCER = "demo_spark"
IN_FLIGHT_MAX = 512
SEND_SECONDS_MAX = 60.0
SHOW_SECONDS = 5.0
STALLED_SECONDS_MAX = 240.0


@dataclass(slots=True)
class DemoState:
    """The state that the tasks of one demonstration share. All of them run in one thread."""

    lines: int
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    rows: int = 0
    line_count: int = 0
    outcome: dict[str, Any] | None = None
    killed_node: str = ""
    leaders: list[str] = field(default_factory=list)
    served_bytes: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Bytes by node id, role and process id: a restarted replica counts from 0."""
    table: TableMade | None = None
    change: trio.Event = field(default_factory=trio.Event)

    def wake(self) -> None:
        """Wake all waiting tasks, which check their conditions again because the state has changed."""
        self.change.set()
        self.change = trio.Event()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until ``is_so`` returns true."""
        while not is_so():
            await self.change.wait()

    @property
    def is_good(self) -> bool:
        """Whether every line arrived exactly once, in copies and table too, and both ways of counting words agree."""
        outcome = self.outcome
        return (
            outcome is not None
            and self.failed == 0
            and outcome["read"] == self.acknowledged == self.lines
            and outcome["twice"] == outcome["missing"] == outcome["places_twice"] == 0
            and outcome["written_twice"] == outcome["not_written"] == 0
            and outcome["words_agree"]
            and self.table is not None
            and self.table.is_good
        )


def demo(
    lines: Annotated[int, typer.Option(min=1000, help="Number of lines of text to send.")] = 500_000,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory for data and logs; default: a temporary directory.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Write the table as Parquet files, not with Apache Iceberg.")
    ] = False,
    iceberg: Annotated[
        Path,
        typer.Option(
            metavar="DIRECTORY",
            help="The PySpark for which there is a build of Iceberg; it is installed there if it is not.",
        ),
    ] = INSTALLED,
) -> None:
    """Let Spark read from three replicas while a follower is killed and leadership moves, and count what arrives. Then
    make a table of the topic, while a follower and Spark's driver are killed, and compare both.

    Exit code 1 if a line is missing or duplicated.
    """
    if reason := missing():
        raise CommandFailed(reason)
    console = Console()
    base = directory or Path(tempfile.mkdtemp(prefix="raftmq-demo-spark-"))
    base.mkdir(parents=True, exist_ok=True)
    if any(base.iterdir()):
        raise CommandFailed(f"{base} is not empty; the demonstration needs an empty directory")
    console.print(f"{lines:,} lines from the Python sources in {source_directory()}; data in {base}", soft_wrap=True)
    try:
        with client_errors():
            state = run_trio(partial(run_demo, lines, base, console, None if parquet else iceberg))
    except ServersFailed as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error
    except KeyboardInterrupt:
        if directory is None and not keep:
            shutil.rmtree(base, ignore_errors=True)
        raise
    console.print(table_of(state))
    if not state.is_good:
        console.print(f"FAILED; data and logs are kept in {base}", style="bold red")
        raise typer.Exit(EXIT_FAILED)
    if directory is None and not keep:
        shutil.rmtree(base, ignore_errors=True)
    console.print(
        "Every line was read once, every definition written once, and the table is equal to the topic.",
        style="bold green",
    )
    if keep or directory is not None:
        console.print(f"{base / 'lines.yaml'} has the pipeline; docs/tables.md says what to do with its table")


def table_of(state: DemoState) -> Table:
    """Return the results as a table for people."""
    nothing = dict.fromkeys(("read", "twice", "written", "written_twice", "not_written"), 0)
    outcome = state.outcome or {**nothing, "missing": state.lines, "words": {}, "words_agree": False}
    words = ", ".join(f"{word} {count:,}" for word, count in itertools.islice(outcome["words"].items(), 5))
    rows: list[tuple[str, str, bool]] = [
        ("lines sent and acknowledged", f"{state.acknowledged:,}", state.acknowledged == state.lines),
        ("rows read by Spark, in Parquet", f"{outcome['read']:,}", outcome["read"] == state.lines),
        ("rows twice", f"{outcome['twice']:,}", outcome["twice"] == 0),
        ("lines missing", f"{outcome['missing']:,}", outcome["missing"] == 0),
        ("definitions written to a second topic", f"{outcome['written']:,}", outcome["written"] > 0),
        ("of these twice", f"{outcome['written_twice']:,}", outcome["written_twice"] == 0),
        ("of these missing", f"{outcome['not_written']:,}", outcome["not_written"] == 0),
        ("most frequent words", words, True),
        ("counted again from Parquet", "the same" if outcome["words_agree"] else "DIFFERENT", outcome["words_agree"]),
        ("follower killed", state.killed_node, True),
        ("leader moved", " -> ".join(state.leaders), len(set(state.leaders)) > 1),
    ]
    sums: dict[tuple[str, str], int] = {}
    for (node_id, role, _), nbytes in sorted(state.served_bytes.items()):
        sums[node_id, role] = sums.get((node_id, role), 0) + nbytes
    rows += [(f"bytes served by {node_id} as {role}", f"{nbytes:,}", True) for (node_id, role), nbytes in sums.items()]
    if state.table is not None:
        rows += state.table.results()
    table = Table(show_header=False)
    for name, value, is_good in rows:
        table.add_row(name, value, style=None if is_good else "bold red")
    return table


async def run_demo(lines: int, directory: Path, console: Console, iceberg: Path | None = None) -> DemoState:
    """Run the demonstration in ``directory``; the table is Iceberg's with the PySpark in ``iceberg``. Without that, or
    if it cannot be fetched, the table is Parquet files.

    Raises ServersFailed, ClientError, OSError.
    """
    state = DemoState(lines)
    say = partial(console.print, highlight=False)
    if iceberg is not None:
        try:
            await fetch_iceberg(iceberg, _surroundings(iceberg), say)
        except IcebergMissing as missing_because:
            say(f"without Iceberg: {missing_because}. The table becomes Parquet files", style="bold yellow")
            iceberg = None
    async with (
        DevCluster.open(
            directory / "cluster",
            ports=Ports.free(3),
            settings=ANY_DISK,
            on_progress=lambda what: say(f"{what} ..."),
        ) as cluster,
        Admin(cluster.namesrv) as admin,
    ):
        await admin.create_topic(TOPIC, QUEUES)
        await admin.create_topic(SECOND_TOPIC, QUEUES)
        await admin.create_topic(UNREADABLE, QUEUES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.watch)
            say("starting Spark ...")
            job = await nursery.start(_spark, state, cluster, directory)
            nursery.start_soon(_send_all, state, cluster.namesrv)
            nursery.start_soon(_show, state, say)
            nursery.start_soon(_count_served, state, cluster, admin)
            await _disturb(state, cluster, admin, say)
            await state.wait_until(lambda: state.acknowledged + state.failed == lines)
            say(f"{state.acknowledged:,} lines are stored; Spark reads what is left and counts ...")
            await job.send_all(b"%d\n" % state.acknowledged)
            await state.wait_until(lambda: state.outcome is not None)
            await _read_served_bytes(state, cluster, admin)
            nursery.cancel_scope.cancel()
        state.table = TableMade("parquet" if iceberg is None else "iceberg", lines, sum(map(len, _text(lines))))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.watch)
            await make_table(state.table, TOPIC, cluster, directory, say, _surroundings(iceberg))
            nursery.cancel_scope.cancel()
    return state


def _surroundings(pyspark: Path | None = None) -> dict[str, str]:
    """The environment of a process of Spark, with ``pyspark`` if given."""
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "SPARK_LOCAL_HOSTNAME": os.environ.get("SPARK_LOCAL_HOSTNAME", "localhost"),
    }
    if pyspark is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(pyspark.resolve()), str(Path(__file__).parents[1])])
    return environment


async def _disturb(state: DemoState, cluster: DevCluster, admin: Admin, say: Callable[[str], None]) -> None:
    """Kill a follower, restart it, and transfer leadership, each while Spark reads."""
    await state.wait_until(lambda: state.rows >= state.lines // 5)
    leader = await cluster.leader()
    state.leaders.append(leader)
    state.killed_node = next(node_id for node_id in cluster.node_ids if node_id != leader)
    cluster.kill(state.killed_node)
    say(f"killed the follower {state.killed_node} (SIGKILL) when Spark had {state.rows:,} rows")
    await state.wait_until(lambda: state.rows >= state.lines * 2 // 5)
    await cluster.start(state.killed_node)
    await cluster.wait_ready()
    say(f"started {state.killed_node} again when Spark had {state.rows:,} rows")
    await state.wait_until(lambda: state.rows >= state.lines * 3 // 5)
    await admin.manage_group(cluster.address(leader), GroupCommand("transfer"))
    while (new := await cluster.leader()) == leader:  # noqa: ASYNC110 - there is no event
        await trio.sleep(0.1)
    state.leaders.append(new)
    say(f"moved the leadership from {leader} to {new} when Spark had {state.rows:,} rows")


async def _send_all(state: DemoState, namesrv: str) -> None:
    """Send each line once: with sequence numbers, retries are not stored twice."""

    def on_outcome(outcome: SendResult | ClientError) -> None:
        state.acknowledged += isinstance(outcome, SendResult)
        state.failed += not isinstance(outcome, SendResult)
        state.wake()

    async with Producer(
        namesrv, "demo_writers", timeout=SEND_SECONDS_MAX, retries=100, in_flight_max=2 * IN_FLIGHT_MAX
    ) as producer:
        for number, line in enumerate(_text(state.lines)):
            await state.wait_until(lambda: state.sent - state.acknowledged - state.failed < IN_FLIGHT_MAX)
            properties = {"RAFTMQ_PRODUCER": PRODUCER, "RAFTMQ_SEQUENCE": str(number)}
            state.sent += 1
            producer.send_nowait(Message(TOPIC, line, keys=[str(number)], properties=properties), on_outcome)
            if number % 64 == 0:
                await trio.lowlevel.checkpoint()
        await producer.flush()


def _text(count: int) -> Iterator[bytes]:
    """Make ``count`` lines, repeating the text if it has fewer."""
    lines = source_lines(source_directory(), count)
    return itertools.islice(itertools.cycle(lines), count)


async def _spark(
    state: DemoState,
    cluster: DevCluster,
    directory: Path,
    *,
    task_status: trio.TaskStatus[trio.abc.SendStream] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run Spark; the task has started when Spark has connected. Raises ServersFailed if Spark ends without a result."""
    module = ["spark.demo_job", cluster.namesrv, TOPIC, SECOND_TOPIC, str(directory), str(state.lines // 10)]
    async with cluster.running_module("spark", module, _surroundings()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        is_started, rest = False, b""
        async for chunk in process.stdout:
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                report = json.loads(line)
                if not is_started:
                    task_status.started(process.stdin)
                    is_started = True
                state.rows = report.get("rows", state.rows)
                state.line_count = report.get("counted", state.line_count)
                state.outcome = report.get("outcome", state.outcome)
            state.wake()
    if state.outcome is None:
        raise ServersFailed(f"Spark ended; its log is {cluster.log_path('spark')}")


async def _count_served(state: DemoState, cluster: DevCluster, admin: Admin) -> None:
    while True:
        await _read_served_bytes(state, cluster, admin)
        await trio.sleep(1)


async def _read_served_bytes(state: DemoState, cluster: DevCluster, admin: Admin) -> None:
    """Note the bytes that each replica has sent to Spark so far, as it reports."""
    for node_id in cluster.node_ids:
        if not cluster.is_running(node_id):
            continue
        try:
            figures = await admin.broker_runtime(cluster.address(node_id))
        except ClientError:
            continue  # killed a moment ago, or not up yet
        for role in ("Leader", "Follower"):
            nbytes = next((value for name, value in figures.items() if name.endswith(f"bulkBytesAs{role}")), "0")
            state.served_bytes[node_id, role.lower(), cluster.pid(node_id)] = int(nbytes)


async def _show(state: DemoState, say: Callable[[str], None]) -> None:
    """Show the progress of the demonstration. Raises ServersFailed if it stops."""
    before, moved_at = (0, 0, 0), trio.current_time()
    while True:
        await trio.sleep(SHOW_SECONDS)
        now = state.acknowledged, state.rows, state.line_count
        if now != before:
            before, moved_at = now, trio.current_time()
        elif trio.current_time() - moved_at > STALLED_SECONDS_MAX:
            raise ServersFailed(f"no message has been processed for {STALLED_SECONDS_MAX:g} s")
        say(f"  sent {state.acknowledged:,}, in Parquet {state.rows:,}, words counted of {state.line_count:,} lines")


def main() -> None:
    """Run the command; ends the process with its exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(demo)
    try:
        app()
    except CommandFailed as error:
        print(f"raftmq: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
