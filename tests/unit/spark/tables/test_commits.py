"""Commits are read as they were written, and ranges follow from their positions."""

from __future__ import annotations

import json

import pytest

from spark.positions import Position
from spark.tables.commits import (
    Commit,
    CommitRefused,
    assign_option,
    check_owner,
    lineage,
    messages_between,
    offsets_option,
    parse_commit,
    shown_position,
)

IDS = {("T", "a"): "1", ("T", "b"): "2"}
START = Position("c", IDS, {("T", "a", 0): 3, ("T", "b", 0): 0}).to_json()
FIRST = {("T", "a", 0): 3, ("T", "b", 0): 0}
END = Position("c", IDS, {("T", "a", 0): 5, ("T", "b", 0): 0, ("T", "b", 1): 2}, FIRST).to_json()
COMMIT = Commit("p/T", 4, START, END, 4, 1, 5, "run", {"id": "bigint"}, START)


def test_commits_survive_being_written_and_read() -> None:
    assert parse_commit(COMMIT.to_json(), "here") == COMMIT


def test_messages_between_two_positions_are_ranges_of_queues() -> None:
    ranges = messages_between(START, END)
    assert ranges == {("T", "a", 0): (3, 5), ("T", "b", 1): (0, 2)}
    assert json.loads(assign_option(ranges)) == {"T": ["a:0", "b:1"]}
    assert json.loads(offsets_option(ranges, 0)) == {"T": {"a:0": 3, "b:1": 0}}
    assert json.loads(offsets_option(ranges, 1)) == {"T": {"a:0": 5, "b:1": 2}}
    assert shown_position(END) == "a:0 5, b:0 0, b:1 2"


def test_range_from_an_end_to_itself_is_empty() -> None:
    # The end of the first micro-batch also has its start: that must not be read again.
    assert messages_between(END, END) == {}


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", COMMIT.to_json().replace('"v":1,"pipeline"', '"v":2,"pipeline"'), COMMIT.to_json()[:-9]],
)
def test_damaged_commits_are_refused(text: str) -> None:
    with pytest.raises(CommitRefused, match="here"):
        parse_commit(text, "here")


def test_table_belongs_to_one_pipeline() -> None:
    check_owner(None, "p/T", "t")
    check_owner(COMMIT, "p/T", "t")
    with pytest.raises(CommitRefused, match="two pipelines cannot write one table"):
        check_owner(COMMIT, "p/U", "t")


def test_snapshots_are_ordered_by_their_parents_and_not_by_clocks() -> None:
    parents = {30: 20, 20: 10, 25: 20, 10: 5}  # 25 was left by a rollback, 5 has expired
    assert lineage(30, parents) == [30, 20, 10]
    assert lineage(10, {10: None}) == [10]
    assert lineage(7, parents) == lineage(None, parents) == []
