"""Measures how clients of a broker disturb one another. ``python -m benchmarks.fairness`` (``make bench-fairness``).

A producer and a push consumer of our client library pass 200 messages a second through three replicas, sent on schedule
regardless of responses, and record the time to the acknowledgement and to the callback of each. They run alone
(``alone``), or beside the other clients of `benchmarks.noisy_clients`, at the leader:

- ``many``: 6,000 topics of 16 queues and 10,000 consumer groups, 500 messages a second to all of their queues in turn.
- ``heartbeats``, ``subscriptions``, ``dialect``, ``pulls``: clients that request as much as they can.

``longest delay`` is the longest time that one action blocked all others at the leader: `raftmq.longestDelayMs` of its
runtime info. The replicas, the client and its neighbours share the cores of this machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import trio

from benchmarks.latency import share_of
from benchmarks.load.frames import TOPIC
from benchmarks.load.paced_client import PacedReport, run_paced_client
from benchmarks.load.paced_client import PacedSendJob as PacedJob
from benchmarks.noisy_clients import PULLED_BYTES, NeighbourJob, neighbours
from benchmarks.procfs import load_average
from benchmarks.pulling import fill
from benchmarks.suites.case_load import Arguments, Measure, Note
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.local_cluster import HOST, DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds

STEADY_TOPIC = "Steady"
RATE = 200
TOPICS = 6000
GROUPS = 10_000
SPREAD_RATE = 500
SECONDS = 30.0
MANY_SECONDS = 60.0
"""Long enough for several checkpoints, registrations at name servers and heartbeats of all groups."""
WAIT_MS = 100.0
_LOOK_SECONDS = 5.0


class _ReplicaWatch:
    """Observes the replicas: changes of the term since the first look at the leader, and its longest delay.

    A follower may learn of the term later.
    """

    def __init__(self, cluster: DevCluster, leader: str) -> None:
        self._cluster = cluster
        self._leader = leader
        self._first_term: int | None = None
        self.changes = 0
        self.delay_ms = 0.0

    async def sample(self, admin: Admin) -> None:
        """Count changes of the leader and note its longest delay once."""
        for node_id in self._cluster.node_ids:
            table = await admin.broker_runtime(self._cluster.address(node_id))
            term = int(table["raftmq.term"])
            if node_id == self._leader:
                if self._first_term is None:
                    self._first_term = term
                self.delay_ms = max(self.delay_ms, float(table["raftmq.longestDelayMs"]))
            if self._first_term is not None:
                self.changes = max(self.changes, term - self._first_term)

    async def run(self, admin: Admin) -> None:
        """Look periodically, until cancelled."""
        while True:
            with suppress(ClientError):  # a broker that does not respond shows in the figures
                await self.sample(admin)
            await trio.sleep(_LOOK_SECONDS)


@asynccontextmanager
async def _three(directory: Path) -> AsyncIterator[tuple[DevCluster, str]]:
    async with DevCluster.open(directory / "fair", nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(STEADY_TOPIC, 16)
        yield cluster, await cluster.leader()


async def _measure(
    case: str,
    cluster: DevCluster,
    leader: str,
    args: Arguments,
    note: Note,
    seconds: float,
    *,
    goal: float | None = WAIT_MS,
    beside: NeighbourJob | None = None,
) -> None:
    """Measure a steady client; its neighbours, if there are any, start when its warm-up is over."""
    seconds = args.seconds if args.quick else seconds
    job = PacedJob(cluster.namesrv, STEADY_TOPIC, RATE, args.warmup, seconds)
    reports: list[PacedReport] = []
    watch = _ReplicaWatch(cluster, leader)
    pid = cluster.pid(leader)
    load, cpu = load_average(), cpu_seconds(pid)
    begin = trio.current_time()
    async with Admin(cluster.namesrv) as admin, trio.open_nursery() as nursery:
        nursery.start_soon(watch.run, admin)
        if beside is not None:
            nursery.start_soon(_come_later, args.warmup, beside)
        reports.append(await run_paced_client(job))
        nursery.cancel_scope.cancel()
    cpu_share = (cpu_seconds(pid) - cpu) / (trio.current_time() - begin)
    cluster.check()
    async with Admin(cluster.namesrv) as admin:
        await watch.sample(admin)
    (report,) = reports
    for error in report.errors:
        print(f"{case}: a send failed: {error}", flush=True)
    for name, values in (("acknowledged", report.acknowledged), ("delivered", report.delivered)):
        values = values or [float("inf")]
        note(Figure(case, f"{name}, p50", 1e3 * share_of(values, 0.5), "ms"))
        note(Figure(case, f"{name}, p99", 1e3 * share_of(values, 0.99), "ms", goal))
        note(Figure(case, f"{name}, longest", 1e3 * max(values), "ms"))
    note(Figure(case, "not acknowledged, or not delivered", report.failed + report.missing, "", 0))
    note(Figure(case, "leader changes", watch.changes, "", 0))
    note(Figure(case, "longest delay at the leader", watch.delay_ms, "ms"))
    note(Figure(case, "CPU of the leader", 100 * cpu_share, "% of one"))
    note(Figure(case, "load average before", load, ""))


async def _come_later(seconds: float, job: NeighbourJob) -> None:
    await trio.sleep(seconds)
    async with neighbours(job):
        await trio.sleep_forever()


async def measure_alone(args: Arguments, directory: Path, note: Note) -> None:
    """Measure a client without other clients."""
    async with _three(directory) as (cluster, leader):
        await _measure("alone", cluster, leader, args, note, SECONDS, goal=None)


async def measure_many(args: Arguments, directory: Path, note: Note) -> None:
    """Measure a client beside clients of many topics, queues and groups."""
    part = 100 if args.quick else 1
    async with _three(directory) as (cluster, leader):
        job = NeighbourJob("groups", HOST, cluster.port(leader), TOPICS // part, GROUPS // part, SPREAD_RATE)
        begin = trio.current_time()
        async with neighbours(job):
            note(Figure("many", "setup of topics, groups and offsets", trio.current_time() - begin, "s"))
            if await cluster.leader() != leader:
                note(Figure("many", "leader changes during setup", 1, "", 0))
                leader = await cluster.leader()
            await _measure("many", cluster, leader, args, note, MANY_SECONDS)


async def measure_hostile(kind: str, args: Arguments, directory: Path, note: Note) -> None:
    """Measure a client beside clients that send as many requests as they can."""
    async with _three(directory) as (cluster, leader):
        if kind == "pulls":
            async with Admin(cluster.namesrv) as admin:
                await admin.create_topic(TOPIC, 1)
            address = (HOST, cluster.port(leader))
            await trio.to_thread.run_sync(partial(fill, address, 100, PULLED_BYTES, 1))
        beside = NeighbourJob(kind, HOST, cluster.port(leader))
        await _measure(kind, cluster, leader, args, note, SECONDS, beside=beside)


CASES: dict[str, Measure] = {
    "alone": measure_alone,
    "heartbeats": partial(measure_hostile, "heartbeats"),
    "subscriptions": partial(measure_hostile, "subscriptions"),
    "dialect": partial(measure_hostile, "dialect"),
    "pulls": partial(measure_hostile, "pulls"),
    "many": measure_many,
}
"""The cases; the longest is the last, since time may not suffice for it."""


FAIRNESS = Suite("fairness", __doc__, CASES)

if __name__ == "__main__":
    FAIRNESS.main()
