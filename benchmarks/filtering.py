"""Measures the cost of filtering beside the broker. ``python -m benchmarks.filtering`` (``make bench-filter``).

One broker has 160,000 messages of 1 KiB in 8 queues; one in ten has the property ``region=eu``. Consumers read all of
them, one connection for each queue, each with one pull in flight for 32 messages:

- ``broker``: from the broker, without a filter.
- ``property``: through a filter server, with the module of ``tests/filters/by_property.wat``, which looks for that
  property. ``expression``: with a ``BodyFilter`` that does, which is compiled to Python.

CPU is the CPU time of the process per message read from the broker. The consumers use the cores, too.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
import wasmtime

from benchmarks.load.frames import CONSUMERS, QUEUES, TOPIC, pull_frame, request_frame, send_frame
from benchmarks.procfs import load_average
from benchmarks.pulling import fill_with, receive_frame
from benchmarks.suites.case_load import ROOT, Arguments, Measure, Note, create_topics, one_broker
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.client import Admin
from mq.filter.programs import ProgramName, name_of
from mq.local_cluster import HOST, DevCluster
from mq.local_cluster.port_reservation import OWN_PORTS
from mq.monitoring.cpu_time import cpu_seconds
from mq.protocol.codes import RequestCode
from mq.protocol.requests.filters import RegisterFilterClassExt

MESSAGES = 160_000
BODY_BYTES = 1024
PASSED = 10
"""One message in this number is let through."""
PER_CORE = 100_000
ASKED = 32
_NEXT = re.compile(rb'"nextBeginOffset":"?(\d+)')
_CODE = re.compile(rb'"code":(-?\d+)')
_ANSWERS = (0, 20)
"""Found, and to be pulled again at another offset."""


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """The figures of reading all queues once."""

    messages: int
    nbytes: int
    seconds: float


def read_queue(address: tuple[str, int], queue_id: int, end: int, program: str | None) -> tuple[int, int]:
    """Pull one queue up to the offset ``end``. Returns the messages examined and the bytes received. Blocks."""
    offset = received_bytes = 0
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while offset < end:
            sock.sendall(pull_frame(offset + 1, queue_id, offset, ASKED, waits=True, program=program))
            response = receive_frame(sock)
            received_bytes += len(response)
            head = response[4 : 4 + int.from_bytes(response[1:4], "big")]
            code, next_match = _CODE.search(head), _NEXT.search(head)
            if code is None or next_match is None or int(code[1]) not in _ANSWERS or int(next_match[1]) <= offset:
                raise ConnectionError(f"{address} answers {head[:400]!r} at offset {offset} of {end}")
            offset = int(next_match[1])
    return offset, received_bytes


def read_all(address: tuple[str, int], end: int, program: str | None) -> ReadOutcome:
    """Pull all queues at the same time, each up to the offset ``end``. Blocks."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(QUEUES) as threads:
        outcomes = list(threads.map(lambda queue_id: read_queue(address, queue_id, end, program), range(QUEUES)))
    return ReadOutcome(
        sum(each for each, _ in outcomes), sum(each for _, each in outcomes), time.perf_counter() - begin
    )


def upload(address: tuple[str, int], name: ProgramName, content: bytes) -> None:
    """Upload a filter to the filter server. Blocks. Raises ConnectionError if the server refuses it."""
    ext = RegisterFilterClassExt(
        consumer_group=CONSUMERS, topic=TOPIC, class_name=name.text, class_crc=zlib.crc32(content) & 0x7FFFFFFF
    )
    with socket.create_connection(address) as sock:
        sock.sendall(request_frame(RequestCode.REGISTER_MESSAGE_FILTER_CLASS, 1, ext, content))
        response = receive_frame(sock)
        if (code := _CODE.search(response)) is None or int(code[1]):
            raise ConnectionError(f"the filter is refused: {response[4:400]!r}")


@asynccontextmanager
async def filter_server(cluster: DevCluster) -> AsyncIterator[tuple[tuple[str, int], int]]:
    """Run a filter server beside the broker. Yields its address and its process id."""
    port = OWN_PORTS.reserve(1)
    settings = ["metrics_listen=off", f"group_share={os.cpu_count()}"]
    options = ["--broker", cluster.address("n0"), "--namesrv", cluster.namesrv, "--listen", f"{HOST}:{port}"]
    command = [sys.executable, "-m", "mq.cli", "filter-server", *options, "--log-level", "warning"]
    command += ["--until-stdin-closes", *itertools.chain.from_iterable(("--set", each) for each in settings)]
    process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, cwd=ROOT)
    try:
        async with Admin(cluster.namesrv) as admin:
            with trio.fail_after(30):
                # Only the name server knows when it is in the route.
                while not any((await admin.route(TOPIC)).filter_servers.values()):  # noqa: ASYNC110
                    await trio.sleep(0.1)
        yield (HOST, port), process.pid
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def measure_filters(args: Arguments, directory: Path, note: Note) -> None:
    """Measure reading without a filter, and with each kind of filter, in turns."""
    messages = MESSAGES // (10 if args.quick else 1)
    end = messages // QUEUES
    frames = [
        send_frame(
            number + 1, BODY_BYTES, number % QUEUES, more="" if number // QUEUES % PASSED else "\x02region\x01eu"
        )
        for number in range(QUEUES * PASSED)
    ]
    module = bytes(wasmtime.wat2wasm((ROOT / "tests" / "filters" / "by_property.wat").read_text()))
    expression = b"region = 'eu'"
    programs = {
        "broker": None,
        "property": (name_of("wasm", module), module),
        "expression": (name_of("sql", expression), expression),
    }
    rows: dict[str, list[FilterFigures]] = {case: [] for case in programs}
    async with one_broker(directory) as cluster:
        await create_topics(cluster, 1)
        broker = (HOST, cluster.port("n0"))
        await trio.to_thread.run_sync(partial(fill_with, broker, messages, frames))
        async with filter_server(cluster) as (address, pid):
            for window in range(args.windows + 1):
                for case, program in programs.items():
                    if program is not None:
                        await trio.to_thread.run_sync(partial(upload, address, *program))
                    where, name = (broker, None) if program is None else (address, program[0].text)
                    before = cpu_seconds(cluster.pid("n0")), cpu_seconds(pid)
                    outcome = await trio.to_thread.run_sync(partial(read_all, where, end, name))
                    leader = cpu_seconds(cluster.pid("n0")) - before[0]
                    row = FilterFigures(
                        outcome,
                        1e6 * leader / outcome.messages,
                        1e6 * (cpu_seconds(pid) - before[1]) / outcome.messages,
                    )
                    if window:  # the first one is the warm-up
                        rows[case].append(row)
            cluster.check()
    broker_us = statistics.median(row.leader_us for row in rows["broker"])
    broker_bytes = statistics.median(row.done.nbytes for row in rows["broker"])
    note(Figure("broker", "messages/s", _rate(rows["broker"]), "/s"))
    note(Figure("broker", "CPU of the leader", broker_us, "us/message"))
    for case in ("property", "expression"):
        leader_us = statistics.median(row.leader_us for row in rows[case])
        us = statistics.median(row.server_us for row in rows[case])
        share = statistics.median(row.done.nbytes for row in rows[case]) / broker_bytes
        goal = PER_CORE if case == "property" else None
        note(Figure(case, "messages/s", _rate(rows[case]), "/s"))
        note(Figure(case, "CPU of the filter server", us, "us/message"))
        note(Figure(case, "messages/s for each core of it", 1e6 / us, "/s", goal, is_limit=False))
        note(Figure(case, "CPU of the leader", leader_us, "us/message", broker_us))
        note(Figure(case, "bytes to the consumer", 100 * share, "% of all", 100 / PASSED * 1.05))
    note(Figure("broker", "load average at the end", load_average(), ""))


@dataclass(frozen=True, slots=True)
class FilterFigures:
    """The figures of reading all queues once with one kind of filter."""

    done: ReadOutcome
    leader_us: float
    server_us: float


def _rate(rows: list[FilterFigures]) -> float:
    return statistics.median(row.done.messages / row.done.seconds for row in rows)


CASES: dict[str, Measure] = {"filters": measure_filters}

FILTER = Suite("filter", __doc__, CASES)

if __name__ == "__main__":
    FILTER.main()
