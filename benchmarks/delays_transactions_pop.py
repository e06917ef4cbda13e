"""Measures delays, timers, transactions and POP against their goals.

``python -m benchmarks.delays_transactions_pop`` (``make bench-delays-transactions-pop``).

- ``lateness``: see `benchmarks.lateness`.
- ``timers``: a broker with a million messages pending with delivery times: its memory, and how long it takes to
  lead again after a kill, from the start of the process until it is registered.
- ``transactions``: 64 half messages or ends of transactions in flight at any time, three replicas; the same with
  plain sends.
- ``pop``: one consumer on one connection, which pops 32 messages at a time from each of 8 queues and acknowledges
  them in a batch, three replicas.

Real processes and files, the default durability. Load comes from `benchmarks.load.dialogues`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from benchmarks.lateness import measure_lateness
from benchmarks.load.dialogues import DialogueJob, DialogueReport
from benchmarks.procfs import rss_bytes
from benchmarks.suites.case_load import (
    Arguments,
    Measure,
    Note,
    create_topics,
    one_broker,
    run_beside,
    send_messages,
)
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.client.admin import Admin
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK

IN_FLIGHT = 64
POP_MESSAGES = 3_000_000
_MINUTE_MS = 60_000


async def run_flows(cluster: DevCluster, node_id: str, job: DialogueJob) -> tuple[DialogueReport, float]:
    """Run the job in a separate process. Also returns the broker's CPU seconds over the windows."""
    report, cpu = await run_beside(
        "benchmarks.load.dialogues", cluster, job, DialogueReport, node_id, may_end_early=bool(job.total)
    )
    return report, sum(cpu)


def job_of(cluster: DevCluster, node_id: str, args: Arguments, kind: str, **more: Any) -> DialogueJob:
    """Return a job whose windows begin after the warm-up."""
    begin = time.clock_gettime(time.CLOCK_MONOTONIC) + args.sizes.connect_seconds + args.warmup
    fields: dict[str, Any] = {"connections": 4, "flows": IN_FLIGHT} | more
    address = ("127.0.0.1", cluster.port(node_id))
    return DialogueJob(address, kind, begin=begin, window_seconds=args.seconds, windows=args.windows, **fields)


@asynccontextmanager
async def three_brokers(directory: Path) -> AsyncIterator[tuple[DevCluster, str]]:
    """Run a group of three with the benchmark's topic. Also yields the leader."""
    async with DevCluster.open(directory, nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        yield cluster, leader


async def measure_timers(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the memory and the restart of a broker with many pending messages."""
    timer_count = args.sizes.timers // (100 if args.quick else 1)
    async with one_broker(directory / "timers") as cluster:
        await create_topics(cluster, 1)

        async def store(kind: str, total: int, **options: Any) -> None:
            await run_flows(cluster, "n0", job_of(cluster, "n0", args, kind, flows=1024, total=total, options=options))

        async def pending_count() -> int:
            async with Admin(cluster.namesrv) as admin:
                return int((await admin.broker_runtime(cluster.address("n0")))["raftmq.timersPending"])

        await store("sends", timer_count)  # so that the cost of any messages is in the baseline
        before = rss_bytes(cluster.pid("n0"))
        now = time.time_ns() // 1_000_000
        await store("timed", timer_count, from_ms=now + 20 * _MINUTE_MS, to_ms=now + 80 * _MINUTE_MS)
        await trio.sleep(1)  # until requests in flight are answered, too
        count = await pending_count()
        note(Figure("timers", "pending timers", count, "", timer_count, is_limit=False))
        growth = (rss_bytes(cluster.pid("n0")) - before) / 1e6
        note(Figure("timers", "growth of resident memory", growth, "MB", 100))
        cluster.kill("n0")
        await trio.sleep(0.5)
        began = trio.current_time()
        await cluster.start("n0")
        await cluster.wait_ready()
        note(Figure("timers", "restart after a kill", trio.current_time() - began, "s", 20))
        note(Figure("timers", "pending timers lost in the kill", count - await pending_count(), "messages", 0))
        note(Figure("timers", "resident memory after the restart", rss_bytes(cluster.pid("n0")) / 1e6, "MB"))


async def measure_transactions(args: Arguments, directory: Path, note: Note) -> None:
    """Measure transactions beside plain sends."""
    async with three_brokers(directory / "transactions") as (cluster, leader):
        costs: dict[str, float] = {}
        for kind, name in (("sends", "plain sends"), ("transactions", "transactions")):
            report, cpu = await run_flows(cluster, leader, job_of(cluster, leader, args, kind))
            rate = statistics.median(report.done) / args.seconds
            costs[kind] = 1e6 * cpu / max(1, sum(report.done))
            goal = 5000 if kind == "transactions" else None
            note(Figure("transactions", f"{name}/s, {IN_FLIGHT} calls in flight", rate, "/s", goal, is_limit=False))
            note(Figure("transactions", f"CPU of the leader, {name}", costs[kind], "us each"))
        note(Figure("transactions", "cost of a transaction in plain sends", costs["transactions"] / costs["sends"], ""))


async def measure_pop(args: Arguments, directory: Path, note: Note) -> None:
    """Measure one consumer that pops and acknowledges."""
    message_count = POP_MESSAGES // 10 if args.quick else POP_MESSAGES
    async with three_brokers(directory / "pop") as (cluster, leader):
        await send_messages(cluster, args, message_count, leader)
        report, cpu = await run_flows(cluster, leader, job_of(cluster, leader, args, "pops", connections=1, flows=8))
        rate = statistics.median(report.done) / args.seconds
        note(Figure("pop", "messages/s popped and acknowledged", rate, "/s", 20_000, is_limit=False))
        note(Figure("pop", "CPU of the leader", 1e6 * cpu / max(1, sum(report.done)), "us/message"))


CASES: dict[str, Measure] = {
    "lateness": measure_lateness,
    "transactions": measure_transactions,
    "pop": measure_pop,
    "timers": measure_timers,
}

DELAYS_TRANSACTIONS_POP = Suite("delays-transactions-pop", __doc__, CASES)

if __name__ == "__main__":
    DELAYS_TRANSACTIONS_POP.main()
