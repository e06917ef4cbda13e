"""The checker of queries by key and by time."""

from __future__ import annotations

import pytest

from checkers.queries import check_queries
from tests.unit.jepsen.histories import QUEUE, Script

A, B, C = "1.0.0", "1.1.0", "1.2.0"
WALL_NS = 1_700_000_000_000_000_000
SECOND = 10**9


def started() -> Script:
    """A, then B a second later, then C a second later."""
    script = Script()
    script.events[0].v["wall_ns"] = WALL_NS
    for offset, value in enumerate((A, B, C)):
        script.sent(value, offset)
        script.now += SECOND
    return script


def by_key(script: Script, key: str, found: list[tuple[str, int, str]], *, node: str = "n1") -> None:
    script.add(20, "invoke", "find-key", v=key, n=node)
    script.add(20, "ok", "find-key", v=[list(each) for each in found], n=node)


def by_time(script: Script, seconds: float, offset: int) -> None:
    at_ms = (WALL_NS + int(seconds * SECOND)) // 10**6
    script.add(21, "invoke", "find-time", k=QUEUE, v=at_ms, n="n1")
    script.add(21, "ok", "find-time", k=QUEUE, v=at_ms, n="n1", o=offset)


def test_correct_query_answers_are_valid() -> None:
    script = started()
    by_key(script, A, [(QUEUE, 0, A)])
    for seconds, offset in ((-5.0, 0), (0.5, 1), (1.5, 2), (2.5, 3)):
        by_time(script, seconds, offset)
    result = check_queries(script.history())
    assert result.valid is True
    assert result.counts["queries by time"] == 4


@pytest.mark.parametrize(
    ("key", "found", "anomalies"),
    [
        (A, [], {"not-found": 1}),
        (A, [(QUEUE, 0, A), (QUEUE, 1, B)], {"other-message": 1}),
        (A, [("", 0, "damaged answer")], {"not-found": 1, "other-message": 1}),
    ],
)
def test_wrong_answer_by_key_is_an_anomaly(
    key: str, found: list[tuple[str, int, str]], anomalies: dict[str, int]
) -> None:
    script = started()
    by_key(script, key, found)
    assert check_queries(script.history()).anomalies == anomalies


@pytest.mark.parametrize(
    ("seconds", "offset", "anomaly"), [(0.5, 2, "time-skips"), (1.5, 1, "time-too-early"), (-5.0, 1, "time-skips")]
)
def test_wrong_answer_by_time_is_an_anomaly(seconds: float, offset: int, anomaly: str) -> None:
    script = started()
    by_key(script, A, [(QUEUE, 0, A)])
    by_time(script, seconds, offset)
    assert check_queries(script.history()).anomalies == {anomaly: 1}


def test_queries_may_find_or_miss_messages_of_unknown_outcome() -> None:
    for found in ([], [(QUEUE, 3, "2.0.0")]):
        script = started()
        script.failed("2.0.0", 2, "info")
        by_key(script, "2.0.0", found)
        assert check_queries(script.history()).valid is True


def test_refused_message_must_not_be_found() -> None:
    script = started()
    script.failed("2.0.0", 2)
    by_key(script, "2.0.0", [(QUEUE, 3, "2.0.0")])
    assert check_queries(script.history()).anomalies == {"G1a": 1}
