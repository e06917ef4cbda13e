"""Checkers that belong to one workload, fault or path, with histories that break their promises."""

from __future__ import annotations

from checkers import CHECKERS
from checkers.append_log import check_log
from checkers.archived import check_archive
from checkers.events import NEMESIS, RUN, Type
from checkers.filtered import check_filtered, check_filtered_offsets
from checkers.grpc import check_grpc
from checkers.pops import check_pops
from checkers.send_path import check_send_path
from checkers.slow_node import check_slow_node
from jepsen.send_paths import SendPathCounts
from tests.unit.jepsen.histories import QUEUE, Script


def without_store(*, sends: int, seconds: float = 5.0, ranges: int = 1) -> Script:
    """A store that is gone for so long, while so many messages are acknowledged."""
    script = Script(nemeses=("store-gone",))
    what = {"id": 0, "kind": "store-gone", "what": "store-gone for a while", "nodes": ["n0"], "majority": True}
    script.add(NEMESIS, "info", "begins", v=what)
    for number in range(sends):
        script.sent(f"1.{number}.0", number)
    script.now += int(seconds * 1e9)
    script.add(NEMESIS, "info", "ends", v={"id": 0})
    script.add(RUN, "info", "store-ranges", v=ranges)
    return script


def test_messages_are_acknowledged_while_the_store_is_gone() -> None:
    result = check_archive(without_store(sends=3).history())
    assert result.valid is True
    assert result.counts["acknowledged meanwhile"] == 3


def test_checker_finds_a_group_waiting_for_the_store() -> None:
    result = check_archive(without_store(sends=0).history())
    assert result.anomalies == {"stalled-by-store": 1}
    assert "for 5.0 s" in result.examples["stalled-by-store"][0]


def test_short_fault_of_the_store_may_see_no_message() -> None:
    assert check_archive(without_store(sends=0, seconds=1.0).history()).valid is True


def test_run_that_read_nothing_from_the_archive_is_unknown() -> None:
    assert check_archive(without_store(sends=3, ranges=0).history()).valid == "unknown"


PASSES, OTHER = "1.1.0", "1.2.0"


def told(script: Script, offset: int) -> None:
    """A replica said where the group is."""
    script.add(90, "invoke", "stored", k=QUEUE, n="n0", v="G")
    script.add(90, "ok", "stored", k=QUEUE, n="n0", v="G", o=offset)


def test_only_matching_messages_must_be_consumed() -> None:
    script = Script(sent=(PASSES, OTHER))
    script.received(PASSES, 0)
    assert check_filtered(script.history()).valid is True


def test_checker_finds_consumed_filtered_messages() -> None:
    script = Script(sent=(PASSES, OTHER))
    script.received(PASSES, 0)
    script.received(OTHER, 1)
    assert check_filtered(script.history()).anomalies == {"not-filtered": 1}


def test_checker_finds_missing_matching_messages() -> None:
    script = Script(sent=(PASSES, "1.4.0"))
    script.received("1.4.0", 1)
    assert sum(check_filtered(script.history()).anomalies.values()) == 1


def test_offset_after_received_messages_is_valid() -> None:
    script = Script(sent=(PASSES, OTHER))
    script.received(PASSES, 0)
    told(script, 2)
    assert check_filtered_offsets(script.history()).valid is True


def test_checker_finds_an_offset_passing_a_message() -> None:
    script = Script(sent=(PASSES, "1.4.0"))
    script.received("1.4.0", 1)
    told(script, 2)
    script.received(PASSES, 0)  # too late: a crash of the member would have lost it
    assert check_filtered_offsets(script.history()).anomalies == {"passed-over": 1}


def test_verdict_without_offsets_is_unknown() -> None:
    assert check_filtered_offsets(Script().history()).valid == "unknown"


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


def test_acknowledged_message_missing_on_a_replica_is_an_anomaly(script: Script) -> None:
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


def test_only_messages_stored_twice_may_be_popped_twice() -> None:
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


FAST, SLOW = 0.01, 0.6


def send(script: Script, number: int, node: str, seconds: float) -> None:
    script.add(number, "invoke", "send", k=QUEUE, v=f"{number}.0.0", n=node)
    script.now += int(seconds * 1e9)
    script.add(number, "ok", "send", k=QUEUE, v=f"{number}.0.0", n=node, o=number)


def slowed(others: float, itself: float = SLOW, *, calm: float = FAST) -> Script:
    """Sends without faults, then with a slow n0: to n1 and to n0."""
    script = Script(nemeses=("slow-disk",))
    for number in range(100):
        send(script, number, "n1", calm)
    what = {"id": 0, "kind": "slow-disk", "what": "slow n0", "nodes": ["n0"], "majority": True}
    script.add(NEMESIS, "info", "begins", v=what)
    for number in range(100, 300, 2):
        send(script, number, "n1", others)
        send(script, number + 1, "n0", itself)
    script.add(NEMESIS, "info", "ends", v={"id": 0})
    return script


def test_sends_to_the_slow_replica_may_be_slow() -> None:
    assert check_slow_node(slowed(FAST).history()).valid is True


def test_checker_finds_a_group_waiting_for_its_slowest_replica() -> None:
    result = check_slow_node(slowed(SLOW).history())
    assert result.anomalies == {"slowed-by-one": 1}
    assert "took 601 ms, 11 ms without a fault" in result.examples["slowed-by-one"][0]


def test_group_that_is_always_slow_is_not_slowed() -> None:
    assert check_slow_node(slowed(SLOW, calm=SLOW).history()).valid is True


def test_slow_node_verdict_needs_enough_sends() -> None:
    script = Script(nemeses=("slow-disk",))
    send(script, 1, "n1", FAST)
    assert check_slow_node(script.history()).valid == "unknown"


def figures(compiled: int, every: int) -> dict[str, str]:
    return {"raftmq.messagesCompiled": str(compiled), "raftmq.messages": str(every)}


def test_counts_of_all_lives_of_all_brokers_are_added() -> None:
    counts = SendPathCounts()
    for node, compiled, every in [("n0", 5, 10), ("n0", 7, 20), ("n1", 1, 4), ("n0", 0, 3), ("n0", 2, 6), ("n1", 1, 4)]:
        counts.update(node, figures(compiled, every))
    assert counts.totals() == {"compiled": 7 + 2 + 1, "others": 20 + 6 + 4 - 10}


def test_broker_without_the_count_has_no_compiled_messages() -> None:
    counts = SendPathCounts()
    counts.update("n0", {"raftmq.messages": "3"})
    assert counts.totals() == {"compiled": 0, "others": 3}


def test_run_without_compiled_messages_has_no_verdict(script: Script) -> None:
    assert check_send_path(script.history()).valid == "unknown"
    script.add(RUN, "info", "send-paths", v={"compiled": 0, "others": 9})
    assert check_send_path(script.history()).valid == "unknown"
    script.add(RUN, "info", "send-paths", v={"compiled": 2, "others": 9})
    result = check_send_path(script.history())
    assert result.valid is True
    assert result.counts["messages by the compiled send path"] == 2


def test_every_workload_that_sends_is_checked_for_its_path() -> None:
    without = {name for name, checkers in CHECKERS.items() if check_send_path not in checkers}
    # Messages of lite topics have a property that keeps them off the compiled path.
    assert without == {"register", "late-ends", "lite"}
