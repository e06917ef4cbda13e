"""Deleted topics that can be restored, with all that the metadata had of them.

Their messages are in the log as long as retention keeps it, and their consume queues stay. So nothing has to be derived
again when a topic comes back: its queues are those that it had. A message that is added meanwhile, such as a delayed
one that became due, follows the others.

A topic is forgotten when it is created again, since the new one has its name, or by a command of the leader
(`mq.broker.admin.deleted_topics`). `mq.broker.state.topic_deletion` changes the table together with the topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from mq.broker.state.commands import TopicConfig, offset_pairs
from mq.broker.state.table import CommandInvalid, SnapshotDamaged, StateTable
from mq.protocol.numbers import QueueOffset

OffsetsOfGroups = dict[str, list[int]]
"""Alternating queue ids and offsets of each group, in order."""


class DeletedTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A deleted topic, with its state at its deletion."""

    config: TopicConfig
    identity: str
    """Empty for a topic without one."""
    deleted_ms: int
    by: str
    """The user who deleted it; empty if unknown."""
    along_with: str
    """The topic with which it was deleted, and comes back; empty for one that was deleted by its own name."""
    begins: list[QueueOffset]
    """The first offsets of its queues, if an earlier topic had its name."""
    ends: list[QueueOffset]
    """The ends of its queues, by queue id."""
    offsets: OffsetsOfGroups
    """The consumer offsets of groups. One that pops begins at its first message that was not acknowledged."""
    resets: OffsetsOfGroups
    younger: dict[str, int]
    """The first queue that was added after a group had stored offsets, by group."""
    forbidden: list[str]
    """Groups that may not read it."""

    @property
    def rows(self) -> int:
        """The size of this topic in memory, counted in rows."""
        return 1 + len(self.ends) + sum(len(row) // 2 + 1 for row in self.offsets.values())


class DeletedTopics(StateTable):
    """The table of deleted topics. The metadata applies its commands. A deleted group gets back offsets that stay.

    Attributes:
        rows: by name, in order of deletion.
    """

    def __init__(self) -> None:
        self.rows: dict[str, DeletedTopic] = {}

    def companions(self, topic: str) -> list[str]:
        """Return the deleted topics that a restore of ``topic`` also restores, in order of deletion."""
        return [name for name, row in self.rows.items() if row.along_with == topic]

    def remove_group(self, group: str) -> None:
        """Drop the offsets of a group whose offsets were removed, so that no restore brings them back."""
        for name, row in self.rows.items():
            if group in row.offsets:
                changes = {
                    field: {each: value for each, value in getattr(row, field).items() if each != group}
                    for field in ("offsets", "resets", "younger")
                }
                self.rows[name] = msgspec.structs.replace(row, **changes)

    def capture(self) -> Callable[[], object]:
        rows = list(self.rows.values())
        return lambda: [msgspec.to_builtins(row) for row in rows] or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[DeletedTopic])
        names = {row.config.name for row in rows}
        try:
            for row in rows:
                _check_row(row)
        except CommandInvalid as error:
            raise SnapshotDamaged(str(error)) from error
        if len(names) < len(rows):
            raise SnapshotDamaged(f"{len(rows)} deleted topics have {len(names)} names")
        self.rows = {row.config.name: row for row in rows}

    def check_invariants(self) -> None:
        """Assert that offsets are not below the first offset of their queue; for tests."""
        for name, row in self.rows.items():
            assert row.config.name == name, f"the deleted topic {row.config.name} is listed as {name}"
            for group, numbers in row.offsets.items():
                for queue_id, offset in offset_pairs(group, name, numbers):
                    first = row.begins[queue_id] if queue_id < len(row.begins) else 0
                    assert offset >= first, f"{group} was at {offset} of {name}/{queue_id}, which began at {first}"
            assert row.resets.keys() <= row.offsets.keys(), f"resets of groups without offsets in {name}: {row.resets}"


def offset_numbers(offsets: Mapping[int, QueueOffset]) -> list[int]:
    """Return offsets by queue id as a flat list: queue id, offset, queue id, offset ..."""
    assert all(offset >= 0 for offset in offsets.values()), f"offsets of a deleted topic: {offsets}"
    return [number for pair in sorted(offsets.items()) for number in pair]


def _check_row(row: DeletedTopic) -> None:
    """Check the row of a deleted topic in a snapshot. Raises SnapshotDamaged, CommandInvalid."""
    name = row.config.name
    pairs = [pair for table in (row.offsets, row.resets) for group in table for pair in _pairs(table, group, name)]
    if min((*row.begins, *row.ends, *(number for pair in pairs for number in pair)), default=0) < 0:
        raise SnapshotDamaged(f"the deleted topic {name} has a negative offset")


def _pairs(table: OffsetsOfGroups, group: str, topic: str) -> Iterator[tuple[int, QueueOffset]]:
    return offset_pairs(group, topic, table[group])
