"""Measures peers in turns: in each round, starts each in an empty directory, puts every load on it, and kills it."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.load.generators import GeneratorFailed, cpu_meters, drive, share_out
from benchmarks.load.job import Job
from benchmarks.peers.peer import Peer, Target
from benchmarks.peers.resting import rest
from benchmarks.peers.samples import BODY_BYTES, LOADS, WARM_UP, Load, PeerMeasurements, Sample, samples_of
from benchmarks.procfs import anonymous_bytes, load_average, machine_cpu_seconds, process_tree, rss_bytes
from mq.client.errors import ClientError
from mq.local_cluster import ServersFailed

TURN_SECONDS_MAX = 360.0
ATTEMPTS_MAX = 2
"""The number of times that a load is tried when the servers refuse a message."""
CONNECT_SECONDS = 1.0
"""Seconds from the start of the load generators until their connections have filled their window in flight."""

Say = Callable[[str], None]


class Arguments(argparse.Namespace):
    """The command line."""

    peer: list[str]
    quick: bool
    rounds: int
    windows: int
    seconds: float
    warmup: float
    first_warmup: float
    jvm_warmup: float
    limit: float
    after: Path | None
    dir: Path | None
    no_write: bool


@dataclass(slots=True)
class PeerResults:
    """The outcome of a run. ``left_out``: by a peer's name, the reason that this machine cannot run it."""

    measured: dict[str, PeerMeasurements] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    load_averages: list[float] = field(default_factory=list)
    rounds: int = 0


async def measure(
    peers: Sequence[Peer],
    directory: Path,
    *,
    args: Arguments,
    outcome: PeerResults,
    say: Say,
    keep: Callable[[PeerResults], object],
) -> None:
    """Measure all rounds that fit into the time. A failure of one peer is recorded, and the others continue.

    ``keep`` gets the outcome after each round: three take most of an hour, and an interrupted run can be continued.
    """
    began = trio.current_time()
    for round_count in range(args.rounds):
        seconds = trio.current_time() - began
        if round_count and seconds + seconds / round_count > args.limit:
            return
        for peer in peers:
            outcome.load_averages.append(load_average())
            place = directory / f"{peer.name}-{outcome.rounds}"
            place.mkdir()
            measurements = outcome.measured[peer.name]
            try:
                with trio.fail_after(TURN_SECONDS_MAX):
                    await _take_turn(peer, args, place, measurements, say)
            except (ServersFailed, ClientError, GeneratorFailed, OSError) as error:
                _record_failure(measurements, peer, str(error), say)
            except trio.TooSlowError:
                _record_failure(measurements, peer, f"not done within {TURN_SECONDS_MAX:g} s", say)
            finally:
                shutil.rmtree(place)
        outcome.rounds += 1
        keep(outcome)


async def _take_turn(peer: Peer, args: Arguments, directory: Path, measurements: PeerMeasurements, say: Say) -> None:
    began = trio.current_time()
    async with peer.open(directory) as target:
        ready = trio.current_time()
        for load in (WARM_UP, *LOADS):
            if load.batch > 1 and not peer.has_batches:
                continue
            for _ in range(ATTEMPTS_MAX):
                await rest([pid for server in target.pids for pid in process_tree(server)])
                try:
                    samples = await _apply(peer, target, load, args)
                except GeneratorFailed as error:
                    _record_failure(measurements, peer, f"{load.name}: {error}", say)
                    continue
                if load is not WARM_UP:
                    measurements.samples.setdefault(load.name, []).extend(samples)
                    say(line_of(peer, load, samples))
                break
        servers = [pid for server in target.pids for pid in process_tree(server)]
        measurements.resident_mib.append(sum(map(rss_bytes, servers)) / 2**20)
        measurements.anonymous_mib.append(sum(map(anonymous_bytes, servers)) / 2**20)
    say(f"({peer.name}: up in {ready - began:.0f} s, its turn took {trio.current_time() - began:.0f} s)")


async def _apply(peer: Peer, target: Target, load: Load, args: Arguments) -> list[Sample]:
    """Measure a peer under one load. Raises GeneratorFailed, ServersFailed."""
    first = args.jvm_warmup if peer.is_jvm else args.first_warmup
    warmup, windows = (first, 1) if load is WARM_UP else (args.warmup, args.windows)
    job = Job(
        address=target.address,
        connections=load.connections,
        in_flight=load.in_flight,
        body_bytes=BODY_BYTES,
        begin=time.clock_gettime(time.CLOCK_MONOTONIC) + CONNECT_SECONDS + warmup,
        window_seconds=args.seconds,
        windows=windows,
        first_slot=1,
        batch=load.batch,
        wire=peer.wire,
    )
    reports, cpu = await drive(share_out(job), [*cpu_meters(target.pids), machine_cpu_seconds])
    target.check()
    return samples_of(reports, cpu, args.seconds)


def _record_failure(measurements: PeerMeasurements, peer: Peer, what: str, say: Say) -> None:
    measurements.failures.append(what)
    say(f"{peer.name}: {what}")


def line_of(peer: Peer, load: Load, samples: Sequence[Sample]) -> str:
    """Format the windows of one load as a line for the terminal."""
    rates = " ".join(f"{sample.messages_per_second:,.0f}" for sample in samples)
    if not samples:
        return f"{peer.name:>17} {load.name:>8}: no message was acknowledged"
    middle = sorted(samples, key=lambda sample: sample.messages_per_second)[len(samples) // 2]
    return (
        f"{peer.name:>17} {load.name:>8}: {rates} msgs/s, p50 {middle.p50_ms:.2f} p99 {middle.p99_ms:.2f} ms, servers "
        f"{middle.servers_us:.1f} us/msg, generator {middle.generator_us:.1f} us/msg, "
        f"{100 * middle.generator_core:.0f} % of a core"
    )
