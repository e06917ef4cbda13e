"""The checker of sends through proxies, with histories that break its promise."""

from __future__ import annotations

from checkers.append_log import check_log
from checkers.events import Type
from checkers.grpc import check_grpc
from checkers.pops import check_pops
from tests.unit.jepsen.histories import QUEUE, Script

A, B = "1.0.0", "1.1.0"


def sent(script: Script, value: str, outcome: Type = "ok") -> None:
    process = 100 + len(script.events)
    script.add(process, "invoke", "proxied-send", v=value)
    script.add(process, outcome, "proxied-send", v=value, err="said so" if outcome != "ok" else None)


def finally_stored(script: Script, *values: str, nodes: tuple[str, ...] = ("n0", "n1", "n2")) -> None:
    for node in nodes:
        script.final(values, node=node)


def test_stored_acknowledged_messages_are_valid_in_any_order(script: Script) -> None:
    sent(script, A)
    sent(script, B, "info")  # nobody knows, and it is stored
    finally_stored(script, B, A)
    assert check_grpc(script.history()).valid is True
    assert check_log(script.history()).valid is True  # and it is not out of nowhere


def test_acknowledged_message_that_a_replica_lacks_is_lost(script: Script) -> None:
    sent(script, A)
    sent(script, B)
    finally_stored(script, A)
    assert check_grpc(script.history()).anomalies == {"lost": 3}


def test_stored_refused_message_is_unexpected(script: Script) -> None:
    sent(script, A)
    sent(script, B, "fail")
    finally_stored(script, A, B)
    assert check_grpc(script.history()).anomalies == {"unexpected": 3}


def test_run_without_acknowledged_messages_leaves_the_verdict_open(script: Script) -> None:
    sent(script, A, "info")
    finally_stored(script, A)
    assert check_grpc(script.history()).valid == "unknown"


def test_pop_checker_finds_an_acknowledged_message_never_received(script: Script) -> None:
    sent(script, A)
    sent(script, B)
    script.add(20, "invoke", "pop", o=20)
    script.add(20, "ok", "pop", v=[[QUEUE, 0, A]])
    script.add(21, "invoke", "ack", k=QUEUE, v=A, o=0)
    script.add(21, "ok", "ack", k=QUEUE, v=A)
    assert check_pops(script.history()).anomalies == {"unseen": 1}


def test_only_a_message_stored_twice_by_a_proxy_may_be_popped_twice() -> None:
    for copies, anomalies in ((2, {}), (1, {"popped-too-soon": 1})):
        script = Script()
        sent(script, A)
        for process, offset in ((20, 0), (21, copies - 1)):
            script.add(process, "invoke", "pop", o=60_000)
            script.add(process, "ok", "pop", v=[[QUEUE, offset, A]])
        script.add(22, "invoke", "ack", k=QUEUE, v=A, o=0)
        script.add(22, "ok", "ack", k=QUEUE, v=A)
        finally_stored(script, *[A] * copies)
        assert check_pops(script.history()).anomalies == anomalies
