"""Measurements of peers as values. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.load.report import Report, quantile


@dataclass(frozen=True, slots=True)
class Load:
    """A load of ``connections`` with ``in_flight`` requests each, of ``batch`` messages."""

    name: str
    connections: int
    in_flight: int
    about: str
    batch: int = 1


BODY_BYTES = 1024
WARM_UP = Load("warm-up", 4, 256, "")
LOADS = (
    Load("1x1", 1, 1, "one message at a time"),
    Load("64x1", 64, 1, "64 single sends in flight, each on a connection of its own"),
    Load("4x256", 4, 256, "pipelined: 4 connections with 256 single sends in flight each"),
    Load("batches", 4, 2, "batches of 32 messages: 4 connections with 2 batches in flight each", batch=32),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One window. CPU in microseconds per acknowledged message, of all servers and of all load generators; the
    generator's share is of one core, for the busiest of its processes. ``others`` is the CPU use of other processes of
    the machine, in cores.
    """

    messages_per_second: float
    p50_ms: float
    p99_ms: float
    servers_us: float
    generator_us: float
    generator_core: float
    others: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the least and the most of all samples."""

    median: float
    least: float
    most: float


@dataclass(slots=True)
class PeerMeasurements:
    """All measurements of a peer. Memory is that of all its servers after each turn, in MiB: resident, and the
    anonymous part of it.
    """

    version: str
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    resident_mib: list[float] = field(default_factory=list)
    anonymous_mib: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def spread(self, load: Load, figure: Callable[[Sample], float]) -> Spread | None:
        """Return the spread of a figure under a load; None without samples."""
        values = [figure(sample) for sample in self.samples.get(load.name, ())]
        return Spread(statistics.median(values), min(values), max(values)) if values else None


def samples_of(reports: Sequence[Report], cpu: Sequence[Sequence[float]], seconds: float) -> list[Sample]:
    """Combine the generators' counts and the servers' CPU use by window. Windows without messages are left out.

    ``cpu`` has for each window the use of each server, and last the whole machine's.
    """
    samples = []
    for number, (*server_seconds, whole_machine) in enumerate(cpu):
        messages = sum(report.messages[number] for report in reports)
        if not messages:
            continue
        counts: dict[int, int] = {}
        for report in reports:
            for bucket, count in report.latencies[number].items():
                counts[bucket] = counts.get(bucket, 0) + count
        generators = [report.cpu_seconds[number] for report in reports]
        samples.append(
            Sample(
                messages_per_second=messages / seconds,
                p50_ms=1e3 * quantile(counts, 0.5),
                p99_ms=1e3 * quantile(counts, 0.99),
                servers_us=1e6 * sum(server_seconds) / messages,
                generator_us=1e6 * sum(generators) / messages,
                generator_core=max(generators) / seconds,
                others=max(0.0, whole_machine - sum(server_seconds) - sum(generators)) / seconds,
            )
        )
    return samples
