"""What commands print: JSON documents, times, whole addresses in narrow tables, the figures of brokers."""

from __future__ import annotations

import datetime as dt
import json

import pytest
import typer
from rich.console import Console

from mq.cli.figures import figures_table, readable, unit_of
from mq.cli.output import parse_time, print_json_array
from mq.cli.tables import borderless_table, print_table
from mq.inspection.formatting import some_of, time_of


@pytest.mark.parametrize("rows", [[], [1], [{"a": 1}, {"b": [2, {"c": None}]}], ["line\nfeed", "x"]])
def test_array_printed_by_row_equals_one_printed_whole(rows: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    print_json_array(iter(rows))
    assert capsys.readouterr().out == json.dumps(rows, indent=2) + "\n"


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (1_772_357_400_007, "2026-03-01T09:30:00.007Z"),
        (1, "1970-01-01T00:00:00.001Z"),
        (0, None),
        (-1, None),
        (None, None),
        (2**63 - 1, None),
    ],
)
def test_time_is_printed_in_utc(milliseconds: int | None, text: str | None) -> None:
    assert time_of(milliseconds) == text


def test_printed_time_can_be_given_to_another_command() -> None:
    text = time_of(1_772_357_400_007)
    assert text is not None
    assert parse_time(text) == dt.datetime(2026, 3, 1, 9, 30, 0, 7000, tzinfo=dt.UTC)
    assert parse_time("2026-03-01T10:30+01:00") == dt.datetime(2026, 3, 1, 9, 30, tzinfo=dt.UTC)
    assert parse_time("2026-03-01T09:30").tzinfo is not None, "a time without an offset is local"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "0001-01-01T00:00", "99999-01-01"])
def test_parser_refuses_other_texts_as_times(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a time"):
        parse_time(text)


def test_long_list_names_some_and_counts_the_rest() -> None:
    """`raftmq topic delete` named all 300 groups with offsets before it asked."""
    assert some_of([f"g{number}" for number in range(300)]) == "g0, g1, g2, g3, g4 and 295 more"
    assert some_of(["a", "b"]) == "a, b"


def test_tables_are_complete_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`raftmq topic route` used to print 127.0.0.1:109… into a pipe, and `group status` half of a reason."""
    monkeypatch.setenv("COLUMNS", "40")
    addresses = [f"broker-{number}.example.org:10911" for number in range(3)]
    table = borderless_table(
        "leader", "followers", "lag", numbers=["lag"], title=f"cannot connect: {'reason ' * 10}end"
    )
    table.add_row(addresses[0], " ".join(addresses[1:]), "7")
    print_table(table)
    title, headings, row = capsys.readouterr().out.splitlines()
    assert title.endswith("reason end")
    assert headings.split() == ["leader", "followers", "lag"]
    assert row.split() == [*addresses, "7"]


def test_application_texts_are_shown_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    """`raftmq dlq list` ended with a MarkupError of rich at the exception KeyError('[/account]')."""
    table = borderless_table("why")
    table.add_row("KeyError: '[/account]' [red] :warning: \x1b[31m")
    print_table(table)
    assert capsys.readouterr().out.splitlines()[1].rstrip() == "KeyError: '[/account]' [red] :warning: \\x1b[31m"


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
