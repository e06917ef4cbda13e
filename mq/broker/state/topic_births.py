"""Log positions at which topics were created. Messages delayed before belong to a deleted topic of the same name.

Delayed messages, half messages and retries wait in queues of the broker and name their topic. If that is deleted and
created again while they wait, they are not for the new one. The position of a record tells: clocks of leaders differ,
positions do not.
"""

from __future__ import annotations

from collections.abc import Callable, KeysView

import msgspec

from mq.broker.state.table import SnapshotDamaged, StateTable
from mq.protocol.numbers import LOG_BEGIN, PhysicalOffset


class TopicBirths(StateTable):
    """The table of topic births. It has no commands: `mq.broker.state.metadata` changes it with the topics.

    A deleted topic that can be restored keeps its entry. Topics from before format level 8 have none.
    """

    def __init__(self) -> None:
        self._positions: dict[str, PhysicalOffset] = {}

    def get(self, topic: str) -> PhysicalOffset:
        """Return the physical offset of the entry that created a topic; the beginning of the log if not known."""
        return self._positions.get(topic, LOG_BEGIN)

    def record(self, topic: str, position: PhysicalOffset) -> None:
        """Record that the entry at a physical offset created a topic."""
        assert position >= self.get(topic), f"{topic} was created at {self.get(topic)} and again at {position}"
        self._positions[topic] = position

    def topics(self) -> KeysView[str]:
        """Return all topics with an entry."""
        return self._positions.keys()

    def capture(self) -> Callable[[], object]:
        rows = list(self._positions.items())
        return lambda: sorted(rows) or None

    def restore(self, state: object) -> None:
        rows = msgspec.convert(state or [], list[tuple[str, PhysicalOffset]])
        if any(position < 0 for _, position in rows):
            raise SnapshotDamaged("a topic was created at a negative position")
        self._positions = dict(rows)

    def topic_deleted(self, topic: str) -> None:
        """Forget the position of a topic that cannot be restored any more."""
        self._positions.pop(topic, None)
