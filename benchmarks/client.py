"""Measures how much one process can send with the Python SDK, and its CPU time per message.

`raftmq bench produce` is the client: one process, one producer, bodies of 128 B and 1 KiB. It sends single messages,
single messages that the producer batches by itself (``linger``), and batches that the application makes. Then `raftmq
bench backlog` sends more, and receives all of them as one consumer gets them, in batches. The broker group has one
replica, so that brokers leave the client a core of its own, and then three, all on the client's machine.

Real processes and files, the default durability; four minutes. ``python -m benchmarks client``
(``make bench-client``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from benchmarks.suites.case_load import ROOT, Arguments, Measure, Note
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.local_cluster import DevCluster, Ports
from mq.local_cluster.any_disk import ANY_DISK

BODIES = (128, 1024)
BATCHED = "single messages, batched by the producer"
LOADS: Mapping[str, Sequence[str]] = {
    "single messages": ("--in-flight", "256"),
    BATCHED: ("--in-flight", "1024", "--linger", "0.005"),
    "batches of 32": ("--in-flight", "16", "--batch", "32"),
}
"""Options of `raftmq bench produce`; ``--in-flight`` counts requests, or messages where the producer batches."""
GOALS: Mapping[tuple[str, str, int], float] = {
    ("one replica", "single messages", 128): 30_000.0,
    ("one replica", BATCHED, 128): 40_000.0,
}
RECEIVED_GOAL = 100_000.0
RECEIVED_AT = ("one replica", 128)


async def measure_one(args: Arguments, directory: Path, note: Note) -> None:
    """Measure with one replica. Raises ServersFailed."""
    await _measure("one replica", 1, args, directory, note)


async def measure_three(args: Arguments, directory: Path, note: Note) -> None:
    """Measure with three replicas. Raises ServersFailed."""
    await _measure("three replicas", 3, args, directory, note)


async def _measure(case: str, nodes: int, args: Arguments, directory: Path, note: Note) -> None:
    async with DevCluster.open(
        directory / "replicas", nodes=nodes, ports=Ports.free(nodes), settings=ANY_DISK
    ) as cluster:
        for load, options in LOADS.items():
            for body in BODIES:
                result = await _bench("produce", cluster.namesrv, body, args, ["--warm-up", str(args.warmup), *options])
                cluster.check()
                for figure in figures_of(case, load, body, result):
                    note(figure)
        for body in BODIES:
            result = await _bench("backlog", cluster.namesrv, body, args, [])
            cluster.check()
            for figure in figures_of_received(case, body, result):
                note(figure)


async def _bench(
    what: str, namesrv: str, body: int, args: Arguments, options: Sequence[str]
) -> dict[str, dict[str, float]]:
    seconds = str(args.windows * args.seconds / 2)
    command = [sys.executable, "-m", "mq.cli", "bench", what, "--json", "--namesrv", namesrv, "--size", str(body)]
    command += ["--seconds", seconds, *options]
    process = await trio.run_process(command, cwd=ROOT, capture_stdout=True)
    result: dict[str, dict[str, float]] = json.loads(process.stdout)
    return result


def figures_of(case: str, load: str, body: int, result: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """Return the figures of one load with bodies of ``body`` bytes. ``result``: the JSON of `raftmq bench produce`."""
    cpu = result["cpu_us_per_message"]
    name = f"{load}, {body} B"
    goal = GOALS.get((case, load, body))
    rate = result["produced"]["messages_per_second"]
    return [
        Figure(case, f"{name}: messages/s", rate, "/s", goal, is_limit=False),
        Figure(case, f"{name}: CPU of the client", cpu["client"], "us/message"),
        Figure(case, f"{name}: p50", result["acknowledged_ms"]["p50"], "ms"),
        Figure(case, f"{name}: p99", result["acknowledged_ms"]["p99"], "ms"),
    ]


def figures_of_received(case: str, body: int, result: Mapping[str, Mapping[str, float]]) -> list[Figure]:
    """Return the figures of reading a backlog. ``result``: the JSON of `raftmq bench backlog`."""
    goal = RECEIVED_GOAL if (case, body) == RECEIVED_AT else None
    rate = result["consumed"]["messages_per_second"]
    return [
        Figure(case, f"received, {body} B: messages/s", rate, "/s", goal, is_limit=False),
        Figure(case, f"received, {body} B: CPU of the client", result["cpu_us_per_message"]["client"], "us/message"),
    ]


CASES: dict[str, Measure] = {"one": measure_one, "three": measure_three}

CLIENT = Suite("client", __doc__, CASES)

if __name__ == "__main__":
    CLIENT.main()
