"""Checkpoints: what survives a crash, and what is derived from the log again."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from mq.protocol.names import lite_queue
from mq.protocol.numbers import FIRST_OFFSET, PhysicalOffset, QueueOffset, offset_range
from mq.store import checkpoint as checkpoint_module
from mq.store.checkpoint import (
    Checkpoint,
    Checkpointer,
    PendingCheckpoint,
    encode_checkpoint,
    load_checkpoint,
    reset_store,
    seconds_between_checkpoints,
)
from mq.store.errors import CheckpointDamaged, CheckpointImpossible
from mq.store.opening import open_store, refuse_newer_formats
from mq.store.queue_store import QueueStore
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import FormatTooNew
from tests.unit.store.queue_log import ENTRY_BYTES, TINY, Log, apply, commit, contents, derived


def prepare(checkpointer: Checkpointer, log: Log, index: int) -> PendingCheckpoint:
    return checkpointer.prepare(
        applied_index=LogIndex(index), applied_term=Term(3), applied_pos=PhysicalOffset(log.end), state=bytes
    )


def take(directory: Path, store: QueueStore, log: Log, *, checkpointer: Checkpointer | None = None) -> Checkpoint:
    pending = (checkpointer or Checkpointer(str(directory), store)).prepare(
        applied_index=LogIndex(len(log.events)),
        applied_term=Term(3),
        applied_pos=PhysicalOffset(log.end),
        state=lambda: b"state",
    )
    assert commit(pending)
    written = load_checkpoint(str(directory))
    assert written is not None
    return written


def fill(directory: Path) -> tuple[QueueStore, Log]:
    store, log = open_store(str(directory), TINY).queues, Log()
    for topic, queue_id, count in (("A", 0, 3), ("A", 1, 9), ("B", 0, 1), ("A", 0, 4)):
        apply(store, log.send(topic, queue_id, count))
    store.flush_some()
    return store, log


def checkpointed(directory: Path) -> tuple[QueueStore, Log, Checkpoint]:
    store, log = fill(directory)
    return store, log, take(directory, store, log)


def test_missing_checkpoint_is_an_empty_state(tmp_path: Path) -> None:
    opened = open_store(str(tmp_path / "new"), TINY)
    assert opened.checkpoint == Checkpoint()
    assert opened.checkpoint.applied_index == 0
    assert opened.rebuild_reason is None
    assert len(opened.queues) == 0


def test_checkpoint_restores_the_whole_state(tmp_path: Path) -> None:
    _, log, written = checkpointed(tmp_path)
    opened = open_store(str(tmp_path), TINY)
    assert opened.rebuild_reason is None
    assert opened.checkpoint == written
    assert (written.applied_index, written.applied_term, written.applied_pos) == (4, 3, 17 * ENTRY_BYTES)
    assert written.state == b"state"
    assert contents(opened.queues) == derived(log)


def test_checkpoint_restores_queues_of_lite_topics(tmp_path: Path) -> None:
    store, log = open_store(str(tmp_path), TINY).queues, Log()
    for topic, count in (("A", 3), (lite_queue("A", "one"), 1), (lite_queue("A", "two"), 9)):
        apply(store, log.send(topic, 0, count))
    store.flush_some()
    written = take(tmp_path, store, log)
    opened = open_store(str(tmp_path), TINY)
    assert opened.rebuild_reason is None
    assert opened.checkpoint == written
    assert contents(opened.queues) == derived(log)


@pytest.mark.parametrize("name", [lite_queue("A", ""), lite_queue("", "one"), lite_queue("A", "../one"), "A$one"])
def test_checkpoint_with_a_queue_of_another_name_is_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(encode_checkpoint(Checkpoint(queues={name: [(0, FIRST_OFFSET, FIRST_OFFSET, b"")]})))
    with pytest.raises(CheckpointDamaged):
        load_checkpoint(str(tmp_path))


def test_entries_after_the_checkpoint_are_replayed(tmp_path: Path) -> None:
    store, log, written = checkpointed(tmp_path)
    for _ in range(3):
        apply(store, log.send("A", 1, 5))
        apply(store, log.send("C", 0, 1))
    store.flush_all()
    opened = open_store(str(tmp_path), TINY)
    assert opened.queues.table() == written.queues
    for event in log.events[written.applied_index :]:
        apply(opened.queues, event)
    assert contents(opened.queues) == derived(log)


def test_queue_files_without_a_checkpoint_are_ignored(tmp_path: Path) -> None:
    store, _ = fill(tmp_path)
    store.flush_all()
    opened = open_store(str(tmp_path), TINY)
    assert opened.checkpoint == Checkpoint()
    assert len(opened.queues) == 0
    assert [path for path in (tmp_path / "queues").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("position", [0, 7, 8, 11, 12, 19, 20, 40, -1])
def test_flipped_bit_in_the_checkpoint_means_rebuild(tmp_path: Path, position: int) -> None:
    checkpointed(tmp_path)
    path = tmp_path / "checkpoint"
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(CheckpointDamaged, match="checkpoint"):
        load_checkpoint(str(tmp_path))
    opened = open_store(str(tmp_path), TINY)
    assert opened.checkpoint == Checkpoint()
    assert opened.rebuild_reason is not None
    assert len(opened.queues) == 0
    assert not path.exists()


@pytest.mark.parametrize("size", [0, 1, 19, 20, 50])
def test_cut_checkpoint_means_rebuild(tmp_path: Path, size: int) -> None:
    checkpointed(tmp_path)
    os.truncate(tmp_path / "checkpoint", size)
    assert open_store(str(tmp_path), TINY).rebuild_reason is not None


def test_checkpoint_of_a_newer_version_means_rebuild(tmp_path: Path) -> None:
    import zlib
    from struct import pack

    import cbor2

    payload = cbor2.dumps({"applied_index": 5, "learners": []})
    (tmp_path / "checkpoint").write_bytes(pack(">8sIQ", b"RAFTMQC1", zlib.crc32(payload), len(payload)) + payload)
    with pytest.raises(CheckpointDamaged, match="learners"):
        load_checkpoint(str(tmp_path))


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [_shorten, Path.unlink], ids=["shorter", "missing"])
def test_queue_files_short_of_the_checkpoint_mean_rebuild(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    _, log, _ = checkpointed(tmp_path)
    damage(tmp_path / "queues" / "A" / "1" / "00000000000000000080")
    opened = open_store(str(tmp_path), TINY)
    assert opened.rebuild_reason is not None
    assert "00000000000000000080" in opened.rebuild_reason
    assert opened.checkpoint.applied_index == 0
    for event in log.events:
        apply(opened.queues, event)
    assert contents(opened.queues) == derived(log)


def test_reset_deletes_checkpoint_and_files(tmp_path: Path) -> None:
    checkpointed(tmp_path)
    assert len(reset_store(str(tmp_path), TINY)) == 0
    assert load_checkpoint(str(tmp_path)) is None


def test_crash_between_the_halves_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    store, log, first = checkpointed(tmp_path)
    apply(store, log.send("A", 0, 6))
    Checkpointer(str(tmp_path), store).prepare(
        applied_index=LogIndex(5), applied_term=Term(3), applied_pos=PhysicalOffset(log.end), state=lambda: b"later"
    )
    opened = open_store(str(tmp_path), TINY)
    assert opened.checkpoint == first
    apply(opened.queues, log.events[-1])
    assert contents(opened.queues) == derived(log)


def test_checkpoint_is_of_the_moment_of_prepare(tmp_path: Path) -> None:
    store, log = fill(tmp_path)
    pending = prepare(Checkpointer(str(tmp_path), store), log, 4)
    apply(store, log.send("A", 0, 6))
    store.flush_all()
    assert commit(pending)
    opened = open_store(str(tmp_path), TINY)
    assert opened.checkpoint.applied_index == 4
    apply(opened.queues, log.events[-1])
    assert contents(opened.queues) == derived(log)


def test_queues_are_gathered_gradually_with_their_state_at_prepare(tmp_path: Path) -> None:
    store, log = fill(tmp_path)
    before = store.table()
    pending = prepare(Checkpointer(str(tmp_path), store, queues_at_once=1), log, 4)
    gathered = 1
    while pending.gather():
        gathered += 1
        apply(store, log.send("A", 1, 2))
        apply(store, log.send("B", 0, 2))
        apply(store, log.send("C", gathered, 1))
        store.flush_all()
    assert gathered == len(before["A"]) + len(before["B"])
    assert pending.commit()
    written = load_checkpoint(str(tmp_path))
    assert written is not None
    assert written.queues == before
    opened = open_store(str(tmp_path), TINY)
    for event in log.events[4:]:
        apply(opened.queues, event)
    assert contents(opened.queues) == derived(log)


def test_checkpoint_is_not_written_before_all_queues_are_gathered(tmp_path: Path) -> None:
    store, log = fill(tmp_path)
    pending = prepare(Checkpointer(str(tmp_path), store, queues_at_once=1), log, 4)
    assert pending.gather()
    with pytest.raises(AssertionError, match="checkpoint 4 lacks queues"):
        pending.commit()


def test_queue_files_are_synced_before_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything the checkpoint counts on must be durable when it appears, names of new files included."""
    store, log = fill(tmp_path)
    synced: set[str] = set()
    real_fsync, real_fdatasync, real_rename = os.fsync, os.fdatasync, os.rename

    def note(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        note(descriptor)

    def fdatasync(descriptor: int) -> None:
        real_fdatasync(descriptor)
        note(descriptor)

    def rename(source: str, target: str) -> None:
        root = tmp_path / "queues"
        missing = [str(path) for path in (root, *root.rglob("*")) if str(path) not in synced]
        assert missing == []
        assert source in synced
        real_rename(source, target)
        synced.add("renamed")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(os, "rename", rename)
    take(tmp_path, store, log)
    assert "renamed" in synced
    assert str(tmp_path) in synced


def test_failed_sync_prevents_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, log = fill(tmp_path)
    checkpointer = Checkpointer(str(tmp_path), store)
    pending = prepare(checkpointer, log, 4)

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            commit(pending)
    assert load_checkpoint(str(tmp_path)) is None
    with pytest.raises(CheckpointImpossible, match="the disk is gone"):
        prepare(checkpointer, log, 4)


def test_checkpoint_after_a_full_disk_syncs_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, log = fill(tmp_path)
    checkpointer = Checkpointer(str(tmp_path), store)
    first = prepare(checkpointer, log, 4)

    def fail(directory: str, name: str, payload: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module, "_write_durably", fail)
        with pytest.raises(OSError, match="no space"):
            commit(first)
    apply(store, log.send("D", 0, 5))
    store.flush_some()
    second = prepare(checkpointer, log, 5)
    assert second.changes.files > first.changes.files
    assert commit(second)
    third = prepare(checkpointer, log, 5)
    assert third.changes.files == set()
    assert contents(open_store(str(tmp_path), TINY).queues) == derived(log)


def test_topic_dropped_after_the_checkpoint_reappears_after_a_crash(tmp_path: Path) -> None:
    store, log, written = checkpointed(tmp_path)
    before = contents(store)
    for event in (log.send("A", 0, 2), log.drop("A"), log.send("A", 0, 7), log.drop("A"), log.send("A", 1, 1)):
        apply(store, event)
        store.flush_all()
    opened = open_store(str(tmp_path), TINY)
    assert opened.rebuild_reason is None
    assert contents(opened.queues) == before
    for event in log.events[written.applied_index :]:
        apply(opened.queues, event)
    assert contents(opened.queues) == derived(log)
    take(tmp_path, opened.queues, log)
    assert contents(open_store(str(tmp_path), TINY).queues) == derived(log)


def test_dropped_files_are_removed_with_the_next_checkpoint(tmp_path: Path) -> None:
    store, log, _ = checkpointed(tmp_path)
    apply(store, log.drop("A"))
    dropped = tmp_path / "queues" / ".dropped"
    assert any(path.is_file() for path in dropped.rglob("*"))
    take(tmp_path, store, log)
    assert not any(path.is_file() for path in dropped.rglob("*"))
    assert contents(open_store(str(tmp_path), TINY).queues) == derived(log)


def test_crash_before_dropped_files_are_removed_does_not_revive_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log, _ = checkpointed(tmp_path)
    apply(store, log.drop("A"))
    apply(store, log.send("A", 0, 1))
    monkeypatch.setattr(checkpoint_module, "remove_dropped", lambda root, dropped_count: None)
    take(tmp_path, store, log)
    opened = open_store(str(tmp_path), TINY)
    assert contents(opened.queues) == derived(log)
    assert opened.rebuild_reason is None


def test_topic_dropped_between_the_halves_postpones_the_checkpoint(tmp_path: Path) -> None:
    store, log = fill(tmp_path)
    checkpointer = Checkpointer(str(tmp_path), store)
    pending = prepare(checkpointer, log, 4)
    apply(store, log.drop("A"))
    assert commit(pending) is False
    assert load_checkpoint(str(tmp_path)) is None
    again = prepare(checkpointer, log, 5)
    assert commit(again)
    assert contents(open_store(str(tmp_path), TINY).queues) == derived(log)


def test_topic_recreated_between_checkpoint_halves_postpones_the_checkpoint(tmp_path: Path) -> None:
    """The paths are there again, but what was synced under them is the new topic's."""
    store, log = fill(tmp_path)
    store.flush_all()
    checkpointer = Checkpointer(str(tmp_path), store)
    pending = prepare(checkpointer, log, 4)
    apply(store, log.drop("A"))
    for queue_id, count in ((0, 7), (1, 9)):
        apply(store, log.send("A", queue_id, count))
    store.flush_all()
    assert commit(pending) is False
    assert load_checkpoint(str(tmp_path)) is None


def test_expired_files_are_deleted_only_after_the_next_checkpoint(tmp_path: Path) -> None:
    store, log = fill(tmp_path)
    checkpointer = Checkpointer(str(tmp_path), store)
    take(tmp_path, store, log, checkpointer=checkpointer)
    before = contents(store)
    oldest = tmp_path / "queues" / "A" / "1" / "00000000000000000000"
    assert store.expire_some(PhysicalOffset(9 * ENTRY_BYTES)) == 0
    assert oldest.exists()
    assert contents(open_store(str(tmp_path), TINY).queues) == before
    take(tmp_path, store, log, checkpointer=checkpointer)
    take(tmp_path, store, log, checkpointer=checkpointer)
    assert not oldest.exists()
    opened = open_store(str(tmp_path), TINY)
    assert opened.rebuild_reason is None
    queue = opened.queues.get("A", 1)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (6, 9)


def test_new_topic_keeps_its_files_when_its_namesake_expires(tmp_path: Path) -> None:
    store, log = fill(tmp_path)
    checkpointer = Checkpointer(str(tmp_path), store)
    assert store.expire_some(PhysicalOffset(9 * ENTRY_BYTES)) == 0
    take(tmp_path, store, log, checkpointer=checkpointer)
    apply(store, log.drop("A"))
    apply(store, log.send("A", 1, 9))
    store.flush_all()
    for _ in range(3):
        take(tmp_path, store, log, checkpointer=checkpointer)
    assert contents(open_store(str(tmp_path), TINY).queues)["A", 1] == derived(log)["A", 1]


@pytest.mark.parametrize("queues_each", [0, 1, 8, 150])
def test_encoding_round_trips_large_tables(tmp_path: Path, queues_each: int) -> None:
    queues = {
        f"T{number}": [(queue_id, number, number + 9, bytes(20)) for queue_id in range(queues_each)]
        for number in offset_range(FIRST_OFFSET, QueueOffset(330))
    }
    written = Checkpoint(
        applied_index=LogIndex(7),
        applied_term=Term(2),
        applied_pos=PhysicalOffset(2**40),
        queues=queues,
        state=bytes(range(256)),
    )
    (tmp_path / "checkpoint").write_bytes(encode_checkpoint(written))
    assert load_checkpoint(str(tmp_path)) == written


def test_checkpoints_of_many_queues_take_a_bounded_processor_share() -> None:
    assert seconds_between_checkpoints(10.0, 0) == seconds_between_checkpoints(10.0, 100_000) == 10.0
    assert seconds_between_checkpoints(10.0, 1_000_000) == pytest.approx(100.0)
    assert seconds_between_checkpoints(600.0, 1_000_000) == 600.0


# -- newer versions ----------------------------------------------------------------------------------------------------


def as_newer(data: bytes, version: int = 4) -> bytes:
    """A checkpoint as newer software writes it: the checksum begins with the magic number."""
    magic = data[:7] + b"%d" % version
    payload = data[20:]
    return magic + zlib.crc32(payload, zlib.crc32(magic)).to_bytes(4, "big") + data[12:]


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.previous", "snapshot"])
def test_newer_checkpoint_is_refused_and_nothing_changes(tmp_path: Path, name: str) -> None:
    checkpointed(tmp_path)
    path = tmp_path / name
    path.write_bytes(as_newer((tmp_path / "checkpoint").read_bytes()))
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    with pytest.raises(FormatTooNew) as refused:
        refuse_newer_formats(str(tmp_path), str(tmp_path / "incoming"))
    assert (refused.value.path, refused.value.found, refused.value.newest) == (str(path), 4, 1)
    if name == "checkpoint":
        with pytest.raises(FormatTooNew):
            open_store(str(tmp_path), TINY)
    assert {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()} == before


def test_flipped_bit_in_the_version_of_a_checkpoint_is_damage(tmp_path: Path) -> None:
    checkpointed(tmp_path)
    data = bytearray((tmp_path / "checkpoint").read_bytes())
    data[7] ^= 2
    (tmp_path / "checkpoint").write_bytes(data)
    refuse_newer_formats(str(tmp_path), str(tmp_path / "incoming"))
    opened = open_store(str(tmp_path), TINY)
    assert "begins with b'RAFTMQC3'" in str(opened.rebuild_reason)
