"""Measures which threads wait for which others, and how long, while three replicas store a message of 1 KiB.

Brokers note when an entry passes certain points: in the event loop and in the writer's thread of all three replicas, by
one clock. With one message in flight (1x1), and with 64 on 64 connections (64x1). The trace itself costs CPU: to
compare CPU, use ``make bench``. ``python -m benchmarks.critical_path`` (``make bench-critical-path``).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from benchmarks.cases import Case
from benchmarks.critical_path.page import BEGIN, END, LoadTrace, picture, section, shares
from benchmarks.critical_path.steps import Event, Trace, paths, rows, turns_per_entry
from benchmarks.critical_path.traced import DIRECTORY_VARIABLE
from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.load.generators import ROOT, cpu_meters, drive, share_out
from benchmarks.load.job import Job
from benchmarks.load.report import monotonic_seconds, quantile, sum_counts
from benchmarks.procfs import REAL_TIME_HELP, load_average, run_before_others
from benchmarks.report.run_record import RunRecord
from benchmarks.suites.suite import FAILURES
from mq.cli.errors import run_trio
from mq.client.admin import Admin
from mq.local_cluster import HOST, DevCluster, Ports

CASES: Final = (Case(3, 1024, 1, 1), Case(3, 1024, 64, 1))
WARMUP_SECONDS: Final = 2.0


class TracedCluster(DevCluster):
    """A cluster of three replicas that record when entries pass the points of `steps`."""

    module: ClassVar[str] = "benchmarks.critical_path.traced"


class Arguments(argparse.Namespace):
    """The command line."""

    seconds: float
    quick: bool
    no_write: bool
    real_time: bool
    dir: Path | None


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-critical-path", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--quick", action="store_true", help="a second of each load; docs stay as they are")
    parser.add_argument("--no-write", action="store_true", help="leave docs as they are")
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--real-time", action="store_true", help=REAL_TIME_HELP)
    args = parser.parse_args(arguments, namespace=Arguments())
    if args.quick:
        args.seconds, args.no_write = 1.0, True
    return args


async def measure(case: Case, args: Arguments, directory: Path) -> LoadTrace:
    """Measure one load on three new replicas. Raises ServersFailed, GeneratorFailed, ClientError."""
    traces = directory / "traces"
    traces.mkdir(parents=True)
    os.environ[DIRECTORY_VARIABLE] = str(traces)
    before = load_average()
    async with TracedCluster.open(directory / "group", nodes=case.nodes, ports=Ports.free(case.nodes)) as cluster:
        async with Admin(cluster.namesrv) as admin:
            await admin.create_topic(TOPIC, QUEUES)
        leader = await cluster.leader()
        order = [leader, *(node for node in cluster.node_ids if node != leader)]
        job = Job(
            address=(HOST, cluster.port(leader)),
            connections=case.connections,
            in_flight=case.in_flight,
            body_bytes=case.body_bytes,
            begin=monotonic_seconds() + 1.0 + WARMUP_SECONDS,
            window_seconds=args.seconds,
            windows=1,
            first_slot=1,
        )
        reports, (cpu,) = await drive(share_out(job), cpu_meters([cluster.pid(node) for node in order]))
        end = monotonic_seconds()
        cluster.check()
    messages = sum(report.messages[0] for report in reports)
    begin = end - args.seconds
    of = {node: _read(traces / node, begin, end) for node in order}
    entry_paths = paths(of[leader], {node: of[node] for node in order[1:]})
    return LoadTrace(
        load=case.load,
        entries=len(entry_paths),
        path_us=1e6 * sorted(path.seconds for path in entry_paths)[len(entry_paths) // 2],
        p50_ms=1e3 * quantile(sum_counts(report.latencies[0] for report in reports), 0.5),
        messages_per_second=messages / args.seconds,
        cpu_us=tuple(1e6 * seconds / messages for seconds in cpu),
        turns=tuple(turns_per_entry(of[node], len(entry_paths)) for node in order),
        load_average=before,
        rows=rows(entry_paths),
    )


def _read(path: Path, begin: float, end: float) -> Trace:
    return [event for event in msgspec.msgpack.decode(path.read_bytes(), type=list[Event]) if begin <= event.at <= end]


def main() -> None:
    """Measure, print, and write docs/benchmarks/critical-path.md, the pictures and benchmarks/results/."""
    args = parse_arguments(sys.argv[1:])
    if args.real_time:
        run_before_others()
    traces = list[LoadTrace]()
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=args.dir) as directory:
        try:
            for case in CASES:
                traces.append(run_trio(partial(measure, case, args, Path(directory) / case.name)))
                _print(traces[-1])
        except FAILURES as error:
            print(f"bench-critical-path: {error}", file=sys.stderr)
            sys.exit(1)
    if not args.no_write:
        _write(traces)


def _print(trace: LoadTrace) -> None:
    cpu = " / ".join(f"{us:.0f}" for us in trace.cpu_us)
    turns = " / ".join(f"{each:.1f}" for each in trace.turns)
    print(
        f"{trace.load}: {trace.messages_per_second:,.0f} msgs/s, p50 {trace.p50_ms:.2f} ms, in the leader until the "
        f"reply {trace.path_us:.0f} us; CPU us/msg {cpu}; turns per entry {turns}; load average "
        f"{trace.load_average:.1f}"
    )
    for row in trace.rows:
        mark = "*" if row.is_critical else " "
        print(
            f"  {mark} {row.begin_us:7.0f} to {row.end_us:7.0f}: {row.median_us:6.0f} us (p90 {row.p90_us:6.0f}) "
            f"{row.lane}: {row.name}"
        )
    print("  the reply waits for: " + ", ".join(f"{name} {us:.0f} us" for name, us in shares(trace.rows).items()))
    sys.stdout.flush()


def _write(traces: Sequence[LoadTrace]) -> None:
    record = RunRecord("critical-path")
    record.keep(traced=[asdict(each) for each in traces])
    for each in traces:
        (ROOT / "docs" / "images" / f"critical-path-{each.name}.svg").write_text(picture(each))
    record.publish(section(traces, **record.about), (BEGIN, END))


if __name__ == "__main__":
    main()
