"""Tables keep whole addresses and times, however narrow the terminal is."""

from __future__ import annotations

import pytest

from mq.cli.tables import borderless_table, print_table


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
