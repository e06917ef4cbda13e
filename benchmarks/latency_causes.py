"""Measures what may make messages slow in the open loop of `benchmarks.paced`: busy cores, and slow writes."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from benchmarks.disk_alone import DiskJob, measure_disk_alone
from benchmarks.load.generators import Meter
from benchmarks.load.report import quantile
from benchmarks.procfs import machine_cpu_seconds, own_cpu_seconds, wait_seconds
from benchmarks.scraping import scrape
from benchmarks.suites.case_load import Note
from benchmarks.suites.figures import Figure
from mq.local_cluster import DevCluster
from mq.monitoring.cpu_time import cpu_seconds
from raftlog.latency_histogram import BOUNDS

CASE = "half of the maximum"
DISK_SECONDS = 20.0


def core_meters(pids: Sequence[int]) -> list[Meter]:
    """Return the meters that `core_figures` needs. The first process must be the leader's."""

    def index_seconds() -> float:
        return sum(cpu_seconds(pid) - own_cpu_seconds(pid) for pid in pids)

    return [machine_cpu_seconds, index_seconds, partial(wait_seconds, pids[0])]


def core_figures(counts: Sequence[Sequence[float]], seconds: float) -> list[Figure]:
    """Compute figures from the counts of `core_meters` in windows of ``seconds``. Pure."""
    cores, index, waits = (max(0.0, statistics.mean(column) / seconds) for column in zip(*counts, strict=True))
    return [
        Figure(CASE, f"cores in use, of {os.cpu_count()}", cores, ""),
        Figure(CASE, "cores that the processes used that index keys", index, ""),
        Figure(CASE, "the leader's event loop waited for a core", 100 * waits, "% of the time"),
    ]


@dataclass(frozen=True, slots=True)
class Writes:
    """Counters of a replica's synced writes, or their growth. ``below``: how many took at most each of `BOUNDS`."""

    seconds: float
    nbytes: float
    below: tuple[float, ...]

    @property
    def count(self) -> float:
        """The number of all writes."""
        return self.below[-1]

    def since(self, start: Writes) -> Writes:
        """Return the writes since an earlier reading."""
        below = tuple(now - then for now, then in zip(self.below, start.below, strict=True))
        return Writes(self.seconds - start.seconds, self.nbytes - start.nbytes, below)


async def writes_of(cluster: DevCluster, node_id: str) -> Writes:
    """Read the write counters of a replica from its metrics, which are at most a second old."""
    _, samples = await scrape(cluster, node_id)
    below = tuple(
        float(line.rpartition(b" ")[2]) for line in samples if line.startswith(b"raftmq_log_sync_seconds_bucket")
    )
    (nbytes,) = (float(line.rpartition(b" ")[2]) for line in samples if line.startswith(b"raftmq_log_bytes{"))
    assert len(below) == len(BOUNDS) + 1, f"{len(below)} buckets in the metrics of {node_id}"
    return Writes(trio.current_time(), nbytes, below)


def bound_of(below: Sequence[float], share: float) -> float:
    """Return the smallest of `BOUNDS`, in seconds, that ``share`` of the writes do not exceed; infinity if none."""
    target = share * below[-1]
    return next((each for each, count in zip(BOUNDS, below, strict=False) if count >= target), math.inf)


async def measure_writes(writes: Sequence[Writes], directory: Path, note: Note) -> None:
    """Report the writes of all replicas, and measure the same writes alone. Raises subprocess.CalledProcessError."""
    below = [sum(counts) for counts in zip(*(each.below for each in writes), strict=True)]
    for share, name in ((0.99, "p99"), (0.999, "p99.9")):
        note(Figure(CASE, f"synced writes of the replicas, {name}, at most", 1e3 * bound_of(below, share), "ms"))
    rate = statistics.mean(each.count / each.seconds for each in writes)
    nbytes = round(sum(each.nbytes for each in writes) / below[-1])
    alone = await measure_disk_alone(DiskJob(str(directory), len(writes), nbytes, rate, DISK_SECONDS))
    about = f"the disk alone, {len(writes)} x {rate:.0f} writes/s of {nbytes / 1024:.0f} KiB"
    for share, name in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"), (1.0, "longest")):
        note(Figure(CASE, f"{about}, {name}", 1e3 * quantile(alone, share), "ms"))
