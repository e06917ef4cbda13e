"""Measures for how long a client with default settings cannot write when a leader fails.

A producer sends a message of 100 bytes every 5 ms to a group of three real brokers throughout. Unavailability is the
longest time between two acknowledgements around the event; 5 ms of it is the send interval. Events: the leader is
killed (SIGKILL; the kernel closes its connections), the leader is cut off (its packets are dropped silently, those to
clients included), a follower is killed and stays down, leadership is transferred by the operator's command, and a
rolling restart (SIGTERM, restart, wait until it has caught up; node after node). After each fault the recovery time
until all replicas have caught up is measured, from the moment of healing. Brokers run in network namespaces of one
machine; fsync is real. Not measured: networks with delay, several machines, a loaded group, other clients.

``python -m benchmarks.failover`` (``make bench-failover``); options: see ``--help``. Needs root, iproute2, nftables.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
import tempfile
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path

import trio

from benchmarks.failover.cluster import open_failover_cluster, wait_in_step
from benchmarks.failover.report import Events, markdown
from benchmarks.procfs import load_average
from benchmarks.report.run_record import RunRecord
from jepsen.deployments.cluster import ROOT, Cluster, ClusterFailed
from jepsen.deployments.netns import Networks, unavailable
from mq.cli.errors import run_trio
from mq.client import Message, Producer
from mq.client.admin import Admin
from mq.client.errors import ClientError, ProducerBusy
from mq.client.message import SendResult
from mq.protocol.message_ids import parse_offset_message_id

TOPIC = "failover"
BODY = bytes(100)
PACE_SECONDS = 0.005
STEADY_SECONDS = 1.0
AWAY_SECONDS = 5.0
"""Seconds for which a follower stays down."""
RECOVERY_SECONDS_MAX = 60.0


Try = Callable[[], Awaitable[float]]


class Arguments(argparse.Namespace):
    """The command line."""

    tries: int
    rounds: int
    only: list[str]
    dir: Path | None
    no_write: bool


@dataclass(slots=True)
class Sends:
    """The outcomes of messages: when each was acknowledged, and the broker that acknowledged last."""

    sent: int = 0
    acknowledged_at: list[float] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    host: str = ""
    host_since: float = 0.0
    begin_event: trio.Event = field(default_factory=trio.Event)

    def on_outcome(self, outcome: SendResult | ClientError) -> None:
        """Record the producer's result for one message."""
        if not isinstance(outcome, SendResult):
            name = type(outcome).__name__
            self.failures[name] = self.failures.get(name, 0) + 1
            return
        now = trio.current_time()
        self.acknowledged_at.append(now)
        self.begin_event.set()
        host = parse_offset_message_id(outcome.offset_message_id).ip
        if host != self.host:
            self.host, self.host_since = host, now

    def longest_gap(self, since: float) -> float:
        """Return the longest time between two acknowledgements, from the last one before ``since`` on."""
        times = self.acknowledged_at[max(bisect_left(self.acknowledged_at, since) - 1, 0) :]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


@dataclass(slots=True)
class Bench:
    """A cluster, and a producer that sends without a pause."""

    cluster: Cluster
    networks: Networks
    sends: Sends
    recoveries: list[float] = field(default_factory=list)
    """Seconds from each healing until all replicas had caught up."""

    @property
    def leader(self) -> str:
        """The broker that acknowledged the newest message."""
        return next(n for n in self.cluster.nodes if self.networks.clients_reach(n)[0] == self.sends.host)

    async def around(self, event: Callable[[], Awaitable[object]], *, moves: bool) -> float:
        """Measure the unavailability around ``event``. ``moves``: whether another node must acknowledge afterwards."""
        await wait_in_step(self.cluster)
        await trio.sleep(STEADY_SECONDS)
        before, since = self.sends.host, trio.current_time()
        await event()
        with trio.move_on_after(RECOVERY_SECONDS_MAX):
            while True:
                await trio.sleep(0.05)
                now, newest = trio.current_time(), self.sends.acknowledged_at[-1]
                moved_at = since if not moves else self.sends.host_since if self.sends.host != before else now
                if now - moved_at > STEADY_SECONDS and now - newest < STEADY_SECONDS:
                    return self.sends.longest_gap(since)
        raise ClusterFailed(f"no acknowledgement by another leader within {RECOVERY_SECONDS_MAX:g} s")

    async def measure_kill(self) -> float:
        """Kill the leader and restart it. Returns the unavailability in seconds."""
        leader = self.leader

        async def kill() -> None:
            await self.cluster.end(leader, signal.SIGKILL)

        gap = await self.around(kill, moves=True)
        await self.cluster.start(leader)
        await self._recover()
        return gap

    async def follower_gone(self) -> float:
        """Kill a follower and restart it after a while. Returns the unavailability in seconds."""
        follower = next(node for node in self.cluster.nodes if node != self.leader)

        async def leave() -> None:
            await self.cluster.end(follower, signal.SIGKILL)
            await trio.sleep(AWAY_SECONDS)

        gap = await self.around(leave, moves=False)
        await self.cluster.start(follower)
        await self._recover()
        return gap

    async def _recover(self) -> None:
        start = trio.current_time()
        await wait_in_step(self.cluster)
        self.recoveries.append(trio.current_time() - start)

    async def cut_off(self) -> float:
        """Cut the leader off the network for a while. Returns the unavailability in seconds."""
        leader = self.leader
        gap = await self.around(partial(self.networks.cut_off, leader), moves=True)
        await self.networks.heal()
        await self._recover()
        return gap

    async def measure_transfer(self) -> float:
        """Transfer leadership by a command. Returns the unavailability in seconds. Raises ClusterFailed."""

        async def transfer() -> None:
            process = await self.cluster.command("group", "transfer", "--namesrv", self.cluster.namesrv)
            if process.returncode:
                raise ClusterFailed(f"raftmq group transfer: {process.stderr.decode(errors='replace').strip()}")

        return await self.around(transfer, moves=True)

    async def measure_restart(self, node: str) -> float:
        """Stop and restart a node, and wait until it has caught up. Returns the unavailability in seconds."""

        async def restart() -> None:
            await self.cluster.end(node, signal.SIGTERM)
            await self.cluster.start(node)
            await wait_in_step(self.cluster)

        return await self.around(restart, moves=False)


@asynccontextmanager
async def open_bench(directory: Path) -> AsyncIterator[Bench]:
    """Run a cluster and a producer. Raises ClusterFailed, ClientError, OSError."""
    async with open_failover_cluster(directory) as (cluster, networks):
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(TOPIC, read_queues=4, write_queues=4)
        bench = Bench(cluster, networks, Sends())
        async with (
            Producer(cluster.namesrv, "failover_bench") as producer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_send, producer, bench.sends)
            await bench.sends.begin_event.wait()
            yield bench
            nursery.cancel_scope.cancel()


async def _send(producer: Producer, sends: Sends) -> None:
    due = trio.current_time()
    while True:
        sends.sent += 1
        try:
            producer.send_nowait(Message(TOPIC, BODY), sends.on_outcome)
        except ProducerBusy:
            sends.failures["ProducerBusy"] = sends.failures.get("ProducerBusy", 0) + 1
        due = max(due + PACE_SECONDS, trio.current_time())
        await trio.sleep_until(due)


async def run(args: Arguments, directory: Path) -> list[Events]:
    """Measure all events of the plan. Raises ClusterFailed, ClientError, OSError."""
    all_events = []
    async with open_bench(directory) as bench:
        restarts: list[Try] = [partial(bench.measure_restart, node) for node in bench.cluster.nodes]
        events: list[tuple[str, float | None, float, list[Try]]] = [
            ("leader killed", 0.5, 2.0, [bench.measure_kill] * args.tries),
            ("leader cut off", 2.5, 5.0, [bench.cut_off] * args.tries),
            ("follower gone", None, 5.0, [bench.follower_gone] * args.tries),
            ("transfer", 0.1, 0.1, [bench.measure_transfer] * args.tries),
            ("rolling restart", None, 4.0, restarts * args.rounds),
        ]
        for name, p50_goal, max_goal, tries in events:
            if args.only and not any(word in name for word in args.only):
                continue
            event = Events(name, p50_goal, max_goal, load_average())
            failed_before, sent_before = sum(bench.sends.failures.values()), bench.sends.sent
            bench.recoveries.clear()
            for attempt in tries:
                event.gaps.append(await attempt())
                print(f"{name}: {event.gaps[-1]:.3f} s", flush=True)
            event.failed_sends = sum(bench.sends.failures.values()) - failed_before
            event.sends = bench.sends.sent - sent_before
            event.recoveries = list(bench.recoveries)
            all_events.append(event)
        await wait_in_step(bench.cluster)
    return all_events


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-failover", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=20, help="of each event")
    parser.add_argument("--rounds", type=int, default=2, help="rolling restarts of all three nodes")
    parser.add_argument("--only", action="append", default=[], help="only events with this word (repeatable)")
    parser.add_argument("--dir", type=Path, help="where the brokers keep their data; default: the system's temporary")
    parser.add_argument("--no-write", action="store_true", help="print only")
    return parser.parse_args(arguments, namespace=Arguments())


def main() -> None:
    """Measure, print, and write docs/reports/failover.md and benchmarks/results/."""
    args = parse_arguments(sys.argv[1:])
    if (reason := unavailable()) is not None:
        print(f"bench-failover: {reason}", file=sys.stderr)
        sys.exit(1)
    with tempfile.TemporaryDirectory(prefix="raftmq-failover-", dir=args.dir) as directory:
        try:
            all_events = run_trio(partial(run, args, Path(directory)))
        except (ClusterFailed, ClientError, OSError) as error:
            print(f"bench-failover: {error}", file=sys.stderr)
            sys.exit(1)
    record = RunRecord("failover")
    versions = ", ".join(f"{name} {version(name)}" for name in ("raftmq", "trio", "anyio"))
    machine = f"{record.machine}; {versions}"
    text = markdown(all_events, command=record.command, machine=machine, date=record.date)
    print(text)
    if args.no_write:
        return
    (ROOT / "docs" / "reports").mkdir(exist_ok=True)
    (ROOT / "docs" / "reports" / "failover.md").write_text(text)
    record.keep(versions=versions, events=[asdict(each) for each in all_events])
    print("wrote docs/reports/failover.md")


if __name__ == "__main__":
    main()
