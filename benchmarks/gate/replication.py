"""Counts the instructions of two replicas in one process, with real logs. Frames pass directly, writes end at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gate.counting import Counting
from raftlog import CommittedEntry, ConfState, CoreConfig, NodeId, RealDisk, Refusal, Replica, RoleChange, SegmentLog
from raftlog.bootstrap import core_for
from raftlog.log_numbers import NO_INDEX
from raftlog.net.frames import split_frames
from raftlog.net.transport import Lane
from raftlog.segment.writer import InlineWriter

LEADER, FOLLOWER = NodeId("n0"), NodeId("n1")
MESSAGES_PER_ENTRY = 32
MESSAGE_BYTES = 1200
SEGMENT_BYTES = 64 * 1024 * 1024
WARM_UP, ROUNDS = 5, 30
_STEP_SECONDS = 0.05


class _GateClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class _GateReplica:
    """A replica, its transport and its application."""

    def __init__(self, node_id: NodeId, directory: Path, clock: Callable[[], float]) -> None:
        self.node_id = node_id
        self.outbox: list[bytes] = []
        self._tickets: list[int] = []
        self._log = SegmentLog.open(
            str(directory),
            cluster_id="gate",
            node_id=node_id,
            segment_bytes=SEGMENT_BYTES,
            disk=RealDisk(),
            writer=InlineWriter(self._tickets.append),
        )
        core = core_for(
            self._log,
            [(NO_INDEX, ConfState((LEADER, FOLLOWER)))],
            node_id=node_id,
            config=CoreConfig(),
            rng=random.Random(node_id),
            now=clock(),
        )
        self.replica = Replica(
            core=core,
            log=self._log,
            transport=self,
            application=self,
            applied_index=NO_INDEX,
            clock=clock,
            wake=lambda: None,
        )

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool:
        self.outbox.append(b"".join(buffers))
        return True

    def send_after(self, ticket: int, peer: NodeId, frame: bytes) -> bool:
        """Return False: the writer has no thread that could send."""
        return False

    def has_left(self) -> bool:
        return False

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Do nothing with committed entries."""

    def role_changed(self, change: RoleChange) -> None:
        """Do nothing: roles are fixed."""

    def outcome_unknown(self, first_index: int) -> None:
        """Do nothing: every outcome is known."""

    def take(self, source: NodeId, frame: bytes) -> None:
        """Handle a frame of a peer."""
        ((kind, payload),), _ = split_frames(memoryview(frame))
        self.replica.receive(source, kind, payload)
        self.pump()

    def pump(self) -> None:
        """Do all pending work, until everything is on disk."""
        self.replica.pump()
        while self._tickets:
            self.replica.storage_done(self._tickets.pop(0))
            self.replica.pump()

    def close(self) -> None:
        self._log.close()


def _exchange(leader: _GateReplica, follower: _GateReplica, follower_frames: list[bytes]) -> None:
    """Pass frames until none are left; appends the frames that the follower got to ``follower_frames``."""
    while leader.outbox or follower.outbox:
        frames, leader.outbox = leader.outbox, []
        for frame in frames:
            follower_frames.append(frame)
            follower.take(LEADER, frame)
        frames, follower.outbox = follower.outbox, []
        for frame in frames:
            leader.take(FOLLOWER, frame)


def count_replication(counter: Counting, directory: Path) -> None:
    """Count the instructions of entries of 32 messages: the leader's, from append to commit, and the follower's."""
    clock = _GateClock()
    leader, follower = _GateReplica(LEADER, directory / "n0", clock), _GateReplica(FOLLOWER, directory / "n1", clock)
    frames: list[bytes] = []
    while not leader.replica.core.ready:
        clock.now += _STEP_SECONDS
        leader.replica.begin_turn()
        leader.replica.tick()
        leader.pump()
        _exchange(leader, follower, frames)
    body = random.Random(1).randbytes(MESSAGES_PER_ENTRY * MESSAGE_BYTES)
    annotation = bytes(MESSAGES_PER_ENTRY * 20)

    def replicate(rounds: int) -> None:
        for _ in range(rounds):
            index = leader.replica.append(len(body), lambda pos: (body, annotation))
            leader.pump()
            _exchange(leader, follower, frames)
            assert not isinstance(index, Refusal), index
            assert leader.replica.commit_index >= index, f"{index} is not committed"

    replicate(WARM_UP)
    warm = len(frames)
    with counter.count("replicate, leader and follower", ROUNDS * MESSAGES_PER_ENTRY):
        replicate(ROUNDS)
    again = _GateReplica(FOLLOWER, directory / "n1-again", clock)
    for frame in frames[:warm]:
        again.take(LEADER, frame)
    with counter.count("append as a follower", ROUNDS * MESSAGES_PER_ENTRY):
        for frame in frames[warm:]:
            again.take(LEADER, frame)
    assert again.replica.log.last_index == leader.replica.log.last_index, "the follower lacks entries"
    for member in (leader, follower, again):
        member.close()
