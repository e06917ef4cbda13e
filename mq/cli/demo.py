"""`raftmq demo`: sends messages through a group of three, kills the leader midway, and checks the result.

The parent sends, kills and counts; name server, replicas and the two consumers are separate processes.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import trio
import trio.lowlevel
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mq.cli.client_errors import client_errors
from mq.cli.demo_consumer import parse_line
from mq.cli.demo_leftovers import GROUP, leave_work
from mq.cli.demo_text import source_directory, source_lines, tag_of
from mq.cli.demo_verdict import DemoVerdict, History, Queue
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.client.message import Message, SendResult
from mq.client.produce.producer import Producer
from mq.local_cluster import DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK
from mq.protocol.message_ids import parse_offset_message_id

TOPIC = "Demo"
QUEUES = 8
CONSUMER_GROUP = "demo_readers"
CONSUMERS = ("consumer 1", "consumer 2")

IN_FLIGHT_MAX = 512
SEND_SECONDS_MAX = 60.0
STALLED_SECONDS_MAX = 30.0


def demo(
    lines: Annotated[int, typer.Option(min=100, help="Number of lines of text to send.")] = 100_000,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory for data and logs; default: a temporary directory.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
) -> None:
    """Kill a leader, and check that no message is lost.

    It sends text through three replicas, and kills the leader midway. Exit code 1 if anything acknowledged is missing,
    changed, or out of order within its queue.
    """
    console = Console()
    text = source_lines(source_directory(), lines)
    if len(text) < lines:
        console.print(f"{source_directory()} has only {len(text):,} lines; sending these")
    base = directory
    try:
        if base is None:
            base = Path(tempfile.mkdtemp(prefix="raftmq-demo-"))
        base.mkdir(parents=True, exist_ok=True)
        if any(base.iterdir()):
            raise CommandFailed(f"{base} is not empty; the demonstration needs an empty directory")
        console.print(
            f"{len(text):,} lines from the Python sources in {source_directory()}; data and logs in {base}",
            soft_wrap=True,
        )
        with client_errors():
            is_kept = directory is not None or keep
            outcome = run_trio(partial(run_demo, text, base, console, for_a_look=is_kept))
    except KeyboardInterrupt:
        if base is not None and directory is None and not keep:
            _remove(base)
        raise
    except ServersFailed as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or base}: {error.strerror or error}") from error
    console.print(table_of(outcome))
    for example in outcome.verdict.examples:
        console.print(f"  {example}", style="red")
    if not outcome.is_good:
        console.print(f"FAILED; data and logs are kept in {base}", style="bold red")
        raise typer.Exit(EXIT_FAILED)
    console.print("All acknowledged messages arrived, unchanged and in order.", style="bold green")
    if directory is None and not keep:
        _remove(base)
        console.print("To look at such messages in a browser, run it again with --keep.")
    else:
        console.print(next_steps(base, len(text) // 2), soft_wrap=True, highlight=False)


def next_steps(directory: Path, key: int) -> str:
    """Say how to examine the data of a demonstration, where a message has the key ``key``, and how to remove it."""
    program = "raftmq" if shutil.which("raftmq") is not None else f"{shlex.quote(sys.executable)} -m mq.cli"
    place = shlex.quote(str(directory))
    return (
        f"To look at the messages in a browser:\n  {program} dev --dir {place} --console\n"
        f"There, find the message with the key {key} in the topic {TOPIC}, why the group {GROUP} lags, and send its "
        "dead letters again.\n"
        f"The data takes space until you remove it: rm -r {place}"
    )


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The verdict, and the times. ``failover_seconds``: from SIGKILL to the first acknowledgement of a message stored
    by another broker; None if there was none.
    """

    verdict: DemoVerdict
    old_leader: str
    new_leader: str
    failover_seconds: float | None
    send_seconds: float
    total_seconds: float

    @property
    def is_good(self) -> bool:
        """Whether no promise was broken and another replica became leader."""
        return self.verdict.is_good and self.old_leader != self.new_leader and self.failover_seconds is not None


def table_of(outcome: DemoResult) -> Table:
    """Format the outcome as a table."""
    verdict = outcome.verdict
    failover = outcome.failover_seconds
    failed_over = "never" if failover is None else f"{failover:.2f} s"
    sending_seconds = outcome.send_seconds - (failover or 0.0)
    rows: list[tuple[str, str, bool]] = [
        ("sent", f"{verdict.sent:,}", True),
        ("acknowledged (on disk on a majority)", f"{verdict.acknowledged:,}", verdict.acknowledged > 0),
        ("outcome unknown to the producer", f"{verdict.outcome_unknown:,}", True),
        ("rejected", f"{verdict.rejected:,}", True),
        ("sent again after the kill", f"{verdict.sent_again:,}", True),
        ("consumed, distinct", f"{verdict.consumed:,}", True),
        ("duplicates", f"{verdict.duplicates:,}", True),
        ("lost", f"{verdict.lost:,}", verdict.lost == 0),
        ("out of order within a queue", f"{verdict.out_of_order:,}", verdict.out_of_order == 0),
        ("changed or misplaced", f"{verdict.wrong_content:,}", verdict.wrong_content == 0),
        (
            "leader killed -> new leader",
            f"{outcome.old_leader} -> {outcome.new_leader}",
            outcome.old_leader != outcome.new_leader,
        ),
        ("failover: kill to next acknowledgement", failed_over, failover is not None),
        ("sending, failover included", f"{verdict.acknowledged / outcome.send_seconds:,.0f} msgs/s", True),
        ("sending, without failover", f"{verdict.acknowledged / max(sending_seconds, 0.001):,.0f} msgs/s", True),
        ("duration, until everything was consumed", f"{outcome.total_seconds:.1f} s", True),
    ]
    table = Table(show_header=False)
    for name, value, is_good in rows:
        table.add_row(name, value, style=None if is_good else "bold red")
    return table


@dataclass(slots=True)
class _DemoState:
    """State shared by the tasks of one demonstration; all run in one thread."""

    text: Sequence[bytes]
    history: History = field(default_factory=History)
    killed_port: int | None = None
    failed_over_at: float | None = None
    last_ack_at: float = 0.0
    in_flight: int = 0
    room: trio.Event = field(default_factory=trio.Event)
    progress: trio.Event = field(default_factory=trio.Event)

    def on_outcome(self, number: int, outcome: SendResult | ClientError) -> None:
        """Record the producer's result for one message."""
        self.in_flight -= 1
        self.room.set()
        if isinstance(outcome, SendResult):
            queue = Queue(outcome.queue.broker_name, outcome.queue.queue_id)
            self.history.on_acknowledge(number, queue, outcome.queue_offset, first_attempt=outcome.attempts == 1)
            self.last_ack_at = trio.current_time()
            if self.killed_port is not None and self.failed_over_at is None:
                self._record_failover(outcome.offset_message_id)
        elif outcome.stored == "unknown":
            self.history.unknown.add(number)
        else:
            self.history.rejected.add(number)
        self.progress.set()

    def _record_failover(self, offset_message_id: str) -> None:
        # The id of a stored message names the broker that stored it. Answers of the dead leader may still be in our
        # socket; they do not end the failover.
        if parse_offset_message_id(offset_message_id).port != self.killed_port:
            self.failed_over_at = self.last_ack_at

    async def wait_progress(self) -> None:
        """Wait until something was acknowledged or consumed."""
        self.progress = trio.Event()
        await self.progress.wait()


async def run_demo(text: Sequence[bytes], directory: Path, console: Console, *, for_a_look: bool = False) -> DemoResult:
    """Run the whole demonstration in ``directory``. Raises ServersFailed, ClientError, OSError.

    ``for_a_look``: then let a consumer group fail, so that there is something to find with the console.
    """
    state = _DemoState(text)
    announce = partial(console.print, highlight=False)
    async with DevCluster.open(
        directory, ports=Ports.free(3), settings=ANY_DISK, on_progress=lambda what: announce(f"{what} ...")
    ) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in CONSUMERS:
                await nursery.start(_read_consumer, name, cluster, state)
            nursery.start_soon(cluster.watch)
            nursery.start_soon(_watch_acknowledgements, state)
            nursery.start_soon(_show_progress, state, console)
            nursery.start_soon(_send_all, state, cluster.namesrv)
            killed_node, killed_at = await _kill_leader_halfway(state, cluster, announce)
            sent_at = await _wait_until_answered(state)
            await _wait_consumed(state)
            nursery.cancel_scope.cancel()
        ended_at = trio.current_time()
        new_leader = await cluster.leader()
        if for_a_look:
            await leave_work(cluster, TOPIC)
    return DemoResult(
        verdict=state.history.verdict(),
        old_leader=killed_node,
        new_leader=new_leader,
        failover_seconds=None if state.failed_over_at is None else state.failed_over_at - killed_at,
        send_seconds=sent_at - began,
        total_seconds=ended_at - began,
    )


async def _send_all(state: _DemoState, namesrv: str) -> None:
    async with Producer(
        namesrv, "demo_writers", timeout=SEND_SECONDS_MAX, retries=100, in_flight_max=2 * IN_FLIGHT_MAX
    ) as producer:
        for number, line in enumerate(state.text):
            while state.in_flight >= IN_FLIGHT_MAX:
                state.room = trio.Event()
                await state.room.wait()
            message = Message(TOPIC, line, tags=tag_of(line), keys=[str(number)])
            state.in_flight += 1
            state.history.sent += 1
            producer.send_nowait(message, partial(state.on_outcome, number))
            if number % 64 == 0:
                await trio.lowlevel.checkpoint()
        await producer.flush()


async def _kill_leader_halfway(state: _DemoState, cluster: DevCluster, announce: partial[None]) -> tuple[str, float]:
    leader = await cluster.leader()
    while len(state.history.acknowledgements) < len(state.text) // 2:
        await state.wait_progress()
    state.killed_port = cluster.port(leader)
    cluster.kill(leader)
    killed_at = trio.current_time()
    announce(
        f"killed the leader {leader} (SIGKILL) after {len(state.history.acknowledgements):,} acknowledged messages, "
        f"{state.in_flight} in flight"
    )
    return leader, killed_at


async def _watch_acknowledgements(state: _DemoState) -> None:
    """Raise ServersFailed if messages are in flight but none is acknowledged for some time."""
    while True:
        before = len(state.history.acknowledgements)
        await trio.sleep(STALLED_SECONDS_MAX)
        if state.in_flight and len(state.history.acknowledgements) == before:
            raise ServersFailed(
                f"none of {state.in_flight} messages in flight was acknowledged for {STALLED_SECONDS_MAX:g} s; "
                f"{before:,} of {len(state.text):,} were before"
            )


async def _wait_until_answered(state: _DemoState) -> float:
    while state.history.sent < len(state.text) or state.in_flight:
        await state.wait_progress()
    return state.last_ack_at


async def _wait_consumed(state: _DemoState) -> None:
    """Wait until everything acknowledged is consumed, or nothing more arrives: then the verdict reports the loss."""
    deliveries = -1
    while state.history.missing_count and state.history.deliveries != deliveries:
        deliveries = state.history.deliveries
        with trio.move_on_after(STALLED_SECONDS_MAX):
            while state.history.missing_count and state.history.deliveries == deliveries:
                await state.wait_progress()


async def _read_consumer(
    name: str, cluster: DevCluster, state: _DemoState, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    crcs = [zlib.crc32(line) for line in state.text]
    module = ["mq.cli.demo_consumer", cluster.namesrv, TOPIC, CONSUMER_GROUP]
    async with cluster.running_module(_log_name(name), module) as process:
        assert process.stdout is not None
        task_status.started()
        rest = b""
        async for chunk in process.stdout:
            *complete, rest = (rest + chunk).split(b"\n")
            for line in complete:
                message = parse_line(line)
                queue = Queue(message.broker_name, message.queue_id)
                intact = message.number < len(crcs) and crcs[message.number] == message.crc
                state.history.on_delivery(name, queue, message.queue_offset, message.number, intact=intact)
            state.progress.set()
    raise ServersFailed(f"{name} ended; its log is {cluster.log_path(_log_name(name))}")


def _log_name(consumer: str) -> str:
    return consumer.replace(" ", "-")


async def _show_progress(state: _DemoState, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=5) as progress:
        acknowledged_bar = progress.add_task("acknowledged", total=len(state.text))
        consumed_bar = progress.add_task("consumed", total=len(state.text))
        try:
            while True:
                progress.update(acknowledged_bar, completed=len(state.history.acknowledgements))
                progress.update(consumed_bar, completed=len(state.history.consumed))
                await trio.sleep(0.2)
        finally:
            progress.update(acknowledged_bar, completed=len(state.history.acknowledgements))
            progress.update(consumed_bar, completed=len(state.history.consumed))


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
