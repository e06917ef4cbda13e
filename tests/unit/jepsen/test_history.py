"""The format of histories: what belongs together, what is open for ever, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from jepsen.history import Event, HistoryDamaged, decode_events, gather
from tests.unit.jepsen.histories import QUEUE, Script


def lines(script: Script) -> list[bytes]:
    return [msgspec.json.encode(event) + b"\n" for event in script.events]


def test_events_survive_their_file() -> None:
    script = Script()
    script.sent("1.1.10", 0, again=True)
    assert list(decode_events(lines(script))) == script.events


def test_empty_fields_are_not_written() -> None:
    assert msgspec.json.encode(Event(0, 5, 1, "invoke", "send")) == b'{"i":0,"t":5,"p":1,"type":"invoke","f":"send"}'


def test_last_line_without_its_end_is_left_out() -> None:
    script = Script()
    script.sent("1.1.10", 0)
    whole = lines(script)
    assert list(decode_events([*whole[:-1], whole[-1][:-5]])) == script.events[:-1]


def test_line_that_is_no_event_is_named() -> None:
    script = Script()
    script.sent("1.1.10", 0)
    with pytest.raises(HistoryDamaged, match="line 2"):
        list(decode_events([lines(script)[0], b"rubbish\n", *lines(script)[2:]]))


def test_missing_line_is_named() -> None:
    script = Script()
    script.sent("1.1.10", 0)
    with pytest.raises(HistoryDamaged, match="line 2: it is event 2, 1 was due"):
        list(decode_events([lines(script)[0], lines(script)[2]]))


def test_operation_without_an_end_is_open_for_ever() -> None:
    script = Script()
    script.add(1, "invoke", "send", k=QUEUE, v="1.1.10")
    (operation,) = script.history().operations
    assert (operation.outcome, operation.ended) == ("info", None)


def test_process_does_nothing_after_an_unknown_outcome() -> None:
    script = Script()
    script.failed("1.1.10", 1, "info")
    script.add(1, "invoke", "send", k=QUEUE, v="1.2.10")
    with pytest.raises(HistoryDamaged, match="process 1 began"):
        script.history()


def test_end_without_a_beginning_is_refused() -> None:
    script = Script()
    script.add(1, "fail", "send", k=QUEUE, v="1.1.10")
    with pytest.raises(HistoryDamaged, match="never began"):
        script.history()


def test_two_operations_of_one_process_at_once_are_refused() -> None:
    script = Script()
    script.add(1, "invoke", "send", k=QUEUE, v="1.1.10")
    script.add(1, "invoke", "send", k=QUEUE, v="1.2.10")
    with pytest.raises(HistoryDamaged, match="process 1 began"):
        script.history()


def test_consumer_is_handed_messages_while_it_asks_for_something_else() -> None:
    script = Script()
    script.add(50, "invoke", "leave")
    script.received("1.1.10", 0)
    script.add(50, "ok", "leave")
    assert [(op.name, op.outcome) for op in script.history().operations] == [("leave", "ok"), ("receive", "ok")]


def test_fault_has_both_ends_and_what_was_seen() -> None:
    script = Script()
    script.fault("kill", seen="the process is gone")
    (fault,) = script.history().faults
    assert fault.ended is not None
    assert fault.ended > fault.began
    assert (fault.kind, fault.seen, fault.nodes) == ("kill", "the process is gone", ("n0",))


def test_run_without_an_end_is_not_complete() -> None:
    script = Script()
    assert not gather(script.events).is_complete
    assert script.history().is_complete
