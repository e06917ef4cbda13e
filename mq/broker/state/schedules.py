"""Schedules, by whose rules the leader sends messages, and how far each was sent.

The leader computes when a schedule ticks, with its clock and its time zones; commands contain the result. A tick is one
log entry with the message and `SettleTick`: so every tick is in the log once, whoever leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from mq.broker.limits import StateLimits
from mq.broker.state.table import CommandInvalid, SnapshotDamaged, StateTable, TableCommand, check_range
from mq.protocol.names import check_topic
from mq.protocol.requests.schedules import (
    ANY_VERSION,
    BODY_BYTES_MAX,
    CRON_LENGTH_MAX,
    EVERY_MS_MIN,
    NAME_BYTES_MAX,
    NO_VERSION,
    PROPERTIES_BYTES_MAX,
    TIME_MS_MAX,
    ZONE_LENGTH_MAX,
    ScheduleDefinition,
)
from mq.protocol.wire.fields import INT32_MAX

_INT64_MAX: Final = 2**63 - 1
SKIPPED_MAX: Final = 10**9
"""Counted at once: a schedule of one second after thirty years without a leader."""
_DELETE: Final = 127
_SPACE: Final = 32


class Schedule(NamedTuple):
    """A schedule and its progress. Its ticks up to ``settled_ms`` were sent or skipped."""

    definition: ScheduleDefinition
    version: int
    settled_ms: int
    sent: int = 0
    skipped: int = 0
    last_due_ms: int = 0


class PutSchedule(TableCommand, frozen=True, tag="put_schedule"):
    """Create or replace a schedule, if it has the expected version.

    If the rule is another one, or its start or end, ticks that are due by ``timestamp_ms`` are not sent.
    """

    definition: ScheduleDefinition
    expected: int
    timestamp_ms: int

    def check(self) -> None:
        check_definition(self.definition)
        check_range("expected version", self.expected, ANY_VERSION, _INT64_MAX)
        check_range("timestamp_ms", self.timestamp_ms, 0, TIME_MS_MAX)


class DeleteSchedule(TableCommand, frozen=True, tag="delete_schedule"):
    """Delete a schedule, if it has the expected version."""

    name: str
    expected: int = ANY_VERSION

    def check(self) -> None:
        check_schedule_name(self.name)
        check_range("expected version", self.expected, ANY_VERSION, _INT64_MAX)


class SwitchSchedule(TableCommand, frozen=True, tag="switch_schedule"):
    """Pause a schedule, or resume it from ``timestamp_ms`` on."""

    name: str
    enabled: bool
    timestamp_ms: int

    def check(self) -> None:
        check_schedule_name(self.name)
        check_range("timestamp_ms", self.timestamp_ms, 0, TIME_MS_MAX)


class SettleTick(TableCommand, frozen=True, tag="settle_tick"):
    """Record that ticks up to ``settled_ms`` are done. This entry has the message of the tick at ``due_ms``, if not 0.

    Of a schedule that has another version by now, nothing changes.
    """

    name: str
    version: int
    settled_ms: int
    due_ms: int = 0
    skipped: int = 0

    def check(self) -> None:
        check_schedule_name(self.name)
        check_range("version", self.version, 1, _INT64_MAX)
        check_range("settled_ms", self.settled_ms, 0, TIME_MS_MAX)
        check_range("due_ms", self.due_ms, 0, self.settled_ms)
        check_range("skipped", self.skipped, 0, SKIPPED_MAX)


def check_schedule_name(name: str) -> None:
    """Raise CommandInvalid unless ``name`` has 1 to 255 bytes, no control characters, and no spaces at its ends."""
    if not 1 <= len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX:
        raise CommandInvalid(f"schedule {name[:80]!a}: a name has 1 to {NAME_BYTES_MAX} bytes")
    if name != name.strip() or not _is_text(name):
        raise CommandInvalid(f"schedule {name[:80]!a}: control characters, and spaces at its ends, are not allowed")


def check_definition(definition: ScheduleDefinition) -> None:
    """Raise CommandInvalid or NameRefused if the definition may not be in the log. Does not check the cron expression
    and the time zone, whose meaning depends on the release.
    """
    check_schedule_name(definition.name)
    check_topic(definition.topic)
    check_range("size of body", len(definition.body), 0, BODY_BYTES_MAX)
    texts = [definition.tags, *definition.keys, *definition.properties, *definition.properties.values()]
    for text in (*texts, definition.owner, definition.cron, definition.time_zone):
        if not _is_text(text):
            raise CommandInvalid(f"schedule {definition.name!a}: {text[:40]!a} has control characters")
    nbytes = sum(len(text.encode()) + 2 for text in texts)
    check_range("size of keys, tags and properties", nbytes, 0, PROPERTIES_BYTES_MAX)
    check_range("length of cron", len(definition.cron), 0, CRON_LENGTH_MAX)
    check_range("length of time_zone", len(definition.time_zone), 1, ZONE_LENGTH_MAX)
    check_range("length of owner", len(definition.owner), 0, NAME_BYTES_MAX)
    check_range("queue_id", definition.queue_id, -1, INT32_MAX)
    if definition.every_ms:
        check_range("every_ms", definition.every_ms, EVERY_MS_MIN, TIME_MS_MAX)
    for name in ("at_ms", "start_ms", "end_ms", "catch_up_ms"):
        check_range(name, getattr(definition, name), 0, TIME_MS_MAX)
    check_range("anchor_ms", definition.anchor_ms or 0, 0, TIME_MS_MAX)
    if bool(definition.cron) + bool(definition.every_ms) + bool(definition.at_ms) != 1:
        raise CommandInvalid(f"schedule {definition.name!a}: it needs one of cron, every_ms and at_ms")


def _is_text(text: str) -> bool:
    """Whether it can be a property: no surrogates, no control characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return all(ord(character) >= _SPACE and ord(character) != _DELETE for character in text)


_Row = tuple[
    ScheduleDefinition,
    Annotated[int, Meta(ge=1)],
    Annotated[int, Meta(ge=0)],
    Annotated[int, Meta(ge=0)],
    Annotated[int, Meta(ge=0)],
    Annotated[int, Meta(ge=0)],
]


class _ScheduleSnapshot(msgspec.Struct, forbid_unknown_fields=True):
    versions: Annotated[int, Meta(ge=0)]
    rows: list[_Row]


class Schedules(StateTable):
    """The replicated schedules. If its topic is deleted, a schedule skips ticks until a topic of that name exists.

    Attributes:
        table: by name.
        versions: the number of changes so far, which is the version of the schedule that was changed last: a schedule
            that is created again never has a version that its predecessor had.
        nbytes: of all definitions.
    """

    COMMANDS: tuple[type[TableCommand], ...] = (PutSchedule, DeleteSchedule, SwitchSchedule, SettleTick)

    def __init__(self, limits: StateLimits) -> None:
        self._limits = limits
        self.table: dict[str, Schedule] = {}
        self.versions = 0
        self.nbytes = 0

    def has_room(self, definition: ScheduleDefinition) -> bool:
        """Whether the limits allow a schedule of this name with this definition."""
        there = self.table.get(definition.name)
        before = 0 if there is None else there.definition.nbytes
        count = len(self.table) + (there is None)
        nbytes = self.nbytes - before + definition.nbytes
        return count <= self._limits.schedules_max and nbytes <= self._limits.schedule_bytes_max

    def is_expected(self, name: str, expected: int) -> bool:
        """Whether the schedule has the expected version."""
        there = self.table.get(name)
        return expected in (ANY_VERSION, NO_VERSION if there is None else there.version)

    def apply(self, command: TableCommand) -> None:
        match command:
            case PutSchedule(definition=definition, expected=expected):
                if self.is_expected(definition.name, expected) and self.has_room(definition):
                    self._put(definition, command.timestamp_ms)
            case DeleteSchedule(name=name, expected=expected):
                if name in self.table and self.is_expected(name, expected):
                    self.nbytes -= self.table.pop(name).definition.nbytes
            case SwitchSchedule(name=name, enabled=enabled):
                there = self.table.get(name)
                if there is not None and there.definition.enabled is not enabled:
                    definition = msgspec.structs.replace(there.definition, enabled=enabled)
                    self._replace(there._replace(definition=definition, settled_ms=command.timestamp_ms))
            case SettleTick(name=name, version=version):
                there = self.table.get(name)
                if there is not None and there.version == version:
                    self.table[name] = there._replace(
                        settled_ms=max(there.settled_ms, command.settled_ms),
                        sent=there.sent + bool(command.due_ms),
                        skipped=there.skipped + command.skipped,
                        last_due_ms=command.due_ms or there.last_due_ms,
                    )
            case _:
                raise AssertionError(type(command).__name__)

    def _put(self, definition: ScheduleDefinition, timestamp_ms: int) -> None:
        there = self.table.get(definition.name)
        if there is None:
            self._replace(Schedule(definition, 0, timestamp_ms))
            return
        same = there.definition.rule() == definition.rule() and there.definition.enabled == definition.enabled
        settled_ms = there.settled_ms if same else timestamp_ms
        if (there.definition.start_ms, there.definition.end_ms) != (definition.start_ms, definition.end_ms):
            # Times outside of the former bounds were not ticks: none was missed.
            settled_ms = max(settled_ms, timestamp_ms)
        self._replace(there._replace(definition=definition, settled_ms=settled_ms))

    def _replace(self, schedule: Schedule) -> None:
        name = schedule.definition.name
        there = self.table.get(name)
        self.nbytes += schedule.definition.nbytes - (0 if there is None else there.definition.nbytes)
        self.versions += 1
        self.table[name] = schedule._replace(version=self.versions)

    def capture(self) -> Callable[[], object]:
        versions, table = self.versions, dict(self.table)

        def encode() -> object:
            if not versions:
                return None
            snapshot = _ScheduleSnapshot(versions, [(*table[name],) for name in sorted(table)])
            return msgspec.to_builtins(snapshot, builtin_types=(bytes,))

        return encode

    def restore(self, state: object) -> None:
        snapshot = _ScheduleSnapshot(0, []) if state is None else msgspec.convert(state, _ScheduleSnapshot)
        rows = [Schedule(*row) for row in snapshot.rows]
        table = {row.definition.name: row for row in rows}
        if len(table) != len(rows) or any(row.version > snapshot.versions for row in rows):
            raise SnapshotDamaged(f"{len(rows)} schedules of {len(table)} names, versions up to {snapshot.versions}")
        self.table, self.versions = table, snapshot.versions
        self.nbytes = sum(row.definition.nbytes for row in rows)

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests.

        - Schedules are listed under their names, their bytes are counted right, and there are no more than there may
          be.
        - No two have one version, and none has one that is still to come: a change that expects a version would
          otherwise take one schedule for another.
        """
        for name, each in self.table.items():
            assert each.definition.name == name, f"schedule {each.definition.name} is listed as {name}"
        nbytes = sum(each.definition.nbytes for each in self.table.values())
        assert nbytes == self.nbytes, f"schedules have {nbytes} bytes, {self.nbytes} were counted"
        assert len(self.table) <= self._limits.schedules_max, f"{len(self.table)} schedules"
        versions = {each.version for each in self.table.values()}
        assert len(versions) == len(self.table), f"two schedules have one version: {sorted(versions)}"
        assert max(versions, default=0) <= self.versions, f"version {max(versions)} of {self.versions}"
