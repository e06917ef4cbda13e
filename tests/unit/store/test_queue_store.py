"""All queues of a replica: arrival, flushing, growth, dropping, expiry."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.protocol.names import NameRefused
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.annotation import encode_runs
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.errors import AnnotationDamaged, RunInvalid
from mq.store.queue_blocks import block_bytes
from mq.store.queue_store import QueueStore, QueueStoreSettings

TINY = QueueStoreSettings(entries_per_file=8, entries_per_block=4, open_files_max=3, flush_bytes=100, flush_age_calls=2)
BLOCK_BYTES = block_bytes(TINY.entries_per_block)


def run_of(topic: str, queue_id: int, first: int, end: int, *, position: int = 0) -> QueueRun:
    entries = b"".join(QUEUE_ENTRY.pack(position + number * 50, 50, number) for number in range(first, end))
    return QueueRun(topic, queue_id, QueueOffset(first), entries)


def new_store(root: Path) -> QueueStore:
    return QueueStore.open(str(root), TINY, queues={}, dropped_count=0, log_end=PhysicalOffset(0))


def queue_of(store: QueueStore) -> ConsumeQueue:
    queue = store.get("A", 0)
    assert queue is not None
    return queue


def files_of(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in sorted(root.rglob("*")) if path.is_file()}


class End:
    """Who writes to a queue."""

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue: ConsumeQueue | None = None


@pytest.fixture
def store(tmp_path: Path) -> QueueStore:
    return new_store(tmp_path)


def test_runs_create_queues_on_demand(tmp_path: Path, store: QueueStore) -> None:
    assert store.get("A", 0) is None
    assert store.max_offset("A", 0) == 0
    assert store.append_run(run_of("A", 0, 0, 3)) == 3
    assert store.append_run(run_of("A", 1, 0, 2)) == 2
    assert store.append_run(run_of("A", 0, 3, 4)) == 1
    assert queue_of(store).read(QueueOffset(0), 9) == run_of("A", 0, 0, 4).entries
    assert store.table() == {"A": [(0, 0, 4, run_of("A", 0, 0, 4).entries), (1, 0, 2, run_of("A", 1, 0, 2).entries)]}
    assert len(store) == 2
    assert files_of(tmp_path) == {}


def test_queue_begins_later_and_never_earlier(store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 20))
    store.flush_all()
    for offset, begin in ((9, 9), (3, 9), (99, 20)):
        store.begin_at("A", 0, QueueOffset(offset))
        queue = queue_of(store)
        assert (queue.min_offset, queue.max_offset) == (begin, 20)
        assert queue.first_from(PhysicalOffset(0)) == begin
        store.check_invariants()
    store.begin_at("B", 0, QueueOffset(1))
    assert store.get("B", 0) is None
    assert store.append_run(run_of("A", 0, 20, 21)) == 1


def test_invalid_topic_name_is_refused_before_writing(tmp_path: Path, store: QueueStore) -> None:
    with pytest.raises(NameRefused):
        store.append_run(run_of("../../etc", 0, 0, 1))
    with pytest.raises(RunInvalid, match="A/-1: the queue id is negative"):
        store.append_run(run_of("A", -1, 0, 1))
    store.flush_all()
    assert files_of(tmp_path) == {}
    assert len(store) == 0


def test_queues_with_new_entries_are_reported_once(store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 3))
    store.append_run(run_of("B", 7, 0, 1))
    store.append_run(run_of("A", 0, 3, 5))
    assert store.take_new_entries() == [
        ("A", 0, bytearray(run_of("A", 0, 0, 5).entries)),
        ("B", 7, bytearray(run_of("B", 7, 0, 1).entries)),
    ]
    assert store.take_new_entries() == []
    assert store.append_run(run_of("A", 0, 2, 5)) == 0
    assert store.take_new_entries() == []
    assert store.append_run(run_of("A", 0, 4, 6)) == 1
    assert store.take_new_entries() == [("A", 0, bytearray(run_of("A", 0, 5, 6).entries))]


def test_flush_takes_full_queues_at_once_and_others_when_old(tmp_path: Path, store: QueueStore) -> None:
    store.append_run(run_of("SMALL", 0, 0, 1))
    store.append_run(run_of("FULL", 0, 0, 5))
    assert store.flush_some() is False
    assert files_of(tmp_path) == {"FULL/0/00000000000000000000": 2 * BLOCK_BYTES}
    store.append_run(run_of("YOUNG", 0, 0, 1))
    store.append_run(run_of("SMALL", 0, 1, 2))
    assert store.flush_some() is False
    assert files_of(tmp_path) == {
        "FULL/0/00000000000000000000": 2 * BLOCK_BYTES,
        "SMALL/0/00000000000000000000": BLOCK_BYTES,
    }
    assert store.flush_some() is False
    assert store.dirty_count == 0
    assert store.table()["YOUNG"] == [(0, 0, 1, b"")]


def test_late_flush_replaces_several_timer_calls(store: QueueStore) -> None:
    assert (store.dirty_count, store.is_flush_due) == (0, False)
    store.append_run(run_of("SMALL", 0, 0, 1))
    assert (store.dirty_count, store.is_flush_due) == (1, False)
    assert store.flush_some(calls=1) is False
    assert (store.dirty_count, store.is_flush_due) == (1, True)
    store.append_run(run_of("YOUNG", 0, 0, 1))
    assert store.flush_some(calls=1) is False
    assert store.dirty_count == 1
    store.append_run(run_of("LAST", 0, 0, 1))
    assert store.flush_some(calls=7) is False
    assert store.dirty_count == 0
    store.append_run(run_of("FULL", 0, 0, 5))
    assert store.is_flush_due


def test_flush_stops_at_its_limit_and_resumes(store: QueueStore) -> None:
    for queue_id in range(10):
        store.append_run(run_of("A", queue_id, 0, 1))
    store.flush_all()
    for queue_id in range(10):
        store.append_run(run_of("A", queue_id, 1, 7))
    left = [(store.flush_some(limit=4), store.dirty_count) for _ in range(4)]
    assert left == [(True, 6), (True, 2), (False, 0), (False, 0)]


def test_queue_that_needs_a_new_file_counts_for_several(store: QueueStore) -> None:
    for queue_id in range(10):
        store.append_run(run_of("A", queue_id, 0, 7))
    assert store.flush_some(limit=16) is True
    assert store.dirty_count == 8


def test_failed_flush_loses_nothing(tmp_path: Path, store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 3))
    (tmp_path / "A").write_text("a file where a directory belongs")
    with pytest.raises(OSError):
        store.flush_all()
    assert store.dirty_count == 1
    (tmp_path / "A").unlink()
    store.flush_all()
    assert store.dirty_count == 0
    assert queue_of(store).read(QueueOffset(0), 3) == run_of("A", 0, 0, 3).entries


def test_many_queues_share_few_descriptors(store: QueueStore) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for queue_id in range(50):
        store.append_run(run_of("A", queue_id, 0, 20))
    store.flush_all()
    assert len(os.listdir("/proc/self/fd")) - before == TINY.open_files_max
    for queue in store.queues():
        assert queue.read(QueueOffset(0), 99) == run_of("A", queue.queue_id, 0, 20).entries
    store.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_dropped_topic_is_gone_and_may_be_recreated(store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 9))
    store.append_run(run_of("A", 1, 0, 2))
    store.append_run(run_of("AB", 0, 0, 2))
    store.flush_all()
    store.append_run(run_of("A", 0, 9, 10))
    store.drop_topic("A")
    assert store.get("A", 0) is None
    assert store.get("A", 1) is None
    assert [row[0] for row in store.take_new_entries()] == ["AB"]
    assert store.append_run(run_of("A", 0, 0, 2, position=7000)) == 2
    store.flush_all()
    assert queue_of(store).read(QueueOffset(0), 9) == run_of("A", 0, 0, 2, position=7000).entries
    assert store.max_offset("AB", 0) == 2


def test_dropping_a_topic_without_queues_changes_nothing(store: QueueStore) -> None:
    store.drop_topic("A")
    assert store.dropped_count == 0


def test_expiry_visits_all_queues_in_steps(store: QueueStore) -> None:
    for queue_id in range(5):
        store.append_run(run_of("A", queue_id, 0, 10))
    store.flush_all()
    assert store.expire_some(PhysicalOffset(3 * 50), limit=2) == 3
    assert [queue.min_offset for queue in store.queues()] == [3, 3, 0, 0, 0]
    assert store.expire_some(PhysicalOffset(3 * 50), limit=2) == 1
    assert store.expire_some(PhysicalOffset(3 * 50), limit=2) == 0
    assert [queue.min_offset for queue in store.queues()] == [3] * 5
    assert store.expire_some(PhysicalOffset(3 * 50), limit=2) == 0
    assert store.expire_some(PhysicalOffset(4 * 50), limit=10) == 0
    assert [queue.min_offset for queue in store.queues()] == [4] * 5


def test_opening_removes_queues_absent_from_the_checkpoint(tmp_path: Path, store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 5))
    store.append_run(run_of("A", 1, 0, 5))
    store.append_run(run_of("B", 0, 0, 5))
    store.flush_all()
    store.close()
    reopened = QueueStore.open(
        str(tmp_path),
        TINY,
        queues={"A": [(0, QueueOffset(0), QueueOffset(4), b"")]},
        dropped_count=0,
        log_end=PhysicalOffset(1000),
    )
    assert files_of(tmp_path) == {"A/0/00000000000000000000": BLOCK_BYTES}
    assert reopened.table() == {"A": [(0, 0, 4, b"")]}


def test_captured_content_stays_unchanged(store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 5))
    store.append_run(run_of("B", 0, 0, 3))
    before = store.table()
    capture = store.begin_capture()
    assert not store.gather(2)
    store.append_run(run_of("A", 0, 5, 6))
    store.flush_all()
    store.append_run(run_of("A", 0, 6, 8))
    store.append_run(run_of("C", 0, 0, 1))
    topics, rows = capture.rows()
    assert topics == 2
    assert dict(rows) == before
    assert store.capture_ends()() == {"A": [(0, 8, 8, b"")], "B": [(0, 3, 3, b"")], "C": [(0, 1, 1, b"")]}


def test_captured_ends_ignore_later_messages(store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 5))
    ends = store.capture_ends()
    store.append_run(run_of("A", 0, 5, 6))
    store.append_run(run_of("A", 1, 0, 1))
    assert ends() == {"A": [(0, 5, 5, b"")]}


WAYS = ("run", "shipped", "built", "flush", "gather")


@given(st.lists(st.tuples(st.sampled_from(WAYS), st.sampled_from("AB"), st.integers(0, 2)), max_size=30), st.data())
def test_capture_is_unaffected_by_later_queue_changes(steps: list[tuple[str, str, int]], data: st.DataObject) -> None:
    """Whatever way entries take, and whenever files are written."""
    begin = data.draw(st.integers(0, len(steps)), label="steps before the capture")
    with TemporaryDirectory() as directory:
        store = new_store(Path(directory))
        ends: dict[tuple[str, int], int] = {}
        writers: dict[tuple[str, int], End] = {}
        for number, (way, topic, queue_id) in enumerate(steps):
            if number == begin:
                before, capture = store.table(), store.begin_capture()
            first = ends.get((topic, queue_id), 0)
            run = run_of(topic, queue_id, first, first + 2)
            if way == "flush":
                store.flush_all()
                continue
            if way == "gather":
                store.gather(1)
                continue
            if way == "run":
                store.append_run(run)
            elif way == "shipped":
                store.append_shipped(encode_runs([run]))
            else:
                writer = writers.setdefault((topic, queue_id), End(topic, queue_id))
                store.append_built([(writer, QueueOffset(first), 2, run.entries)])
            ends[topic, queue_id] = first + 2
        if begin == len(steps):
            before, capture = store.table(), store.begin_capture()
        while store.gather(1):
            pass
        found = {topic: sorted(rows) for topic, rows in capture.rows()[1]}
        assert found == {topic: sorted(rows) for topic, rows in before.items()}


def test_new_writer_does_not_change_earlier_captures_of_a_queue(store: QueueStore) -> None:
    store.append_run(run_of("A", 0, 0, 2))
    before, capture = store.table(), store.begin_capture()
    store.append_built([(End("A", 0), QueueOffset(2), 2, run_of("A", 0, 2, 4).entries)])
    while store.gather(1):
        pass
    assert dict(capture.rows()[1]) == before
    assert store.max_offset("A", 0) == 4
    store.close()


RUNS = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 2), st.integers(1, 4)), max_size=12)


@given(st.lists(RUNS, max_size=5), st.integers(0, 3))
def test_shipped_runs_arrive_as_the_runs_themselves(entries: list[list[tuple[str, int, int]]], replayed: int) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        plain, shipped = new_store(Path(one)), new_store(Path(other))
        ends: dict[tuple[str, int], int] = {}
        batches: list[list[QueueRun]] = []
        for entry in entries:
            batches.append([])
            for topic, queue_id, count in entry:
                first = ends.get((topic, queue_id), 0)
                ends[topic, queue_id] = first + count
                batches[-1].append(run_of(topic, queue_id, first, first + count))
        for batch in [*batches, *batches[len(batches) - replayed :]]:
            for run in batch:
                plain.append_run(run)
            shipped.append_shipped(encode_runs(batch))
            assert shipped.table() == plain.table()
            assert shipped.take_new_entries() == plain.take_new_entries()
            assert shipped.dirty_count == plain.dirty_count
            assert shipped.flush_some(2) == plain.flush_some(2)
        assert files_of(Path(one)) == files_of(Path(other))
        plain.close()
        shipped.close()


@given(st.lists(RUNS, max_size=8), st.sets(st.integers(0, 7)), st.sampled_from([0, 30, 100]))
def test_built_runs_arrive_as_the_runs_themselves(
    entries: list[list[tuple[str, int, int]]], drop_after: set[int], expired: int
) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        plain, built = new_store(Path(one)), new_store(Path(other))
        plain.watched = built.watched = {("A", 0), ("B", 1)}
        ends: dict[tuple[str, int], tuple[End, int]] = {}
        position = 0
        for number, entry in enumerate(entries):
            for topic, queue_id, count in entry:
                end, first = ends.get((topic, queue_id), (End(topic, queue_id), 0))
                ends[topic, queue_id] = end, first + count
                run = run_of(topic, queue_id, first, first + count, position=position)
                plain.append_run(run)
                built.append_built([(end, QueueOffset(first), count, run.entries)])
                position += 1000
            if number in drop_after:  # a writer that is not told goes on where it was
                plain.drop_topic("A")
                built.drop_topic("A")
            for store in (plain, built):
                store.expire_some(PhysicalOffset(position * expired // 100))
            assert built.table() == plain.table()
            assert built.take_new_entries() == plain.take_new_entries()
            assert built.dirty_count == plain.dirty_count
            assert built.flush_some(2) == plain.flush_some(2)
        assert files_of(Path(one)) == files_of(Path(other))
        plain.close()
        built.close()


def test_damaged_shipped_runs_are_refused(store: QueueStore) -> None:
    runs = [run_of("A", 0, 0, 2), run_of("B", 0, 0, 2)]
    annotation = encode_runs(runs)
    store.append_shipped(annotation)
    more = encode_runs([run_of("A", 0, 2, 4), run_of("B", 0, 2, 4)])
    for size in (0, 5, 20, len(more) - 1):
        with pytest.raises(AnnotationDamaged):
            store.append_shipped(more[:size])
    with pytest.raises(AnnotationDamaged):
        store.append_shipped(b"\x07" + more[1:])
    store.append_shipped(encode_runs([]))
    store.drop_topic("A")
    store.append_shipped(encode_runs([run_of("A", 0, 0, 1)]))
    assert store.max_offset("A", 0) == 1


def test_only_watched_queues_are_reported(store: QueueStore) -> None:
    store.watched = {("B", 0)}
    for first in (0, 2):
        store.append_shipped(encode_runs([run_of("A", 0, first, first + 2), run_of("B", 0, first, first + 2)]))
        assert store.take_new_entries() == [("B", 0, bytearray(run_of("B", 0, first, first + 2).entries))]


def test_older_entries_are_prepended_down_to_the_expiry_floor(store: QueueStore) -> None:
    store.floors = {}
    for queue_id in range(3):
        store.append_run(run_of("A", queue_id, 20, 25))
    store.begin_at("A", 1, QueueOffset(14))
    assert store.prepend(run_of("A", 0, 10, 20)) == 10
    assert store.prepend(run_of("A", 0, 10, 20)) == 0, "once more after a restart"
    assert store.prepend(run_of("A", 0, 5, 12)) == 5
    assert store.prepend(run_of("A", 1, 10, 20)) == 6
    assert store.prepend(run_of("A", 1, 0, 14)) == 0
    assert store.prepend(run_of("A", 2, 10, 19)) == 0, "they do not end where the queue begins"
    assert store.prepend(run_of("B", 0, 0, 9)) == 0, "its topic was deleted"
    begins = {queue.key: queue.min_offset for queue in store.queues()}
    assert begins == {("A", 0): 5, ("A", 1): 14, ("A", 2): 20}
    store.check_invariants()


def test_entries_in_front_do_not_expire_with_an_earlier_pass(store: QueueStore) -> None:
    store.floors = {}
    store.append_run(run_of("A", 0, 20, 25))
    assert store.expire_some(PhysicalOffset(20 * 50)) == 0
    store.begin_refill(PhysicalOffset(10 * 50))
    store.prepend(run_of("A", 0, 10, 20))
    assert store.expire_some(PhysicalOffset(10 * 50)) == 0
    queue = queue_of(store)
    assert queue.min_offset == 10
    store.expire_some(PhysicalOffset(15 * 50))
    assert queue.min_offset == 15


def test_files_of_refilled_entries_are_not_removed(tmp_path: Path) -> None:
    for checkpoints_between in range(3):
        root = tmp_path / str(checkpoints_between)
        store = new_store(root)
        store.floors = {}
        store.append_run(run_of("A", 0, 0, 25))
        store.flush_all()
        store.take_changes()
        assert store.expire_some(PhysicalOffset(20 * 50)) == 0
        durable = store.take_changes() if checkpoints_between else None
        store.begin_refill(PhysicalOffset(0))
        assert store.prepend(run_of("A", 0, 0, 20)) == 20
        since = store.take_changes()
        if durable is None:
            assert not since.retired
        elif checkpoints_between == 1:
            store.remove_retired(durable, since)
        else:  # the checkpoint between them failed
            store.remove_retired(durable.merge(since), store.take_changes())
        queue = queue_of(store)
        store.forget_blocks()
        assert queue.read(QueueOffset(0), 25) == run_of("A", 0, 0, 25).entries
        assert len(files_of(root)) == 4
        store.close()


def test_floors_of_a_dropped_queue_are_removed(store: QueueStore) -> None:
    store.floors = {}
    store.append_run(run_of("A", 0, 0, 5))
    store.begin_at("A", 0, QueueOffset(3))
    assert store.floors == {("A", 0): 3}
    store.drop_topic("A")
    assert store.floors == {}
