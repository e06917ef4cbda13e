"""Upgrades a group of three from an earlier version, one replica after the other, while the SDK sends.

The earlier version is built from a tag or commit of this repository into a separate virtual environment. The steps:

1. all replicas of the earlier version; 2. one of this version, which stays so for a while, like an upgrade abandoned
half way; 3. that one of the earlier version again; 4. all of this version, followers first; each is stopped when
`raftmq group upgrade-check` would allow it; 5. one of the earlier version once more, which must refuse to start, or be
refused by the others, now that the level has risen.

Exit code 1 unless every send succeeded, and every message that was stored is there. With ``--write`` the figures are
written into docs/upgrade.md.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import trio

from benchmarks.procfs import load_average, machine
from benchmarks.report.run_record import replace_section
from mq.cli.upgrade_verdict import UpgradeReport, upgrade_report
from mq.client import Admin, Message, Producer, PushConsumer
from mq.client.errors import ClientError
from mq.local_cluster import DevCluster, Ports

TOPIC = "Upgrade"
QUEUES = 8
TICK_SECONDS = 0.01
PATIENCE_SECONDS = 120.0
HALF_WAY_SECONDS = 5.0
QUIET_SECONDS = 3.0
"""Reading is complete when nothing has arrived for so long."""


DOCUMENT = Path(__file__).parents[2] / "docs" / "upgrade.md"
MARKS = (
    "<!-- measured by `python -m benchmarks.failover.rolling_upgrade`: begin -->",
    "<!-- measured by `python -m benchmarks.failover.rolling_upgrade`: end -->",
)
PAUSE_GOAL_MS = 300.0


class UpgradeFailed(Exception):
    """The upgrade of the group did not complete; the message says why."""


class Load:
    """Sends ``rate`` messages a second, and records the outcomes.

    At most a second's worth are in flight; beyond that it sends fewer, so that this process can still observe the
    group.
    """

    def __init__(self, producer: Producer, rate: int) -> None:
        self._producer = producer
        self._rate = rate
        self._numbers = itertools.count()
        self._under_way = 0
        self.sends: list[tuple[bytes, float, float]] = []
        """Body, when the send began, and when it was acknowledged; seconds."""
        self.errors: list[str] = []

    async def run(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        """Send until the scope passed to ``task_status`` is cancelled. Then wait for the sends in flight."""
        async with trio.open_nursery() as sends:
            with trio.CancelScope() as scope:
                task_status.started(scope)
                start, count = trio.current_time(), 0
                while True:
                    due = int((trio.current_time() - start) * self._rate)
                    for _ in range(min(due - count, self._rate - self._under_way)):
                        self._under_way += 1
                        sends.start_soon(self._send, b"%d" % next(self._numbers))
                    count = due
                    await trio.sleep(TICK_SECONDS)

    async def _send(self, body: bytes) -> None:
        start = trio.current_time()
        try:
            await self._producer.send(Message(TOPIC, body), timeout=30)
        except ClientError as error:
            self.errors.append(str(error))
        else:
            self.sends.append((body, start, trio.current_time()))
        finally:
            self._under_way -= 1

    def longest_pause(self, begin: float, end: float) -> float:
        """Return the longest time without an acknowledgement between ``begin`` and ``end``, in seconds."""
        times = [begin, *sorted(at for _, _, at in self.sends if begin <= at <= end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@dataclass(slots=True)
class UpgradeStep:
    """One restart of a replica with the other version. ``pause_ms``: the longest time without an acknowledgement."""

    what: str
    seconds: float
    pause_ms: float
    failed: int


@dataclass(slots=True)
class SendOutcomes:
    """The outcomes of all sends. ``waits_ms``: times until acknowledgement, in ascending order."""

    steps: list[UpgradeStep] = field(default_factory=list)
    seconds: float = 0.0
    sent: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    twice: int = 0
    waits_ms: list[float] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether no send failed and no message was lost."""
        return not self.failed and not self.lost

    def lines(self) -> list[str]:
        """Describe the outcomes in lines for a terminal."""
        waits = self.waits_ms
        p99 = waits[len(waits) * 99 // 100]
        return [
            f"{self.sent:,} sends in {self.seconds:.0f} s, {self.sent / self.seconds:,.0f} a second, "
            f"{self.failed.total()} failed; {self.lost} messages lost, {self.twice} stored more than once.",
            f"A send took {waits[len(waits) // 2]:.1f} ms at the median, {p99:.0f} ms at the 99th percentile "
            f"(goal: less than {PAUSE_GOAL_MS:.0f} ms, {'met' if p99 < PAUSE_GOAL_MS else 'missed'}), "
            f"{waits[-1]:.0f} ms at most.",
        ]

    def section(self, *, command: str, earlier: str, load: float) -> str:
        """Write the section of the document."""
        rows = [f"| {s.what} | {s.seconds:.1f} s | {s.pause_ms:.0f} ms | {s.failed} |" for s in self.steps]
        return "\n".join(
            [
                f"Command: `{command}`. Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Load average before: {load:.1f}.",
                f"Machine: {machine()}; all replicas and the client share it.",
                f"Earlier version: {earlier}.",
                "",
                "| step | until the group was safe again | longest time without an acknowledgement | failed sends |",
                "|---|---:|---:|---:|",
                *rows,
                "",
                *self.lines(),
            ]
        )


def build(reference: str, directory: Path) -> Path:
    """Check out ``reference``, and build it with its own virtual environment. Returns its path."""
    archive = subprocess.run(["git", "archive", reference], check=True, stdout=subprocess.PIPE).stdout
    checkout = directory / "earlier"
    checkout.mkdir()
    subprocess.run(["tar", "-x", "-C", str(checkout)], check=True, input=archive)
    subprocess.run([str(checkout / "deploy" / "setup-venv.sh")], check=True, stdout=subprocess.DEVNULL)
    return checkout


def last_tag() -> str:
    """Return the last tag of this repository. Raises UpgradeFailed without one."""
    process = subprocess.run(["git", "describe", "--tags", "--abbrev=0"], check=False, capture_output=True, text=True)
    if process.returncode:
        raise UpgradeFailed("this repository has no tag: say which version to begin with, --from REF")
    return process.stdout.strip()


async def report_of(cluster: DevCluster) -> UpgradeReport | None:
    """Return the report as `raftmq group upgrade-check` makes it; None if the group's status cannot be read."""
    try:
        status = await cluster.status()
    except ClientError:
        return None
    return None if status is None else upgrade_report(status)


async def safe_report(cluster: DevCluster) -> UpgradeReport:
    """Wait until the report says that a member may be stopped, and return it. Raises UpgradeFailed on timeout."""
    report: UpgradeReport | None = None
    with trio.move_on_after(PATIENCE_SECONDS):
        while report is None or not report.safe:
            cluster.check()
            await trio.sleep(0.1)
            report = await report_of(cluster)
        return report
    raise UpgradeFailed(f"no member may be stopped after {PATIENCE_SECONDS:g} s: {report and report.reason}")


class Upgrade:
    """Executes the steps of the upgrade, and prints a line of figures about each."""

    def __init__(self, cluster: DevCluster, load: Load, earlier: Path) -> None:
        self._cluster = cluster
        self._load = load
        self._earlier = earlier
        self.steps: list[UpgradeStep] = []

    async def run(self) -> None:
        """Run all steps. Raises UpgradeFailed."""
        report = await safe_report(self._cluster)
        first = next(member.node_id for member in report.members if member.role != "leader")
        await self._step(f"{first} to this version", first, None)
        await trio.sleep(HALF_WAY_SECONDS)
        await self._check_level(1, "half way")
        await self._step(f"{first} back to the earlier version", first, self._earlier)
        node_ids: set[str] = set()
        while len(node_ids) < len(self._cluster.node_ids):
            report = await safe_report(self._cluster)
            later_members = [member for member in report.members if member.node_id not in node_ids]
            next_node = min(later_members, key=lambda member: (member.role == "leader", member.node_id)).node_id
            await self._check_level(1, f"before {next_node}")
            await self._step(f"{next_node} ({'leader' if next_node == report.leader else 'follower'})", next_node, None)
            node_ids.add(next_node)
        with trio.move_on_after(PATIENCE_SECONDS):
            while (await safe_report(self._cluster)).format_level == 1:  # noqa: ASYNC110 - other processes
                await trio.sleep(0.1)
        level = (await safe_report(self._cluster)).format_level
        print(f"format level {level} on all replicas")
        if level == 1:
            raise UpgradeFailed("the format level did not rise")
        await self._too_late(first)

    async def _step(self, what: str, node_id: str, checkout: Path | None) -> None:
        cluster, load = self._cluster, self._load
        await safe_report(cluster)
        begin, failures_before = trio.current_time(), len(load.errors)
        await cluster.stop(node_id)
        cluster.checkout = checkout
        await cluster.start(node_id)
        await cluster.wait_ready()
        await safe_report(cluster)
        end = trio.current_time()
        step = UpgradeStep(what, end - begin, 1000 * load.longest_pause(begin, end), len(load.errors) - failures_before)
        self.steps.append(step)
        print(
            f"{what}: {step.seconds:.1f} s, longest pause {step.pause_ms:.0f} ms, {step.failed} failed sends",
            flush=True,
        )

    async def _check_level(self, level: int, when: str) -> None:
        report = await safe_report(self._cluster)
        if report.format_level != level:
            raise UpgradeFailed(f"format level {report.format_level} {when}, {level} was expected")

    async def _too_late(self, node_id: str) -> None:
        """Check that a downgrade is now refused, and that upgrading again works."""
        cluster = self._cluster
        await safe_report(cluster)
        await cluster.stop(node_id)
        cluster.checkout = self._earlier
        await cluster.start(node_id)
        log = cluster.log_path(node_id)
        texts = ("format level", "unknown parts")
        with trio.move_on_after(PATIENCE_SECONDS):
            while not (lines := _lines_with(texts, log)):  # noqa: ASYNC110 - another process
                await trio.sleep(0.1)
        if not lines:
            raise UpgradeFailed(f"{node_id} went back to the earlier version after the level had risen")
        print(f"{node_id} cannot go back any more: {lines[-1][:300]}")
        await cluster.stop(node_id)
        cluster.checkout = None
        await cluster.start(node_id)
        await cluster.wait_ready()
        await safe_report(cluster)


def _lines_with(words: tuple[str, ...], log: Path) -> list[str]:
    return [line for line in log.read_text(errors="replace").splitlines() if any(word in line for word in words)]


async def read_all(namesrv: str, count: int) -> Counter[bytes]:
    """Read the topic until nothing more arrives. Returns the number of copies of each body."""
    counts: Counter[bytes] = Counter()
    consumer = PushConsumer(namesrv, "check", consume_from="first")
    consumer.subscribe(TOPIC)
    async with consumer:
        messages = aiter(consumer)
        while True:
            with trio.move_on_after(QUIET_SECONDS if len(counts) >= count else 10 * QUIET_SECONDS) as quiet:
                message = await anext(messages)
                counts[message.body] += 1
            if quiet.cancelled_caught:
                return counts


async def measure(directory: Path, earlier: Path, rate: int) -> SendOutcomes:
    """Run the upgrade, and print figures."""
    outcome = SendOutcomes()
    async with DevCluster.open(directory, ports=Ports.free(3), checkout=earlier) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        async with Producer(cluster.namesrv) as producer, trio.open_nursery() as nursery:
            load = Load(producer, rate)
            scope = await nursery.start(load.run)
            start = trio.current_time()
            upgrade = Upgrade(cluster, load, earlier)
            await upgrade.run()
            outcome.seconds = trio.current_time() - start
            scope.cancel()
        counts = await read_all(cluster.namesrv, len(load.sends))
    outcome.steps = upgrade.steps
    outcome.sent = len(load.sends) + len(load.errors)
    outcome.failed = Counter(load.errors)
    outcome.lost = sum(body not in counts for body, _, _ in load.sends)
    outcome.twice = sum(count - 1 for count in counts.values())
    outcome.waits_ms = sorted(1000 * (end - begin) for _, begin, end in load.sends)
    print("\n".join(outcome.lines()))
    for text, count in outcome.failed.most_common(5):
        print(f"{count} times: {text}")
    return outcome


def describe_commit(reference: str) -> str:
    """Return a commit's short hash with its date."""
    command = ["git", "log", "-1", "--date=short", "--format=%h of %ad", reference]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Execute the command. Returns 1 if a send failed or a message is lost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--from", dest="reference", metavar="REF", help="tag or commit; default: the last tag")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second, default 1000")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/upgrade.md")
    options = parser.parse_args()
    load = load_average()
    try:
        reference = options.reference or last_tag()
        with tempfile.TemporaryDirectory(prefix="raftmq-upgrade-") as directory:
            print(f"building {reference}", flush=True)
            earlier = build(reference, Path(directory))
            outcome = trio.run(measure, Path(directory) / "group", earlier, options.rate)
    except UpgradeFailed as error:
        print(f"rolling upgrade: {error}", file=sys.stderr)
        return 1
    if options.write:
        command = "python -m benchmarks.failover.rolling_upgrade " + " ".join(sys.argv[1:])
        section = outcome.section(command=command, earlier=describe_commit(reference), load=load)
        DOCUMENT.write_text(replace_section(DOCUMENT.read_text(), section, *MARKS))
        print("wrote docs/upgrade.md")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
