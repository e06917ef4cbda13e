"""The checkers of popped messages, with histories that break their promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from checkers.events import Type
from checkers.pops import check_ordered_pops, check_pops
from tests.unit.jepsen.histories import QUEUE, STEP_NS, Script

A, B = "1.0.0", "1.1.0"


def popped(script: Script, *values: str, process: int = 20, offset: int = 0, hidden_ms: int = 20) -> None:
    script.add(process, "invoke", "pop", o=hidden_ms)
    script.add(process, "ok", "pop", v=[[QUEUE, offset + number, value] for number, value in enumerate(values)])


def told(script: Script, name: str, value: str, outcome: Type = "ok", offset: int = 0) -> None:
    process = 100 + len(script.events)
    script.add(process, "invoke", name, k=QUEUE, v=value, o=offset)
    script.add(process, outcome, name, k=QUEUE, v=value)


@pytest.fixture
def script() -> Script:
    """A is forgotten once, comes again when its time is over, and is acknowledged."""
    script = Script(sent=[A])
    popped(script, A)
    script.now += 30 * STEP_NS
    told(script, "ack", A, "fail")
    popped(script, A, process=21)
    told(script, "ack", A)
    return script


def test_message_redelivered_until_its_acknowledgement_is_valid(script: Script) -> None:
    popped(script)
    result = check_pops(script.history())
    assert result.valid is True
    assert result.counts["messages handed out again"] == 1


def test_message_given_back_may_be_redelivered_at_once() -> None:
    script = Script(sent=[A])
    popped(script, A)
    told(script, "give-back", A)
    popped(script, A, process=21)
    told(script, "ack", A, "info")
    assert check_pops(script.history()).valid is True


def test_copy_of_an_acknowledged_message_may_be_popped() -> None:
    script = Script()
    script.sent(A, 0, again=True)
    popped(script, A)
    told(script, "ack", A)
    popped(script, A, process=21, offset=1)
    assert check_pops(script.history()).anomalies == {}


def test_answers_in_another_order_than_the_pops_are_valid() -> None:
    script = Script(sent=[A])
    script.add(20, "invoke", "pop", o=20)
    script.now += 30 * STEP_NS
    popped(script, A, process=21)
    script.add(20, "ok", "pop", v=[[QUEUE, 0, A]])
    told(script, "ack", A)
    assert check_pops(script.history()).valid is True


def two_at_once(script: Script) -> None:
    script.sent(B, 1)
    script.add(20, "invoke", "pop", o=20)
    popped(script, B, process=21)
    script.add(20, "ok", "pop", v=[[QUEUE, 1, B]])
    told(script, "ack", B)


def too_soon(script: Script) -> None:
    script.sent(B, 1)
    popped(script, B)
    popped(script, B, process=21)
    told(script, "ack", B)


def acknowledged_again(script: Script) -> None:
    script.now += 30 * STEP_NS
    popped(script, A)


def never_popped(script: Script) -> None:
    script.sent(B, 1)


def never_again(script: Script) -> None:
    script.sent(B, 1)
    popped(script, B)


def of_nobody(script: Script) -> None:
    popped(script, B)


def test_times_are_not_judged_when_a_clock_was_set(script: Script) -> None:
    too_soon(script)
    script.fault("clock")
    assert check_pops(script.history()).valid is True


def too_soon_after_an_older_give_back(script: Script) -> None:
    script.sent(B, 1)
    popped(script, B)
    told(script, "give-back", B)
    popped(script, B, process=21)
    popped(script, B, process=22)
    told(script, "ack", B)


def popped_from_another_place(script: Script) -> None:
    script.sent(B, 1)
    popped(script, B, offset=2)
    told(script, "ack", B)
    for node in ("n0", "n1"):
        script.final([A, B], node=node)
    script.final([A, B, "1.9.0"], node="n2")


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("inconsistent-offsets", popped_from_another_place),
        ("popped-too-soon", too_soon_after_an_older_give_back),
        ("popped-too-soon", too_soon),
        ("popped-too-soon", two_at_once),
        ("acknowledged-again", acknowledged_again),
        ("unseen", never_popped),
        ("not-again", never_again),
        ("unexpected", of_nobody),
    ],
)
def test_checker_finds_wrong_pops(script: Script, anomaly: str, broken: Callable[[Script], None]) -> None:
    broken(script)
    assert check_pops(script.history()).anomalies == {anomaly: 1}


def test_run_without_redeliveries_leaves_the_verdict_open() -> None:
    assert check_pops(Script().history()).valid == "unknown"


# ------------------------------------------------------------------------------------------------ in order


def test_checker_accepts_later_messages_after_earlier_acknowledgements() -> None:
    script = Script()
    popped(script, A, B)
    told(script, "ack", A)
    popped(script, B, offset=1, process=21)
    told(script, "ack", B, "info", offset=1)
    popped(script, "1.2.0", offset=2)
    assert check_ordered_pops(script.history()).valid is True


def behind_an_open_one(script: Script) -> None:
    popped(script, A, B)
    told(script, "ack", A)
    told(script, "ack", B, "fail", offset=1)
    popped(script, "1.2.0", offset=2)


def backwards_in_one_answer(script: Script) -> None:
    script.add(20, "invoke", "pop", o=20)
    script.add(20, "ok", "pop", v=[[QUEUE, 0, A], [QUEUE, 0, A]])


def one_left_out_of_an_answer(script: Script) -> None:
    script.add(20, "invoke", "pop", o=20)
    script.add(20, "ok", "pop", v=[[QUEUE, 0, A], [QUEUE, 2, B]])


def test_answer_after_acknowledged_messages_is_valid() -> None:
    script = Script()
    popped(script, A, B, "1.2.0")
    told(script, "ack", A)
    told(script, "ack", B, offset=1)
    told(script, "ack", "1.3.0", offset=3)
    script.add(20, "invoke", "pop", o=20)
    script.add(20, "ok", "pop", v=[[QUEUE, 2, "1.2.0"], [QUEUE, 4, "1.4.0"]])
    assert check_ordered_pops(script.history()).valid is True


@pytest.mark.parametrize(
    ("anomaly", "broken"),
    [
        ("handed-too-early", behind_an_open_one),
        ("handed-too-early", one_left_out_of_an_answer),
        ("int-nonmonotonic-pop", backwards_in_one_answer),
    ],
)
def test_checker_finds_wrong_order(anomaly: str, broken: Callable[[Script], None]) -> None:
    script = Script()
    broken(script)
    assert check_ordered_pops(script.history()).anomalies == {anomaly: 1}
