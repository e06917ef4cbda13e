"""How `raftmq status --all` shows the figures of brokers."""

from __future__ import annotations

import pytest
from rich.console import Console

from mq.cli.figures import figures_table, readable, unit_of


@pytest.mark.parametrize(
    ("name", "text", "unit", "shown"),
    [
        ("raftmq.timersLateMs", "1234", "ms", "1,234"),
        ("raftmq.timersPending", "1000000", "messages", "1,000,000"),
        ("raftmq.transactionChecksUnanswerable", "2", "questions", "2"),
        ("raftmq.transactionsOpen", "0", "transactions", "0"),
        ("raftmq.repliesUnderWayBytes", "65536", "bytes", "65,536"),
        ("raftmq.repliesPushed", "7", "replies", "7"),
        ("raftmq.forwardedSends", "7", "requests", "7"),
        ("raftmq.forwardedBytes", "7", "bytes", "7"),
        ("raftmq.heldPops", "7", "requests", "7"),
        ("raftmq.commitIndex", "1234", "entries", "1,234"),
        ("raftmq.diskUsed", "0.1857", "of 1", "0.1857"),
        ("raftmq.term", "1234", "", "1234"),
        ("raftmq.role", "leader", "", "leader"),
        ("raftmq.somethingNew", "1234", "", "1,234"),
        ("raftmq.members", '{"n0":"voter","n1":"learner"}', "", "n0: voter, n1: learner"),
        ("raftmq.peers", '{"n1":{"matchIndex":4,"active":true}}', "", "n1: matchIndex 4 active True"),
        ("putTps", "1.0 2.0 3.0", "per second, over 10 s, 1 min, 10 min", "1.0 2.0 3.0"),
        ("bootTimestamp", "1600000000000", "UTC", "2020-09-13T12:26:40.000Z"),
        ("earliestMessageTimeStamp", "-1", "UTC", "none"),
        ("startAcceptSendRequestTimeStamp", "0", "UTC", "none"),
        ("scheduleMessageOffset_3", "4,5", "messages delivered, stored", "4,5"),
    ],
)
def test_figure_has_its_unit(name: str, text: str, unit: str, shown: str) -> None:
    assert (unit_of(name), readable(name, text)) == (unit, shown)


def test_figures_table_has_one_column_per_replica() -> None:
    table = figures_table({"n0": {"putTps": "1 2 3", "raftmq.messages": "4"}, "n1": {"raftmq.messages": "5000"}})
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    assert [line.split() for line in capture.get().splitlines()] == [
        ["name", "unit", "n0", "n1"],
        ["raftmq.messages", "messages", "4", "5,000"],
        ["putTps", *["per", "second,", "over", "10", "s,", "1", "min,", "10", "min"], "1", "2", "3", "-"],
    ]
