"""Queues that were added to a topic after consumer groups had stored offsets in it.

Such a group reads them from their first message, whatever its members are configured for: it has consumed the topic
from some position on, and everything in these queues is later than that. Without this record, they would look like
queues of a new group, which may skip stored messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView

import msgspec

from mq.broker.state.table import SnapshotDamaged, StateTable


class YoungerQueues(StateTable):
    """The table of younger queues. A group has an entry if its topic has grown, as long as it has offsets in it."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], int] = {}
        """The id of the first queue that was added later, by (group, topic)."""

    def topic_grew(self, topic: str, queues_before: int, groups: Iterable[str]) -> None:
        """Record that queues were added to a topic that had ``queues_before``, and in which ``groups`` had offsets."""
        for group in groups:
            first = self._first.get((group, topic), queues_before)
            self._first[group, topic] = min(first, queues_before)

    def has(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the queue was added after the group had stored offsets in the topic."""
        first = self._first.get((group, topic))
        return first is not None and queue_id >= first

    def first_queue(self, group: str, topic: str) -> int | None:
        """Return the first queue that was added to a topic after the group stored offsets; None without one."""
        return self._first.get((group, topic))

    def keys(self) -> KeysView[tuple[str, str]]:
        """Return the groups with younger queues, each with its topic."""
        return self._first.keys()

    def offsets_removed(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget a group, or all groups of a topic, because their offsets were removed: they are new groups now."""
        for key in [key for key in self._first if key[0] == group or key[1] == topic]:
            del self._first[key]

    def capture(self) -> Callable[[], object]:
        rows = [(*key, first) for key, first in self._first.items()]
        return lambda: sorted(rows) or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[tuple[str, str, int]])
        if any(first < 0 for _, _, first in rows):
            raise SnapshotDamaged("the table of younger queues has a queue id below 0")
        self._first = {(group, topic): first for group, topic, first in rows}

    def topic_deleted(self, topic: str) -> None:
        self.offsets_removed(topic=topic)
