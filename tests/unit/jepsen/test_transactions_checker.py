"""The checker of transactions, with histories that break its promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkers.append_log import check_log
from checkers.events import Type
from checkers.transactions import check_transactions
from tests.unit.jepsen.histories import Script

A, B, C = "1.0.0", "1.1.0", "1.2.0"


def half(script: Script, value: str) -> None:
    script.add(1, "invoke", "half", v=value)
    script.add(1, "ok", "half", v=value)


def ended(script: Script, value: str, wanted: str, outcome: Type = "ok") -> None:
    process = 1 if outcome == "ok" else 100 + len(script.events)
    script.add(process, "invoke", "end-transaction", v=[value, wanted])
    script.add(process, outcome, "end-transaction", v=[value, wanted])


def checked(script: Script, value: str, wanted: str) -> None:
    script.add(2, "ok", "check", v=[value, wanted])


def usual() -> Script:
    """One committed, one rolled back, one left to a check."""
    script = Script()
    for value in (A, B, C):
        half(script, value)
    ended(script, A, "commit")
    ended(script, B, "rollback")
    checked(script, C, "unknown")
    checked(script, C, "commit")
    return script


def test_late_commit_must_not_reveal_a_rolled_back_message() -> None:
    script = usual()
    ended(script, B, "commit", "info")
    script.final_everywhere([A, B, C])
    assert check_transactions(script.history()).anomalies == {"seen-after-rollback": 1}


def test_half_message_stored_twice_may_have_two_outcomes(script: Script) -> None:
    script.add(1, "invoke", "half", v=A)
    script.add(1, "ok", "half", v=A, again=True)
    ended(script, A, "commit")
    ended(script, A, "rollback")
    script.final_everywhere([A])
    assert check_transactions(script.history()).anomalies == {}


def test_commit_and_rollback_are_not_both_confirmed() -> None:
    script = usual()
    ended(script, A, "rollback")
    script.final_everywhere([C])
    anomalies = check_transactions(script.history()).anomalies
    assert anomalies == {"ended-both-ways": 1, "commit-lost": 1}


def test_checker_accepts_committed_visible_and_rolled_back_hidden_messages() -> None:
    script = usual()
    script.read({0: A, 1: C})
    script.final_everywhere([A, C])
    history = script.history()
    assert check_transactions(history).valid is True
    assert check_log(history).anomalies == {}


def test_unconfirmed_commit_may_be_missing_or_visible() -> None:
    for final in ([A, C], [A, C, "1.3.0"]):
        script = usual()
        half(script, "1.3.0")
        ended(script, "1.3.0", "commit", "info")
        script.final_everywhere(final)
        assert check_transactions(script.history()).valid is True


def rolled_back_and_visible(script: Script) -> None:
    script.final_everywhere([A, C, B])


def committed_and_lost(script: Script) -> None:
    script.final_everywhere([A])


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("seen-without-commit", rolled_back_and_visible),
        ("commit-lost", committed_and_lost),
    ],
)
def test_checker_finds_wrong_transactions(anomaly: str, broken: Callable[[Script], None]) -> None:
    script = usual()
    broken(script)
    assert check_transactions(script.history()).anomalies == {anomaly: 1}


def test_read_before_the_commit_is_an_anomaly(script: Script) -> None:
    half(script, A)
    half(script, B)
    script.read({0: A})
    ended(script, A, "commit")
    script.final_everywhere([A])
    assert check_transactions(script.history()).anomalies == {"seen-before-commit": 1}


def test_log_checker_finds_a_second_copy() -> None:
    script = usual()
    script.final_everywhere([A, C, A])
    assert check_log(script.history()).anomalies == {"duplicate": 1}


def test_run_without_commits_leaves_the_verdict_open() -> None:
    assert check_transactions(Script().history()).valid == "unknown"


def test_commit_missing_behind_an_incomplete_read_leaves_the_verdict_open() -> None:
    script = usual()
    script.final([A, C], node="n0")
    script.final([A], node="n1", complete=False)
    result = check_transactions(script.history())
    assert result.anomalies == {}
    assert result.unknown == ["n1 was not read to the end", "n2 was not read to the end"]
