"""The replicated table of filter programs: versions, limits, snapshots, and what a command may contain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mq.broker.limits import DEFAULT
from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.filter_programs import FilterPrograms, PutFilter
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid, SnapshotDamaged
from mq.filter.programs import PROGRAM_BYTES_MAX, name_of


def command(content: bytes = b"one", group: str = "g", topic: str = "T", **given: Any) -> PutFilter:
    fields = {"program": name_of("wasm", content[:10] or b"-").text} | given
    return PutFilter(group=group, topic=topic, content=content, **fields)


def table_with(*commands: PutFilter, **limits: int) -> FilterPrograms:
    table = FilterPrograms(replace(DEFAULT.state, **limits))
    for each in commands:
        assert decode_command(encode_command(each)) == each
        table.apply(each)
        table.check_invariants()
    return table


def test_last_filter_program_is_used_and_uploading_it_again_changes_nothing() -> None:
    table = table_with(command(b"one"), command(b"one"), command(b"three"))
    assert (table.table["g", "T"].content, table.table["g", "T"].version) == (b"three", 2)
    assert table.nbytes == 5


def test_skipping_is_part_of_the_program() -> None:
    skipping = command(b"one", program=name_of("wasm", b"one", "skip").text)
    assert table_with(command(b"one"), skipping).table["g", "T"].version == 2


def test_programs_above_a_limit_are_not_stored() -> None:
    table = table_with(command(b"1234"), command(b"12345"), command(b"1", topic="U"), filter_bytes_max=4)
    assert [each.content for each in table.table.values()] == [b"1234"]
    table = table_with(command(topic="A"), command(topic="B"), command(b"new", topic="A"), filters_max=1)
    assert [each.content for each in table.table.values()] == [b"new"]


def test_restored_snapshot_equals_the_program_table() -> None:
    table = table_with(command(b"one"), command(b"two"), command(topic="U"))
    state = table.capture()()
    other = table_with(command(group="other"))
    other.restore(state)
    other.check_invariants()
    assert other.table == table.table
    other.restore(None)
    other.check_invariants()
    assert not other.table
    assert other.capture()() is None


@pytest.mark.parametrize("row", [("g", "T", "wasm:x", 1, b"a"), ("g", "T", name_of("sql", b"b").text, 1, b"a")])
def test_damaged_snapshot_is_refused(row: tuple[Any, ...]) -> None:
    table = table_with(command())
    with pytest.raises(SnapshotDamaged):
        table.restore([row])
    assert table.table


@pytest.mark.parametrize(
    "wrong",
    [
        command(b""),
        command(bytes(PROGRAM_BYTES_MAX + 1), program=name_of("wasm", b"a").text),
        command(program="wasm:x"),
        command(program=name_of("wasm", b"other").text),
        command(group=""),
        command(topic="no topic"),
    ],
)
def test_invalid_filter_commands_are_refused(wrong: PutFilter) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(wrong)


def test_programs_are_deleted_with_their_topic_or_group() -> None:
    metadata = Metadata()
    for each in (command(), command(topic="U"), command(group="h")):
        metadata.apply(each)
    metadata.filters.topic_deleted("U")
    metadata.filters.check_invariants()
    assert set(metadata.filters.table) == {("g", "T"), ("h", "T")}
    metadata.filters.group_deleted("g")
    metadata.filters.check_invariants()
    assert set(metadata.filters.table) == {("h", "T")}
