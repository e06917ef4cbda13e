"""A replica notices that its process did not run, and what that means for peers and for the disk."""

from __future__ import annotations

import random
from typing import Any, cast

from raftlog.consensus.messages import Heartbeat, PreVoteResp, VoteResp
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import NONE, ConfState, CoreConfig, HardState, NodeId, Role
from raftlog.log_numbers import NO_INDEX, Term
from raftlog.replica import Replica
from raftlog.segment.limits import DEFAULT

A, B, C = (NodeId(name) for name in "abc")
CONFIG = CoreConfig()


class Stage:
    """A replica of three with a clock, a disk that finishes nothing, and peers that say nothing."""

    segment_bytes = 1024 * 1024
    limits = DEFAULT
    done_ticket = 0

    def __init__(self) -> None:
        self.now = 50.0
        self.files = self.writer = self
        self.submitted_at: float | None = None
        self.core = RaftCore(
            node_id=A,
            confs=[(NO_INDEX, ConfState((A, B, C)))],
            config=CONFIG,
            hard_state=HardState(Term(1)),
            term_runs=[],
            base=NONE,
            last_index=NO_INDEX,
            commit=NO_INDEX,
            rng=random.Random(1),
            now=self.now,
        )
        self.replica = Replica(
            core=self.core,
            log=cast("Any", self),
            transport=cast("Any", self),
            application=cast("Any", self),
            applied_index=NO_INDEX,
            clock=lambda: self.now,
            wake=lambda: None,
        )

    def oldest_unsynced_age(self, now: float) -> float:
        return 0.0 if self.submitted_at is None else now - self.submitted_at

    def sleep(self, seconds: float) -> None:
        """Have the turns that the replica asks for; nothing comes in."""
        end = self.now + seconds
        while (due := self.replica.next_deadline()) <= end:
            self.now = max(self.now, due)
            self.turn()
        self.now = end

    def elect(self) -> None:
        """Silence lets this replica ask for votes, and B gives it one."""
        self.sleep(CONFIG.election_timeout_seconds_max)
        core = self.core
        core.receive(PreVoteResp(B, A, core.term + 1, True, NONE), self.now)
        self._finish_writes()
        core.receive(VoteResp(B, A, core.term, True), self.now)
        self._finish_writes()
        assert core.role is Role.LEADER

    def _finish_writes(self) -> None:
        while self.core.has_effects:
            storage = self.core.take_effects().storage
            if storage is not None:
                self.core.storage_done(storage.ticket, self.now)

    def turn(self) -> None:
        self.replica.begin_turn()
        self.replica.tick()
        self.core.take_effects()


def test_silence_of_a_running_process_causes_an_election() -> None:
    stage = Stage()
    stage.sleep(CONFIG.election_timeout_seconds_max)
    assert stage.core.role is Role.PRE_CANDIDATE


def test_silence_of_a_stopped_process_does_not_cause_an_election() -> None:
    stage = Stage()
    stage.sleep(CONFIG.vote_retry_seconds_min / 2)
    stage.now += 30.0
    stage.turn()
    roles = [stage.core.role]
    stage.sleep(CONFIG.election_timeout_seconds_max)
    assert [*roles, stage.core.role] == [Role.FOLLOWER, Role.PRE_CANDIDATE]


def test_replica_requests_turns_often_enough_to_notice_a_stall() -> None:
    stage = Stage()
    stage.turn()
    assert stage.replica.next_deadline() <= stage.now + 1.25 * CONFIG.heartbeat_seconds


def test_long_turn_starts_no_election_at_its_end() -> None:
    """Peers may have spoken since its input was read."""
    stage = Stage()
    stage.replica.begin_turn()
    stage.now += 30.0
    stage.replica.tick()
    assert stage.core.role is Role.FOLLOWER
    stage.turn()
    assert stage.core.role is Role.FOLLOWER


def test_leader_with_only_long_turns_sends_heartbeats() -> None:
    stage = Stage()
    stage.elect()
    heartbeats = 0
    for _ in range(5):
        stage.replica.begin_turn()
        stage.now += 2 * CONFIG.heartbeat_seconds
        stage.replica.tick()
        heartbeats += sum(type(message) is Heartbeat for message in stage.core.take_effects().send)
    assert stage.core.role is Role.LEADER
    assert heartbeats >= 2 * 4  # to both peers, the first time maybe not yet


def test_disk_does_not_hang_because_the_process_did_not_run() -> None:
    stage = Stage()
    stage.turn()
    stage.submitted_at = stage.now
    stage.now += 5.0
    stage.turn()
    assert not stage.core._disk_slow
    stage.sleep(1.2)
    assert stage.core._disk_slow


def test_stall_before_a_write_is_not_blamed_on_the_disk() -> None:
    stage = Stage()
    stage.turn()
    stage.now += 5.0
    stage.turn()
    stage.submitted_at = stage.now
    stage.sleep(1.2)
    assert stage.core._disk_slow
