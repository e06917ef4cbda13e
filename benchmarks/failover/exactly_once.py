"""Tests whether delayed and transactional messages become visible exactly once while leaders are killed.

Three brokers; every 10 s the leader is killed (SIGKILL) and restarted 3 s later. Meanwhile our producers send 200,000
delayed messages (half of them with a delay level, half with a delivery time) and 20,000 transactions, each message with
a unique value and none sent twice. Then the topics are read and compared with the results that the producers got:

- acknowledged: visible exactly once; a transaction if it was committed, even if only in a check-back;
- rolled back: never visible;
- of unknown outcome: at most once; refused: never.

``python -m benchmarks.failover.exactly_once`` (``make bench-exactly-once``) writes docs/reports/exactly-once.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path

import trio

from benchmarks.procfs import load_average, machine
from benchmarks.suites.case_load import ROOT
from mq.cli.errors import run_trio
from mq.client import Admin, Message, Producer, PullConsumer, TransactionProducer
from mq.client.errors import ClientError, SendOutcomeUnknown
from mq.client.message import SendResult
from mq.local_cluster import DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK

KILL_EVERY_SECONDS = 10.0
DOWN_SECONDS = 3.0
DELAYED_PER_SECOND = 1500
TRANSACTIONS_PER_SECOND = 150
QUEUES = 8
SETTINGS = ANY_DISK | {"transaction_timeout_seconds": "3", "transaction_check_seconds": "5"}
DRAIN_SECONDS_MAX = 180.0
QUIET_SECONDS = 3.0
DELAYED, TIMED, TRANSACTIONS = "OnceDelayed", "OnceTimed", "OnceTransactions"


class Fate(Enum):
    """The number of copies of a message that may become visible."""

    ONCE = "once"
    MAYBE = "at most once"
    NEVER = "never"


@dataclass(slots=True)
class Ledger:
    """Compares the expected fate of each message of a topic with the copies that became visible."""

    topic: str
    fates: dict[bytes, Fate] = field(default_factory=dict)
    seen: Counter[bytes] = field(default_factory=Counter)

    def count(self, fate: Fate) -> int:
        """Return the number of messages with this expected fate."""
        return sum(each is fate for each in self.fates.values())

    @property
    def missing_messages(self) -> list[bytes]:
        """The messages that are not visible, but must be."""
        return [value for value, fate in self.fates.items() if fate is Fate.ONCE and not self.seen[value]]

    @property
    def duplicates(self) -> list[bytes]:
        """The messages that are visible more than once."""
        return [value for value, count in self.seen.items() if count > 1]

    @property
    def phantoms(self) -> list[bytes]:
        """The messages that are visible, but must not be."""
        return [value for value in self.seen if self.fates.get(value, Fate.NEVER) is Fate.NEVER]

    @property
    def is_good(self) -> bool:
        """Whether every message has its expected fate."""
        return not (self.missing_messages or self.duplicates or self.phantoms)


class Arguments(argparse.Namespace):
    """The command line."""

    delayed: int
    transactions: int
    dir: Path | None
    no_write: bool


@dataclass(slots=True)
class ExactlyOnceRun:
    """The messages that a run sent, and the kills of leaders."""

    args: Arguments
    ledgers: Mapping[str, Ledger] = field(
        default_factory=lambda: {topic: Ledger(topic) for topic in (DELAYED, TIMED, TRANSACTIONS)}
    )
    kills: int = 0
    rolled_back: int = 0
    committed: int = 0
    left_open: int = 0
    checks: int = 0
    seconds: float = 0.0
    load_average: float = 0.0


async def kill_leaders(cluster: DevCluster, run: ExactlyOnceRun) -> None:
    """Kill the leader repeatedly until cancelled; afterwards all brokers run."""
    down: str | None = None
    try:
        while True:
            await trio.sleep(KILL_EVERY_SECONDS - DOWN_SECONDS)
            down = await cluster.leader()
            cluster.kill(down)
            run.kills += 1
            await trio.sleep(DOWN_SECONDS)
            await cluster.start(down)
            down = None
    finally:
        if down is not None:
            with trio.CancelScope(shield=True):
                await cluster.start(down)


async def send_delayed(producer: Producer, run: ExactlyOnceRun) -> None:
    """Send delayed messages at a steady rate."""
    by_level, by_time = run.ledgers[DELAYED], run.ledgers[TIMED]

    def on_outcome(ledger: Ledger, body: bytes, outcome: SendResult | ClientError) -> None:
        if isinstance(outcome, SendResult):
            ledger.fates[body] = Fate.ONCE
        else:
            ledger.fates[body] = Fate.MAYBE if isinstance(outcome, SendOutcomeUnknown) else Fate.NEVER

    begin = trio.current_time()
    async with trio.open_nursery() as nursery:
        limit = trio.CapacityLimiter(4096)

        async def send(number: int) -> None:
            ledger = by_time if number % 2 else by_level
            body = b"%s-%d" % (ledger.topic.encode(), number)
            ledger.fates[body] = Fate.MAYBE
            if number % 2:
                due_ms = time.time_ns() // 1_000_000 + 1000 + number % 9000
                message = Message(ledger.topic, body, deliver_at=due_ms)
            else:
                message = Message(ledger.topic, body, delay_level=1 + number // 2 % 2)
            outcome: SendResult | ClientError
            try:
                outcome = await producer.send(message)
            except ClientError as error:
                outcome = error
            finally:
                limit.release_on_behalf_of(number)
            on_outcome(ledger, body, outcome)

        for number in range(run.args.delayed):
            await trio.sleep_until(begin + number / DELAYED_PER_SECOND)
            await limit.acquire_on_behalf_of(number)
            nursery.start_soon(send, number)


async def send_transactions(producer: TransactionProducer, run: ExactlyOnceRun) -> None:
    """Send transactions at a steady rate. Of ten, six are committed, two rolled back, two left to a check-back."""
    ledger = run.ledgers[TRANSACTIONS]
    begin = trio.current_time()

    async def send(number: int) -> None:
        body = b"%d" % number
        commits = should_commit(body)
        ledger.fates[body] = Fate.MAYBE if commits else Fate.NEVER
        try:
            async with producer.transaction(Message(TRANSACTIONS, body)) as transaction:
                ledger.fates[body] = Fate.ONCE if commits else Fate.NEVER
                if number % 10 in (3, 8):
                    run.left_open += 1
                    transaction.leave_open()
                elif commits:
                    run.committed += 1
                else:
                    run.rolled_back += 1
                    transaction.rollback()
        except ClientError as error:
            if ledger.fates[body] is not Fate.ONCE and commits and not isinstance(error, SendOutcomeUnknown):
                ledger.fates[body] = Fate.NEVER

    async with trio.open_nursery() as nursery:
        for number in range(run.args.transactions):
            await trio.sleep_until(begin + number / TRANSACTIONS_PER_SECOND)
            nursery.start_soon(send, number)


def should_commit(body: bytes) -> bool:
    """Whether to commit the transaction of this message."""
    return int(body) % 10 not in (1, 6, 8)


async def read_all(namesrv: str, ledger: Ledger) -> None:
    """Read the topic until no message is missing and none came for a while, or time is up. Raises ClientError."""
    async with PullConsumer(namesrv, "once_readers", consume_from="first") as consumer:
        await consumer.assign(await consumer.queues(ledger.topic))
        places: dict[tuple[int, int], bytes] = {}
        quiet_since = trio.current_time()
        with trio.move_on_after(DRAIN_SECONDS_MAX):
            while trio.current_time() < quiet_since + QUIET_SECONDS or ledger.missing_messages:
                messages = await consumer.poll(1024, timeout=0.5)
                for message in messages:
                    # A place that is read again is not a second copy.
                    if places.setdefault((message.queue.queue_id, message.queue_offset), message.body) == message.body:
                        continue
                    raise AssertionError(f"two messages at one place: {message!r}")
                ledger.seen = Counter(places.values())
                if messages:
                    quiet_since = trio.current_time()


async def play(args: Arguments, directory: Path) -> ExactlyOnceRun:
    """Execute the run. Raises ServersFailed, ClientError, OSError."""
    run = ExactlyOnceRun(args, load_average=load_average())
    begin = trio.current_time()

    async with DevCluster.open(directory, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            for topic in run.ledgers:
                await admin.create_topic(topic, QUEUES)

        async def check(message: object) -> bool | None:
            run.checks += 1
            return should_commit(message.body)  # type: ignore[attr-defined]

        async with (
            Producer(cluster.namesrv, "once_senders", retry_unknown=False, in_flight_max=8192) as producer,
            TransactionProducer(cluster.namesrv, "once_deciders", check=check) as decider,
        ):
            async with trio.open_nursery() as kill_nursery:
                kill_nursery.start_soon(kill_leaders, cluster, run)
                async with trio.open_nursery() as send_nursery:
                    send_nursery.start_soon(send_delayed, producer, run)
                    send_nursery.start_soon(send_transactions, decider, run)
                kill_nursery.cancel_scope.cancel()
            # The deciding producer stays: brokers check back with it about open transactions.
            async with trio.open_nursery() as read_nursery:
                for ledger in run.ledgers.values():
                    read_nursery.start_soon(read_all, cluster.namesrv, ledger)
        cluster.check()
    run.seconds = trio.current_time() - begin
    return run


def markdown(run: ExactlyOnceRun, *, command: str) -> str:
    """Write the page about the run."""
    lines = [
        "# Exactly once, measured",
        "",
        f"Written by `{command}` on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        f"Machine: {machine()}; servers and clients share it. Load average before: {run.load_average:.1f}.",
        "",
        f"In {run.seconds:,.0f} s the leader of three brokers was killed (SIGKILL) **{run.kills} times**, every",
        f"{KILL_EVERY_SECONDS:g} s, and started again {DOWN_SECONDS:g} s later. Each message was sent once; the",
        "result that the producer got decides how often it must be visible. A reader checked all queues at the end.",
        "",
        "| topic | acknowledged: once | unknown: at most once | refused or rolled back: never | visible "
        "| missing | twice | wrongly visible |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for ledger in run.ledgers.values():
        cells = [*(ledger.count(fate) for fate in Fate), len(ledger.seen)]
        cells += [len(each) for each in (ledger.missing_messages, ledger.duplicates, ledger.phantoms)]
        lines.append(f"| {ledger.topic} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    lines += [
        "",
        f"{DELAYED} waits by level 1 or 2, {TIMED} for a time of its own, 1 to 10 s away.",
        f"Of the transactions {run.committed:,} were committed, {run.rolled_back:,} rolled back, and",
        f"{run.left_open:,} left to check-back; the brokers checked back {run.checks:,} times.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Execute the run, and write docs/reports/exactly-once.md. Exit code 1 if a message has another fate."""
    parser = argparse.ArgumentParser(
        prog="make bench-exactly-once", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--delayed", type=int, default=200_000)
    parser.add_argument("--transactions", type=int, default=20_000)
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--no-write", action="store_true", help="leave docs/reports/exactly-once.md as it is")
    args = parser.parse_args(namespace=Arguments())
    with tempfile.TemporaryDirectory(prefix="raftmq-once-", dir=args.dir) as directory:
        try:
            run = run_trio(partial(play, args, Path(directory)))
        except (ServersFailed, ClientError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            sys.exit(1)
    words = " ".join(sys.argv[1:])
    page = markdown(run, command="make bench-exactly-once" + (f' ARGS="{words}"' if words else ""))
    print(page)
    for ledger in run.ledgers.values():
        for what in ("missing_messages", "duplicates", "phantoms"):
            if wrong := getattr(ledger, what):
                print(f"{ledger.topic}: {what}: {wrong[:8]}", file=sys.stderr)
    if not args.no_write:
        (ROOT / "docs" / "reports" / "exactly-once.md").write_text(page)
    sys.exit(0 if all(ledger.is_good for ledger in run.ledgers.values()) else 1)


if __name__ == "__main__":
    main()
