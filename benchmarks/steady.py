"""Puts a sustained load on a group, to measure it after the first seconds, and to see the cost of deferred work.

Three replicas, messages of 1 KiB, for at least 60 s and 2 GB of bodies: ``pipelined``, 4 connections with 256 single
sends in flight each, and ``batches``, 4 connections with 2 batches of 32 messages. *Steady* is the second half of the
time. Each replica's child processes, which index keys, are counted separately from the replica itself; and so is the
work of all of them after the last message, until they are idle.

Real processes and files, the default durability. ``python -m benchmarks.steady`` (``make bench-steady``).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from benchmarks.cases import Window
from benchmarks.load.generators import Meter, drive, share_out
from benchmarks.load.job import Job
from benchmarks.procfs import own_cpu_seconds, process_tree, rss_bytes
from benchmarks.produce import windows_of
from benchmarks.suites.case_load import BATCH, Arguments, Measure, Note, create_topics
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.local_cluster import HOST, DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK
from mq.monitoring.cpu_time import cpu_seconds

BODY_BYTES = 1024
SECONDS_MIN, BYTES_MIN = 60.0, 2_000_000_000
WINDOW_SECONDS = 5.0
CONNECT_SECONDS = 1.0
IDLE_SECONDS_MAX = 120.0
LEADER_GOALS_US = {"pipelined": 9.0, "batches": 5.0}
INDEX_GOAL_US = 1.0


async def measure_pipelined(args: Arguments, directory: Path, note: Note) -> None:
    """Measure sends of single messages."""
    await _measure("pipelined", 256, 1, args, directory, note)


async def measure_batches(args: Arguments, directory: Path, note: Note) -> None:
    """Measure sends of batches."""
    await _measure("batches", 2, BATCH, args, directory, note)


async def _measure(case: str, in_flight: int, batch: int, args: Arguments, directory: Path, note: Note) -> None:
    seconds, seconds_min, bytes_min = (1.0, 4.0, 0) if args.quick else (WINDOW_SECONDS, SECONDS_MIN, BYTES_MIN)
    async with DevCluster.open(directory / "replicas", nodes=3, ports=Ports.free(3), settings=ANY_DISK) as cluster:
        leader = await cluster.leader()
        await create_topics(cluster, 1, leader)
        pids = [cluster.pid(node) for node in (leader, *(each for each in cluster.node_ids if each != leader))]
        windows, memory = list[Window](), list[float]()
        stored_bytes = 0.0
        while len(windows) * seconds < seconds_min or stored_bytes < bytes_min:
            job = Job(
                address=(HOST, cluster.port(leader)),
                connections=4,
                in_flight=in_flight,
                body_bytes=BODY_BYTES,
                begin=time.clock_gettime(time.CLOCK_MONOTONIC) + CONNECT_SECONDS,
                window_seconds=seconds,
                windows=math.ceil(seconds_min / seconds),
                first_slot=1,
                batch=batch,
            )
            reports, cpu_readings = await drive(share_out(job), _meters(pids))
            cluster.check()
            windows += windows_of(reports, cpu_readings, seconds)
            stored_bytes += BODY_BYTES * sum(sum(report.messages) for report in reports)
            memory.append(rss_bytes(pids[0]) / 2**20)
        if await cluster.leader() != leader:
            raise ServersFailed(f"{case}: the leader changed meanwhile; is this machine too busy?")
        children = sum(rss_bytes(child) for pid in pids for child in process_tree(pid)[1:]) / 2**20
        idle_after, used_after = await _wait_idle(pids, args.sizes.idle_core)
    for figure in figures_of(case, windows, seconds):
        note(figure)
    note(Figure(case, "stored by each replica", stored_bytes / 1e6, "MB"))
    note(Figure(case, "CPU of all replicas after the load", 1e6 * used_after * BODY_BYTES / stored_bytes, "us/message"))
    note(Figure(case, "time until all replicas were idle", idle_after, "s"))
    note(Figure(case, "resident memory of the leader, at the end", memory[-1], "MiB"))
    note(Figure(case, "resident memory of all child processes, at the end", children, "MiB"))


def _meters(pids: Sequence[int]) -> list[Meter]:
    """Meters of the CPU time of each replica itself, then of each one's children."""

    def children_seconds(pid: int) -> float:
        return cpu_seconds(pid) - own_cpu_seconds(pid)

    return [*(partial(own_cpu_seconds, pid) for pid in pids), *(partial(children_seconds, pid) for pid in pids)]


async def _wait_idle(pids: Sequence[int], idle_core: float) -> tuple[float, float]:
    """Wait until the replicas are idle after the load; returns the seconds, and their CPU seconds meanwhile."""

    def cpu_of_group() -> float:
        return sum(map(cpu_seconds, pids))

    began, first = trio.current_time(), cpu_of_group()
    while trio.current_time() < began + IDLE_SECONDS_MAX:
        before = cpu_of_group()
        await trio.sleep(WINDOW_SECONDS)
        if cpu_of_group() - before < idle_core * WINDOW_SECONDS:
            return trio.current_time() - WINDOW_SECONDS - began, before - first
    return IDLE_SECONDS_MAX, cpu_of_group() - first


def figures_of(case: str, windows: Sequence[Window], seconds: float) -> list[Figure]:
    """Compute the figures of the first window, and of the second half of all windows. Pure.

    CPU of each window is of the leader itself, then of the followers themselves, then of the child processes of each.
    """
    steady = windows[len(windows) // 2 :]

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    replicas = (1 + len(windows[0].follower_us)) // 2
    own = [(window.leader_us, *window.follower_us[: replicas - 1]) for window in steady]
    children = [window.follower_us[replicas - 1 :] for window in steady]
    return [
        Figure(case, f"messages/s, first {seconds:g} s", windows[0].messages_per_second, "/s"),
        Figure(case, "messages/s, steady", median([window.messages_per_second for window in steady]), "/s"),
        Figure(case, "messages/s, steady, slowest window", min(w.messages_per_second for w in steady), "/s"),
        Figure(case, "p50, steady", median([window.p50_ms for window in steady]), "ms"),
        Figure(case, "p99, steady", median([window.p99_ms for window in steady]), "ms"),
        Figure(case, f"CPU of the leader itself, first {seconds:g} s", windows[0].leader_us, "us/message"),
        Figure(
            case,
            "CPU of the leader itself, steady",
            median([each[0] for each in own]),
            "us/message",
            LEADER_GOALS_US.get(case),
        ),
        Figure(
            case,
            "CPU of a follower itself, steady",
            statistics.mean(median([each[number] for each in own]) for number in range(1, replicas)),
            "us/message",
        ),
        Figure(
            case,
            "CPU of a replica's child processes, steady",
            # They work on one part of the log after the other: only all windows together show their cost.
            statistics.mean(us for each in children for us in each),
            "us/message",
            INDEX_GOAL_US,
        ),
    ]


CASES: dict[str, Measure] = {"pipelined": measure_pipelined, "batches": measure_batches}

STEADY = Suite("steady", __doc__, CASES)

if __name__ == "__main__":
    STEADY.main()
