"""Counts the stored bytes of topics that have a quota for them.

They are counted from the queues in steps, and messages that were accepted since the last step are added.
"""

from __future__ import annotations

from typing import Final

from mq.broker.base.topic_bytes import TopicBytes
from mq.store.errors import StoreError
from mq.store.queue_store import QueueStore

_COUNTED_AT_ONCE: Final = 4096


class StoredBytes:
    """Counts the stored bytes of topics that have a quota for them."""

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self._topics: dict[str, TopicBytes] = {}
        self._new_bytes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def limit(self, topic: str, bytes_max: int) -> None:
        """Count the stored bytes of a topic from now on; stop counting them if ``bytes_max`` is 0."""
        assert bytes_max >= 0, f"topic {topic} may store {bytes_max} bytes"
        if not bytes_max:
            self._topics.pop(topic, None)
            self._new_bytes.pop(topic, None)
        elif (size := self._topics.get(topic)) is None:
            self._topics[topic] = TopicBytes(bytes_max)
        else:
            size.bytes_max = bytes_max

    def charge(self, topic: str, nbytes: int) -> None:
        """Add ``nbytes`` of an accepted message to a topic, if it has a quota for stored bytes."""
        assert nbytes >= 0, f"a message of {nbytes} bytes was accepted for topic {topic}"
        if topic in self._topics:
            self._new_bytes[topic] = self._new_bytes.get(topic, 0) + nbytes

    def excess(self, topic: str) -> int:
        """Return the stored bytes of a topic if it has reached its quota; otherwise 0."""
        size = self._topics.get(topic)
        if size is None:
            return 0
        nbytes = size.nbytes + self._new_bytes.get(topic, 0)
        return nbytes if nbytes >= size.bytes_max else 0

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
                self._new_bytes.pop(topic, None)
            elif topic in self._new_bytes:  # what comes in faster than it is counted, is counted once
                self._new_bytes[topic] = max(0, self._new_bytes[topic] - max(0, size.nbytes - before))
