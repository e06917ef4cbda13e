"""First offsets of the queues of topics whose names deleted topics had.

Queue offsets of a name are never used twice: a queue of the new topic begins where the queue of the deleted one ended.
So an offset that a client still has from the deleted topic (a position, a commit in flight, a file of a broadcast
consumer, a receipt of a pop) is at most the first offset of the new topic, and no message of the new topic is skipped.
That holds for stock clients, too, which know nothing of a topic's identity.

The groups with offsets in the deleted topic are kept as well: they read the new topic from its first message, wherever
they are configured to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from mq.broker.limits import DEFAULT, StateLimits
from mq.broker.state.table import SnapshotDamaged, StateTable
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset


class FormerTopic(NamedTuple):
    """A deleted topic: the end of each queue, by queue id, and the groups that had offsets, sorted."""

    ends: tuple[QueueOffset, ...] = ()
    groups: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of its queues and groups."""
        return len(self.ends) + len(self.groups)


_Row = tuple[str, list[QueueOffset], list[str] | None]
"""Encoded: a topic's name, offsets by queue id, and the groups if it is deleted."""


class FormerTopics(StateTable):
    """The table of former topics. It has no commands: `mq.broker.state.metadata` changes it with the topics.

    Attributes:
        deleted_topics: deleted topics by name, in order of deletion.
        begins: for each existing topic whose name was used before, the first offsets by queue id.
    """

    def __init__(self, limits: StateLimits = DEFAULT.state) -> None:
        self._deleted_max, self._rows_max = limits.deleted_topics_max, limits.deleted_rows_max
        self.deleted_topics: dict[str, FormerTopic] = {}
        self.begins: dict[str, tuple[QueueOffset, ...]] = {}
        self._rows = 0

    def begin(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the first offset of a queue of the topic, or of the next topic of this name."""
        former = self.deleted_topics.get(topic)
        begins = self.begins.get(topic, ()) if former is None else former.ends
        return begins[queue_id] if queue_id < len(begins) else FIRST_OFFSET

    def delete(self, topic: str, ends: Mapping[int, QueueOffset], groups: Iterable[str]) -> None:
        """Record that a topic was deleted, whose queues ended at ``ends``.

        Also if it did not exist: messages may have come after an earlier deletion.
        """
        before = self._remove(topic)
        count = max((queue_id + 1 for queue_id, end in ends.items() if end), default=0)
        old_ends = (*before.ends, *[FIRST_OFFSET] * (count - len(before.ends)))
        after = FormerTopic(
            tuple(max(end, ends.get(queue_id, FIRST_OFFSET)) for queue_id, end in enumerate(old_ends)),
            tuple(sorted({*before.groups, *groups})),
        )
        if after.rows:
            self.deleted_topics[topic] = after
            self._rows += after.rows
        while len(self.deleted_topics) > self._deleted_max or self._rows > self._rows_max:
            self._remove(next(iter(self.deleted_topics)))

    def create(self, topic: str) -> FormerTopic:
        """Record that a topic was created. Returns the deleted topic of that name, empty if there was none."""
        former = self._remove(topic)
        if former.ends:
            self.begins[topic] = former.ends
        return former

    def bring_back(self, topic: str, begins: Iterable[QueueOffset]) -> None:
        """Record that a deleted topic was restored, whose queues began at ``begins``."""
        self._remove(topic)
        if firsts := tuple(begins):
            self.begins[topic] = firsts

    def forget(self, topic: str) -> None:
        """Make a topic begin at offset 0 again: software that does not know this table deleted it."""
        self._remove(topic)

    def _remove(self, topic: str) -> FormerTopic:
        former = self.deleted_topics.pop(topic, None)
        if former is None:
            return FormerTopic(self.begins.pop(topic, ()))
        self._rows -= former.rows
        assert self._rows >= 0, f"{self._rows} rows are left without {topic}"
        return former

    def capture(self) -> Callable[[], object]:
        begins, topics = self.begins.copy(), self.deleted_topics.copy()

        def encode() -> object:
            rows: list[_Row] = [(topic, list(begins[topic]), None) for topic in sorted(begins)]
            rows += [(topic, list(former.ends), list(former.groups)) for topic, former in topics.items()]
            return rows or None

        return encode

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[_Row])
        if any(offset < 0 for _, offsets, _ in rows for offset in offsets) or len({row[0] for row in rows}) < len(rows):
            raise SnapshotDamaged("a former topic is repeated, or has a negative offset")
        self.begins = {topic: tuple(offsets) for topic, offsets, groups in rows if groups is None}
        self.deleted_topics = {
            topic: FormerTopic(tuple(offsets), tuple(groups)) for topic, offsets, groups in rows if groups is not None
        }
        self._rows = sum(former.rows for former in self.deleted_topics.values())

    def check_invariants(self) -> None:
        """Assert that the table is consistent between two commands; for tests.

        The rows are counted right, since the count decides what is forgotten. Whether topics exist is checked by
        `Metadata.check_invariants`.
        """
        rows = sum(former.rows for former in self.deleted_topics.values())
        assert self._rows == rows, f"{self._rows} rows were counted, there are {rows}"
        assert len(self.deleted_topics) <= self._deleted_max, f"{len(self.deleted_topics)} deleted topics are kept"

    def remove_group(self, group: str) -> None:
        """Forget a group whose offsets were removed. It begins in all topics as a new group does."""
        for topic, former in self.deleted_topics.items():
            if group in former.groups:
                groups = tuple(each for each in former.groups if each != group)
                self.deleted_topics[topic] = former._replace(groups=groups)
                self._rows -= 1
