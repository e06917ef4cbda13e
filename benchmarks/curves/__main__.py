"""Measures how the cost of a message grows. Each curve gets a table and a picture in docs/benchmarks/curves.md.

- ``connections``: 1 to 10,000 connections with one send in flight each.
- ``idle``: 0 to 10,000 connections that do nothing, beside the load of 4 others.
- ``queues``: 1 to 10,000 queues.  - ``size``: bodies of 64 B to 1 MiB.  - ``log``: a log of 0 to 20 GB.
- ``consumers``: 1 to 1,000 consumers.  - ``replicas``: 1, 3 and 5.  - ``groups``: 1, 2 and 4 broker groups.
- ``lite``: 10 to 1,000,000 lite topics.

Real processes and files, the default durability; each curve takes less than six minutes and is written when it is done.
``python -m benchmarks.curves`` (``make bench-curves``), ``make bench-curves ARGS="--curve queues"``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import trio

from benchmarks.curves import consuming, lite, producing
from benchmarks.curves.group_load import Arguments, Note
from benchmarks.curves.page import marks, picture, section
from benchmarks.curves.sample import Curve, PointMeasurement, PointSample, samples_of
from benchmarks.load.generators import ROOT, GeneratorFailed
from benchmarks.report.run_record import RunRecord
from mq.cli.errors import run_trio
from mq.client.errors import ClientError
from mq.local_cluster import ServersFailed

Measure = Callable[[Arguments, Path, Note], Awaitable[None]]
CURVES: dict[str, tuple[Curve, Measure]] = {
    curve.name: (curve, measure)
    for curve, measure in (
        (producing.CONNECTIONS, producing.connections),
        (producing.IDLE, producing.idle),
        (producing.QUEUES_CURVE, producing.queues),
        (producing.SIZE, producing.size),
        (producing.LOG, producing.log),
        (consuming.CONSUMERS, consuming.consumers),
        (producing.REPLICAS, producing.replicas),
        (producing.GROUPS, producing.groups),
        (lite.LITE, lite.lite_topics),
    )
}


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-curves", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--curve", action="append", default=[], choices=sorted(CURVES), help="only this curve (repeatable)"
    )
    parser.add_argument("--quick", action="store_true", help="few points, short windows; nothing is written")
    parser.add_argument("--windows", type=int, default=4, help="measured windows of a point")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a window")
    parser.add_argument("--limit", type=float, default=360.0, help="seconds for each curve")
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--no-write", action="store_true", help="leave docs as they are")
    args = parser.parse_args(arguments, namespace=Arguments())
    if args.quick:
        args.windows, args.seconds, args.no_write = 2, 0.5, True
    return args


async def run_curve(name: str, args: Arguments, directory: Path, note: Note) -> bool:
    """Measure one curve. Returns whether it was finished in time."""
    with trio.move_on_after(args.limit) as scope:
        await CURVES[name][1](args, directory, note)
    return not scope.cancelled_caught


def write(curve: Curve, samples: Sequence[PointSample]) -> None:
    """Write the section, the picture, and the raw figures of a curve."""
    record = RunRecord(f"curve-{curve.name}", "make bench-curves")
    record.keep(curve=asdict(curve), samples=[asdict(each) for each in samples])
    (ROOT / "docs" / "images" / f"curve-{curve.name}.svg").write_text(picture(curve, samples))
    record.publish(section(curve, samples, machine=record.machine, date=record.date), marks(curve), "curves")


def main() -> None:
    """Measure, print and write one curve after the other. Exit code 1 if one failed, or was not finished in time."""
    args, has_failed = parse_arguments(sys.argv[1:]), False
    for name, (curve, _) in CURVES.items():
        if args.curve and name not in args.curve:
            continue
        points = list[PointMeasurement]()

        def note(each: PointMeasurement, name: str = name, points_of_curve: list[PointMeasurement] = points) -> None:
            points_of_curve.append(each)
            [sample] = samples_of([each])
            follower = "" if sample.follower_us is None else f", follower {sample.follower_us.median:.1f}"
            print(
                f"{name} {sample.at}: {sample.messages_per_second.median:,.0f} msgs/s, p50 {sample.p50_ms:.1f}, "
                f"p99 {sample.p99_ms:.1f} ms, leader {sample.leader_us.median:.1f}{follower}, children "
                f"{sample.children_us:.1f} us/message, {sample.rss_mib:.0f} MiB, load {sample.load_average:.1f}",
                flush=True,
            )

        with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=args.dir) as directory:
            try:
                is_complete = run_trio(partial(run_curve, name, args, Path(directory), note))
            except (ServersFailed, GeneratorFailed, ClientError, subprocess.CalledProcessError, OSError) as error:
                print(f"bench-curves: {name}: {error}", file=sys.stderr)
                has_failed = True
                continue
        if not is_complete:
            print(f"bench-curves: {name} was not done after {args.limit:g} s", file=sys.stderr)
            has_failed = True
        elif not args.no_write:
            write(curve, samples_of(points))
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
