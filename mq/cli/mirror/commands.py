"""The commands of `raftmq mirror`, which copies another cluster until all clients have changed over."""

from __future__ import annotations

import json
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import trio
import typer

from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, lone_errors, run_trio
from mq.cli.mirror.clusters import ClusterAdmin, check_different
from mq.cli.mirror.copier import Copier, MirrorStopped
from mq.cli.mirror.copy_rate import MirrorFigures, Progress
from mq.cli.mirror.cut_over import CutOverReport, back_lines, cut_over, go_back, instructions
from mq.cli.mirror.plan import Choice
from mq.cli.mirror.setup import create_users, extend_mirror
from mq.cli.mirror.state import FORMAT, MirroredQueue, MirrorState
from mq.cli.mirror.state_file import load, lock_state, save
from mq.cli.mirror.verification import Comparison, verify
from mq.cli.output import Json, JsonLines, print_json
from mq.client.errors import ClientError
from mq.client.net.client_core import RemotingSettings, parse_addresses
from mq.client.net.credentials import Credentials
from mq.protocol.messages.records import StoredMessage

app = typer.Typer(
    help="Copy another cluster, and change over to raftmq.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

REFRESH_SECONDS: Final = 10.0
"""Seconds between two looks for new topics, queues and groups."""
SHOW_SECONDS: Final = (2.0, 30.0)
"""Seconds between two displays of the progress: on a terminal, and elsewhere."""

From = Annotated[
    str, typer.Option("--from", help="Name servers of the source, separated by semicolons.", metavar="HOST:PORT;...")
]
To = Annotated[str, typer.Option("--to", help="Name servers of the target, raftmq's.", metavar="HOST:PORT;...")]
State = Annotated[Path, typer.Option("--state", metavar="FILE", help="File with the state of this mirror.")]
STATE: Final = Path("raftmq-mirror.json")
SourceKeys = Annotated[
    Path | None,
    typer.Option(
        "--from-credentials",
        metavar="FILE",
        help="TOML file with access_key and secret_key for the source; else those of the target are used for both.",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topics", metavar="PATTERN", help="Only topics such as 'orders-*'; may be repeated."),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="Leave out these topics; may be repeated.")
]


@app.callback()
def mirror(
    context: typer.Context,
    source: From = "",
    target: To = "",
    topics: Topics = None,
    exclude: Exclude = None,
    state_file: State = STATE,
    once: Annotated[bool, typer.Option("--once", help="End when everything is copied.")] = False,
    compare: Annotated[
        bool, typer.Option("--verify", help="Copy nothing: compare counts and checksums of what was copied.")
    ] = False,
    skip_refused: Annotated[
        Path | None,
        typer.Option(
            "--skip-refused", metavar="FILE", help="Leave out messages that the target refuses, and list them in FILE."
        ),
    ] = None,
    users: Annotated[
        bool, typer.Option("--users", help="Also create the users of RocketMQ 5, with their passwords and policies.")
    ] = False,
    source_keys: SourceKeys = None,
    as_json: JsonLines = False,
) -> None:
    """Copy topics, consumer groups and messages of another cluster. It continues to copy until ctrl-C.

    Each message is stored exactly once, however often the command is stopped, killed and started again: start it with
    the same --state. The order in each queue is kept. Exit code 1 if a queue cannot go on, a topic cannot be taken up,
    or --verify finds a difference.
    """
    if context.invoked_subcommand is not None:
        return
    _check_addresses(source, target)
    choice = Choice(tuple(topics or ()), tuple(exclude or ()))

    async def main() -> bool:
        async with both(source, target, source_keys) as clusters:
            if compare:
                return await _verify(*clusters, state_file, as_json=as_json)
            return await _mirror(
                *clusters, state_file, choice, once=once, users=users, skip_refused=skip_refused, as_json=as_json
            )

    with nullcontext() if compare else lock_state(state_file), failures():
        good = run_trio(main)
    if not good:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def failures() -> Iterator[None]:
    """Turn errors of clients and of the mirror into a message and an exit code."""
    try:
        with client_errors():
            yield
    except MirrorStopped as error:
        raise CommandFailed(str(error), EXIT_FAILED) from error


def _check_addresses(source: str, target: str) -> None:
    for name, value in (("--from", source), ("--to", target)):
        if not value:
            raise CommandFailed(f"{name} is missing: the name servers, HOST:PORT")
    try:
        common = set(parse_addresses(source)) & set(parse_addresses(target))
    except ValueError as error:
        raise CommandFailed(str(error)) from error
    if common:
        raise CommandFailed(f"source and target are one cluster: both have the name server {min(common)}")


@asynccontextmanager
async def both(source: str, target: str, source_keys: Path | None) -> AsyncIterator[tuple[ClusterAdmin, ClusterAdmin]]:
    """Open both clusters. Raises CommandFailed if they are the same cluster, ClientError if one does not answer."""
    settings = RemotingSettings()
    try:
        ours = settings if source_keys is None else replace(settings, credentials=Credentials.from_file(source_keys))
    except OSError as error:
        raise CommandFailed(f"{source_keys}: {error.strerror}") from error
    async with (
        lone_errors(),
        ClusterAdmin(source, remoting=ours) as one,
        ClusterAdmin(target, remoting=settings) as other,
    ):
        await check_different(one, other)
        yield one, other


async def open_state(source: ClusterAdmin, target: ClusterAdmin, path: Path) -> MirrorState:
    """Return the state in the file, or a new one without a file. Raises CommandFailed, ClientError."""
    ours, theirs = [sorted((await each.cluster_info()).brokers) for each in (source, target)]
    state = load(path)
    if state is None:
        state = MirrorState(FORMAT, secrets.token_hex(8), ours, theirs)
        save(path, state)  # before anything is sent with its id
        return state
    for side, before, now in (("source", state.source, ours), ("target", state.target, theirs)):
        if not set(before) & set(now):
            raise CommandFailed(
                f"{path} is the state of a mirror with the {side} {', '.join(before)}, and this is {', '.join(now)}: "
                "name another file with --state"
            )
    state.source, state.target = sorted({*state.source, *ours}), sorted({*state.target, *theirs})
    return state


async def _verify(source: ClusterAdmin, target: ClusterAdmin, path: Path, *, as_json: bool) -> bool:
    state = load(path)
    if state is None:
        raise CommandFailed(f"{path} does not exist: nothing was mirrored with this state")

    def print_comparison(comparison: Comparison) -> None:
        print(json.dumps(comparison.fields()) if as_json else comparison_line(comparison), flush=True)

    results = await verify(source, target, state.queues, print_comparison)
    differences = [each for each in results if each.difference is not None]
    total = sum(each.compared for each in results)
    lag = sum(each.behind for each in results)
    deletions = sum(last - first for each in results for first, last in each.queue.gone)
    skips = sum(len(each.queue.skipped) for each in results)
    if not as_json:
        print(
            f"{total:,} messages in {len(results)} queues compared, {len(differences)} queues differ, "
            f"{lag:,} messages behind, {deletions:,} deleted at the source before they were copied, {skips:,} left out"
        )
    return not differences


def comparison_line(comparison: Comparison) -> str:
    """Format the comparison of one queue."""
    text = f"{comparison.queue}: {comparison.compared:,} equal, checksum {comparison.checksum}"
    if comparison.difference is not None:
        text = f"{comparison.queue}: DIFFERS after {comparison.compared:,} equal messages: {comparison.difference}"
    if comparison.expired:
        text += f", {comparison.expired:,} deleted since"
    if comparison.behind:
        text += f", {comparison.behind:,} behind"
    return text


async def _mirror(
    source: ClusterAdmin,
    target: ClusterAdmin,
    path: Path,
    choice: Choice,
    *,
    once: bool,
    users: bool,
    skip_refused: Path | None,
    as_json: bool,
) -> bool:
    show = Display(as_json=as_json)
    state = await open_state(source, target, path)
    state.wanted, state.unwanted = list(choice.patterns), list(choice.exclusions)
    if users:
        await create_users(source, target, show.print_line)
    copier = Copier(source, target, state, path, on_refusal=None if skip_refused is None else refusals(skip_refused))
    is_planned = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_signals, nursery.cancel_scope)
        nursery.start_soon(copier.save_forever)
        nursery.start_soon(_follow, source, target, state, copier, choice, nursery, show, is_planned)
        progress = Progress()
        while True:
            await trio.sleep(0.2 if once else show.seconds)
            figures = progress.add_sample(trio.current_time(), copier.copied_count, copier.known_behind)
            show.print_troubles(copier)
            is_done = is_planned.is_set() and copier.behind == 0
            if copier.copied_count or (is_planned.is_set() and copier.behind is not None):
                show.figures(figures, copier, final=once and is_done)
            if once and is_done:
                nursery.cancel_scope.cancel()
                break
    show.end(copier)
    return not copier.block_reasons and not copier.refusals


async def _follow(
    source: ClusterAdmin,
    target: ClusterAdmin,
    state: MirrorState,
    copier: Copier,
    choice: Choice,
    nursery: trio.Nursery,
    show: Display,
    is_planned: trio.Event,
) -> None:
    """Mirror the queues of the state, and those that appear at the source, until cancelled."""
    reported_topics: set[str] = set()
    said_ended: set[int] = set()
    is_first = True
    while True:
        try:
            extension = await extend_mirror(source, target, state, choice, show.print_line)
            for topic, why in extension.left_out.items():
                if topic not in reported_topics:
                    reported_topics.add(topic)
                    show.print_line(f"topic {topic} is left out: {why}")
            copier.on_state_change()
            copier.save()
            for queue in state.queues:
                if queue.number in extension.unreadable_queues and queue.number not in said_ended:
                    said_ended.add(queue.number)
                    show.print_line(
                        f"{queue} cannot be read at the source: the topic was deleted, or has fewer read queues. What "
                        "was copied of it stays"
                    )
            copier.unreadable_queues, copier.refusals = extension.unreadable_queues, extension.refusals
            for queue in state.queues:
                copier.start(queue, nursery)
        except (ClientError, CommandFailed) as error:
            if is_first:
                raise
            show.print_line(str(error))
        is_first = False
        is_planned.set()
        await trio.sleep(REFRESH_SECONDS)


async def _cancel_on_signals(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


def refusals(path: Path) -> Callable[[MirroredQueue, StoredMessage, str], None]:
    """Return a function that appends a message that was left out to a file, as one line of JSON."""

    def write_row(queue: MirroredQueue, message: StoredMessage, why: str) -> None:
        row = {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "offset": message.queue_offset,
            "message_id": message.properties.get("UNIQ_KEY") or message.offset_message_id,
            "bytes": message.size,
            "reason": why,
        }
        try:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise CommandFailed(f"{path}: {error.strerror}") from error

    return write_row


class Display:
    """Shows the progress of the mirror: on a terminal in one line, which is overwritten, else in repeated lines."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._is_terminal = sys.stderr.isatty() and not as_json
        self._printed_lines: set[str] = set()
        self._is_open = False
        self._shown_at = float("-inf")

    @property
    def seconds(self) -> float:
        """The number of seconds between two updates."""
        return SHOW_SECONDS[0]

    def print_line(self, text: str) -> None:
        """Print text on a line by itself, not over the progress."""
        self._close_line()
        print(f"raftmq mirror: {text}", file=sys.stderr, flush=True)

    def print_troubles(self, copier: Copier) -> None:
        """Print why queues are blocked, each reason once."""
        for text in (*copier.refusals.values(), *copier.troubles.values(), *copier.block_reasons.values()):
            if text not in self._printed_lines:
                self._printed_lines.add(text)
                self.print_line(text)

    def figures(self, figures: MirrorFigures, copier: Copier, *, final: bool = False) -> None:
        """Print the progress, at most once per interval."""
        now = trio.current_time()
        interval = SHOW_SECONDS[0] if self._is_terminal or self._as_json else SHOW_SECONDS[1]
        if not final and now - self._shown_at < interval:
            return
        self._shown_at = now
        if self._as_json:
            row = {
                "copied": figures.copied,
                "behind": figures.behind,
                "messages_per_second": round(figures.rate, 1),
                "eta_seconds": None if figures.eta_seconds is None else round(figures.eta_seconds, 1),
                "troubles": [*copier.refusals.values(), *copier.troubles.values()],
                "blocked": [*copier.block_reasons.values()],
            }
            print(json.dumps(row), flush=True)
        elif self._is_terminal:
            print(f"\r\x1b[K{figures.text()}", end="", file=sys.stderr, flush=True)
            self._is_open = True
        else:
            print(figures.text(), file=sys.stderr, flush=True)

    def end(self, copier: Copier) -> None:
        """Print why topics and queues were not copied to the end."""
        self._close_line()
        for text in (*copier.refusals.values(), *copier.block_reasons.values()):
            print(f"raftmq mirror: does not go on: {text}", file=sys.stderr, flush=True)

    def _close_line(self) -> None:
        if self._is_open:
            print(file=sys.stderr)
            self._is_open = False


@app.command("cut-over")
def cut_over_command(
    source: From = "",
    target: To = "",
    groups: Annotated[
        list[str] | None,
        typer.Option("--groups", metavar="PATTERN", help="Only consumer groups such as 'orders-*'; may be repeated."),
    ] = None,
    state_file: State = STATE,
    quiet: Annotated[
        float, typer.Option(min=0.0, help="Seconds for which no producer must have sent to the source.")
    ] = 5.0,
    producers_run: Annotated[
        bool, typer.Option("--producers-run", help="Move consumers although producers still send to the source.")
    ] = False,
    back: Annotated[
        bool, typer.Option("--back", help="Move back: store the groups' progress at the target in the source.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, but store no offset.")] = False,
    source_keys: SourceKeys = None,
    as_json: Json = False,
) -> None:
    """Copy the rest, and move consumer groups over. It moves their offsets, and prints what each team does next.

    Stop `raftmq mirror`, the consumers, and the producers of the source first. Exit code 1, and nothing is changed, if
    consumers run, or producers still send. Offsets that a group has passed at the target are kept.
    """
    _check_addresses(source, target)
    choice = Choice(tuple(groups or ()))

    async def main() -> CutOverReport:
        async with both(source, target, source_keys) as clusters:
            if load(state_file) is None:
                raise CommandFailed(f"{state_file} does not exist: run `raftmq mirror` first, or name its --state")
            state = await open_state(*clusters, state_file)
            if back:
                return await go_back(*clusters, state, groups=choice, dry_run=dry_run)
            return await cut_over(
                *clusters,
                state,
                state_file,
                groups=choice,
                quiet_seconds=quiet,
                producers_run=producers_run,
                dry_run=dry_run,
                say=lambda text: print(f"raftmq mirror: {text}", file=sys.stderr, flush=True),
            )

    with lock_state(state_file), failures():
        report = run_trio(main)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "back": back,
                "copied": report.copied_count,
                "waiting": report.waiting_count,
                "offsets": [
                    {
                        "group": move.group,
                        "topic": move.origin.topic,
                        "broker": move.origin.broker_name,
                        "queue": move.origin.queue_id,
                        "offset": move.offset,
                        "new_broker": move.goal.broker_name,
                        "new_queue": move.goal.queue_id,
                        "new_offset": move.goal_offset,
                        "stored": move in report.moves and not dry_run,
                    }
                    for move in (*report.moves, *report.useless_moves)
                ],
            }
        )
        return
    for line in back_lines(report, source) if back else instructions(report, source, target, dry_run=dry_run):
        print(line)
