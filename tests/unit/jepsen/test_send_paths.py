"""A run counts the messages that took the compiled send path, and without any it says nothing about that path."""

from __future__ import annotations

from checkers import CHECKERS
from checkers.events import RUN
from checkers.send_path import check_send_path
from jepsen.send_paths import SendPathCounts
from tests.unit.jepsen.histories import Script


def figures(compiled: int, every: int) -> dict[str, str]:
    return {"raftmq.messagesCompiled": str(compiled), "raftmq.messages": str(every)}


def test_counts_of_all_lives_of_all_brokers_are_added() -> None:
    counts = SendPathCounts()
    for node, compiled, every in [("n0", 5, 10), ("n0", 7, 20), ("n1", 1, 4), ("n0", 0, 3), ("n0", 2, 6), ("n1", 1, 4)]:
        counts.note(node, figures(compiled, every))
    assert counts.totals() == {"compiled": 7 + 2 + 1, "others": 20 + 6 + 4 - 10}


def test_broker_without_the_count_has_no_compiled_messages() -> None:
    counts = SendPathCounts()
    counts.note("n0", {"raftmq.messages": "3"})
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
