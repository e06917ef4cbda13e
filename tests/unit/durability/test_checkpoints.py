"""Checkpoints: at whatever step the power is cut, a checkpoint that is found fits the queue files beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chaos.watched_files import UnsyncedRest, WatchedFiles, watch_files
from mq.protocol.numbers import PhysicalOffset
from mq.store.checkpoint import CHECKPOINT_NAME, Checkpoint, Checkpointer, load_checkpoint
from mq.store.key_index.builder import run_job
from mq.store.key_index.job import IndexJob
from mq.store.opening import open_store
from mq.store.queue_store import QueueStore
from raftlog import RealDisk
from raftlog.log_numbers import LogIndex, Term
from raftlog.segment import NORMAL, SegmentLog
from tests.unit.store.queue_log import TINY, Log, apply, commit, contents, derived

FINAL = 4
"""How often a checkpoint is taken."""


def take(checkpointer: Checkpointer, log: Log) -> None:
    pending = checkpointer.prepare(
        applied_index=LogIndex(len(log.events)),
        applied_term=Term(3),
        applied_pos=PhysicalOffset(log.end),
        state=lambda: b"state",
    )
    assert commit(pending)


def fill(store: QueueStore, log: Log, number: int) -> None:
    for topic, queue_id, count in (("A", 0, 3), (f"N{number}", 1, 9), ("B", 0, 1), ("A", 0, 4)):
        apply(store, log.send(topic, queue_id, count))
    if number == 2:
        apply(store, log.drop("N1"))
        apply(store, log.send("N1", 1, 2))
    store.flush_all()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def check(files: WatchedFiles, target: Path, log: Log, index_min: int) -> None:
    """A checkpoint from ``index_min`` on is there, its queues are readable, and the log's replay completes them."""
    for left in UnsyncedRest:
        files.leave(target, left)
        # Of a new directory not even the name may be there.
        opened = open_store(str(target / "data" / "store"), TINY)
        assert opened.rebuild_reason is None, f"{left.value} left: {opened.rebuild_reason}"
        assert opened.checkpoint.applied_index >= index_min, f"{left.value} left"
        for event in log.events[opened.checkpoint.applied_index :]:
            apply(opened.queues, event)
        assert contents(opened.queues) == derived(log), f"{left.value} left"
        opened.queues.close()
        shutil.rmtree(target)


@pytest.mark.slow
def test_power_cut_at_any_step_leaves_a_checkpoint_fitting_its_queues(root: Path, tmp_path: Path) -> None:
    log = Log()
    index_min, steps = 0, 0
    with watch_files(root) as files:

        def cut(what: str) -> None:
            nonlocal steps
            steps += 1
            check(files, tmp_path / "cut", log, index_min)

        store = open_store(str(root / "data" / "store"), TINY).queues
        checkpointer = Checkpointer(str(root / "data" / "store"), store)
        for number in range(FINAL):
            fill(store, log, number)
            files.at_each_step = cut
            take(checkpointer, log)
            files.at_each_step = None
            index_min = len(log.events)
            check(files, tmp_path / "cut", log, index_min)
        store.close()
    assert steps > 10 * FINAL


def test_reported_checkpoint_survives_with_all_its_files(root: Path) -> None:
    log = Log()
    with watch_files(root) as files:
        store = open_store(str(root / "data" / "store"), TINY).queues
        checkpointer = Checkpointer(str(root / "data" / "store"), store)
        fill(store, log, 0)
        take(checkpointer, log)
        # Without the log's beginning, nobody could derive again what these directories hold.
        assert files.undurable() == []
        store.close()


def test_key_index_file_is_complete_before_its_rename(root: Path, tmp_path: Path) -> None:
    log = SegmentLog.open(str(root / "log"), cluster_id="c", node_id="n1", segment_bytes=4096, disk=RealDisk())
    log.append(NORMAL, LogIndex(1), Term(1), b"")
    log.submit(1)
    end = log.end_pos
    log.close()
    segment = next((root / "log").glob("0*"))
    with watch_files(root) as files:

        def cut(what: str) -> None:
            for left in UnsyncedRest:
                files.leave(tmp_path / "cut", left)
                assert not (tmp_path / "cut" / "keys").exists() or (tmp_path / "cut" / "keys").stat().st_size
                shutil.rmtree(tmp_path / "cut")

        files.at_each_step = cut
        result = run_job(IndexJob(str(segment), 0, 0, end, str(root / "keys"), 1.0))
        assert result.failure is None, result


def test_missing_checkpoint_directory_is_an_empty_state(tmp_path: Path) -> None:
    assert load_checkpoint(str(tmp_path)) is None
    assert open_store(str(tmp_path / "new"), TINY).checkpoint == Checkpoint()
    assert not (tmp_path / "new" / CHECKPOINT_NAME).exists()
