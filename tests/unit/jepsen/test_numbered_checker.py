"""The checker of sends with sequence numbers, with histories that break its promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkers.events import Type
from checkers.numbered import check_numbered
from tests.unit.jepsen.histories import QUEUE, Script


def attempted(script: Script, value: str, outcome: Type, offset: int | None = None, err: str | None = None) -> None:
    process = 1000 + len(script.events)
    script.add(process, "invoke", "attempt", k=QUEUE, v=value)
    script.add(process, outcome, "attempt", k=QUEUE, v=value, o=offset, err=err)


def sent_twice(script: Script, value: str, offset: int, second: int | None = None) -> None:
    """Known at the second attempt."""
    script.add(1, "invoke", "send", k=QUEUE, v=value)
    attempted(script, value, "info")
    attempted(script, value, "ok", offset)
    if second is not None:
        attempted(script, value, "ok", second)
    script.add(1, "ok", "send", k=QUEUE, v=value, o=offset)


def test_resent_number_stored_once_is_valid(script: Script) -> None:
    sent_twice(script, "1.0.0", 0, second=0)
    attempted(script, "1.0.0", "fail", err="code 14: no leader")
    script.final_everywhere(["1.0.0"])
    result = check_numbered(script.history())
    assert result.valid is True
    assert (result.counts["numbers"], result.counts["numbers sent more than once"]) == (1, 1)


def two_copies(script: Script) -> None:
    sent_twice(script, "1.0.0", 0)
    script.final(["1.0.0", "1.0.0"], node="n0")
    script.final(["1.0.0"], node="n1")
    script.final(["1.0.0"], node="n2")


def two_answers(script: Script) -> None:
    sent_twice(script, "1.0.0", 0, second=1)
    script.final_everywhere(["1.0.0"])


def no_copy(script: Script) -> None:
    sent_twice(script, "1.0.0", 0)
    script.final(["1.0.0"], node="n0")
    script.final(["1.0.0"], node="n1")
    script.final([], node="n2")


def refused_as_forgotten(script: Script) -> None:
    sent_twice(script, "1.0.0", 0)
    attempted(script, "1.0.0", "fail", err="code 13: SEQUENCE_FORGOTTEN ...")
    script.final_everywhere(["1.0.0"])


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("stored-twice", two_copies),
        ("other-answer", two_answers),
        ("not-stored", no_copy),
        ("forgotten", refused_as_forgotten),
    ],
)
def test_checker_finds_wrong_numbers(script: Script, anomaly: str, broken: Callable[[Script], None]) -> None:
    broken(script)
    assert check_numbered(script.history()).anomalies == {anomaly: 1}


def test_number_of_unknown_outcome_leaves_the_verdict_open(script: Script) -> None:
    sent_twice(script, "1.0.0", 0)
    script.failed("1.1.0", 2, "info")
    script.final_everywhere(["1.0.0"])
    assert check_numbered(script.history()).unknown == ["the outcome of some number was never known"]


def test_run_without_repeats_leaves_the_verdict_open() -> None:
    assert check_numbered(Script().history()).valid == "unknown"


def test_number_missing_behind_an_incomplete_read_leaves_the_verdict_open(script: Script) -> None:
    sent_twice(script, "1.0.0", 0)
    script.final(["1.0.0"], node="n0")
    result = check_numbered(script.history())
    assert result.anomalies == {}
    assert result.unknown == ["n1 was not read to the end", "n2 was not read to the end"]
