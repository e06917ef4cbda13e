"""Measures systems in turns: starts each in an empty directory, fills it, drains it, puts it under a steady rate."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import trio

from benchmarks.load.generators import GeneratorFailed, run_generator
from benchmarks.load.report import quantile
from benchmarks.peers.consuming.cases import CASES, Case, CaseMeasurements, Sample, job_of
from benchmarks.peers.consuming.clients import CLIENTS, WITH_CLIENTS, ClientLibrary
from benchmarks.peers.consuming.job import DRAIN, FILL, PACE, ConsumerJob, ConsumerResult
from benchmarks.peers.consuming.load import BY_MESSAGE
from benchmarks.peers.peer import Peer, Target
from benchmarks.peers.resting import rest
from benchmarks.procfs import load_average
from mq.client.errors import ClientError
from mq.local_cluster import ServersFailed

WIRE_LOAD = "benchmarks.peers.consuming.load"
TURN_SECONDS_MAX = 900.0
REMOVES = frozenset({"amqp"})
"""Protocols whose servers forget consumed messages: they are filled before each drain."""
JOINS = ("rocketmq",)
"""Protocols in which a request confirms several messages, each by itself, and a consumer says how many it wants."""
FILLS_MAX = 4
"""RocketMQ refuses messages while its queue of requests is long."""
BODY_BYTES = 1024

Say = Callable[[str], None]


class Arguments(argparse.Namespace):
    """The command line."""

    peer: list[str]
    case: list[str]
    quick: bool
    rounds: int
    megabytes: float
    seconds: float
    jvm_warmup: float
    after: Path | None
    dir: Path | None
    no_write: bool

    @property
    def messages(self) -> int:
        """The number of messages in a backlog."""
        return round(self.megabytes * 1e6 / BODY_BYTES)


@dataclass(slots=True)
class ConsumerResults:
    """The outcome of a run. ``left_out``: by a system's name, the reason that it was not measured."""

    measured: dict[str, CaseMeasurements] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


async def measure(
    peers: Sequence[Peer], directory: Path, *, args: Arguments, outcome: ConsumerResults, say: Say
) -> None:
    """Measure all rounds. A failure of one system is recorded, and the others continue."""
    for number in range(args.rounds):
        for peer in peers:
            place = directory / f"{peer.name}-{number}"
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


async def _take_turn(peer: Peer, args: Arguments, directory: Path, measurements: CaseMeasurements, say: Say) -> None:
    async with peer.open(directory) as target:
        base = ConsumerJob(
            "",
            peer.wire,
            target.address,
            pids=target.pids,
            messages=args.messages,
            body_bytes=BODY_BYTES,
            seconds=args.seconds,
            namesrv=target.namesrv,
        )
        is_full = is_warm = False
        for case in cases_of(peer, args):
            if peer.is_jvm and not is_warm:
                warm_up = Case("warm-up", "", PACE)
                await run_load(replace(job_of(warm_up, base, "warm-up"), seconds=args.jvm_warmup))
                is_warm = True
            if case.kind == DRAIN and not is_full:
                await _fill(replace(base, kind=FILL), 1 if peer.wire in REMOVES else FILLS_MAX)
                await rest(base.pids)
                is_full = peer.wire not in REMOVES
            try:
                sample = await _sample(case, base, target)
            except GeneratorFailed as error:
                _record_failure(measurements, peer, f"{case.name}: {error}", say)
                if peer.wire in REMOVES:
                    return  # the rest of the backlog would be in the next case
                continue
            measurements.samples.setdefault(case.name, []).append(sample)
            say(line_of(peer, case, sample))


async def _fill(job: ConsumerJob, attempts: int) -> None:
    """Fill the servers with a backlog. Raises GeneratorFailed. Messages of a refused attempt stay there."""
    for attempts_left in reversed(range(attempts)):
        try:
            await run_load(job)
        except GeneratorFailed:
            if not attempts_left:
                raise
        else:
            return


async def _sample(case: Case, base: ConsumerJob, target: Target) -> Sample:
    """Measure a case once. Raises GeneratorFailed, ServersFailed."""
    load = load_average()
    client = CLIENTS[base.wire] if case.by_client else None
    result = await run_load(job_of(case, base, f"bench-{case.name}"), client)
    target.check()
    count = max(result.messages, 1)
    return Sample(
        messages_per_second=count / result.seconds,
        p50_ms=1e3 * quantile(result.latencies, 0.5),
        p99_ms=1e3 * quantile(result.latencies, 0.99),
        p999_ms=1e3 * quantile(result.latencies, 0.999),
        servers_us=1e6 * result.server_seconds / count,
        client_us=1e6 * result.client_seconds / count,
        missing=result.missing,
        load_average=load,
    )


async def run_load(job: ConsumerJob, client: ClientLibrary | None = None) -> ConsumerResult:
    """Run a job by the load generator, or by a client. Raises GeneratorFailed."""
    module = WIRE_LOAD if client is None else client.module
    return await run_generator(module, job, ConsumerResult, {} if client is None else client.environment())


def cases_of(peer: Peer, args: Arguments) -> list[Case]:
    """Return the selected cases that the system supports."""
    cases = [case for case in CASES if not args.case or case.name in args.case]
    return [
        case
        for case in cases
        if (not case.by_client or peer.name in WITH_CLIENTS)
        and (not (case.joins or case.many_at_once) or peer.wire in JOINS)
        and (not case.confirms_each or peer.wire in BY_MESSAGE)
    ]


def _record_failure(measurements: CaseMeasurements, peer: Peer, what: str, say: Say) -> None:
    measurements.failures.append(what)
    say(f"{peer.name}: {what}")


def line_of(peer: Peer, case: Case, sample: Sample) -> str:
    """Format a measurement as a line for the terminal."""
    times = f"p50 {sample.p50_ms:.2f} p99 {sample.p99_ms:.2f} p99.9 {sample.p999_ms:.2f} ms, " * (case.kind == PACE)
    gaps = f", {sample.missing} MISSING" * bool(sample.missing)
    return (
        f"{peer.name:>17} {case.name:>13}: {sample.messages_per_second:,.0f} msgs/s, {times}servers "
        f"{sample.servers_us:.1f} us/msg, client {sample.client_us:.1f} us/msg{gaps}; load {sample.load_average:.1f}"
    )
