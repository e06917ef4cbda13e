"""The format of histories: what belongs together, what is open for ever, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from checkers.events import NEMESIS, RUN, Event
from checkers.history import HistoryDamaged, decode_events, gather
from tests.unit.jepsen.histories import QUEUE, Script


def lines(script: Script) -> list[bytes]:
    return [msgspec.json.encode(event) + b"\n" for event in script.events]


def test_events_survive_their_file(script: Script) -> None:
    script.sent("1.1.10", 0, again=True)
    assert list(decode_events(lines(script))) == script.events


def test_empty_fields_are_not_written() -> None:
    assert msgspec.json.encode(Event(0, 5, 1, "invoke", "send")) == b'{"i":0,"t":5,"p":1,"type":"invoke","f":"send"}'


def test_truncated_last_line_is_ignored() -> None:
    script = Script(sent=["1.1.10"])
    whole = lines(script)
    assert list(decode_events([*whole[:-1], whole[-1][:-5]])) == script.events[:-1]


def test_line_that_is_not_an_event_is_reported() -> None:
    script = Script(sent=["1.1.10"])
    with pytest.raises(HistoryDamaged, match="line 2"):
        list(decode_events([lines(script)[0], b"rubbish\n", *lines(script)[2:]]))


def test_missing_line_is_reported() -> None:
    script = Script(sent=["1.1.10"])
    with pytest.raises(HistoryDamaged, match="line 2: event number 2; expected: 1"):
        list(decode_events([lines(script)[0], lines(script)[2]]))


def test_operation_without_an_end_is_open_for_ever(script: Script) -> None:
    script.add(1, "invoke", "send", k=QUEUE, v="1.1.10")
    (operation,) = script.history().operations
    assert (operation.outcome, operation.ended) == ("info", None)


def test_consumer_may_receive_messages_during_another_request(script: Script) -> None:
    script.add(50, "invoke", "leave")
    script.received("1.1.10", 0)
    script.add(50, "ok", "leave")
    assert [(op.name, op.outcome) for op in script.history().operations] == [("leave", "ok"), ("receive", "ok")]


def test_fault_contains_both_ends_and_its_observation(script: Script) -> None:
    script.fault("kill", seen="the process is gone")
    (fault,) = script.history().faults
    assert fault.ended is not None
    assert fault.ended > fault.began
    assert (fault.kind, fault.seen, fault.nodes) == ("kill", "the process is gone", ("n0",))


def test_run_without_an_end_is_not_complete(script: Script) -> None:
    assert not gather(script.events).is_complete
    assert script.history().is_complete


def decoded(*events: dict[str, Any]) -> list[Event]:
    """What is read from these events; numbers and times are added where there are none."""
    numbered = [{"i": number, "t": number, **event} for number, event in enumerate(events)]
    return list(decode_events(msgspec.json.encode(event) + b"\n" for event in numbered))


BEGIN = {"p": RUN, "type": "info", "f": "begin", "v": {"workload": "log"}}
SEND = {"p": 1, "type": "invoke", "f": "send", "k": QUEUE, "v": "1.1.10"}
SENT = {**SEND, "type": "ok", "o": 0}
UNKNOWN = {**SEND, "type": "info", "err": "no answer"}
RECEIVED = {**SENT, "f": "receive"}
READ = {"p": 2, "type": "ok", "f": "read", "k": QUEUE, "n": "n0", "v": [[0, "1.1.10", 7]]}
FAULT = {"id": 1, "kind": "kill", "what": "kill n0", "nodes": ["n0"], "majority": True}
BEGINS = {"p": NEMESIS, "type": "info", "f": "begins", "v": FAULT}


def test_complete_events_are_decoded() -> None:
    assert len(decoded(BEGIN, SEND, SENT, READ, BEGINS)) == 5


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({**SEND, "f": "sned"}, "there is no operation 'sned'"),
        ({**SEND, "p": "nobody"}, "there is no process 'nobody'"),
        ({**SEND, "v": 5}, "the value of send is not as it must be"),
        ({**SENT, "o": None}, "ok of send has no field o"),
        ({**SENT, "k": None}, "ok of send has no field k"),
        ({**READ, "v": None}, "the value of read is not as it must be"),
        ({**READ, "v": [[0, "1.1.10"]]}, "the value of read is not as it must be"),
        ({**READ, "v": [["0", "1.1.10", 7]]}, "the value of read is not as it must be"),
        ({**READ, "v": [[0, ["1.1.10"], 7]]}, "the value of read is not as it must be"),
        ({"p": 1, "type": "ok", "f": "check", "v": ["1.1.10"]}, "the value of check is not as it must be"),
        ({"p": 1, "type": "ok", "f": "get", "k": "r", "v": [1]}, "the value of get is not as it must be"),
        ({"p": 1, "type": "invoke", "f": "pop"}, "invoke of pop has no field o"),
        ({"p": 1, "type": "invoke", "f": "receive"}, "receive has no beginning"),
        ({**BEGINS, "f": "began"}, "nemesis has no event 'began'"),
        ({**BEGINS, "type": "ok"}, "nemesis begins is ok, not info"),
        ({**BEGINS, "v": {**FAULT, "nodes": 3}}, "the value of begins is not as it must be"),
        ({**BEGINS, "v": {"id": 1}}, "the value of begins is not as it must be"),
        ({**BEGIN, "v": {"nodes": "n0"}}, "the value of begin is not as it must be"),
        ({"p": RUN, "type": "info", "f": "verified", "v": "intact"}, "info of verified has no field n"),
        ({"p": RUN, "type": "info", "f": "base", "n": "n0", "v": "0"}, "the value of base is not as it must be"),
        ({**SEND, "t": -1}, "its time, -1, is before that of the last event, 0"),
        ({**SEND, "o": 1.5}, "Expected `int | null`"),
    ],
)
def test_incomplete_events_are_reported(event: dict[str, Any], reason: str) -> None:
    with pytest.raises(HistoryDamaged, match=rf"^line 2: .*{re.escape(reason)}"):
        decoded(BEGIN, event)


@pytest.mark.parametrize("line", [b"\n", b"\xff\xfe{}\n", b"[1]\n", b"\0" * 10 + b"\n"])
def test_line_that_is_not_a_json_object_is_reported(line: bytes) -> None:
    with pytest.raises(HistoryDamaged, match="line 1"):
        list(decode_events([line]))


def test_too_deeply_nested_value_is_reported() -> None:
    line = b'{"i":0,"t":1,"p":1,"type":"ok","f":"poll","k":"a","v":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    with pytest.raises(HistoryDamaged, match="line 1"):
        list(decode_events([line]))


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([SENT], "process 1 ended send, which it never began"),
        ([SEND, {**SEND, "v": "1.2.10"}], "process 1 began although its last operation is open"),
        ([SEND, UNKNOWN, {**SEND, "v": "1.2.10"}], "process 1 continued"),
        ([SEND, UNKNOWN, RECEIVED], "process 1 continued"),
        ([SEND, {"p": 1, "type": "ok", "f": "end", "k": QUEUE, "n": "n0", "o": 3}], "ended end, which it never began"),
        ([SEND, {**SENT, "v": "1.2.10"}], "began send of 1.1.10 and ended that of 1.2.10"),
        ([{**READ, "type": "invoke", "v": None}, {**READ, "n": "n1"}], "began read with n n0 and ended it with n1"),
        ([{**BEGINS, "f": "ends", "v": {"id": 1}}], "fault 1 never began"),
        ([{**BEGINS, "f": "confirmed", "v": {"id": 1, "seen": "gone"}}], "fault 1 never began"),
        ([BEGINS, BEGINS], "fault 1 begins twice"),
        ([BEGINS, *2 * [{**BEGINS, "f": "ends", "v": {"id": 1}}]], "fault 1 ends twice"),
    ],
)
def test_event_inconsistent_with_earlier_events_is_reported(events: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(HistoryDamaged, match=rf"^line {len(events) + 1}: .*{re.escape(reason)}"):
        gather(decoded(BEGIN, *events))


def test_history_in_another_format_is_refused_with_both_numbers() -> None:
    begin = {**BEGIN, "v": {"workload": "log", "format": 2}}
    with pytest.raises(HistoryDamaged, match="line 1: the history has format 2, this version reads 1"):
        gather(decoded(begin))
