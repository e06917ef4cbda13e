"""Measures the cost of metrics. ``python -m benchmarks.scraping`` (``make bench-metrics``).

- ``cost``: one broker receives messages of 128 B, 4x256, as fast as it can; in every other window its ``/metrics`` is
  scraped once a second, fifteen times as often as `deploy/prometheus/prometheus.yml` does. CPU time of the broker per
  message, with and without.
- ``large``: a broker with 1,000 topics, and 1,000 consumer groups that have consumed one topic each. The time of an
  uncached scrape, and the time for which it holds the event loop: the broker itself measures the steps of its task,
  each from one checkpoint to the next. Beside it, the wait of a client's request: requests are sent to the broker one
  at a time throughout; requests in flight during a scrape are compared with requests in windows of the same lengths
  without one.

The path of a message does no work for metrics, so there is no broker without them to compare with: only scrapes can
cost something.
"""

from __future__ import annotations

import itertools
import re
import statistics
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from benchmarks.load.frames import topic_name
from benchmarks.suites.case_load import Arguments, Measure, Note, create_topics, job_for, one_broker, run_load
from benchmarks.suites.figures import Figure
from benchmarks.suites.suite import Suite
from mq.addresses import metrics_address_beside
from mq.client import Message, Producer, PullConsumer
from mq.client.net.client_core import ClientCore
from mq.local_cluster import DevCluster
from mq.monitoring.cpu_time import cpu_seconds
from mq.monitoring.http import KEPT_SECONDS
from mq.protocol.codes import RequestCode

SCRAPE_SECONDS = 1.0
CONFIGURED_SECONDS = 15.0
"""Seconds between scrapes by deploy/prometheus/prometheus.yml."""
NAMES = 1000
SCRAPES = 40
PAUSE_SECONDS = 0.0005
_STEP = re.compile(rb'raftmq_scrape_step_max_seconds\{clock="(\w+)".*\} (\S+)')


async def scrape(cluster: DevCluster, node_id: str = "n0") -> tuple[float, list[bytes]]:
    """Scrape a broker's metrics. Returns the duration in seconds, and the lines of samples."""
    address = metrics_address_beside(("127.0.0.1", cluster.port(node_id)))
    assert address is not None, "a broker without a port for metrics"
    url = "http://{}:{}/metrics".format(*address)

    def get() -> bytes:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - the address above
            body: bytes = answer.read()
            return body

    begin = time.perf_counter()
    body = await trio.to_thread.run_sync(get)
    return time.perf_counter() - begin, [line for line in body.splitlines() if not line.startswith(b"#")]


async def measure_cost(args: Arguments, directory: Path, note: Note) -> None:
    """Measure the CPU time per message in windows that alternate: with scrapes and without."""
    pairs = args.windows
    windows = Arguments(**vars(args) | {"windows": 2 * pairs})
    async with one_broker(directory) as cluster:
        await create_topics(cluster, 1)
        job = job_for(cluster, windows, in_flight=256)

        async def scrape_in_odd_windows() -> None:
            for window in range(1, 2 * pairs, 2):
                begin = job.begin + window * job.window_seconds
                for at in _steps(begin, begin + job.window_seconds - SCRAPE_SECONDS / 2, SCRAPE_SECONDS):
                    await trio.sleep(at - time.clock_gettime(time.CLOCK_MONOTONIC))
                    await scrape(cluster)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(scrape_in_odd_windows)
            report, cpu = await run_load(cluster, job)
            nursery.cancel_scope.cancel()
    us = [1e6 * seconds / messages for seconds, messages in zip(cpu, report.messages, strict=True)]
    without, with_scrapes = us[0::2], us[1::2]
    growth = [100 * (on / off - 1) for off, on in zip(without, with_scrapes, strict=True)]
    share = CONFIGURED_SECONDS / SCRAPE_SECONDS
    note(Figure("cost", "CPU of the broker, not scraped", statistics.median(without), "us/message"))
    note(Figure("cost", "CPU of the broker, scraped once a second", statistics.median(with_scrapes), "us/message"))
    note(Figure("cost", "median growth between adjacent windows", statistics.median(growth), "%"))
    note(Figure("cost", f"of that, scraped every {share:g} s", statistics.median(growth) / share, "%", 1))


def _steps(begin: float, end: float, step: float) -> Iterator[float]:
    return itertools.takewhile(lambda at: at < end, itertools.count(begin, step))


@dataclass
class Probe:
    """Sends requests to a broker one by one, and measures how long each takes."""

    quiet: list[float] = field(default_factory=list)
    scraped: list[float] = field(default_factory=list)
    _into: list[float] | None = None

    async def run(self, cluster: DevCluster) -> None:
        """Send requests forever. A request that begins or ends in a window is a sample of the window."""
        async with ClientCore.open([cluster.namesrv]) as core:
            while True:
                began_in, begin = self._into, time.perf_counter()
                ext = {"topic": topic_name(0), "queueId": "0"}
                await core.call(cluster.address("n0"), RequestCode.GET_MIN_OFFSET, ext)
                if (into := self._into if began_in is None else began_in) is not None:
                    into.append(time.perf_counter() - begin)
                await trio.sleep(PAUSE_SECONDS)

    @contextmanager
    def window(self, into: list[float]) -> Iterator[None]:
        """Collect samples in the list ``into`` until the block ends."""
        self._into = into
        try:
            yield
        finally:
            self._into = None


async def measure_large(args: Arguments, directory: Path, note: Note) -> None:
    """Measure scrapes of a broker with many topics and groups."""
    names = NAMES // 100 if args.quick else NAMES
    async with one_broker(directory) as cluster:
        await create_topics(cluster, names)
        await _consume_everything(cluster, names)
        probe, seconds, cpu = Probe(), list[float](), list[float]()
        pid = cluster.pid("n0")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe.run, cluster)
            await trio.sleep(args.warmup)
            for _ in range(SCRAPES // 10 if args.quick else SCRAPES):
                await trio.sleep(KEPT_SECONDS / 2)
                with probe.window(probe.quiet):
                    await trio.sleep(seconds[-1] if seconds else KEPT_SECONDS / 10)
                await trio.sleep(KEPT_SECONDS / 2)  # until nothing is cached
                before = cpu_seconds(pid)
                with probe.window(probe.scraped):
                    duration, _ = await scrape(cluster)
                seconds.append(duration)
                cpu.append(cpu_seconds(pid) - before)
            nursery.cancel_scope.cancel()
        await trio.sleep(KEPT_SECONDS)
        _, samples = await scrape(cluster)
    steps = {each.group(1): 1e3 * float(each.group(2)) for each in map(_STEP.match, samples) if each is not None}
    note(Figure("large", f"samples, {names:,} topics and groups", len(samples), ""))
    note(Figure("large", "a scrape, median", 1e3 * statistics.median(seconds), "ms", 100))
    note(Figure("large", "a scrape, longest", 1e3 * max(seconds), "ms"))
    note(Figure("large", "CPU of the broker during a scrape", 1e3 * statistics.mean(cpu), "ms"))
    note(Figure("large", "longest time for which a scrape held the event loop", steps[b"elapsed"], "ms", 5))
    note(Figure("large", "most CPU time of a step of a scrape", steps[b"cpu"], "ms"))
    for name, waits in (("no scrape", probe.quiet), ("a scrape", probe.scraped)):
        p99 = statistics.quantiles(waits, n=100)[-1]
        note(Figure("large", f"a client's request during {name}, median", 1e3 * statistics.median(waits), "ms"))
        note(Figure("large", f"a client's request during {name}, p99", 1e3 * p99, "ms"))
        note(Figure("large", f"a client's request during {name}, longest", 1e3 * max(waits), "ms"))


async def _consume_everything(cluster: DevCluster, names: int) -> None:
    """Send a message to each topic, and consume it with a group of its own."""
    async with Producer(cluster.namesrv) as producer:
        await producer.send_many(Message(topic_name(number), b"x") for number in range(names))
    limit = trio.CapacityLimiter(32)

    async def consume(number: int) -> None:
        topic = topic_name(number)
        async with limit, PullConsumer(cluster.namesrv, f"group-{number}", consume_from="first") as consumer:
            await consumer.assign(await consumer.queues(topic))
            await consumer.poll(timeout=5)
            await consumer.commit()

    async with trio.open_nursery() as nursery:
        for number in range(names):
            nursery.start_soon(consume, number)


CASES: dict[str, Measure] = {"cost": measure_cost, "large": measure_large}

METRICS = Suite("metrics", __doc__, CASES)

if __name__ == "__main__":
    METRICS.main()
