"""`raftmq bench`: when messages are due, which are missing, and how the outcome is printed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from mq.cli.bench.commands import app
from mq.cli.bench.loads import Arrivals
from mq.cli.bench.plan import BODY_BYTES_MIN, BenchPlan, Schedule
from mq.cli.bench.plot import draw
from mq.cli.bench.results import DirectionCounts, Latencies, Result
from mq.cli.errors import CommandFailed

SVG = "{http://www.w3.org/2000/svg}"
PLAN = BenchPlan("T", body_bytes=40, seconds=1.0, warm_up_seconds=0.0, in_flight=1, run=7)


def test_body_has_its_size_and_its_number() -> None:
    assert len(PLAN.body(3)) == 40
    assert PLAN.number_of(PLAN.body(3)) == 3


@pytest.mark.parametrize("body", [b"", b"x" * (BODY_BYTES_MIN - 1), b"x" * 40])
def test_body_of_another_program_has_no_number(body: bytes) -> None:
    assert PLAN.number_of(body) is None


def test_body_of_another_run_has_no_number() -> None:
    assert BenchPlan("T", 40, 1.0, 0.0, 1, run=8).number_of(PLAN.body(3)) is None


def test_requests_due_while_the_sender_waited_keep_their_times() -> None:
    schedule = Schedule(rate=10.0, batch=1)
    assert [schedule.next_due() for _ in range(3)] == pytest.approx([0.0, 0.1, 0.2])
    assert schedule.next_at == pytest.approx(0.3)


@pytest.mark.parametrize(("elapsed", "unsent"), [(0.1, 0), (0.25, 1), (0.99, 8), (1.0, 8), (1.01, 9)])
def test_requests_that_were_due_and_not_sent_are_counted(elapsed: float, unsent: int) -> None:
    schedule = Schedule(rate=10.0, batch=1)
    schedule.next_due()
    schedule.next_due()
    assert schedule.due_before(elapsed) == unsent


def test_batch_schedule_keeps_the_message_rate() -> None:
    schedule = Schedule(rate=100.0, batch=50)
    assert [schedule.next_due() for _ in range(3)] == pytest.approx([0.0, 0.5, 1.0])


def test_message_is_missing_from_its_acknowledgement_to_its_delivery() -> None:
    arrivals = Arrivals()
    arrivals.on_send(range(2), due_at=1.0)
    assert arrivals.missing_count == 0
    arrivals.on_acknowledge(range(2))
    assert arrivals.missing_count == 2
    assert arrivals.count_delivery(1, now=1.5)
    assert arrivals.missing_count == 1
    assert arrivals.latencies.as_milliseconds()["max"] == pytest.approx(500, rel=0.01)


def test_message_delivered_before_its_acknowledgement_is_not_missing() -> None:
    arrivals = Arrivals()
    arrivals.on_send(range(1), due_at=1.0)
    assert arrivals.count_delivery(0, now=1.1)
    arrivals.on_acknowledge(range(1))
    assert arrivals.missing_count == 0


def test_latency_counts_only_first_deliveries() -> None:
    arrivals = Arrivals()
    arrivals.on_send(range(1), due_at=1.0)
    assert arrivals.count_delivery(0, now=1.1)
    assert not arrivals.count_delivery(0, now=1.2)
    arrivals.on_send(range(1, 2), due_at=1.0)
    arrivals.forget()
    assert not arrivals.count_delivery(1, now=1.1)
    assert arrivals.latencies.count == 0


def test_latency_beyond_the_histogram_is_put_into_its_last_bucket() -> None:
    latencies = Latencies()
    latencies.add(1e6)
    latencies.add(0.0)
    assert latencies.count == 2
    assert latencies.as_milliseconds()["max"] == pytest.approx(120_000, rel=0.01)


def a_result() -> Result:
    acknowledged = Latencies()
    acknowledged.add(0.002, 1000)
    produced = DirectionCounts()
    produced.add(600, 600_000, now=100.0)
    produced.add(390, 390_000, now=101.5)
    produced.add(10, 10_000, now=102.0)
    return Result(
        2.0,
        produced,
        acknowledged=acknowledged,
        cpu_us={"client": 30.0},
        resident_mib={"client": 64.04},
        failed={"not stored": 2},
    )


def test_result_is_printed_as_json() -> None:
    printed = json.loads(json.dumps(a_result().as_json()))
    assert printed["produced"] == {"messages": 1000, "messages_per_second": 500.0, "mb_per_second": 0.5}
    assert printed["acknowledged_ms"]["p99_9"] == pytest.approx(2.0, rel=0.01)
    assert (printed["failed"], printed["cpu_us_per_message"]) == ({"not stored": 2}, {"client": 30.0})
    assert printed["resident_mib"] == {"client": 64.0}
    assert "consumed" not in printed
    assert "missing" not in printed


def test_bench_result_lists_rates_and_latencies() -> None:
    text = "\n".join(a_result().lines())
    assert "produced      1,000 messages in 2.0 s: 500 messages/s, 0.50 MB/s" in text
    assert "p50 2.00 ms" in text
    assert "memory        at the end: client 64 MiB" in text
    assert "not stored    2 messages" in text


def test_unwritable_result_file_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"):
        app(["produce", "--percentiles", str(tmp_path / "none" / "file")], standalone_mode=False)


def test_picture_has_latencies_and_the_rate_of_each_whole_second() -> None:
    drawn = ET.fromstring(draw("a <test>", a_result()))
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    assert {"latency, ms", "acknowledged", "99.9 %", "messages per second", "produced"} <= set(texts)
    assert "99.99 %" not in texts, "1,000 messages tell nothing about one in ten thousand"
    latency, rate = [each.attrib["d"] for each in drawn.iter(f"{SVG}path") if each.attrib.get("fill") == "none"]
    assert latency.count("L") == 60
    heights = [float(point.split()[1]) for point in rate.removeprefix("M").split("L")]
    assert len(heights) == 2
    assert heights[0] < heights[1], "the first second had more messages"


def test_empty_chart_shows_not_measured() -> None:
    drawn = ET.fromstring(draw("nothing", Result(1.0)))
    texts = [each.text for each in drawn.iter(f"{SVG}text")]
    assert texts == ["latency, ms: not measured", "messages per second: not measured"]
