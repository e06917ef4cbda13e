"""Measures the cost of a task that does nothing, with raftmq, Redis and RabbitMQ as Celery's broker.

For each of them a worker with one process in its pool runs, all at the same time; they are measured in turn, several
times. Latency is the time of `noop.delay().get()`, one after the other; tasks/s is for many that are sent at once,
until the last result is there. Results are in a Redis of their own, in memory, whatever the broker is.

`python -m benchmarks celery` writes docs/celery.md's section.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio
from celery import Celery

from benchmarks.celery_load.noop_app import application
from benchmarks.celery_load.redis import open_redis, redis_missing
from benchmarks.celery_load.systems import Broker, CeleryBroker, all_open
from benchmarks.celery_load.workers import Workers
from benchmarks.peers.peer import package_missing
from benchmarks.peers.rabbitmq import PROGRAM as RABBITMQ_PROGRAM
from benchmarks.procfs import load_average, machine, own_cpu_seconds, process_tree
from benchmarks.report.run_record import replace_section
from benchmarks.suites.case_load import ROOT
from mq.cli.errors import run_trio
from mq.local_cluster import ServersFailed

PAGE = ROOT / "docs" / "celery.md"
BEGIN = "<!-- measured by `make bench-celery`: begin -->"
END = "<!-- measured by `make bench-celery`: end -->"
GET_SECONDS_MAX = 60.0
WARM_UP = 30


class Arguments(argparse.Namespace):
    """The command line."""

    rounds: int
    calls: int
    tasks: int
    no_write: bool


@dataclass(slots=True)
class SystemMeasurements:
    """Measures one system, and collects its figures."""

    system: CeleryBroker
    broker: Broker
    app: Celery
    worker_pids: list[int]
    seconds: list[float] = field(default_factory=list)
    """Seconds of each call."""
    stages: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds of the stages of each call: until `delay` returned, until the task began, until `get` returned."""
    rates: list[float] = field(default_factory=list)
    """Tasks per second, of each round."""
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {"client": [], "worker": [], "broker": []})
    """Per task of each round of many."""

    def call(self, count: int) -> None:
        """Call the task ``count`` times, one after the other."""
        noop = self.app.tasks["noop"]
        for _ in range(count):
            began = time.time()  # the clock of the worker's processes, too
            result = noop.delay()
            sent_at = time.time()
            ran_at = result.get(timeout=GET_SECONDS_MAX, interval=0.001)
            done_at = time.time()
            self.seconds.append(done_at - began)
            self.stages.append((sent_at - began, ran_at - sent_at, done_at - ran_at))

    def run(self, count: int) -> None:
        """Send ``count`` tasks at once, and wait until all have run."""
        noop = self.app.tasks["noop"]
        before, began = self._cpu_seconds(), time.perf_counter()
        for each in [noop.delay() for _ in range(count)]:
            each.get(timeout=GET_SECONDS_MAX, interval=0.001)
        self.rates.append(count / (time.perf_counter() - began))
        for name, seconds in self._cpu_seconds().items():
            self.cpu_us[name].append(1e6 * (seconds - before[name]) / count)

    def _cpu_seconds(self) -> dict[str, float]:
        servers = [pid for each in self.broker.pids for pid in process_tree(each)]
        return {
            "client": time.process_time(),
            "worker": sum(map(own_cpu_seconds, self.worker_pids)),
            "broker": sum(map(own_cpu_seconds, servers)),
        }


async def play(args: Arguments, directory: Path) -> list[SystemMeasurements]:
    """Measure all systems. Raises ServersFailed, OSError."""
    with ExitStack() as stack:
        port, _ = stack.enter_context(open_redis(directory / "results"))
        backend = f"redis://127.0.0.1:{port}/0"
        async with all_open(directory) as systems:
            measurements = []
            for number, (system, broker) in enumerate(systems):
                environment = {
                    "NOOP_BROKER": broker.url,
                    "NOOP_BACKEND": backend,
                    "NOOP_SETTINGS": json.dumps(dict(system.settings)),
                    "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                }
                workers = Workers("benchmarks.celery_load.noop_app", directory, environment, pool_size=1)
                stack.callback(workers.close)
                await workers.start(f"worker-{number}")
                app = application(broker.url, backend, system.settings)
                measurements.append(SystemMeasurements(system, broker, app, workers.pids(f"worker-{number}")))
            await trio.to_thread.run_sync(_measure, args, measurements)
    return measurements


def _measure(args: Arguments, measurements: list[SystemMeasurements]) -> None:
    for each in measurements:
        each.call(WARM_UP)
        each.seconds.clear()
        each.stages.clear()
    for _ in range(args.rounds):
        for each in measurements:
            each.call(args.calls)
            each.run(args.tasks)
    for each in measurements:
        each.app.close()


def markdown(measurements: list[SystemMeasurements], *, command: str, load: float) -> str:
    """Write the section of docs/celery.md."""
    count, calls = len(measurements[0].rates), len(measurements[0].seconds)
    lines = [
        f"Command: `{command}`. Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Load average before: {load:.1f}.",
        f"Machine: {machine()}; servers, workers and the client share it.",
        "",
        f"A `noop` task, {calls:,} calls of `noop.delay().get()`; tasks/s and CPU are the medians of {count} rounds of",
        "many at once. Each worker has a pool of one process. Results are in Redis, in memory, for all of them. A call",
        "has three stages, each with its p50: until `delay` returns, until the task begins, until `get` returns.",
        "",
        "| broker | when `delay` returns, a task is | p50 / p99 ms | stages, ms | tasks/s "
        "| CPU us/task: client + worker + broker |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for each in measurements:
        quantiles = statistics.quantiles(each.seconds, n=100)
        cpu = " + ".join(f"{statistics.median(us):,.0f}" for us in each.cpu_us.values())
        stages = " + ".join(f"{1e3 * statistics.median(of):.1f}" for of in zip(*each.stages, strict=True))
        lines.append(
            f"| {each.system.name} | {each.system.durability} | {1e3 * statistics.median(each.seconds):.1f} / "
            f"{1e3 * quantiles[98]:.1f} | {stages} | {statistics.median(each.rates):,.0f} | {cpu} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the section of docs/celery.md."""
    parser = argparse.ArgumentParser(
        prog="make bench-celery", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200, help="one after the other, of each round and broker")
    parser.add_argument("--tasks", type=int, default=1000, help="at once, of each round and broker")
    parser.add_argument("--no-write", action="store_true", help="leave docs/celery.md as it is")
    args = parser.parse_args(namespace=Arguments())
    for reason in (redis_missing(), package_missing(str(RABBITMQ_PROGRAM), "rabbitmq-server")):
        if reason is not None:
            parser.exit(2, f"bench: {reason}\n")
    load = load_average()
    with tempfile.TemporaryDirectory(prefix="raftmq-celery-") as directory:
        try:
            measurements = run_trio(partial(play, args, Path(directory)))
        except (ServersFailed, OSError, subprocess.CalledProcessError) as error:
            print(f"bench: {error}", file=sys.stderr)
            sys.exit(1)
    words = " ".join(sys.argv[1:])
    section = markdown(measurements, command="make bench-celery" + (f' ARGS="{words}"' if words else ""), load=load)
    print(section)
    if not args.no_write:
        PAGE.write_text(replace_section(PAGE.read_text(), section, BEGIN, END))


if __name__ == "__main__":
    main()
