"""`check_invariants` names what is broken in consume queues; the store under random use, against its log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mq.protocol.numbers import FIRST_OFFSET, LOG_BEGIN, PhysicalOffset, QueueOffset
from mq.store.checkpoint import Checkpointer, PendingCheckpoint
from mq.store.dispatch import QUEUE_ENTRY, QueueRun
from mq.store.opening import open_store
from mq.store.queue_store import QueueStore, QueueStoreSettings
from raftlog.log_numbers import LogIndex, Term
from tests.unit.store.queue_log import TINY, Log, apply, contents, derived

SETTINGS = QueueStoreSettings(entries_per_file=8, entries_per_block=2, flush_bytes=60)


def filled(root: Path) -> QueueStore:
    """Two queues: one with four entries in files and one in memory, one with two in memory."""
    store = QueueStore.open(str(root), SETTINGS, queues={}, dropped_count=0, log_end=LOG_BEGIN)

    def add(queue_id: int, first: int, count: int) -> None:
        places = range(100 * (first + queue_id), 100 * (first + queue_id + count), 100)
        entries = b"".join(QUEUE_ENTRY.pack(place, 50, 0) for place in places)
        store.append_run(QueueRun("T", queue_id, QueueOffset(first), entries))

    add(0, 0, 4)
    store.flush_all()
    add(0, 4, 1)
    add(1, 0, 2)
    store.check_invariants()
    return store


def mix_names(store: QueueStore) -> None:
    store._by_name[b"T", 0] = store._queues["T", 1]


def rename_queue(store: QueueStore) -> None:
    store._queues["T", 0].key = ("T", 1)


def change_order(store: QueueStore) -> None:
    tail = store._queues["T", 1]._tail
    tail[:20], tail[20:] = tail[20:], tail[:20]


BROKEN: dict[str, Callable[[QueueStore], object]] = {
    "2 queues by encoded name, 2 by name": mix_names,
    "is listed as": rename_queue,
    "files end at 9": lambda store: setattr(store._queues["T", 0], "_flushed_offset", 9),
    "files end at 4, and 1 bytes are in memory": lambda store: setattr(store._queues["T", 0], "_tail", bytearray(1)),
    "0 is at 200 in the log, the next one at 100": change_order,
    "has 20 bytes in memory, and is not due to be written": lambda store: store._dirty.pop(("T", 0)),
    "is in capture 3 of 0": lambda store: setattr(store._queues["T", 0], "captured", 3),
    "to be written, and not there": lambda store: store._dirty.update({("X", 0): 0}),
    "new, and not there": lambda store: store.new_entries.update({("X", 0): bytearray(20)}),
    "a page in memory, and not to be written": lambda store: store._full.update({("X", 0): None}),
    "not written in the order of their first entries": lambda store: store._dirty.update({("T", 0): 7}),
}


@pytest.mark.parametrize("named", BROKEN)
def test_inconsistent_queues_are_reported(tmp_path: Path, named: str) -> None:
    store = filled(tmp_path)
    BROKEN[named](store)
    with pytest.raises(AssertionError, match=named):
        store.check_invariants()
    store.close()


def test_store_is_whole_without_a_dropped_topic(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.drop_topic("T")
    store.check_invariants()
    store.add_empty("T", 0, FIRST_OFFSET)
    store.check_invariants()
    store.close()


class StoreAgainstLog(RuleBasedStateMachine):
    """Sends, drops, flushes, checkpoints, crashes in any order: the queues are always what the log says."""

    def __init__(self) -> None:
        super().__init__()
        assert _roots, "the fixture brings directories"
        self.directory = _roots[0].mktemp("machine")
        self.log = Log()
        self.store = open_store(str(self.directory), TINY).queues
        self.checkpointer = Checkpointer(str(self.directory), self.store, queues_at_once=2)
        self.pending: PendingCheckpoint | None = None
        self.dropped_count = 0

    @rule(topic=st.sampled_from("AB"), queue_id=st.integers(0, 1), count=st.integers(1, 6))
    def send(self, topic: str, queue_id: int, count: int) -> None:
        apply(self.store, self.log.send(topic, queue_id, count))

    @rule(topic=st.sampled_from("AB"))
    def drop(self, topic: str) -> None:
        apply(self.store, self.log.drop(topic))

    @rule()
    def flush(self) -> None:
        self.store.flush_some()

    @precondition(lambda self: self.pending is None)
    @rule()
    def prepare_checkpoint(self) -> None:
        self.dropped_count = self.store.dropped_count
        self.pending = self.checkpointer.prepare(
            applied_index=LogIndex(len(self.log.events)),
            applied_term=Term(1),
            applied_pos=PhysicalOffset(self.log.end),
            state=bytes,
        )

    @precondition(lambda self: self.pending is not None)
    @rule()
    def go_on_with_checkpoint(self) -> None:
        assert self.pending is not None
        if not self.pending.gather():
            assert self.pending.commit() == (self.dropped_count == self.store.dropped_count)
            self.pending = None

    @rule()
    def crash(self) -> None:
        shutil.copytree(self.directory, crashed := self.directory.with_name(self.directory.name + "x"))
        self.store.close()
        self.directory = crashed
        opened = open_store(str(self.directory), TINY)
        assert opened.rebuild_reason is None
        self.store = opened.queues
        self.checkpointer = Checkpointer(str(self.directory), self.store, queues_at_once=2)
        self.pending = None
        for event in self.log.events[opened.checkpoint.applied_index :]:
            apply(self.store, event)

    @invariant()
    def queues_are_what_the_log_says(self) -> None:
        self.store.check_invariants()
        assert contents(self.store) == derived(self.log)


_roots: list[pytest.TempPathFactory] = []


@pytest.fixture(autouse=True)
def surroundings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories for the machine; and no syncs, for its crash is one of the process and keeps the page cache."""
    _roots[:] = [tmp_path_factory]
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


StoreAgainstLog.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestStoreAgainstLog = StoreAgainstLog.TestCase
