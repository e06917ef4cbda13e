"""The page of a run: charts of every operation, and the way from an anomaly to what the history has about it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from checkers.append_log import check_log
from checkers.events import RUN
from checkers.history import History, gather
from checkers.verdict import Verdict
from jepsen.report.charts import charts, quantile
from jepsen.report.evidence import LINES_MAX, lines_of, time_of_day, values_in_examples
from jepsen.report.page import page
from jepsen.skew import ClockSkews, broker_time
from tests.unit.jepsen.histories import NODES, Script

A, B = "1.1.10", "1.2.10"


def lost_at_n1() -> History:
    script = Script(nemeses=("kill",))
    script.events[0].v["began"] = "2026-11-28 03:36:41 UTC"
    script.sent(A, 0)
    script.fault("kill", during=[B], seconds=1.0)
    for node in NODES:
        script.final([] if node == "n1" else [A], node=node)
    return script.history()


def pictures(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_every_kind_of_operation_has_its_quantiles() -> None:
    script = Script(nemeses=("kill",))
    for number in range(200):
        script.sent(f"1.{number}.10", number)
        script.end(number + 1)
    html = charts(script.history())
    assert "send, 200 times" in html
    assert "end, 200 times" in html
    assert all(picture.tag == "svg" for picture in pictures(html))


@pytest.mark.parametrize(("part", "value"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_quantile_is_one_of_the_values(part: float, value: int) -> None:
    assert quantile(range(1, 101), part) == value


def test_rate_is_drawn_for_each_replica_that_answered(script: Script) -> None:
    for node in NODES:
        script.end(1, node=node)
    (rates,) = [
        each for each in pictures(charts(script.history())) if "answers in a second" in "".join(each.itertext())
    ]
    assert len(rates.findall("polyline")) == len(NODES)


def test_wrong_clock_is_drawn() -> None:
    script = Script(sent=[A])
    script.add(RUN, "info", "skew", n="n1", v=7200.0)
    script.sent(B, 1)
    script.add(RUN, "info", "skew", n="n1", v=0.0)
    assert "at most 2.0 hours" in charts(script.history())


def test_charts_of_a_long_run_stay_small(script: Script) -> None:
    for number in range(20_000):
        script.sent(f"1.{number}.10", number, process=number % 100)
    assert len(charts(script.history())) < 1_000_000


def test_charts_without_data_do_not_fail() -> None:
    assert charts(gather([])).startswith("<h2>")


def test_anomaly_leads_to_lines_of_the_history_and_to_logs() -> None:
    history = lost_at_n1()
    text = page(history, Verdict([check_log(history)], history.plan))
    send = next(operation for operation in history.named("send") if operation.value == A)
    assert f"line {send.index + 1}: " in text
    assert "<a href='logs/n1.log'>n1</a>" in text
    assert "from 2026-11-28T03:36:41" in text


def test_lines_name_the_operations_of_a_value_only() -> None:
    history = lost_at_n1()
    lines = lines_of(history, [A])[A]
    assert [line.says.split()[4] for line in lines] == ["send", "final-read", "final-read"]
    assert len(lines) <= LINES_MAX


def test_examples_yield_values_but_no_versions_or_times() -> None:
    assert values_in_examples([f"{A} at Log/0@3 and {A}, raftmq v1.2.3, after 0.001 s"]) == [A]


def test_run_without_a_date_has_no_time_of_day() -> None:
    assert time_of_day(Script().history(), 0) == ""


def figures(seconds: int) -> dict[str, str]:
    return {"bootTimestamp": "1000000000", "runtime": f"[ 0 days, 1 hours, 0 minutes, {seconds} seconds ]"}


def test_changes_of_a_broker_clock_are_reported() -> None:
    assert broker_time(figures(5)) == 1_003_605.0
    assert broker_time({}) is None
    skews = ClockSkews()
    assert skews.news("n0", figures(5), 1_003_605.4) is None
    assert skews.news("n0", figures(5), 1_000_005.0) == 3600.0
    assert skews.news("n0", figures(6), 1_000_006.0) is None
    assert skews.news("n0", figures(5), 1_003_605.4) == 0.0
