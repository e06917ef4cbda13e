"""Runs the last part of the Spark demonstration: `raftmq table` writes the topic into a table.

A follower is killed while the table is written, and then Spark's driver; a second run completes the table, and
`raftmq table verify` compares it with the topic. Each command is a process, as a user would start it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from mq.local_cluster import DevCluster, ServersFailed
from mq.monitoring.cpu_time import cpu_seconds

UNREADABLE: Final = "Unreadable"
"""The topic for lines that are not UTF-8."""
COMMITS: Final = 8
FOLLOWER_DIES_AFTER: Final = 2
DRIVER_DIES_AFTER: Final = 4
KILL_DELAY_SECONDS: Final = 0.3
SILENT_SECONDS_MAX: Final = 600.0


@dataclass(slots=True)
class TableMade:
    """The outcome of the table. ``seconds`` and ``cpu_seconds`` are of commits only, without the starts of Spark."""

    kind: str
    lines: int
    nbytes: int
    messages: int = 0
    rows_expected: int = 0
    rows: int = 0
    is_equal: bool = False
    follower: str = ""
    commits_before_kill: int = 0
    commits: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    committed_rows: int = 0

    @property
    def is_good(self) -> bool:
        """Whether all messages were compared, rows are equal to them, and both kills happened."""
        is_whole = self.messages == self.lines and self.rows == self.rows_expected
        return self.is_equal and is_whole and bool(self.follower and self.commits_before_kill)

    def results(self) -> list[tuple[str, str, bool]]:
        """Return the outcome for people: for each result its name, its value, and whether it is right."""
        share = self.committed_rows / self.lines * self.nbytes / 1e9
        return [
            (f"rows in the {self.kind} table of raftmq table", f"{self.rows:,}", self.rows == self.rows_expected),
            ("equal to the topic (verify)", "yes" if self.is_equal else "NO", self.is_equal),
            ("of messages", f"{self.messages:,}", self.messages == self.lines),
            ("killed meanwhile", f"{self.follower}, and the driver after commit {self.commits_before_kill}", True),
            ("rows/s of its commits", f"{self.committed_rows / max(self.seconds, 0.001):,.0f}", True),
            ("CPU of its commits", f"{self.cpu_seconds / max(share, 1e-9):,.0f} s per GB of text", True),
        ]


async def make_table(
    table: TableMade,
    topic: str,
    cluster: DevCluster,
    directory: Path,
    say: Callable[[str], None],
    environment: Mapping[str, str],
) -> None:
    """Write the table, kill a follower and the driver meanwhile, and compare it. Raises ServersFailed, OSError."""
    file = directory / "lines.yaml"
    file.write_text(_pipeline(table, topic, cluster.namesrv, directory))
    leader = await cluster.leader()

    async def disturb(event: dict[str, Any], pid: int) -> None:
        if event["commit"] == FOLLOWER_DIES_AFTER:
            table.follower = next(node_id for node_id in cluster.node_ids if node_id != leader)
            cluster.kill(table.follower)
            say(f"killed the follower {table.follower} (SIGKILL) after commit {event['commit']} of the table")
        elif event["commit"] == DRIVER_DIES_AFTER:
            await trio.sleep(KILL_DELAY_SECONDS)  # in the next commit
            table.commits_before_kill = event["commit"]
            _kill_driver(pid)
            say(f"killed Spark's driver (SIGKILL) after commit {event['commit']} of the table")

    say("the topic becomes a table: raftmq table run lines.yaml")
    command = _TableCommands(cluster, environment, say)
    if await command.run(table, "run", file, disturb) == 0:
        raise ServersFailed("the driver ended by itself before the demonstration could kill it")
    await cluster.start(table.follower)
    await cluster.wait_ready()
    say(f"started {table.follower} again, and raftmq table run lines.yaml: it continues where the table ends")
    if await command.run(table, "run", file) != 0:
        raise ServersFailed(f"raftmq table run has failed; its log is {cluster.log_path('table')}")
    say("raftmq table verify lines.yaml ...")
    await command.run(table, "verify", file)


class _TableCommands:
    """Runs `raftmq table`, one command after the other."""

    def __init__(self, cluster: DevCluster, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._environment = environment
        self._say = say

    async def run(self, table: TableMade, command: str, file: Path, on_commit: Any = None) -> int:
        """Run one command; returns its exit code. Raises ServersFailed if it prints nothing for minutes."""
        arguments = ["mq.cli", "table", command, str(file), "--json", "--master", "local[2]"]
        async with self._cluster.running_module("table", arguments, self._environment) as process:
            assert process.stdout is not None
            before, rest = 0.0, b""
            while True:
                with trio.move_on_after(SILENT_SECONDS_MAX) as timeout:
                    chunk = await process.stdout.receive_some()
                if timeout.cancelled_caught:
                    raise ServersFailed(f"raftmq table {command} has said nothing for {SILENT_SECONDS_MAX:g} s")
                if not chunk:
                    return await process.wait()
                *complete, rest = (rest + chunk).split(b"\n")
                if command == "verify":
                    rest = b"\n".join([*complete, rest])  # one document
                    with suppress(ValueError):
                        _record_result(table, json.loads(rest))
                    continue
                for line in complete:
                    event, used = json.loads(line), cpu_seconds(process.pid)
                    if "rate" in event:
                        self._record_commit(table, event, used - before)
                        if on_commit is not None:
                            await on_commit(event, process.pid)
                    before = used

    def _record_commit(self, table: TableMade, event: dict[str, Any], used: float) -> None:
        table.commits = event["commit"]
        table.committed_rows += event["messages"]
        table.seconds += event["seconds"]
        table.cpu_seconds += used
        self._say(
            f"  commit {event['commit']}: {event['messages']:,} rows, {event['rate']:,}/s, {event['left']:,} left"
        )


def _record_result(table: TableMade, result: dict[str, Any]) -> None:
    table.is_equal = result["equal"]
    table.messages = sum(queue["messages"] for queue in result["queues"])
    table.rows = sum(queue["rows_found"] for queue in result["queues"])
    table.rows_expected = sum(queue["rows_expected"] for queue in result["queues"])


def _kill_driver(pid: int) -> None:
    """Kill the driver that a command has started, and Spark's Java with it."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"spark.tables.job" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.killpg(int(child), signal.SIGKILL)


def _pipeline(table_made: TableMade, topic: str, namesrv: str, directory: Path) -> str:
    if table_made.kind == "iceberg":
        name = "spark.sql.catalog.lake"
        table = (
            "table: {format: iceberg, name: lake.demo.lines}\n"
            f"spark: {{{name}: org.apache.iceberg.spark.SparkCatalog, {name}.type: hadoop, "
            f"{name}.warehouse: {json.dumps(str(directory / 'warehouse'))}}}"
        )
    else:
        table = f"table: {{format: parquet, location: {json.dumps(str(directory / 'table'))}}}"
    return (
        f"namesrv: {namesrv}\ntopic: {topic}\nmax_messages_per_commit: {table_made.lines // COMMITS + 1}\n"
        f"decode: {{format: text}}\ndead_letters: {{topic: {UNREADABLE}}}\n{table}\n"
    )
