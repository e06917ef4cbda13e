"""Checkers: a history that keeps each promise, and for every anomaly one that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jepsen.checkers.append_log import check_log
from jepsen.checkers.assignment import check_assigned
from jepsen.checkers.coverage import ACKNOWLEDGED_MIN, check_coverage
from jepsen.checkers.send_order import check_order
from jepsen.checkers.servers import MEMORY_BYTES_MAX, check_servers, errors_in
from jepsen.checkers.total_queue import CAUSE_NS, check_total_queue
from jepsen.events import RUN
from jepsen.verdict import Findings, in_words, merge
from tests.unit.jepsen.histories import NODES, QUEUE, Script

A, B, C = "1.1.10", "1.2.10", "2.1.10"


def two_sent() -> Script:
    script = Script()
    script.sent(A, 0)
    script.sent(B, 1)
    return script


# ------------------------------------------------------------------------------------------------ the log


def test_log_that_keeps_its_promises_is_valid() -> None:
    script = two_sent()
    script.read({0: A, 1: B}, node="n2")
    script.end(2, node="n1")
    script.failed(C, 2)
    script.final_everywhere([A, B])
    result = check_log(script.history())
    assert result.valid is True
    assert (result.counts["acknowledged"], result.counts["refused"], result.counts["ends asked"]) == (2, 1, 1)


def test_unknown_send_may_be_there_or_not() -> None:
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


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("inconsistent-offsets", inconsistent),
        ("changed-record", changed_record),
        ("duplicate", stored_twice),
        ("order-of-real-time", against_real_time),
        ("phantom", phantom),
        ("G1a", refused_and_read),
        ("future-read", read_too_early),
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
def test_broken_log_is_found(anomaly: str, broken: Callable[[Script], None]) -> None:
    script = two_sent()
    broken(script)
    result = check_log(script.history())
    assert result.valid is False
    assert anomaly in result.anomalies, result.anomalies
    assert result.examples[anomaly], "an anomaly without an example convinces nobody"


def test_value_sent_again_after_an_unknown_outcome_may_be_stored_twice() -> None:
    script = Script()
    script.sent(A, 1, again=True)
    script.final_everywhere([A, A])
    result = check_log(script.history())
    assert result.valid is True
    assert result.counts["stored again after an unknown outcome"] == 1


def test_sends_at_the_same_time_may_lie_in_any_order() -> None:
    script = Script()
    script.add(1, "invoke", "send", k=QUEUE, v=A)
    script.sent(C, 1, process=2)
    script.add(1, "ok", "send", k=QUEUE, v=A, o=0)
    script.final_everywhere([A, C])
    assert check_log(script.history()).valid is True


def test_end_asked_before_the_acknowledgement_may_be_lower() -> None:
    script = Script()
    script.add(70, "invoke", "end", k=QUEUE, n="n0")
    script.sent(A, 0)
    script.add(70, "ok", "end", k=QUEUE, n="n0", o=0)
    script.final_everywhere([A])
    assert check_log(script.history()).valid is True


def test_replica_that_was_not_read_to_its_end_leaves_the_verdict_open() -> None:
    script = two_sent()
    script.final([A, B], node="n0")
    script.final([A, B], node="n1")
    script.final([A], node="n2", complete=False)
    result = check_log(script.history())
    assert result.valid == "unknown"
    assert result.unknown == [f"n2 was not read to the end of {QUEUE}"]


def test_run_that_read_no_replica_leaves_the_verdict_open() -> None:
    assert check_log(two_sent().history()).valid == "unknown"


def test_examples_are_few_and_the_count_is_whole() -> None:
    script = Script()
    for number in range(20):
        script.sent(f"1.{number}.10", number)
    script.final_everywhere([])
    result = check_log(script.history())
    assert result.anomalies["lost-write"] == 60
    assert len(result.examples["lost-write"]) == 8


# ---------------------------------------------------------------------------------------- the total queue


def test_queue_that_keeps_its_promises_is_valid() -> None:
    script = two_sent()
    script.failed(C, 2, "info")
    for offset, value in enumerate([A, B, C]):
        script.received(value, offset)
    result = check_total_queue(script.history())
    assert result.valid is True
    assert result.counts["recovered"] == 1


def test_acknowledged_message_that_nobody_has_is_lost() -> None:
    script = two_sent()
    script.received(A, 0)
    script.final_everywhere([A])
    assert check_total_queue(script.history()).anomalies == {"lost": 1}


def test_acknowledged_message_that_no_consumer_got_is_unseen() -> None:
    script = two_sent()
    script.received(A, 0)
    script.final_everywhere([A, B])
    assert check_total_queue(script.history()).anomalies == {"unseen": 1}


def test_message_that_nobody_sent_is_unexpected() -> None:
    script = two_sent()
    script.received(A, 0)
    script.received(B, 1)
    script.received("9.9.10", 2)
    assert check_total_queue(script.history()).anomalies == {"unexpected": 1}


def test_refused_message_is_unexpected() -> None:
    script = Script()
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


def test_queue_that_nobody_consumed_leaves_the_verdict_open() -> None:
    assert "no consumer got anything" in check_total_queue(Script().history()).unknown


# -------------------------------------------------------------------------------------------------- order


def test_sends_of_one_process_in_order_are_valid() -> None:
    script = two_sent()
    script.read({0: A, 1: B})
    result = check_order(script.history())
    assert result.valid is True
    assert result.counts["pairs of sends"] == 1


def test_send_before_an_earlier_one_of_its_process_is_found() -> None:
    script = Script()
    script.sent(A, 5)
    script.sent(B, 4)
    assert check_order(script.history()).anomalies == {"nonmonotonic-send": 1}


def test_answer_that_goes_back_is_found() -> None:
    script = Script()
    script.read({1: B, 0: A})
    assert check_order(script.history()).anomalies == {"int-nonmonotonic-poll": 1}


def test_answer_that_leaves_a_message_out_is_found() -> None:
    script = Script()
    script.read({0: A, 2: B})
    assert check_order(script.history()).anomalies == {"int-poll-skip": 1}


# ------------------------------------------------------------------------------------------- assigned queues


def polled(script: Script, *offsets: int) -> None:
    script.add(40, "ok", "poll", k=QUEUE, v=[[offset, f"1.{offset}.10"] for offset in offsets])


def sought(script: Script, offset: int) -> None:
    script.add(40, "invoke", "seek", k=QUEUE, o=offset)
    script.add(40, "ok", "seek", k=QUEUE, o=offset)


def test_polls_that_go_on_where_the_last_one_ended_are_valid() -> None:
    script = Script()
    sought(script, 5)
    polled(script, 5, 6)
    polled(script, 7)
    sought(script, 6)
    polled(script, 6)
    assert check_assigned(script.history()).valid is True


@pytest.mark.parametrize(("offset", "anomaly"), [(8, "poll-skip"), (6, "nonmonotonic-poll")])
def test_poll_that_does_not_go_on_where_the_last_one_ended_is_found(offset: int, anomaly: str) -> None:
    script = Script()
    sought(script, 5)
    polled(script, 5, 6)
    polled(script, offset)
    assert check_assigned(script.history()).anomalies == {anomaly: 1}


def test_first_poll_after_a_seek_begins_there() -> None:
    script = Script()
    sought(script, 5)
    polled(script, 5)
    sought(script, 2)
    polled(script, 6)
    assert check_assigned(script.history()).anomalies == {"poll-skip": 1}


def test_poll_of_a_queue_that_nobody_assigned_is_found() -> None:
    script = Script()
    polled(script, 0)
    assert check_assigned(script.history()).anomalies == {"poll-unassigned": 1}


def test_polls_that_got_nothing_leave_the_verdict_open() -> None:
    assert check_assigned(Script().history()).valid == "unknown"


# ------------------------------------------------------------------------------------------------ servers


def verified(script: Script, verdict: str = "intact") -> None:
    for node in NODES:
        script.add(RUN, "info", "verified", n=node, v=verdict)


def test_servers_that_kept_running_are_valid() -> None:
    script = Script()
    verified(script)
    script.add(RUN, "info", "compared", v=[])
    script.add(RUN, "info", "memory", n="n1", v=MEMORY_BYTES_MAX)
    result = check_servers(script.history())
    assert result.valid is True
    assert (result.counts["logs compared byte by byte"], result.counts["MiB of memory at most"]) == (1, 300)


@pytest.mark.parametrize(
    ("anomaly", "fields"),
    [
        ("ended-by-itself", {"name": "ended", "err": "exit code 1"}),
        ("error-in-log", {"name": "said", "v": "AssertionError"}),
        ("not-repaired", {"name": "not-repaired", "v": ["00000000000000000000"]}),
        ("not-recovered", {"name": "not-recovered", "err": "no leader within 60 s"}),
        ("misbehaved", {"name": "misbehaved", "err": "leads in term 3 while n1 has nothing"}),
        ("logs-differ", {"name": "compared", "v": ["the logs of n0 and n1 differ in the file 00000000000000000000"]}),
        ("too-much-memory", {"name": "memory", "v": MEMORY_BYTES_MAX + 1}),
    ],
)
def test_what_a_server_did_by_itself_is_found(anomaly: str, fields: dict[str, Any]) -> None:
    script = Script()
    verified(script)
    script.add(RUN, "info", fields.pop("name"), n="n1", **fields)
    assert check_servers(script.history()).anomalies == {anomaly: 1}


def test_log_that_does_not_verify_is_found() -> None:
    script = Script()
    verified(script, "damaged")
    assert check_servers(script.history()).anomalies == {"log-damaged": 3}


def test_log_that_was_not_verified_leaves_the_verdict_open() -> None:
    assert check_servers(Script().history()).valid == "unknown"


def test_only_what_no_fault_explains_is_an_error_of_a_broker() -> None:
    lines = [
        '{"level":"error","event":"leader_lost"}\n',
        '{"level":"err',
        "Traceback (most recent call last):\n",
        "AssertionError: 3 entries, 4 were due\n",
    ]
    assert list(errors_in(lines)) == [lines[2].strip(), lines[3].strip()]


# ----------------------------------------------------------------------------------------------- coverage


def sent_enough(script: Script) -> None:
    for number in range(ACKNOWLEDGED_MIN):
        script.sent(f"5.{number}.10", number, process=5)


def test_run_that_tested_something_is_valid() -> None:
    script = Script(nemeses=["kill"])
    script.fault("kill", during=[A, B])
    sent_enough(script)
    result = check_coverage(script.history())
    assert result.valid is True
    assert result.counts["acknowledged under kill"] == 2


def test_calm_run_needs_no_fault() -> None:
    script = Script()
    sent_enough(script)
    assert check_coverage(script.history()).valid is True


def test_run_without_acknowledgements_tested_nothing() -> None:
    result = check_coverage(Script().history())
    assert result.unknown == ["nothing was tested: 0 messages acknowledged"]


def test_run_without_acknowledgements_under_its_fault_tested_nothing() -> None:
    script = Script(nemeses=["kill"])
    script.fault("kill", seconds=2.5)
    script.fault("kill", seconds=2.5)
    sent_enough(script)
    assert check_coverage(script.history()).unknown == [
        "nothing was tested: no message was acknowledged under a fault of kind kill"
    ]


def test_nobody_expects_acknowledgements_before_somebody_else_can_lead() -> None:
    script = Script(nemeses=["kill"])
    script.fault("kill", seconds=4.9)
    sent_enough(script)
    assert check_coverage(script.history()).valid is True


def test_nobody_expects_acknowledgements_while_a_majority_is_away() -> None:
    script = Script(nemeses=["kill"])
    script.fault("kill", majority=False)
    sent_enough(script)
    assert check_coverage(script.history()).valid is True


def test_run_without_acknowledgements_after_its_fault_tested_nothing() -> None:
    script = Script(nemeses=["kill"])
    sent_enough(script)
    script.fault("kill", majority=False)
    assert check_coverage(script.history()).unknown == [
        "nothing was tested: no message was acknowledged after a fault of kind kill"
    ]


def test_fault_that_nobody_saw_leaves_the_verdict_open() -> None:
    script = Script(nemeses=["kill"])
    script.fault("kill", seen=None, during=[A])
    sent_enough(script)
    (why,) = check_coverage(script.history()).unknown
    assert why.endswith("was not seen to take effect")


def test_kind_of_fault_that_never_came_leaves_the_verdict_open() -> None:
    script = Script(nemeses=["kill", "pause"])
    script.fault("kill", during=[A])
    sent_enough(script)
    assert check_coverage(script.history()).unknown == ["nothing was tested: no fault of kind pause"]


# ----------------------------------------------------------------------------------------------- verdicts


def test_worst_verdict_wins() -> None:
    assert merge([True, True]) is True
    assert merge([True, "unknown"]) == "unknown"
    assert merge([True, "unknown", False]) is False
    assert merge([]) == "unknown"


def test_broken_promise_is_broken_although_something_is_unknown() -> None:
    findings = Findings("any", "anything")
    findings.cannot_tell("half of it is missing")
    assert findings.result().valid == "unknown"
    findings.add("lost", "this one")
    assert findings.result().valid is False
    assert in_words(findings.result().valid) == "BROKEN"
