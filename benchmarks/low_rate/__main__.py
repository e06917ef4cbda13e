"""Measures the cost and the latency of messages at low rates.

Messages of 1 KiB at fixed times, 10 to 2,000 a second, whether earlier ones were acknowledged or not; the time to the
acknowledgement begins when a message was due. CPU and wake-ups (voluntary context switches) of each server and of the
client are from /proc, and nothing else runs on the servers. Also raftmq and its client library when idle, the least
that a synced write takes (floor), and the alternatives that this machine can run. ``python -m benchmarks.low_rate``
(``make bench-low-rate``).
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.generators import Meter, drive
from benchmarks.load.report import monotonic_seconds, quantile
from benchmarks.low_rate.page import BEGIN, END, LowRateSample, goals, section
from benchmarks.low_rate.systems import SYSTEMS, LowRateSystem, Running
from benchmarks.procfs import (
    REAL_TIME_HELP,
    load_average,
    process_tree,
    ran_seconds,
    run_before_others,
    wake_ups,
)
from benchmarks.report.run_record import RunRecord
from benchmarks.suites.suite import FAILURES as SUITE_FAILURES
from mq.cli.errors import run_trio
from tests.interop.clients import BuildFailed

RATES = (10, 50, 200, 500, 2000)
WARM_UP_RATE = 500
START_SECONDS = 2.5
"""Seconds from the start of a client until it sends; then one second of load before the measurement."""
FAILURES = (*SUITE_FAILURES, BuildFailed)
START_WORK_SECONDS = 8.0
"""Seconds from the start of servers until their first work is done, such as registrations and the first scrub."""


class Arguments(argparse.Namespace):
    """The command line."""

    system: list[str]
    rate: list[int]
    seconds: float
    idle: float
    warm_up: float
    quick: bool
    no_write: bool
    real_time: bool
    dir: Path | None


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-low-rate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [system.name for system in SYSTEMS]
    parser.add_argument("--system", action="append", default=[], choices=names, help="only this one (repeatable)")
    parser.add_argument("--rate", action="append", default=[], type=int, help="only this rate (repeatable); 0: idle")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each rate")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds without messages")
    parser.add_argument(
        "--warm-up", type=float, default=60.0, help=f"seconds of {WARM_UP_RATE} messages/s before, for servers in Java"
    )
    parser.add_argument("--quick", action="store_true", help="a second of each rate; the page stays as it is")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmarks/low-rate.md as it is")
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--real-time", action="store_true", help=REAL_TIME_HELP)
    args = parser.parse_args(arguments, namespace=Arguments())
    if args.quick:
        args.seconds = args.idle = args.warm_up = 1.0
    args.no_write |= args.quick or bool(args.rate)  # the page has all rates
    return args


async def measure(system: LowRateSystem, args: Arguments, directory: Path, samples: list[LowRateSample]) -> None:
    """Measure all rates of one system. Raises an error of its servers, GeneratorFailed."""
    async with system.open(directory) as system_run:
        await trio.sleep(0.0 if args.quick else START_WORK_SECONDS)
        if system.is_jvm:
            await _sample(system_run, WARM_UP_RATE, args.warm_up)
        rates = [0, *RATES] if system.has_idle else RATES
        for rate in rates:
            if not args.rate or rate in args.rate:
                sample = await _sample(system_run, rate, args.seconds if rate else args.idle)
                samples.append(sample)
                print(_line(system, sample), flush=True)
        system_run.check()


async def _sample(system_run: Running, rate: float, seconds: float) -> LowRateSample:
    load = load_average()
    begin = monotonic_seconds() + START_SECONDS + (1.0 if rate else 3.0)
    meters: list[Meter] = [partial(_sum_tree, ran_seconds, pid) for pid in system_run.pids]
    meters += [partial(_sum_tree, wake_ups, pid) for pid in system_run.pids]
    job = system_run.job(rate=rate, begin=begin, window_seconds=seconds)
    (report,), (meter_counts,) = await drive([job], meters, system_run.client)
    latencies = report.latencies[0]
    count = len(system_run.pids)
    return LowRateSample(
        rate,
        seconds,
        report.messages[0],
        p50_ms=1e3 * quantile(latencies, 0.5),
        p90_ms=1e3 * quantile(latencies, 0.9),
        p99_ms=1e3 * quantile(latencies, 0.99),
        server_cores=tuple(each / seconds for each in meter_counts[:count]),
        server_wake_ups=tuple(each / seconds for each in meter_counts[count:]),
        client_cores=report.cpu_seconds[0] / seconds,
        client_wake_ups=report.wake_ups[0] / seconds,
        load_average=load,
    )


def _sum_tree(meter: Callable[[int], float], pid: int) -> float:
    return sum(meter(each) for each in process_tree(pid))


def _line(system: LowRateSystem, sample: LowRateSample) -> str:
    wake_ups_of = " ".join(f"{each:.0f}" for each in sample.server_wake_ups)
    if not sample.rate:
        cpu = " ".join(f"{100 * each:.2f}" for each in sample.server_cores)
        return (
            f"{system.name} idle: servers {cpu} % of a core, wake-ups/s {wake_ups_of}; client "
            f"{100 * sample.client_cores:.2f} %, {sample.client_wake_ups:.0f}; load average {sample.load_average:.1f}"
        )
    cpu = " ".join(f"{sample.ms_per_message(each):.2f}" for each in sample.server_cores)
    client = f"client {sample.ms_per_message(sample.client_cores):.2f} ms/msg, {sample.client_wake_ups:.0f}"
    return (
        f"{system.name} {sample.rate:g}/s, {sample.acknowledged / sample.seconds:g}/s acknowledged: "
        f"p50 {sample.p50_ms:.2f} p90 {sample.p90_ms:.2f} p99 {sample.p99_ms:.2f} ms, "
        f"servers {cpu} ms/msg, wake-ups/s {wake_ups_of}; {client}; load average {sample.load_average:.1f}"
    )


def main() -> None:
    """Measure, print, and write docs/benchmarks/low-rate.md and benchmarks/results/."""
    args = parse_arguments(sys.argv[1:])
    if args.real_time:
        run_before_others()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background, where shells ignore it
    samples, left_out = dict[str, list[LowRateSample]](), dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=args.dir) as directory:
        for system in SYSTEMS:
            if args.system and system.name not in args.system:
                left_out[system.name] = "not asked for"
                continue
            try:
                if (reason := system.missing_programs()) is None:
                    system.prepare()
                    samples_of_system = samples.setdefault(system.name, [])
                    place = Path(directory) / system.name
                    place.mkdir()
                    run_trio(partial(measure, system, args, place, samples_of_system))
                    continue
            except FAILURES as error:
                reason = str(error)
            left_out[system.name] = reason
            print(f"{system.name} is left out: {reason}", flush=True)
    for figure in goals(samples):
        print(figure)
    if not args.no_write:
        _write(samples, left_out, args.warm_up)


def _write(samples: dict[str, list[LowRateSample]], left_out: dict[str, str], warm_up: float) -> None:
    record = RunRecord("low-rate")
    samples_by_system = {name: [asdict(each) for each in of_system] for name, of_system in samples.items() if of_system}
    record.keep(measured=samples_by_system, leftOut=left_out)
    warm_up_text = f", after {warm_up:g} s of {WARM_UP_RATE} messages/s"
    about = {system.name: system.about + warm_up_text * system.is_jvm for system in SYSTEMS}
    shown_samples = {name: of_system for name, of_system in samples.items() if of_system}
    text = section(about, shown_samples, left_out, **record.about)
    record.publish(text, (BEGIN, END))


if __name__ == "__main__":
    main()
