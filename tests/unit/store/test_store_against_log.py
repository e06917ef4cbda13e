"""The queue store with its checkpoints under random use and crashes, against the log it is derived from."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mq.protocol.numbers import PhysicalOffset
from mq.store.checkpoint import Checkpointer, PendingCheckpoint
from mq.store.opening import open_store
from raftlog.log_numbers import LogIndex, Term
from tests.unit.store.queue_log import TINY, Log, apply, contents, derived


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
