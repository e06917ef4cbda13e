"""Measures the rate, latency and CPU time of sends, with one replica and with three.

Workload: SEND_MESSAGE_V2 requests as stock clients send them, bodies of 128 B and 1 KiB, one topic of 8 queues; 1 and
64 connections with one message in flight each, and 4 connections with 256 each. Real processes, real files, the
default durability (a majority has synced to disk before each reply). Not measured: batches, consumers beside the
producers, many topics, networks other than loopback, several machines.

``python -m benchmarks.produce`` (``make bench``); options: see ``--help``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import trio
import trustme

from benchmarks.cases import Case, Measurement, Window, all_cases
from benchmarks.load.frames import QUEUES, TOPIC
from benchmarks.load.generators import ROOT, GeneratorFailed, cpu_meters, drive, share_out
from benchmarks.load.job import Job
from benchmarks.load.report import Report, quantile
from benchmarks.procfs import load_average, rss_bytes
from benchmarks.report.run_record import RunRecord, markdown
from mq.cli.errors import run_trio
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.local_cluster import DevCluster, Ports, ServersFailed

CONNECT_SECONDS = 1.0
KEYS = "bench-producer", "bench-secret"


class Arguments(argparse.Namespace):
    """The command line."""

    nodes: list[int]
    case: list[str]
    quick: bool
    windows: int
    seconds: float
    warmup: float
    durability: str
    dir: Path | None
    signed: bool
    tls: bool
    tls_ca: str | None
    no_write: bool


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line into a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, action="append", default=[], help="only groups of this size (repeatable)")
    parser.add_argument("--case", action="append", default=[], help="only this case, as 3n-128-4x256 (repeatable)")
    parser.add_argument("--quick", action="store_true", help="short windows; docs/benchmarks/produce.md stays as it is")
    parser.add_argument("--windows", type=int, default=5, help="measured windows of a case")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before the first window")
    parser.add_argument("--durability", default="quorum-fsync", choices=("quorum-fsync", "quorum-memory"))
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--signed", action="store_true", help="brokers have accounts and check signatures")
    parser.add_argument("--tls", action="store_true", help="the load uses TLS")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmarks/produce.md as it is")
    args = parser.parse_args(arguments, namespace=Arguments())
    if args.quick:
        args.windows, args.seconds, args.warmup, args.no_write = 3, 0.5, 0.5, True
    args.no_write |= args.signed or args.tls
    args.tls_ca = None
    names = {case.name for case in all_cases()}
    if unknown := set(args.case) - names:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; allowed: {', '.join(sorted(names))}")
    if unknown_nodes := set(args.nodes) - {1, 3}:
        parser.error(f"cases are for 1 and 3 nodes, not {', '.join(map(str, sorted(unknown_nodes)))}")
    return args


async def run_load(
    address: tuple[str, int], case: Case, args: Arguments, pids: Sequence[int]
) -> tuple[list[Report], list[list[float]]]:
    """Put the load of a case on ``address``. Returns the workers' reports, and the CPU seconds of ``pids`` by window.

    Raises GeneratorFailed.
    """
    job = Job(
        address=address,
        connections=case.connections,
        in_flight=case.in_flight,
        body_bytes=case.body_bytes,
        begin=time.clock_gettime(time.CLOCK_MONOTONIC) + CONNECT_SECONDS + args.warmup,
        window_seconds=args.seconds,
        windows=args.windows,
        first_slot=1,
        keys=KEYS if args.signed else None,
        tls_ca=args.tls_ca,
    )
    return await drive(share_out(job), cpu_meters(pids))


def windows_of(reports: Sequence[Report], cpu: Sequence[Sequence[float]], seconds: float) -> tuple[Window, ...]:
    """Combine the workers' counts and the servers' CPU use (leader first) by window. Pure."""
    windows = []
    for number, seconds_by_process in enumerate(cpu):
        messages = sum(report.messages[number] for report in reports)
        counts: dict[int, int] = {}
        for report in reports:
            for bucket, count in report.latencies[number].items():
                counts[bucket] = counts.get(bucket, 0) + count
        per_message = 1e6 / max(messages, 1)
        leader, *followers = seconds_by_process or [0.0]
        windows.append(
            Window(
                messages_per_second=messages / seconds,
                p50_ms=1e3 * quantile(counts, 0.5),
                p99_ms=1e3 * quantile(counts, 0.99),
                leader_us=leader * per_message,
                follower_us=tuple(follower * per_message for follower in followers),
                generator_us=sum(report.cpu_seconds[number] for report in reports) * per_message,
                generator_cores_max=max(report.cpu_seconds[number] for report in reports) / seconds,
            )
        )
    return tuple(windows)


async def measure(cluster: DevCluster, case: Case, args: Arguments) -> Measurement:
    """Measure one case on a running group. Raises ServersFailed if the leader changed meanwhile."""
    leader = await cluster.leader()
    order = [leader, *(node_id for node_id in cluster.node_ids if node_id != leader)]
    pids = [cluster.pid(node_id) for node_id in order]
    before = load_average()
    host, _, port = cluster.address(leader).rpartition(":")
    reports, cpu = await run_load((host, int(port)), case, args, pids)
    cluster.check()
    if await cluster.leader() != leader:
        raise ServersFailed(f"{case.name}: the leader changed meanwhile; is this machine too busy?")
    return Measurement(
        case=case,
        windows=windows_of(reports, cpu, args.seconds),
        rss_mib=tuple(rss_bytes(pid) / 2**20 for pid in pids),
        load_average=before,
        durability=args.durability,
    )


async def measure_ceiling(case: Case, args: Arguments) -> float:
    """Return the messages a second that the load generator reaches with a server that only acknowledges."""
    async with _null_server() as port:
        reports, cpu = await run_load(("127.0.0.1", port), case, args, [])
    return statistics.median(window.messages_per_second for window in windows_of(reports, cpu, args.seconds))


@asynccontextmanager
async def _null_server() -> AsyncIterator[int]:
    port = Ports.free(1).namesrv
    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(
                trio.run_process,
                [sys.executable, "-m", "benchmarks.load.null_server", str(port)],
                stdin=subprocess.PIPE,
                cwd=ROOT,
                check=False,
            )
        )
        with trio.fail_after(10):
            while True:
                try:
                    stream = await trio.open_tcp_stream("127.0.0.1", port)
                except OSError:
                    await trio.sleep(0.05)
                else:
                    await stream.aclose()
                    break
        yield port
        nursery.cancel_scope.cancel()


async def run(args: Arguments, directory: Path) -> tuple[list[Measurement], dict[str, float]]:
    """Measure all selected cases, and the load generator's ceiling for each load."""
    cases = [
        case
        for case in all_cases()
        if (not args.nodes or case.nodes in args.nodes) and (not args.case or case.name in args.case)
    ]
    loads = list(dict.fromkeys(replace(case, nodes=0) for case in cases if case.connections > 1))
    ceilings = {}
    for load in loads:
        ceilings[load.load] = await measure_ceiling(load, args)
        print(f"generator alone {load.load:>14}: {ceilings[load.load]:>9,.0f} msgs/s", flush=True)
    measurements = []
    for nodes in sorted({case.nodes for case in cases}):
        settings = {"durability": args.durability}
        if args.signed:
            settings["acl_file"] = str(_accounts_file(directory))
        if args.tls:
            settings |= _certificate(directory)
            args.tls_ca = str(directory / "ca.pem")
        async with DevCluster.open(
            directory / f"{nodes}", nodes=nodes, ports=Ports.free(nodes), settings=settings
        ) as cluster:
            async with Admin(cluster.namesrv) as admin:
                await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
            for case in (case for case in cases if case.nodes == nodes):
                measurement = await measure(cluster, case, args)
                measurements.append(measurement)
                print(line_of(measurement), flush=True)
    return measurements, ceilings


def _certificate(directory: Path) -> dict[str, str]:
    """Make a certificate; returns the brokers' settings. Its authority is in ``ca.pem``."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    key_pair = authority.issue_cert("127.0.0.1")
    certificate, key = directory / "server.pem", directory / "server.key"
    certificate.write_bytes(b"".join(each.bytes() for each in key_pair.cert_chain_pems))
    key_pair.private_key_pem.write_to_path(str(key))
    return {"tls_mode": "permissive", "tls_certificate": str(certificate), "tls_key": str(key)}


def _accounts_file(directory: Path) -> Path:
    """Write accounts for the load and for this process, which gets an administrator's keys."""
    os.environ |= {"RAFTMQ_ACCESS_KEY": "bench-administrator", "RAFTMQ_SECRET_KEY": KEYS[1]}
    rows = (
        f"{{accessKey: bench-administrator, secretKey: {KEYS[1]}, admin: true}}",
        f"{{accessKey: {KEYS[0]}, secretKey: {KEYS[1]}, topicPerms: [{TOPIC}=PUB]}}",
    )
    path = directory / "plain_acl.yml"
    path.write_text("accounts:\n" + "".join(f"- {row}\n" for row in rows))
    return path


def line_of(measurement: Measurement) -> str:
    """Format a measurement as a line for the terminal."""
    window = measurement.median
    followers = " + ".join(f"{us:.1f}" for us in window.follower_us)
    rss = " / ".join(f"{mib:.0f}" for mib in measurement.rss_mib)
    return (
        f"{measurement.case.nodes} node(s) {measurement.case.load:>14}: {window.messages_per_second:>9,.0f} msgs/s, "
        f"p50 {window.p50_ms:6.2f} p99 {window.p99_ms:6.2f} ms, "
        f"CPU us/msg: leader {window.leader_us:.1f}{f', followers {followers}' if followers else ''}, "
        f"generator {window.generator_us:.1f} ({100 * window.generator_cores_max:.0f} % of a core at most); "
        f"RSS {rss} MiB; load average {measurement.load_average:.1f}"
    )


def main() -> None:
    """Measure, print, and write docs/benchmarks/produce.md and benchmarks/results/."""
    args = parse_arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=args.dir) as directory:
        try:
            measurements, ceilings = run_trio(partial(run, args, Path(directory)))
        except (ServersFailed, ClientError, GeneratorFailed, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            sys.exit(1)
    if args.no_write:
        return
    record = RunRecord("produce", "make bench")
    record.keep(generatorCeilings=ceilings, measurements=[asdict(measurement) for measurement in measurements])
    record.publish(markdown(measurements, ceilings=ceilings, **record.about))


if __name__ == "__main__":
    main()
