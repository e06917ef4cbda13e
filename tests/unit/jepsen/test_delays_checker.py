"""The checker of delayed messages, with histories that break its promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkers.append_log import check_log
from checkers.delays import check_delays
from checkers.events import Type
from tests.unit.jepsen.histories import QUEUE, Script

A, B, C = "1.0.0", "1.1.0", "1.2.0"


def scheduled(script: Script, value: str, delay_ms: int) -> None:
    script.add(1, "invoke", "schedule", v=value, o=delay_ms)
    script.add(1, "ok", "schedule", v=value)


def recalled(script: Script, value: str, outcome: Type = "ok") -> None:
    process = 100 + len(script.events)
    script.add(process, "invoke", "recall", v=value)
    script.add(process, outcome, "recall", v=value)


def polled(script: Script, value: str, offset: int) -> None:
    script.add(60, "ok", "poll", k=QUEUE, v=[[offset, value]])


@pytest.fixture
def script() -> Script:
    """One is seen in time, one is recalled."""
    script = Script()
    scheduled(script, A, 1)
    scheduled(script, B, 50)
    recalled(script, B)
    polled(script, A, 0)
    return script


def test_checker_accepts_delivered_delayed_and_absent_recalled_messages(script: Script) -> None:
    script.final_everywhere([A])
    history = script.history()
    assert check_delays(history).valid is True
    assert check_log(history).anomalies == {}


@pytest.mark.parametrize("outcome", ["fail", "info"])
def test_message_with_an_unanswered_recall_may_be_visible(script: Script, outcome: Type) -> None:
    scheduled(script, C, 1)
    recalled(script, C, outcome)
    script.final_everywhere([A, C])
    assert check_delays(script.history()).valid is True


def test_message_stored_twice_may_be_recalled_and_seen() -> None:
    script = Script()
    script.add(1, "invoke", "schedule", v=A, o=1)
    script.add(1, "ok", "schedule", v=A, again=True)
    recalled(script, A)
    polled(script, A, 0)
    assert check_delays(script.history()).anomalies == {}


def early(script: Script) -> None:
    scheduled(script, C, 100)
    polled(script, C, 1)
    script.final_everywhere([A, C])


def recalled_and_seen(script: Script) -> None:
    script.now += 100_000_000
    script.final_everywhere([A, B])


def never_seen(script: Script) -> None:
    scheduled(script, C, 1)
    script.final_everywhere([A])


def refused_recall_and_never_seen(script: Script) -> None:
    scheduled(script, C, 1)
    recalled(script, C, "fail")
    script.final_everywhere([A])


def test_times_are_not_judged_when_a_clock_was_set(script: Script) -> None:
    early(script)
    script.fault("clock")
    assert check_delays(script.history()).valid is True


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("early", early),
        ("recalled-and-seen", recalled_and_seen),
        ("never-seen", never_seen),
        ("never-seen", refused_recall_and_never_seen),
    ],
)
def test_checker_finds_wrong_delays(script: Script, anomaly: str, broken: Callable[[Script], None]) -> None:
    broken(script)
    assert check_delays(script.history()).anomalies == {anomaly: 1}


def test_run_without_delays_leaves_the_verdict_open() -> None:
    assert check_delays(Script().history()).valid == "unknown"


def test_message_missing_behind_an_incomplete_read_leaves_the_verdict_open(script: Script) -> None:
    script.final([A], node="n0")
    result = check_delays(script.history())
    assert result.anomalies == {}
    assert result.unknown == ["n1 was not read to the end", "n2 was not read to the end"]
