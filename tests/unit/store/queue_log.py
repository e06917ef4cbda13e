"""A log of queue runs and dropped topics, and what queues must hold according to it."""

from __future__ import annotations

from mq.protocol.numbers import QueueOffset
from mq.store.checkpoint import PendingCheckpoint
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.queue_store import QueueStore, QueueStoreSettings

TINY = QueueStoreSettings(entries_per_file=4, entries_per_block=2, open_files_max=3, flush_bytes=100, flush_age_calls=2)
ENTRY_BYTES = 50


class Log:
    """A log of queue runs and drops, which is all that queues are derived from."""

    def __init__(self) -> None:
        self.events: list[QueueRun | str] = []
        self.end = 0
        self.next_offset: dict[tuple[str, int], int] = {}

    def send(self, topic: str, queue_id: int, count: int) -> QueueRun:
        first = self.next_offset.get((topic, queue_id), 0)
        rows = []
        for number in range(first, first + count):
            rows.append(QUEUE_ENTRY.pack(self.end, ENTRY_BYTES, number))
            self.end += ENTRY_BYTES
        self.next_offset[topic, queue_id] = first + count
        run = QueueRun(topic, queue_id, QueueOffset(first), b"".join(rows))
        self.events.append(run)
        return run

    def drop(self, topic: str) -> str:
        self.next_offset = {key: end for key, end in self.next_offset.items() if key[0] != topic}
        self.events.append(topic)
        return topic


def apply(store: QueueStore, event: QueueRun | str) -> None:
    if isinstance(event, QueueRun):
        store.append_run(event)
    else:
        store.drop_topic(event)


def commit(pending: PendingCheckpoint) -> bool:
    """`PendingCheckpoint.commit`, with all queues gathered before."""
    while pending.gather():
        pass
    return pending.commit()


def contents(store: QueueStore) -> dict[tuple[str, int], bytes]:
    return {(queue.topic, queue.queue_id): queue.read(QueueOffset(0), queue.max_offset) for queue in store.queues()}


def derived(log: Log) -> dict[tuple[str, int], bytes]:
    """The model: every queue's bytes, from the whole log."""
    queues: dict[tuple[str, int], bytes] = {}
    for event in log.events:
        if isinstance(event, QueueRun):
            key = (event.topic, event.queue_id)
            queues[key] = queues.get(key, b"") + event.entries
        else:
            queues = {key: data for key, data in queues.items() if key[0] != event}
    return queues
