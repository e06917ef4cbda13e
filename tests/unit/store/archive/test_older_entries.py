"""Queue entries of an archived log, read backward."""

from __future__ import annotations

from pathlib import Path

from mq.protocol.messages.records import decode_record
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.archive.older_entries import read_older
from mq.store.dispatch import QUEUE_ENTRY
from mq.store.queue_store import QueueStore, QueueStoreSettings
from tests.support.archived_logs import SEGMENT_BYTES, ReadArchive


def test_reading_backward_gives_the_queues_of_the_log(tmp_path: Path) -> None:
    archive = ReadArchive(tmp_path / "cache")
    end = PhysicalOffset(archive.end.pos)
    store = QueueStore.open(str(tmp_path / "queues"), QueueStoreSettings(), queues={}, dropped_count=0, log_end=end)
    store.floors = {}
    archived: dict[tuple[str, int], list[bytes]] = {}
    for topic, queue_id, _, body in archive.messages.sent:
        archived.setdefault((topic, queue_id), []).append(body)
    pos, steps = archive.end.pos, 0
    while pos > 0:
        step = read_older(archive.blocks.fetch, pos, 0, SEGMENT_BYTES, step_bytes=1)
        assert step.begin < step.end == pos
        assert step.begin >= (pos - 1) // SEGMENT_BYTES * SEGMENT_BYTES
        for run in step.runs:
            if store.get(run.topic, run.queue_id) is None:
                store.add_empty(run.topic, run.queue_id, run.end_offset)
            assert store.prepend(run) == len(run.entries) // QUEUE_ENTRY.size
        pos, steps = step.begin, steps + 1
    assert steps >= archive.end.pos // SEGMENT_BYTES
    for (topic, queue_id), bodies in archived.items():
        queue = store.get(topic, queue_id)
        assert queue is not None
        assert queue.min_offset == 0
        assert queue.max_offset > 10
        for number in range(queue.max_offset):
            place, size, _ = QUEUE_ENTRY.unpack(queue.read(QueueOffset(number), 1))
            record = decode_record(memoryview(archive.source.read(place, size)))
            assert (record.queue_offset, record.body) == (number, bodies[number])
    store.close()
