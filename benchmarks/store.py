"""What the message store is to reach: many queues, restarts, and whatever else `CASES` holds.

- ``queues``: one broker with 8 queues, and one with 10,000 (1,250 topics), under the same load: 128 B messages, 4
  connections with 2,500 in flight each, so that each slot has a queue of its own where there are so many.
- ``restart``: a broker with 10 million messages is stopped and started, killed and started, and started without
  anything that was derived from its log. Time is from the start of the process until it leads and is registered.

Real processes and files, the default durability. ``python -m benchmarks.store`` (``make bench-store``).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from benchmarks.figures import BEGIN, END, Figure, table
from benchmarks.frames import QUEUES, topic_name
from benchmarks.load import Job, Report
from benchmarks.procfs import cpu_seconds, load_average, machine, rss_bytes
from benchmarks.report import replace_section
from mq.cli.dev_cluster import DevCluster, DevClusterFailed, Ports
from mq.cli.errors import run_trio
from mq.client.admin import Admin
from mq.client.errors import ClientError
from mq.client.remoting import Remoting
from mq.protocol.codes import RequestCode

ROOT = Path(__file__).parent.parent
MANY_TOPICS = 1250
RESTART_MESSAGES = 10_000_000
BATCH = 32
BODY_BYTES = 128
_CONNECT_SECONDS = 2.0


class Plan(argparse.Namespace):
    """The command line."""

    case: list[str]
    quick: bool
    windows: int
    seconds: float
    warmup: float
    dir: Path | None
    no_write: bool


Note = Callable[[Figure], None]
Measure = Callable[[Plan, Path, Note], Awaitable[None]]
"""A case: tells each figure as soon as it has it."""

_DISK = {"disk_warn_ratio": "0.97", "disk_expire_ratio": "0.98", "disk_full_ratio": "0.99"}
"""What is measured must not depend on how full the machine's disk is."""


@asynccontextmanager
async def one_broker(directory: Path) -> AsyncIterator[DevCluster]:
    """A broker and a name server, both as processes."""
    async with DevCluster.open(directory, nodes=1, ports=Ports.free(1), settings=_DISK) as cluster:
        yield cluster


async def create_topics(cluster: DevCluster, count: int) -> None:
    """Topics of 8 queues each, the last of them visible on return."""
    async with Remoting.open([cluster.namesrv]) as remoting:
        for number in range(count - 1):
            ext = {"topic": topic_name(number), "defaultTopic": "TBW102", "readQueueNums": str(QUEUES)}
            ext |= {"writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG"}
            await remoting.call(cluster.address("n0"), RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic_name(count - 1), QUEUES)


async def run_load(cluster: DevCluster, job: Job) -> tuple[Report, float]:
    """Let a process of its own send to the broker as the job says; also returns the broker's CPU us per message."""
    pid, marks = cluster.pid("n0"), list[float]()

    async def mark_ends() -> None:
        for at in (job.begin, job.begin + job.windows * job.window_seconds):
            await trio.sleep(at - time.clock_gettime(time.CLOCK_MONOTONIC))
            marks.append(cpu_seconds(pid))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark_ends)
        done = await trio.run_process(
            [sys.executable, "-m", "benchmarks.load"],
            stdin=json.dumps(asdict(job)).encode(),
            capture_stdout=True,
            cwd=ROOT,
        )
    cluster.check()
    report = Report(**json.loads(done.stdout))
    return report, 1e6 * (marks[1] - marks[0]) / max(1, sum(report.messages))


def job_for(cluster: DevCluster, plan: Plan, *, in_flight: int, topics: int = 1, batch: int = 1) -> Job:
    """Four connections to the broker; windows begin after the warm-up."""
    return Job(
        address=("127.0.0.1", cluster.port("n0")),
        connections=4,
        in_flight=in_flight,
        body_bytes=BODY_BYTES,
        begin=time.clock_gettime(time.CLOCK_MONOTONIC) + _CONNECT_SECONDS + plan.warmup,
        window_seconds=plan.seconds,
        windows=plan.windows,
        first_slot=1,
        topics=topics,
        batch=batch,
    )


async def measure_queues(plan: Plan, directory: Path, note: Note) -> None:
    """8 queues and 10,000 queues under the same load."""
    topics = 50 if plan.quick else MANY_TOPICS
    rates: dict[int, float] = {}
    for count in (1, topics):
        async with one_broker(directory / f"{count}") as cluster:
            await create_topics(cluster, count)
            report, cpu_us = await run_load(cluster, job_for(cluster, plan, in_flight=2500, topics=count))
            queues = count * QUEUES
            rates[count] = statistics.median(report.messages) / plan.seconds
            pid = cluster.pid("n0")
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            note(Figure("queues", f"messages/s, {queues:,} queues", rates[count], "/s"))
            note(Figure("queues", f"CPU of the broker, {queues:,} queues", cpu_us, "us/message"))
            note(Figure("queues", f"resident memory, {queues:,} queues", rss_bytes(pid) / 1e6, "MB", 600))
            note(Figure("queues", f"open descriptors, {queues:,} queues", descriptors, ""))
    share = 100 * rates[topics] / rates[1]
    note(Figure("queues", "throughput kept with many queues", share, "%", 80, is_limit=False))


async def measure_restart(plan: Plan, directory: Path, note: Note) -> None:
    """Starts of a broker that has many messages."""
    wanted = RESTART_MESSAGES // 100 if plan.quick else RESTART_MESSAGES
    async with one_broker(directory / "restart") as cluster:
        await create_topics(cluster, 1)
        fill = Plan(**vars(plan) | {"warmup": 0.0, "seconds": 1.0 if plan.quick else 5.0, "windows": 1})
        sent = 0
        while sent < wanted:
            report, _ = await run_load(cluster, job_for(cluster, fill, in_flight=16, batch=BATCH))
            sent += sum(report.messages)
        name = f"{sent / 1e6:.1f} million messages"

        async def start(how: str, goal: float | None) -> None:
            began = trio.current_time()
            await cluster.start("n0")
            await _wait_long(cluster)
            note(Figure("restart", f"{how}, {name}", trio.current_time() - began, "s", goal))

        await cluster.stop("n0")
        await start("after a clean stop", 3)
        await run_load(cluster, job_for(cluster, fill, in_flight=16, batch=BATCH))
        cluster.kill("n0")
        await trio.sleep(0.5)
        await start("after a kill under load", 30)
        cluster.kill("n0")
        await trio.sleep(0.5)
        data = cluster.directory / "n0"
        shutil.rmtree(data / "consumequeue")
        for each in ("checkpoint", "checkpoint.previous"):
            (data / each).unlink(missing_ok=True)
        await start("with all queues rebuilt from the log", None)


async def _wait_long(cluster: DevCluster) -> None:
    """Until the broker leads and is registered; a rebuild takes longer than a cluster is waited for otherwise."""
    for attempt in range(10):
        try:
            await cluster.wait_ready()
        except DevClusterFailed:
            if attempt == 9 or not cluster.is_running("n0"):
                raise
        else:
            return


CASES: dict[str, Measure] = {"queues": measure_queues, "restart": measure_restart}


def parse_arguments(arguments: Sequence[str]) -> Plan:
    """The command line as a plan. Ends the process on a wrong one."""
    parser = argparse.ArgumentParser(
        prog="make bench-store", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--case", action="append", default=[], choices=sorted(CASES), help="only this case (repeatable)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a hundredth of the data; docs/performance.md stays as it is"
    )
    parser.add_argument("--windows", type=int, default=5, help="measured windows of a load")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds before the first window")
    parser.add_argument("--dir", type=Path, help="where the data goes; default: a temporary directory")
    parser.add_argument("--no-write", action="store_true", help="leave docs/performance.md as it is")
    plan = parser.parse_args(arguments, namespace=Plan())
    if plan.quick:
        plan.windows, plan.seconds, plan.warmup = 3, 1.0, 1.0
    if plan.quick or plan.case:
        plan.no_write = True  # the table is of one run
    return plan


async def run(plan: Plan, directory: Path) -> list[Figure]:
    """All cases of the plan."""
    figures: list[Figure] = []

    def note(figure: Figure) -> None:
        figures.append(figure)
        print(figure, flush=True)

    for name, measure in CASES.items():
        if not plan.case or name in plan.case:
            await measure(plan, directory / name, note)
    return figures


def main() -> None:
    """Measure, print, and write docs/performance.md and benchmarks/results/."""
    plan = parse_arguments(sys.argv[1:])
    before = load_average()
    with tempfile.TemporaryDirectory(prefix="raftmq-bench-", dir=plan.dir) as directory:
        try:
            figures = run_trio(partial(run, plan, Path(directory)))
        except (DevClusterFailed, ClientError, subprocess.CalledProcessError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            sys.exit(1)
    if plan.no_write:
        return
    now = datetime.now(UTC)
    date = f"{now:%Y-%m-%d %H:%M} UTC"
    results = ROOT / "benchmarks" / "results" / f"store-{now:%Y%m%dT%H%M%SZ}.json"
    raw = {"machine": machine(), "date": date, "loadAverage": before, "figures": [asdict(each) for each in figures]}
    results.write_text(json.dumps(raw, indent=1) + "\n")
    document = ROOT / "docs" / "performance.md"
    command = " ".join(["make bench-store", *([f'ARGS="{" ".join(sys.argv[1:])}"'] if sys.argv[1:] else [])])
    section = table(figures, command=command, machine=machine(), date=date, load_average=before)
    document.write_text(replace_section(document.read_text(), section, BEGIN, END))
    print(f"wrote docs/performance.md and {results.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
