"""Measures whether memory grows under half an hour of load on three replicas.

A producer sends at a fixed rate; push and pop consumers read (`benchmarks.memory.clients`). The log is kept small, so
that retention deletes files all the time, beside checkpoints and the key index. Every half minute the resident memory
of each replica, of the child processes of all replicas, which index keys, and of the clients is read.

Real processes and files, the default durability. ``python -m benchmarks memory`` (``make bench-memory``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import trio

from benchmarks.load.generators import ROOT, GeneratorFailed
from benchmarks.memory.clients import MemoryJob, MemoryReport
from benchmarks.memory.page import BEGIN, END, WARM_UP_SECONDS, MemorySample, growths, picture, section
from benchmarks.procfs import load_average, process_tree, rss_bytes
from benchmarks.report.run_record import RunRecord
from mq.cli.errors import run_trio
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.local_cluster import DevCluster, Ports, ServersFailed
from mq.local_cluster.any_disk import ANY_DISK

BODY_BYTES = 1024
TOPICS = ["MemoryOrders", "MemoryBills", "MemoryParcels", "MemoryEvents"]
QUEUES = 8
SAMPLE_SECONDS = 30.0
RETENTION_MIB = 512
SETTINGS = ANY_DISK | {
    "segment_bytes": str(64 << 20),
    "retention_bytes": str(RETENTION_MIB << 20),
    "delete_when": "-1",
}


class Arguments(argparse.Namespace):
    """The command line."""

    minutes: float
    rate: int
    quick: bool
    no_write: bool
    dir: Path | None


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-memory", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="of load; growth counts after the first five")
    parser.add_argument("--rate", type=int, default=3000, help="messages of 1 KiB a second")
    parser.add_argument("--quick", action="store_true", help="half a minute; docs/benchmarks/memory.md stays as it is")
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--no-write", action="store_true", help="leave docs as they are")
    args = parser.parse_args(arguments, namespace=Arguments())
    if args.quick:
        args.minutes, args.no_write = 0.5, True
    elif 60 * args.minutes < WARM_UP_SECONDS + 2 * SAMPLE_SECONDS:
        parser.error(f"--minutes: growth counts after {WARM_UP_SECONDS / 60:g} minutes; give at least 6")
    return args


async def measure(args: Arguments, directory: Path, samples: list[MemorySample]) -> MemoryReport:
    """Run the load and collect samples. Raises ServersFailed, GeneratorFailed, ClientError."""
    reports = list[MemoryReport]()
    async with DevCluster.open(directory, nodes=3, ports=Ports.free(3), settings=SETTINGS) as cluster:
        async with Admin(cluster.namesrv) as admin:
            for topic in TOPICS:
                await admin.create_topic(topic, QUEUES)
        pids = {f"replica {node}": cluster.pid(node) for node in cluster.node_ids}
        job = MemoryJob(cluster.namesrv, TOPICS, args.rate, 60 * args.minutes, BODY_BYTES)
        async with trio.open_nursery() as nursery:
            clients: trio.Process = await nursery.start(partial(_run_clients, job, reports))
            began = trio.current_time()
            step = SAMPLE_SECONDS if not args.quick else 5.0
            for number in range(1, int(job.seconds / step) + 1):
                await trio.sleep_until(began + number * step)
                cluster.check()
                samples.append(_sample(number * step, pids, clients.pid))
                text = ", ".join(f"{name} {mib:.1f}" for name, mib in samples[-1].rss_mib.items())
                print(f"{number * step / 60:.1f} min: {text} MiB, load {load_average():.1f}", flush=True)
    return reports[0]


def _sample(seconds: float, pids: dict[str, int], clients: int) -> MemorySample:
    memory = {name: rss_bytes(pid) / 2**20 for name, pid in pids.items()}
    memory["child processes"] = (
        sum(rss_bytes(child) for pid in pids.values() for child in process_tree(pid)[1:]) / 2**20
    )
    memory["clients"] = rss_bytes(clients) / 2**20
    return MemorySample(seconds, memory)


async def _run_clients(
    job: MemoryJob,
    reports: list[MemoryReport],
    *,
    task_status: trio.TaskStatus[trio.Process] = trio.TASK_STATUS_IGNORED,
) -> None:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "benchmarks.memory.clients"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None, "no pipe to the clients"
    assert process.stdout is not None, "no pipe from the clients"
    try:
        await process.stdin.send_all(json.dumps(asdict(job)).encode())
        await process.stdin.aclose()
        task_status.started(process)
        output = b"".join([chunk async for chunk in process.stdout])
        if await process.wait():
            raise GeneratorFailed("the clients ended early")
        reports.append(MemoryReport(**json.loads(output)))
    finally:
        if process.returncode is None:
            process.kill()


def write(args: Arguments, samples: Sequence[MemorySample], report: MemoryReport) -> None:
    """Write the section, the picture, and the raw figures."""
    record = RunRecord("memory")
    rows = [{"seconds": sample.seconds, "rssMib": dict(sample.rss_mib)} for sample in samples]
    record.keep(rate=args.rate, report=asdict(report), samples=rows)
    (ROOT / "docs" / "images" / "memory.svg").write_text(picture(samples))
    load = (
        f"{args.rate:,} messages/s of 1 KiB for {args.minutes:g} minutes; a log of {RETENTION_MIB} MiB. "
        f"{report.acknowledged:,} messages were acknowledged, {report.failed:,} not; {report.handled:,} were handled "
        f"by push consumers and {report.popped:,} popped."
    )
    text = section(samples, load=load, machine=record.machine, date=record.date, load_average=load_average())
    record.publish(text, (BEGIN, END))


def main() -> None:
    """Measure, print, and write the page. Exit code 1 if a server or the clients failed."""
    args = parse_arguments(sys.argv[1:])
    samples = list[MemorySample]()
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=args.dir) as directory:
        try:
            report = run_trio(partial(measure, args, Path(directory) / "replicas", samples))
        except (ServersFailed, GeneratorFailed, ClientError, OSError) as error:
            print(f"bench-memory: {error}", file=sys.stderr)
            sys.exit(1)
    print(report)
    for name, growth in growths(samples, 0.0 if args.quick else WARM_UP_SECONDS).items():
        print(f"{name}: {growth.first:.1f} MiB, at the end {growth.last:.1f}, {growth.per_hour:+.1f} MiB per hour")
    if not args.no_write:
        write(args, samples, report)


if __name__ == "__main__":
    main()
