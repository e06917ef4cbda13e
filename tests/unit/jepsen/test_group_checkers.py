"""Checkers of consumer groups: locked queues and committed offsets, each with histories that break its promise."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from checkers.consumer_offsets import check_offsets, check_told_offsets
from checkers.events import Type
from checkers.exclusive import check_exclusive
from tests.unit.jepsen.histories import QUEUE, Script

# --------------------------------------------------------------------------------------- exclusive queues


def handled(script: Script, *offsets: int, process: int = 20) -> None:
    for offset in offsets:
        script.add(process, "invoke", "handle", k=QUEUE, o=offset)
        script.add(process, "ok", "handle", k=QUEUE, o=offset)


def test_consecutive_owners_of_a_queue_are_valid(script: Script) -> None:
    handled(script, 0, 1)
    script.add(20, "invoke", "handle", k=QUEUE, o=2)  # this one leaves in the middle
    handled(script, 1, 2, 3, process=21)
    result = check_exclusive(script.history())
    assert result.valid is True
    assert (result.counts["messages handled"], result.counts["changes of owner"]) == (5, 1)


def test_checker_finds_two_members_of_one_queue(script: Script) -> None:
    script.add(20, "invoke", "handle", k=QUEUE, o=0)
    handled(script, 0, process=21)
    script.add(20, "ok", "handle", k=QUEUE, o=0)
    assert check_exclusive(script.history()).anomalies == {"overlap": 1}


def test_checker_finds_messages_handled_too_early(script: Script) -> None:
    handled(script, 0, 2)
    assert check_exclusive(script.history()).anomalies == {"handled-too-early": 1}


def test_checker_finds_messages_handled_before_their_predecessor_is_finished(script: Script) -> None:
    handled(script, 0)
    script.add(20, "invoke", "handle", k=QUEUE, o=1)
    handled(script, 2, process=21)
    assert check_exclusive(script.history()).anomalies == {"handled-too-early": 1}


def test_unhandled_queue_leaves_the_verdict_open() -> None:
    assert check_exclusive(Script().history()).valid == "unknown"


# ------------------------------------------------------------------------------------------------ offsets


def committed(script: Script, offset: int, outcome: Type = "ok") -> None:
    process = 30 if outcome == "ok" else 31 + offset
    script.add(process, "invoke", "commit", k=QUEUE, v="G", o=offset)
    script.add(process, outcome, "commit", k=QUEUE, v="G", o=offset)


def stored(script: Script, offset: int, node: str = "n1") -> None:
    script.add(80, "invoke", "stored", k=QUEUE, v="G", n=node)
    script.add(80, "ok", "stored", k=QUEUE, v="G", o=offset, n=node)


def test_offsets_that_rise_are_valid(script: Script) -> None:
    stored(script, -1)
    committed(script, 3)
    stored(script, 3)
    committed(script, 5, "info")
    stored(script, 3)
    stored(script, 5)
    assert check_offsets(script.history()).valid is True


def commit_forgotten(script: Script) -> None:
    committed(script, 5)
    stored(script, 3, "n2")


def commit_seen_and_gone(script: Script) -> None:
    committed(script, 5, "info")
    stored(script, 5)
    stored(script, 3, "n2")


def commit_of_nobody(script: Script) -> None:
    stored(script, 4)


def commit_before_it_began(script: Script) -> None:
    stored(script, 5)
    committed(script, 5)


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("offset-went-back", commit_forgotten),
        ("offset-went-back", commit_seen_and_gone),
        ("phantom-offset", commit_of_nobody),
        ("phantom-offset", commit_before_it_began),
    ],
)
def test_checker_finds_wrong_offsets(script: Script, anomaly: str, broken: Callable[[Script], None]) -> None:
    committed(script, 3)
    broken(script)
    assert check_offsets(script.history()).anomalies == {anomaly: 1}


def test_query_concurrent_with_a_commit_may_see_either_offset() -> None:
    for seen in (3, 5):
        script = Script()
        committed(script, 3)
        script.add(80, "invoke", "stored", k=QUEUE, v="G", n="n1")
        committed(script, 5)
        script.add(80, "ok", "stored", k=QUEUE, v="G", o=seen, n="n1")
        assert check_offsets(script.history()).valid is True


def test_commit_of_unknown_outcome_may_come_late(script: Script) -> None:
    committed(script, 3, "info")
    committed(script, 5)
    stored(script, 3)
    result = check_offsets(script.history())
    assert result.valid is True
    assert result.counts["answers after a commit of unknown outcome came late"] == 1


def test_unqueried_offsets_leave_the_verdict_open(script: Script) -> None:
    committed(script, 3)
    assert check_offsets(script.history()).valid == "unknown"


# ------------------------------------------------------------------------------------------ told offsets


def test_rising_reported_offsets_are_valid(script: Script) -> None:
    for offset in (-1, 3, 3, 7):
        stored(script, offset)
    stored(script, 7, "n2")
    result = check_told_offsets(script.history())
    assert result.valid is True
    assert result.counts["offsets asked"] == 5


def test_checker_finds_offsets_going_back_between_replicas(script: Script) -> None:
    stored(script, 7)
    stored(script, 3, "n2")
    assert check_told_offsets(script.history()).anomalies == {"offset-went-back": 1}


def test_answer_to_an_older_question_may_be_behind(script: Script) -> None:
    script.add(81, "invoke", "stored", k=QUEUE, v="G", n="n1")
    stored(script, 7)
    script.add(81, "ok", "stored", k=QUEUE, v="G", o=3, n="n1")
    assert check_told_offsets(script.history()).valid is True


def test_run_without_offset_queries_leaves_the_verdict_open() -> None:
    assert check_told_offsets(Script().history()).valid == "unknown"


def test_stock_client_in_the_group_may_move_an_offset_back(script: Script) -> None:
    begin = script.events[0]
    script.events[0] = msgspec.structs.replace(begin, v={**begin.v, "programs": ["java"]})
    stored(script, 7)
    stored(script, 3, "n2")
    result = check_told_offsets(script.history())
    assert result.valid is True
    assert result.counts["went back, with a stock client in the group"] == 1


def test_checker_finds_offsets_beyond_the_queue_end(script: Script) -> None:
    stored(script, 2)
    stored(script, 3)
    script.final_everywhere(["1.0.10", "1.1.10"])
    assert check_told_offsets(script.history()).anomalies == {"phantom-offset": 1}
