"""The stored bytes of topics that have a quota for them.

They are counted from the queues in steps, and messages that were accepted since the last step are added.
"""

from __future__ import annotations

from typing import Final

from mq.broker.base.topic_bytes import TopicBytes
from mq.store.errors import StoreError
from mq.store.queue_store import QueueStore

_COUNTED_AT_ONCE: Final = 4096


class StoredBytes:
    """The counted topics."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._topics: dict[str, TopicBytes] = {}
        self._uncounted: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def limit(self, topic: str, bytes_max: int) -> None:
        """Count a topic from now on; stop counting it if ``bytes_max`` is 0."""
        assert bytes_max >= 0, f"topic {topic} may store {bytes_max} bytes"
        if not bytes_max:
            self._topics.pop(topic, None)
            self._uncounted.pop(topic, None)
        elif (known := self._topics.get(topic)) is None:
            self._topics[topic] = TopicBytes(bytes_max)
        else:
            known.bytes_max = bytes_max

    def accepted(self, topic: str, nbytes: int) -> None:
        """Add an accepted message of ``nbytes`` bytes to a topic with a quota."""
        assert nbytes >= 0, f"a message of {nbytes} bytes was accepted for topic {topic}"
        if topic in self._topics:
            self._uncounted[topic] = self._uncounted.get(topic, 0) + nbytes

    def excess(self, topic: str) -> int:
        """The stored bytes of a topic without room for more; 0 for one with room."""
        known = self._topics.get(topic)
        if known is None:
            return 0
        nbytes = known.nbytes + self._uncounted.get(topic, 0)
        return nbytes if nbytes >= known.bytes_max else 0

    def count(self) -> None:
        """Add the next `_COUNTED_AT_ONCE` queue entries of each topic to its stored bytes."""
        for topic, size in self._topics.items():
            before = size.nbytes
            queues = [self._store.get(topic, queue_id) for queue_id in sorted(self._store.ends(topic))]
            try:
                read = size.count([queue for queue in queues if queue is not None], _COUNTED_AT_ONCE)
            except (StoreError, OSError):
                continue  # it is restored from the log first
            if read < _COUNTED_AT_ONCE:
                self._uncounted.pop(topic, None)
            elif topic in self._uncounted:  # what comes in faster than it is counted, is counted once
                self._uncounted[topic] = max(0, self._uncounted[topic] - max(0, size.nbytes - before))
