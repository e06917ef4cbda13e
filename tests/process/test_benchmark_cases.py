"""The cases of `make bench-...` and its curves, as small as they can be: they run, and their figures are possible.

How fast this machine is just now is not asked: others may be at work on it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from benchmarks import delays_transactions_pop, fairness, latency, scraping, steady
from benchmarks.curves.__main__ import CURVES, parse_arguments, run_curve
from benchmarks.curves.sample import PointMeasurement, samples_of
from benchmarks.lateness import measure_lateness
from benchmarks.store import __main__ as store
from benchmarks.store import follower, reads
from benchmarks.store.sizes import TEST_MIN
from benchmarks.suites.case_load import Arguments
from tests.support.benchmark_cases import tiny_plan, values

pytestmark = [pytest.mark.process, pytest.mark.slow]


ALWAYS_RUN = "log"
"""The cheapest one; all go the same way."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == ALWAYS_RUN else pytest.mark.nightly) for name in CURVES]
)
async def test_bench_measures_each_curve(name: str, tmp_path: Path) -> None:
    args = parse_arguments(["--quick"])
    args.sizes = TEST_MIN
    measured: list[PointMeasurement] = []
    with trio.fail_after(120):
        assert await run_curve(name, args, tmp_path, measured.append)
    samples = samples_of(measured)
    assert len(samples) >= 2
    for sample in samples:
        assert sample.messages_per_second.median > 0
        assert sample.leader_us.median > 0
        assert sample.follower_us is None or sample.follower_us.median > 0
        assert sample.p99_ms >= sample.p50_ms > 0
        assert sample.rss_mib > 20


@pytest.fixture
def delays_plan() -> Arguments:
    return tiny_plan(delays_transactions_pop.DELAYS_TRANSACTIONS_POP, 1.0)


@pytest.mark.nightly
async def test_delayed_messages_all_arrive_and_none_is_early(delays_plan: Arguments, tmp_path: Path) -> None:
    found = await values(measure_lateness, delays_plan, tmp_path)
    assert found["messages of level 1, 1,000 a second"] == 1000
    assert found["early"] == 0
    assert found["unsent, missing, or delivered twice"] == 0


@pytest.mark.nightly
async def test_transactions_have_a_rate_and_a_cost(delays_plan: Arguments, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_transactions, delays_plan, tmp_path)
    assert found["transactions/s, 64 calls in flight"] > 0
    assert found["cost of a transaction in plain sends"] > 0


async def test_killed_broker_delivers_every_delayed_message(delays_plan: Arguments, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_timers, delays_plan, tmp_path)
    assert found["pending timers"] >= 1000
    assert found["pending timers lost in the kill"] == 0
    assert found["growth of resident memory"] < 100


@pytest.mark.nightly
async def test_pops_have_a_rate(delays_plan: Arguments, tmp_path: Path) -> None:
    found = await values(delays_transactions_pop.measure_pop, delays_plan, tmp_path)
    assert found["messages/s popped and acknowledged"] > 0


FAIR_ALWAYS = ("pulls",)
"""The others differ in what demanding clients do, if there are any."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in FAIR_ALWAYS else pytest.mark.nightly) for case in fairness.CASES],
)
async def test_case_measures_both_latencies(case: str, tmp_path: Path) -> None:
    args = fairness.FAIRNESS.parse_arguments(["--quick", "--limit", "120"])
    found = await values(fairness.CASES[case], args, tmp_path)
    assert 0 < found["acknowledged, p50"] <= found["acknowledged, p99"] <= found["acknowledged, longest"]
    assert 0 < found["delivered, p50"] <= found["delivered, longest"]
    # A machine on which others are at work may take longer than our client waits.
    assert 0 <= found["not acknowledged, or not delivered"] <= 2 * fairness.RATE * args.seconds
    assert found["longest delay at the leader"] > 0


@pytest.fixture
def scraping_plan() -> Arguments:
    return tiny_plan(scraping.METRICS, 1.5)


async def test_scrape_costs_the_broker_processor_time(scraping_plan: Arguments, tmp_path: Path) -> None:
    found = await values(scraping.measure_cost, scraping_plan, tmp_path)
    assert found["CPU of the broker, not scraped"] > 0
    assert found["CPU of the broker, scraped once a second"] > 0


@pytest.mark.nightly
async def test_large_broker_answers_scrapes_and_clients(scraping_plan: Arguments, tmp_path: Path) -> None:
    found = await values(scraping.measure_large, scraping_plan, tmp_path)
    assert found["samples, 10 topics and groups"] > 10 * 6
    assert found["a scrape, median"] > 0
    assert found["a client's request during a scrape, median"] > 0


@pytest.mark.nightly
async def test_steady_load_has_rates_and_costs_of_each_replica(tmp_path: Path) -> None:
    args = steady.STEADY.parse_arguments(["--quick"])
    args.sizes = TEST_MIN
    found = await values(steady.measure_pipelined, args, tmp_path)
    assert found["messages/s, steady"] >= found["messages/s, steady, slowest window"] > 0
    assert found["CPU of the leader itself, steady"] > found["CPU of a follower itself, steady"] > 0
    assert found["CPU of a replica's child processes, steady"] >= 0
    assert found["stored by each replica"] > 0
    assert found["resident memory of the leader, at the end"] > 20


@pytest.fixture
def store_plan() -> Arguments:
    return tiny_plan(store.STORE, 0.3)


async def test_backlog_is_read_from_one_and_from_many_queues(store_plan: Arguments, tmp_path: Path) -> None:
    found = await values(reads.measure_backlog, store_plan, tmp_path)
    assert found["messages/s of 1 KiB, 1 queue"] > 0
    assert found["messages/s of 1 KiB, 8 queues"] > 0


@pytest.mark.nightly
async def test_random_reads_have_a_rate(store_plan: Arguments, tmp_path: Path) -> None:
    assert (await values(reads.measure_random, store_plan, tmp_path))["reads/s of 4 KiB"] > 0


@pytest.mark.nightly
async def test_producer_continues_while_a_follower_is_read(store_plan: Arguments, tmp_path: Path) -> None:
    found = await values(follower.measure_follower, store_plan, tmp_path)
    assert found["old messages"] >= 0.01
    assert found["messages/s produced with a reader, all cores shared"] > 0
    assert found["messages/s read, all cores shared"] > 0
    assert found["cost of the reader, all cores shared"] <= 100


@pytest.mark.nightly
async def test_latencies_of_sends_are_ordered(store_plan: Arguments, tmp_path: Path) -> None:
    found = await values(latency.measure_latency, store_plan, tmp_path)
    assert found["send to acknowledgement, p50"] > 0
    assert 0 < found["send to callback, p50"] <= found["send to callback, p99"] <= found["send to callback, longest"]


def test_every_case_is_known_to_the_command() -> None:
    for case in store.CASES:
        assert store.STORE.parse_arguments(["--case", case]).no_write
