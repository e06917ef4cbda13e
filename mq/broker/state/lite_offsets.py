"""Consumer offsets in lite topics.

There may be very many lite topics, and a group has an offset in each that it has read. So they are not in
`Metadata.consumer_offsets`, where an offset costs a table of its own, but in tables of many lite topics each. Which
lite topics exist is not replicated as such: a lite topic exists as long as its queue
(`mq.store.queue_store.QueueStore`), and that follows from the records in the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from mq.broker.state.nested_tables import NestedTables, in_order
from mq.broker.state.table import SnapshotDamaged, StateTable, TableCommand, check_range
from mq.protocol.names import check_group, check_lite_topic, check_queue_name, check_topic, split_lite_queue
from mq.protocol.numbers import NO_OFFSET, QueueOffset

ROWS_MAX: Final = 200
"""Lite topics in one command."""
_PARTS: Final = 256
"""Tables of a group: a change after a capture copies one of them."""
_INT64_MAX: Final = 2**63 - 1

LiteKey = tuple[str, str, int]
"""Group, parent topic, and which part of its lite topics."""


class ResetLiteOffsets(TableCommand, frozen=True, tag="reset_lite_offsets"):
    """Set the offsets of a group in lite topics, and end its open pops there.

    Each row is the queue of a lite topic and the offset.
    """

    group: str
    rows: list[tuple[str, QueueOffset]]

    def check(self) -> None:
        check_group(self.group)
        check_range("number of rows", len(self.rows), 1, ROWS_MAX)
        for queue, offset in self.rows:
            check_queue_name(queue)
            check_range("offset", offset, 0, _INT64_MAX)


class ExpireLiteTopics(TableCommand, frozen=True, tag="expire_lite_topics"):
    """Delete lite topics, with their queues and all offsets in them.

    Each row is the queue of a lite topic, and where it ended when this was decided. If it has grown since, it stays.
    """

    rows: list[tuple[str, QueueOffset]]

    def check(self) -> None:
        check_range("number of rows", len(self.rows), 1, ROWS_MAX)
        for queue, end in self.rows:
            check_queue_name(queue)
            check_range("end", end, 0, _INT64_MAX)


class LiteOffsets(StateTable):
    """The next offset that each group consumes in each lite topic. The metadata applies the commands, since they change
    more than this table. A deleted group keeps its offsets; see `remove_group`.

    Attributes:
        tables: by `LiteKey`: for each lite topic the offset.
    """

    def __init__(self) -> None:
        self.tables: NestedTables[LiteKey, str, QueueOffset] = NestedTables()
        self._groups: dict[str, set[str]] = {}
        """The groups with offsets, by parent topic."""

    def get(self, group: str, queue: str) -> QueueOffset | None:
        """Return the offset of a group in the queue of a lite topic; None without one."""
        parent, lite = split_lite_queue(queue)
        return self.tables.get((group, parent, _part(lite)), {}).get(lite)

    def put(self, group: str, queue: str, offset: QueueOffset) -> None:
        """Set the offset of a group in the queue of a lite topic."""
        parent, lite = split_lite_queue(queue)
        self.tables.to_change((group, parent, _part(lite)))[lite] = offset
        self._groups.setdefault(parent, set()).add(group)

    def forget(self, queue: str) -> None:
        """Drop the offsets of all groups in a deleted lite topic."""
        parent, lite = split_lite_queue(queue)
        for group in sorted(self._groups.get(parent, ())):
            key = group, parent, _part(lite)
            if lite in self.tables.get(key, {}):
                table = self.tables.to_change(key)
                del table[lite]
                if not table:
                    del self.tables[key]

    def capture(self) -> Callable[[], object]:
        tables = self.tables.capture()
        return lambda: [(*key, sorted(tables[key].items())) for key in in_order(tables)] or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[tuple[str, str, int, list[tuple[str, QueueOffset]]]])
        tables: dict[LiteKey, dict[str, QueueOffset]] = {}
        for group, parent, part, offsets in rows:
            if not offsets or any(_part(lite) != part or offset < 0 for lite, offset in offsets):
                raise SnapshotDamaged(f"offsets of {group} in lite topics of {parent}, part {part}")
            tables[group, parent, part] = dict(offsets)
        self.tables = NestedTables(tables)
        self._groups = {}
        for group, parent, _ in tables:
            self._groups.setdefault(parent, set()).add(group)

    def topic_deleted(self, topic: str) -> None:
        """Drop the offsets in the lite topics of a deleted parent topic."""
        if self._groups.pop(topic, None) is not None:
            self._remove([key for key in self.tables if key[1] == topic])

    def remove_group(self, group: str) -> int:
        """Remove all offsets of a group; returns their number."""
        for groups in self._groups.values():
            groups.discard(group)
        return self._remove([key for key in self.tables if key[0] == group])

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests.

        Every offset is in the table in which it is looked for, and a group with offsets is listed with the parent
        topic: the end of a lite topic looks at nothing else. Tables without offsets do not stay.
        """
        for (group, parent, part), table in self.tables.items():
            assert table, f"{group} has no offsets in part {part} of {parent}, and a table of them"
            assert group in self._groups.get(parent, ()), f"{group} has offsets in {parent} and is not listed"
            check_topic(parent)
            for lite, offset in table.items():
                check_lite_topic(lite)
                assert _part(lite) == part, f"{lite} of {parent} is listed in part {part}"
                assert offset > NO_OFFSET, f"{group} is at {offset} of {lite} of {parent}"

    def _remove(self, keys: list[LiteKey]) -> int:
        return sum(len(self.tables.pop(key)) for key in keys)


def _part(lite: str) -> int:
    return zlib.crc32(lite.encode()) % _PARTS
