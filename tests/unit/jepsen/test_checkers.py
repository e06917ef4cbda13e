"""Checkers: a history that keeps each promise, and for every anomaly one that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkers.append_log import check_log
from checkers.assignment import check_assigned
from checkers.events import RUN
from checkers.send_order import check_order
from checkers.servers import check_servers
from checkers.total_queue import CAUSE_NS, check_total_queue
from checkers.verdict import Findings, in_words, merge
from tests.unit.jepsen.histories import NODES, QUEUE, Script

A, B, C = "1.1.10", "1.2.10", "2.1.10"


def two_sent() -> Script:
    return Script(sent=(A, B))


# ------------------------------------------------------------------------------------------------ the log


def test_log_without_anomalies_is_valid() -> None:
    script = two_sent()
    script.read({0: A, 1: B}, node="n2")
    script.end(2, node="n1")
    script.failed(C, 2)
    script.final_everywhere([A, B])
    result = check_log(script.history())
    assert result.valid is True
    assert (result.counts["acknowledged"], result.counts["refused"], result.counts["ends asked"]) == (2, 1, 1)


def test_send_of_unknown_outcome_may_be_stored_or_missing() -> None:
    for final in ([A, B], [A, B, C]):
        script = two_sent()
        script.failed(C, 2, "info")
        script.final_everywhere(final)
        assert check_log(script.history()).valid is True


def inconsistent(script: Script) -> None:
    script.read({1: A})
    script.final_everywhere([A, B])


def changed_record(script: Script) -> None:
    script.final([A, B], node="n0")
    script.final([A, B], node="n1", crc=8)
    script.final([A, B], node="n2")


def stored_twice(script: Script) -> None:
    script.final_everywhere([A, B, A])


def against_real_time(script: Script) -> None:
    script.sent(C, 0, queue="Log/1")
    script.sent("3.1.10", 0, queue="Log/1", process=3)
    script.final_everywhere([A, B])


def phantom(script: Script) -> None:
    script.final_everywhere([A, B, "damaged '1.1.10'"])


def refused_and_read(script: Script) -> None:
    script.failed(C, 2)
    script.final_everywhere([A, B, C])


def read_too_early(script: Script) -> None:
    script.read({2: C})
    script.sent(C, 2, process=2)
    script.final_everywhere([A, B, C])


def other_queue(script: Script) -> None:
    script.add(2, "invoke", "send", k="Log/1", v=C)
    script.add(2, "ok", "send", k=QUEUE, v=C, o=2)
    script.final_everywhere([A, B, C])


def sent_back(script: Script) -> None:
    script.add(60, "invoke", "read", k=QUEUE, n="n2", o=2)
    script.add(60, "ok", "read", k=QUEUE, n="n2", v=[], err="moved back to 1")
    script.final_everywhere([A, B])


def stale_end(script: Script) -> None:
    script.end(1, node="n2")
    script.final_everywhere([A, B])


def end_goes_back(script: Script) -> None:
    script.failed(C, 2, "info")
    script.end(3)
    script.end(2, node="n1")
    script.final_everywhere([A, B, C])


def end_behind_a_read(script: Script) -> None:
    script.failed(C, 2, "info")
    script.read({2: C})
    script.end(2, node="n1")
    script.final_everywhere([A, B, C])


def lost_everywhere(script: Script) -> None:
    script.final_everywhere([A])


def lost_at_one_replica(script: Script) -> None:
    script.final([A, B], node="n0")
    script.final([A, B], node="n1")
    script.final([A], node="n2")


def read_and_gone(script: Script) -> None:
    script.failed(C, 2, "info")
    script.read({2: C})
    script.final_everywhere([A, B])


def gap(script: Script) -> None:
    for node in NODES:
        script.add(90, "invoke", "final-read", k=QUEUE, n=node)
        script.add(90, "ok", "final-read", k=QUEUE, n=node, v=[[0, A], [1, B], [3, C]])
        script.final([], node=node)


def stored_before_what_was_acknowledged(script: Script) -> None:
    """C is sent after B was acknowledged, nobody is told its place, and it lies before B."""
    script.sent(A, 0)
    script.sent(B, 2)
    script.failed(C, 2, "info")
    script.final_everywhere([A, C, B])


def stored_before_what_was_read(script: Script) -> None:
    script.failed(C, 2, "info")
    script.read({3: C})
    script.sent("3.1.10", 2, process=3)
    script.final_everywhere([A, B, "3.1.10", C])


def stored_before_an_end_that_was_told(script: Script) -> None:
    script.end(3)
    script.sent(C, 2, process=2)
    script.final_everywhere([A, B, C])


def end_that_nothing_reaches(script: Script) -> None:
    script.end(3)
    script.final_everywhere([A, B])


def known_end_that_nothing_reaches(script: Script) -> None:
    script.end(3, name="known-end")
    script.final_everywhere([A, B])


def end_behind_a_known_end(script: Script) -> None:
    script.failed(C, 2, "info")
    script.end(3, name="known-end")
    script.end(2, node="n1")
    script.final_everywhere([A, B, C])


def last_messages_not_served(script: Script) -> None:
    for node in NODES:
        script.final([A, B], node=node, complete=False)
        script.add(90, "invoke", "final-read", k=QUEUE, n=node, o=3)
        script.add(90, "ok", "final-read", k=QUEUE, n=node, v=[])


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("order-of-real-time", stored_before_what_was_acknowledged),
        ("order-of-real-time", stored_before_what_was_read),
        ("order-of-real-time", stored_before_an_end_that_was_told),
        ("phantom-end", end_that_nothing_reaches),
        ("phantom-end", known_end_that_nothing_reaches),
        ("stale-end", end_behind_a_known_end),
        ("gap", last_messages_not_served),
        ("inconsistent-offsets", inconsistent),
        ("changed-record", changed_record),
        ("duplicate", stored_twice),
        ("order-of-real-time", against_real_time),
        ("phantom", phantom),
        ("G1a", refused_and_read),
        ("future-read", read_too_early),
        ("other-queue", other_queue),
        ("sent-back", sent_back),
        ("stale-end", stale_end),
        ("stale-end", end_goes_back),
        ("stale-end", end_behind_a_read),
        ("lost-write", lost_everywhere),
        ("lost-write", lost_at_one_replica),
        ("replicas-differ", lost_at_one_replica),
        ("flicker", read_and_gone),
        ("gap", gap),
    ],
)
def test_checker_finds_anomalies_of_a_log(anomaly: str, broken: Callable[[Script], None]) -> None:
    script = Script() if broken is stored_before_what_was_acknowledged else two_sent()
    broken(script)
    result = check_log(script.history())
    assert result.valid is False
    assert anomaly in result.anomalies, result.anomalies
    assert result.examples[anomaly], "an anomaly without an example convinces nobody"


def test_value_sent_again_after_an_unknown_outcome_may_be_stored_twice(script: Script) -> None:
    script.sent(A, 1, again=True)
    script.final_everywhere([A, A])
    result = check_log(script.history())
    assert result.valid is True
    assert result.counts["stored again after an unknown outcome"] == 1


def test_sends_at_the_same_time_may_lie_in_any_order(script: Script) -> None:
    script.add(1, "invoke", "send", k=QUEUE, v=A)
    script.sent(C, 1, process=2)
    script.add(1, "ok", "send", k=QUEUE, v=A, o=0)
    script.final_everywhere([A, C])
    assert check_log(script.history()).valid is True


def test_end_asked_before_the_acknowledgement_may_be_lower(script: Script) -> None:
    script.add(70, "invoke", "end", k=QUEUE, n="n0")
    script.sent(A, 0)
    script.add(70, "ok", "end", k=QUEUE, n="n0", o=0)
    script.final_everywhere([A])
    assert check_log(script.history()).valid is True


def test_partly_read_replica_leaves_the_verdict_open() -> None:
    script = two_sent()
    script.final([A, B], node="n0")
    script.final([A, B], node="n1")
    script.final([A], node="n2", complete=False)
    result = check_log(script.history())
    assert result.valid == "unknown"
    assert result.unknown == [f"n2 was not read to the end of {QUEUE}"]


def test_message_in_an_unread_queue_leaves_the_verdict_open() -> None:
    script = two_sent()
    script.sent(C, 0, process=2, queue="Log/9")
    script.final_everywhere([A, B])
    assert check_log(script.history()).unknown == [f"{node} was not read to the end of Log/9" for node in NODES]


def test_value_sent_by_two_operations_leaves_the_verdict_open() -> None:
    script = two_sent()
    script.failed(A, 2, "info")
    script.final_everywhere([A, B])
    (reason,) = check_log(script.history()).unknown
    assert reason.startswith(f"{A} was sent by two operations")


def test_late_effect_of_an_unknown_send_is_valid(script: Script) -> None:
    script.failed(C, 2, "info")
    script.sent(A, 0)
    script.end(1)
    script.sent(B, 1)
    script.final_everywhere([A, B, C])
    assert check_log(script.history()).valid is True


def test_known_end_may_be_behind() -> None:
    script = two_sent()
    script.end(0, node="n2", name="known-end")
    script.final_everywhere([A, B])
    assert check_log(script.history()).valid is True


def test_run_that_read_no_replica_leaves_the_verdict_open() -> None:
    assert check_log(two_sent().history()).valid == "unknown"


def test_examples_are_few_and_the_count_is_whole(script: Script) -> None:
    for number in range(20):
        script.sent(f"1.{number}.10", number)
    script.final_everywhere([])
    result = check_log(script.history())
    assert result.anomalies["lost-write"] == 60
    assert len(result.examples["lost-write"]) == 8


# ---------------------------------------------------------------------------------------- the total queue


def test_queue_without_anomalies_is_valid() -> None:
    script = two_sent()
    script.failed(C, 2, "info")
    for offset, value in enumerate([A, B, C]):
        script.received(value, offset)
    result = check_total_queue(script.history())
    assert result.valid is True
    assert result.counts["recovered"] == 1


def test_checker_reports_a_missing_acknowledged_message() -> None:
    script = two_sent()
    script.received(A, 0)
    script.final_everywhere([A])
    assert check_total_queue(script.history()).anomalies == {"lost": 1}


def test_acknowledged_message_that_no_consumer_got_is_unseen() -> None:
    script = two_sent()
    script.received(A, 0)
    script.final_everywhere([A, B])
    assert check_total_queue(script.history()).anomalies == {"unseen": 1}


def test_checker_reports_an_unsent_message_as_unexpected() -> None:
    script = two_sent()
    script.received(A, 0)
    script.received(B, 1)
    script.received("9.9.10", 2)
    assert check_total_queue(script.history()).anomalies == {"unexpected": 1}


def test_refused_message_is_unexpected(script: Script) -> None:
    script.failed(A, 1)
    script.received(A, 0)
    assert check_total_queue(script.history()).anomalies == {"unexpected": 1}


def test_duplicate_without_a_cause_is_not_explained() -> None:
    script = two_sent()
    for value, offset in ((A, 0), (B, 1), (A, 0)):
        script.received(value, offset)
    assert check_total_queue(script.history()).anomalies == {"unexplained-duplicate": 1}


def test_duplicate_follows_a_member_that_left() -> None:
    script = two_sent()
    script.received(A, 0)
    script.received(B, 1)
    script.add(50, "invoke", "leave")
    script.add(50, "ok", "leave")
    script.received(B, 1, process=51)
    result = check_total_queue(script.history())
    assert result.valid is True
    assert result.counts["handed out again, explained"] == 1


def test_duplicate_long_after_its_cause_is_not_explained() -> None:
    script = two_sent()
    script.fault("kill")
    script.now += 2 * CAUSE_NS
    for value, offset in ((A, 0), (B, 1), (A, 0)):
        script.received(value, offset)
    assert check_total_queue(script.history()).anomalies == {"unexplained-duplicate": 1}


def test_duplicate_before_its_cause_is_not_explained() -> None:
    script = two_sent()
    for value, offset in ((A, 0), (B, 1), (A, 0)):
        script.received(value, offset)
    script.fault("kill")
    assert check_total_queue(script.history()).anomalies == {"unexplained-duplicate": 1}


def test_unconsumed_queue_leaves_the_verdict_open() -> None:
    assert "no consumer got anything" in check_total_queue(Script().history()).unknown


# -------------------------------------------------------------------------------------------------- order


def test_sends_of_one_process_in_order_are_valid() -> None:
    script = two_sent()
    script.read({0: A, 1: B})
    result = check_order(script.history())
    assert result.valid is True
    assert result.counts["pairs of sends"] == 1


def test_checker_finds_sends_out_of_order(script: Script) -> None:
    script.sent(A, 5)
    script.sent(B, 4)
    assert check_order(script.history()).anomalies == {"nonmonotonic-send": 1}


def test_checker_finds_an_answer_going_back(script: Script) -> None:
    script.read({1: B, 0: A})
    assert check_order(script.history()).anomalies == {"int-nonmonotonic-poll": 1}


def test_checker_finds_an_answer_with_a_gap(script: Script) -> None:
    script.read({0: A, 2: B})
    assert check_order(script.history()).anomalies == {"int-poll-skip": 1}


@pytest.mark.parametrize("name", ["read", "final-read"])
def test_checker_finds_an_answer_beginning_too_late(script: Script, name: str) -> None:
    script.add(60, "invoke", name, k=QUEUE, n="n0", o=3)
    script.add(60, "ok", name, k=QUEUE, n="n0", v=[[4, A, 7]])
    assert check_order(script.history()).anomalies == {"int-poll-skip": 1}


# ------------------------------------------------------------------------------------------- assigned queues


def polled(script: Script, *offsets: int) -> None:
    script.add(40, "ok", "poll", k=QUEUE, v=[[offset, f"1.{offset}.10"] for offset in offsets])


def sought(script: Script, offset: int) -> None:
    script.add(40, "invoke", "seek", k=QUEUE, o=offset)
    script.add(40, "ok", "seek", k=QUEUE, o=offset)


def test_contiguous_polls_are_valid(script: Script) -> None:
    sought(script, 5)
    polled(script, 5, 6)
    polled(script, 7)
    sought(script, 6)
    polled(script, 6)
    assert check_assigned(script.history()).valid is True


@pytest.mark.parametrize(("offset", "anomaly"), [(8, "poll-skip"), (6, "nonmonotonic-poll")])
def test_checker_finds_discontinuous_polls(script: Script, offset: int, anomaly: str) -> None:
    sought(script, 5)
    polled(script, 5, 6)
    polled(script, offset)
    assert check_assigned(script.history()).anomalies == {anomaly: 1}


def test_acknowledged_message_that_no_consumer_polled_is_unseen() -> None:
    script = Script(sent=("1.0.10", "1.1.10"))
    sought(script, 0)
    polled(script, 0)
    assert check_assigned(script.history()).anomalies == {"unseen": 1}


def test_message_that_retention_removed_need_not_be_polled(script: Script) -> None:
    script.sent("1.0.10", 0, pos=100)
    script.sent("1.1.10", 1, pos=200)
    sought(script, 1)
    polled(script, 1)
    script.add(RUN, "info", "base", n="n0", v=150)
    assert check_assigned(script.history()).valid is True


def test_poll_after_a_seek_begins_at_the_sought_offset(script: Script) -> None:
    sought(script, 5)
    polled(script, 5)
    sought(script, 2)
    polled(script, 6)
    assert check_assigned(script.history()).anomalies == {"poll-skip": 1}


def test_checker_finds_polls_of_unassigned_queues(script: Script) -> None:
    polled(script, 0)
    assert check_assigned(script.history()).anomalies == {"poll-unassigned": 1}


def test_polls_that_got_nothing_leave_the_verdict_open() -> None:
    assert check_assigned(Script().history()).valid == "unknown"


# ----------------------------------------------------------------------------------------------- verdicts


def test_worst_verdict_wins() -> None:
    assert merge([True, True]) is True
    assert merge([True, "unknown"]) == "unknown"
    assert merge([True, "unknown", False]) is False
    assert merge([]) == "unknown"


def test_anomaly_outweighs_an_unknown_result() -> None:
    findings = Findings("any", "anything")
    findings.cannot_tell("half of it is missing")
    assert findings.result().valid == "unknown"
    findings.add("lost", "this one")
    assert findings.result().valid is False
    assert in_words(findings.result().valid) == "BROKEN"


def test_logs_that_were_not_compared_leave_the_verdict_open(script: Script) -> None:
    for node in NODES:
        script.add(RUN, "info", "verified", n=node, v="intact")
    assert check_servers(script.history()).unknown == ["the logs were not compared"]
