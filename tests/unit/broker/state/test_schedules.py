"""The replicated table of schedules: versions, limits, snapshots, and what a command may contain."""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.limits import StateLimits
from mq.broker.state.commands import decode_command, encode_command
from mq.broker.state.metadata import Metadata
from mq.broker.state.schedules import DeleteSchedule, PutSchedule, Schedule, Schedules, SettleTick, SwitchSchedule
from mq.broker.state.table import CommandInvalid, SnapshotDamaged
from mq.protocol.names import NameRefused
from mq.protocol.requests.schedules import (
    ANY_VERSION,
    BODY_BYTES_MAX,
    NO_VERSION,
    PROPERTIES_BYTES_MAX,
    TIME_MS_MAX,
    ScheduleDefinition,
)


def definition(name: str = "a", **given: Any) -> ScheduleDefinition:
    return ScheduleDefinition(name=name, topic="T", **({"every_ms": 1000, "anchor_ms": 0} | given))


def put(table: Schedules, expected: int = ANY_VERSION, at_ms: int = 100, **given: Any) -> Schedule:
    wanted = definition(**given)
    table.apply(PutSchedule(definition=wanted, expected=expected, timestamp_ms=at_ms))
    return table.table[wanted.name]


def test_schedule_begins_at_its_creation_and_advances_with_ticks() -> None:
    table = Schedules(StateLimits())
    assert put(table) == Schedule(definition(), 1, 100)
    table.apply(SettleTick(name="a", version=1, settled_ms=1000, due_ms=1000, skipped=2))
    assert table.table["a"] == Schedule(definition(), 1, 1000, sent=1, skipped=2, last_due_ms=1000)
    table.apply(SettleTick(name="a", version=1, settled_ms=3000, skipped=2))
    assert table.table["a"] == Schedule(definition(), 1, 3000, sent=1, skipped=4, last_due_ms=1000)
    table.apply(SettleTick(name="a", version=1, settled_ms=2000))
    assert table.table["a"].settled_ms == 3000, "it never goes back"


def test_new_message_keeps_the_position_and_a_new_rule_restarts() -> None:
    table = Schedules(StateLimits())
    put(table)
    table.apply(SettleTick(name="a", version=1, settled_ms=7000, due_ms=7000))
    assert put(table, at_ms=9500, body=b"new").settled_ms == 7000, "the ticks of 8000 and 9000 are still to be sent"
    assert put(table, at_ms=9600, every_ms=5000).settled_ms == 9600
    assert table.table["a"].sent == 1


def test_changed_bounds_cause_no_previously_excluded_ticks() -> None:
    table = Schedules(StateLimits())
    put(table, end_ms=5000)
    table.apply(SettleTick(name="a", version=1, settled_ms=4000, due_ms=4000))
    assert put(table, at_ms=60_500, end_ms=90_000).settled_ms == 60_500, "those from 5000 on were behind the end"
    table.apply(SettleTick(name="a", version=2, settled_ms=70_000, due_ms=70_000))
    assert put(table, at_ms=65_000, end_ms=95_000).settled_ms == 70_000, "a clock that is behind repeats nothing"
    assert put(table, at_ms=71_000, start_ms=80_000, end_ms=95_000).settled_ms == 71_000
    assert put(table, at_ms=76_000).settled_ms == 76_000, "those from 71000 on were before the start"


def test_unexpected_version_changes_nothing() -> None:
    table = Schedules(StateLimits())
    assert put(table, NO_VERSION).version == 1
    assert put(table, NO_VERSION, body=b"other").definition.body == b""
    assert put(table, 7, body=b"other").definition.body == b""
    assert put(table, 1, body=b"other").version == 2
    table.apply(DeleteSchedule(name="a", expected=1))
    assert "a" in table.table
    table.apply(DeleteSchedule(name="a", expected=2))
    assert "a" not in table.table
    table.apply(DeleteSchedule(name="a"))
    assert put(table).version == 3, "created again, it has no version of its predecessor"
    table.apply(SettleTick(name="a", version=2, settled_ms=9000, due_ms=9000))
    assert table.table["a"].settled_ms == 100, "a tick of its predecessor"
    table.check_invariants()


def test_ticks_of_a_pause_are_skipped() -> None:
    table = Schedules(StateLimits())
    put(table)
    table.apply(SwitchSchedule(name="a", enabled=False, timestamp_ms=500))
    assert (table.table["a"].definition.enabled, table.table["a"].version) == (False, 2)
    table.apply(SwitchSchedule(name="a", enabled=False, timestamp_ms=600))
    assert table.table["a"].version == 2
    table.apply(SwitchSchedule(name="a", enabled=True, timestamp_ms=90_000))
    assert table.table["a"].settled_ms == 90_000
    table.apply(SwitchSchedule(name="unknown", enabled=True, timestamp_ms=1))


def test_schedules_beyond_the_limits_are_not_stored() -> None:
    table = Schedules(StateLimits(schedules_max=2, schedule_bytes_max=1000))
    put(table)
    put(table, name="b")
    table.apply(PutSchedule(definition=definition("c"), expected=ANY_VERSION, timestamp_ms=1))
    assert sorted(table.table) == ["a", "b"]
    assert put(table, body=bytes(500)).definition.body == bytes(500)
    assert put(table, name="b", body=bytes(500)).definition.body == b""
    table.apply(DeleteSchedule(name="a"))
    assert put(table, name="b", body=bytes(500)).definition.body == bytes(500)
    table.check_invariants()


def test_restored_snapshot_equals_the_schedule_table() -> None:
    metadata = Metadata()
    assert b"schedules" not in metadata.snapshot(), "older software reads it"
    for name in ("b", "a"):
        wanted = definition(name, body=b"\x00\xff", keys=("k",), properties={"x": "y"}, cron="* * * * *", every_ms=0)
        metadata.apply(PutSchedule(definition=wanted, expected=NO_VERSION, timestamp_ms=5))
    metadata.apply(SettleTick(name="a", version=2, settled_ms=60_000, due_ms=60_000, skipped=1))
    snapshot, other = metadata.snapshot(), Metadata()
    other.restore(snapshot)
    assert other.snapshot() == snapshot
    assert other.schedules.table == metadata.schedules.table
    other.apply(DeleteSchedule(name="a"))
    other.apply(DeleteSchedule(name="b"))
    last = Metadata()
    last.restore(other.snapshot())
    assert last.schedules.versions == 2, "versions are not used twice"
    last.check_invariants()


def test_damaged_snapshot_changes_nothing() -> None:
    table = Schedules(StateLimits())
    put(table)
    row = [{"name": "a", "topic": "T", "every_ms": 1000}, 3, 0, 0, 0, 0]
    with pytest.raises(SnapshotDamaged):
        table.restore({"versions": 2, "rows": [row]})
    with pytest.raises(SnapshotDamaged):
        table.restore({"versions": 9, "rows": [row, row]})
    assert table.table["a"].version == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": " a"},
        {"name": "a\n"},
        {"name": "a\x01b"},
        {"name": "\ud800"},
        {"name": "ü" * 128},
        {"topic": "no/topic"},
        {"body": bytes(BODY_BYTES_MAX + 1)},
        {"properties": {"x": "y" * PROPERTIES_BYTES_MAX}},
        {"properties": {"x": "ü" * (PROPERTIES_BYTES_MAX // 2)}},
        {"properties": {"x": "a\x02b"}},
        {"tags": "\x01"},
        {"keys": ("a\x1f",)},
        {"owner": "o" * 256},
        {"every_ms": 999},
        {"every_ms": 0},
        {"every_ms": -1000},
        {"cron": "* * * * *"},
        {"at_ms": 5},
        {"at_ms": TIME_MS_MAX + 1, "every_ms": 0},
        {"cron": "*" * 300, "every_ms": 0},
        {"time_zone": ""},
        {"queue_id": -2},
        {"start_ms": -1},
        {"anchor_ms": -1},
        {"catch_up_ms": -1},
    ],
)
def test_invalid_schedules_are_not_encoded(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "a", "topic": "T", "every_ms": 1000} | wrong
    with pytest.raises((CommandInvalid, NameRefused)):
        encode_command(PutSchedule(definition=ScheduleDefinition(**given), expected=ANY_VERSION, timestamp_ms=1))


def test_commands_survive_encoding_and_decoding() -> None:
    for command in (
        PutSchedule(definition=definition("täglich um 8", body=b"\xff", tags="t"), expected=0, timestamp_ms=9),
        DeleteSchedule(name="a", expected=3),
        SwitchSchedule(name="a", enabled=True, timestamp_ms=3),
        SettleTick(name="a", version=1, settled_ms=5, due_ms=5, skipped=7),
    ):
        assert decode_command(encode_command(command)) == command
