"""JSON documents and times of the command line."""

from __future__ import annotations

import datetime as dt
import json

import pytest
import typer

from mq.cli.output import parse_time, print_json_array
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
