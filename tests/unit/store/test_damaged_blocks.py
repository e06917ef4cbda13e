"""Consume queue files that are not what was written: no wrong entry is ever read, and the log puts them right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.errors import QueueFileDamaged
from mq.store.queue_files import QueueFiles
from mq.store.queue_store import QueueStore, QueueStoreSettings
from tests.unit.store.queue_log import TINY, Log, apply

PER_FILE, PER_BLOCK, END = 8, 4, 14
LOG_END = 10**9


def entries(first: int, end: int) -> bytes:
    return b"".join(QUEUE_ENTRY.pack(1000 + number * 100, 90, number % 7) for number in range(first, end))


def make_queue(root: Path, *, min_offset: int = 0, max_offset: int = 0, topic: str = "T") -> ConsumeQueue:
    return ConsumeQueue(
        QueueFiles(str(root)),
        topic,
        3,
        entries_per_file=PER_FILE,
        entries_per_block=PER_BLOCK,
        min_offset=QueueOffset(min_offset),
        max_offset=QueueOffset(max_offset),
    )


def written(root: Path, first: int = 0, end: int = END) -> ConsumeQueue:
    queue = make_queue(root)
    queue.append(QueueOffset(first), entries(first, end))
    queue.flush()
    return queue


def files_of(queue: ConsumeQueue) -> QueueFiles:
    return queue._files


def each_bit(root: Path) -> Iterator[str]:
    """Flip each bit of each file in turn; the files are as before afterwards."""
    for path in sorted(root.rglob("0*")):
        if path.is_file():
            whole = path.read_bytes()
            for bit in range(8 * len(whole)):
                damaged = bytearray(whole)
                damaged[bit // 8] ^= 1 << bit % 8
                path.write_bytes(damaged)
                yield f"bit {bit} of {path.name}"
            path.write_bytes(whole)


def restore_all(queue: ConsumeQueue) -> None:
    for _, start in list(files_of(queue).damaged):
        wanted = queue.damaged_entries(start)
        assert wanted is not None
        assert queue.restore(start, wanted[0], entries(*wanted))


@pytest.mark.slow
def test_flipped_bit_is_never_read_while_a_process_runs(tmp_path: Path) -> None:
    queue = written(tmp_path)
    for bit in each_bit(tmp_path):
        files_of(queue).forget_blocks()
        for offset in range(END):
            try:
                found = queue.read(QueueOffset(offset), 1)
            except QueueFileDamaged:
                continue
            assert found == entries(offset, offset + 1), bit
        restore_all(queue)
        assert queue.read(QueueOffset(0), END) == entries(0, END), bit


@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_flipped_bit_is_never_read_after_a_start(tmp_path: Path, first: int) -> None:
    end = 6
    written(tmp_path / "live", first, end)
    for bit in each_bit(tmp_path / "live"):
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "live", copy)
        queue = make_queue(copy, min_offset=first, max_offset=end)
        queue.check_files(PhysicalOffset(LOG_END))
        for offset in range(first, end):
            try:
                found = queue.read(QueueOffset(offset), 1)
            except QueueFileDamaged:
                continue
            assert found == entries(offset, offset + 1), bit
        # New entries are taken, whatever is damaged, and reach the files when that is restored.
        queue.append(QueueOffset(end), entries(end, end + 1))
        queue.flush()
        restore_all(queue)
        queue.flush()
        assert queue.pending_bytes == 0, bit
        again = make_queue(copy, min_offset=first, max_offset=end + 1)
        again.check_files(PhysicalOffset(LOG_END))
        assert again.read(QueueOffset(first), 99) == entries(first, end + 1), bit
        files_of(queue).close()
        files_of(again).close()
        shutil.rmtree(copy)


def test_every_kind_of_bit_is_noticed(tmp_path: Path) -> None:
    """All bits of full blocks count; of the last block, those that are not overwritten anyway."""
    queue = written(tmp_path, 0, 2 * PER_BLOCK)
    for bit in each_bit(tmp_path):
        files_of(queue).forget_blocks()
        with pytest.raises(QueueFileDamaged):
            queue.read(QueueOffset(0), 2 * PER_BLOCK)
        restore_all(queue)
        assert queue.read(QueueOffset(0), 99) == entries(0, 2 * PER_BLOCK), bit


def test_block_of_another_queue_or_place_is_damage(tmp_path: Path) -> None:
    queue = written(tmp_path / "one")
    other = make_queue(tmp_path / "other", topic="U")
    other.append(QueueOffset(0), entries(0, END))
    other.flush()
    path = tmp_path / "one" / "T" / "3" / "00000000000000000000"
    path.write_bytes((tmp_path / "other" / "U" / "3" / path.name).read_bytes())
    with pytest.raises(QueueFileDamaged):
        queue.read(QueueOffset(0), 1)
    restore_all(queue)
    block = len(path.read_bytes()) // 2
    path.write_bytes(path.read_bytes()[block:] + path.read_bytes()[:block])
    files_of(queue).forget_blocks()
    with pytest.raises(QueueFileDamaged):
        queue.read(QueueOffset(0), 1)


@pytest.mark.parametrize("size", [0, 30, 95])
def test_file_truncated_or_removed_at_runtime_is_restored(tmp_path: Path, size: int) -> None:
    queue = written(tmp_path)
    path = tmp_path / "T" / "3" / "00000000000000000000"
    path.write_bytes(path.read_bytes()[:size])
    files_of(queue).close()
    if not size:
        path.unlink()
    for offset in (0, PER_BLOCK):
        with pytest.raises(QueueFileDamaged):
            queue.read(QueueOffset(offset), 1)
    restore_all(queue)
    assert queue.read(QueueOffset(0), END) == entries(0, END)


def test_block_with_new_entries_is_not_restored_from_too_few(tmp_path: Path) -> None:
    queue = written(tmp_path, 0, 2)
    path = tmp_path / "T" / "3" / "00000000000000000000"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(QueueFileDamaged):
        queue.read(QueueOffset(0), 1)
    wanted = queue.damaged_entries(QueueOffset(0))
    assert wanted == (0, 2)
    queue.append(QueueOffset(2), entries(2, 3))
    queue.flush()
    assert not queue.restore(QueueOffset(0), QueueOffset(0), entries(0, 2))
    assert list(files_of(queue).damaged) == [(queue, 0)]
    assert queue.restore(QueueOffset(0), QueueOffset(0), entries(0, 3))
    assert queue.read(QueueOffset(0), 9) == entries(0, 3)


def test_damaged_block_is_repaired_without_expired_entries(tmp_path: Path) -> None:
    queue = written(tmp_path, 0, 6)
    assert queue.expire(PhysicalOffset(1000 + 2 * 100)) == 2
    path = tmp_path / "T" / "3" / "00000000000000000000"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    files_of(queue).forget_blocks()
    with pytest.raises(QueueFileDamaged):
        queue.read(QueueOffset(3), 1)
    assert queue.damaged_entries(QueueOffset(0)) == (2, 4)
    assert queue.restore(QueueOffset(0), QueueOffset(2), entries(2, 4))
    assert queue.read(QueueOffset(2), 9) == entries(2, 6)
    reopened = make_queue(tmp_path, min_offset=2, max_offset=6)
    reopened.check_files(PhysicalOffset(LOG_END))
    assert reopened.read(QueueOffset(2), 9) == entries(2, 6)


def test_expiry_waits_for_a_damaged_block(tmp_path: Path) -> None:
    store, log = QueueStore.open(str(tmp_path), TINY, queues={}, dropped_count=0, log_end=PhysicalOffset(0)), Log()
    run = log.send("A", 0, 12)
    apply(store, run)
    store.flush_all()
    path = tmp_path / "A" / "0" / "00000000000000000080"
    path.write_bytes(b"\xff" * path.stat().st_size)
    position = QUEUE_ENTRY.unpack_from(run.entries, 8 * QUEUE_ENTRY_BYTES)[0]
    assert store.expire_some(position) == 0
    queue = store.get("A", 0)
    assert queue is not None
    assert queue.min_offset == 0
    while blocks := store.damaged_blocks():
        for block in blocks:
            wanted = queue.damaged_entries(block.start)
            assert wanted is not None
            first, end = wanted
            assert store.restore(block, first, run.entries[first * QUEUE_ENTRY_BYTES : end * QUEUE_ENTRY_BYTES])
        store.expire_some(position)
    assert queue.min_offset == 8


def test_damage_records_of_a_dropped_topic_are_removed(tmp_path: Path) -> None:
    store, log = QueueStore.open(str(tmp_path), TINY, queues={}, dropped_count=0, log_end=PhysicalOffset(0)), Log()
    apply(store, log.send("A", 0, 4))
    store.flush_all()
    path = tmp_path / "A" / "0" / "00000000000000000000"
    path.write_bytes(b"\xff" * path.stat().st_size)
    queue = store.get("A", 0)
    assert queue is not None
    with pytest.raises(QueueFileDamaged):
        queue.read(QueueOffset(0), 1)
    (block,) = store.damaged_blocks()
    apply(store, log.drop("A"))
    assert store.damaged_blocks() == []
    assert store.restore(block, QueueOffset(0), b"")
    assert store.damaged_blocks() == []


def test_files_of_blocks_are_whole_pages_by_default() -> None:
    settings = QueueStoreSettings()
    assert settings.entries_per_file % settings.entries_per_block == 0
    assert settings.entries_per_block * QUEUE_ENTRY_BYTES + 16 == 4096
