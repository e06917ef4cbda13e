"""Measures the message store against its goals: many queues, restarts, and the other cases in `CASES`.

- ``queues``: one broker with 8 queues, and one with 10,000 (1,250 topics), under the same load: 128 B messages, 4
  connections with 2,500 in flight each, so that each slot of the latter has its own queue.
- ``restart``: a broker with 10 million messages is stopped and started, killed and started, and started without
  any derived state. Time is from the start of the process until it leads and is registered.
- ``backlog``, ``random``: the throughput of one consumer, see `benchmarks.store.reads`.
- ``follower``: the cost for the leader of a consumer that reads from a follower, see `benchmarks.store.follower`.
- ``latency``: from a send to a consumer's callback, see `benchmarks.latency`.

Real processes and files, the default durability. ``python -m benchmarks.store`` (``make bench-store``).
"""

from __future__ import annotations

import os
import shutil
import statistics
from pathlib import Path

import trio

from benchmarks.latency import measure_latency
from benchmarks.load.frames import QUEUES
from benchmarks.procfs import rss_bytes
from benchmarks.store.follower import measure_follower
from benchmarks.store.reads import measure_backlog, measure_random
from benchmarks.suites.case_load import (
    Arguments,
    Measure,
    Note,
    create_topics,
    job_for,
    one_broker,
    run_load,
    send_messages,
)
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.local_cluster import DevCluster, ServersFailed

MANY_TOPICS = 1250
RESTART_MESSAGES = 10_000_000


async def measure_queues(args: Arguments, directory: Path, note: Note) -> None:
    """Measure 8 queues and 10,000 queues under the same load."""
    topics = 50 if args.quick else MANY_TOPICS
    rates: dict[int, float] = {}
    for count in (1, topics):
        async with one_broker(directory / f"{count}") as cluster:
            await create_topics(cluster, count)
            report, cpu = await run_load(cluster, job_for(cluster, args, in_flight=2500, topics=count))
            cpu_us = 1e6 * sum(cpu) / max(1, sum(report.messages))
            queues = count * QUEUES
            rates[count] = statistics.median(report.messages) / args.seconds
            pid = cluster.pid("n0")
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            note(Figure("queues", f"messages/s, {queues:,} queues", rates[count], "/s"))
            note(Figure("queues", f"CPU of the broker, {queues:,} queues", cpu_us, "us/message"))
            note(Figure("queues", f"resident memory, {queues:,} queues", rss_bytes(pid) / 1e6, "MB", 600))
            note(Figure("queues", f"open descriptors, {queues:,} queues", descriptors, ""))
    share = 100 * rates[topics] / rates[1]
    note(Figure("queues", "throughput with many queues, relative to 8 queues", share, "%", 80, is_limit=False))


async def measure_restart(args: Arguments, directory: Path, note: Note) -> None:
    """Measure starts of a broker that has many messages."""
    target = RESTART_MESSAGES // 100 if args.quick else RESTART_MESSAGES
    async with one_broker(directory / "restart") as cluster:
        await create_topics(cluster, 1)
        count = await send_messages(cluster, args, target)
        name = f"{count / 1e6:.1f} million messages"

        async def start(how: str, goal: float | None) -> None:
            began = trio.current_time()
            await cluster.start("n0")
            await _wait_long(cluster)
            note(Figure("restart", f"{how}, {name}", trio.current_time() - began, "s", goal))

        await cluster.stop("n0")
        await start("after a clean stop", 3)
        await send_messages(cluster, args, 1)
        cluster.kill("n0")
        await trio.sleep(0.5)
        await start("after a kill under load", 30)
        cluster.kill("n0")
        await trio.sleep(0.5)
        data = cluster.directory / "n0"
        shutil.rmtree(data / "queues")
        for each in ("checkpoint", "checkpoint.previous"):
            (data / each).unlink(missing_ok=True)
        await start("with all queues rebuilt from the log", None)


async def _wait_long(cluster: DevCluster) -> None:
    """Wait until the broker leads and is registered; a rebuild takes longer than the usual timeout."""
    for attempt in range(10):
        try:
            await cluster.wait_ready()
        except ServersFailed:
            if attempt == 9 or not cluster.is_running("n0"):
                raise
        else:
            return


CASES: dict[str, Measure] = {
    "latency": measure_latency,
    "backlog": measure_backlog,
    "random": measure_random,
    "queues": measure_queues,
    "follower": measure_follower,
    "restart": measure_restart,
}
"""The cases; the longest is the last, since time may not suffice for it."""


STORE = Suite("store", __doc__, CASES)

if __name__ == "__main__":
    STORE.main()
