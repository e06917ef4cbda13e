"""A peer that has authenticated itself sends whatever it likes: no assertion fails, and state stays consistent."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence

import pytest

from chaos.disk import MemoryDisk
from raftlog import CommittedEntry, ConfState, CoreConfig, NodeId, Refusal, Replica, Role, RoleChange, SegmentLog
from raftlog.bootstrap import core_for
from raftlog.log_numbers import NO_INDEX
from raftlog.net import frames as wire
from raftlog.net.frames import WireError
from raftlog.net.transport import Lane
from raftlog.segment.codec import HEADER_BYTES, place
from raftlog.segment.errors import FrameCorrupt, LogDiverged
from tests.unit.replica.hostile import HostilePeer

NODES = tuple(NodeId(name) for name in ("n0", "n1", "n2"))
STRANGER = NodeId("n7")
SEGMENT_BYTES = 8192
FRAMES = 250


class Application:
    """Takes bodies that are ``good``, and fails for others as a state machine would."""

    def __init__(self) -> None:
        self.applied = 0

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        for entry in entries:
            assert entry.index == self.applied + 1
            self.applied = entry.index
            if entry.kind == 1:
                check_body(memoryview(entry.body), entry.pos + 48)

    def role_changed(self, change: RoleChange) -> None:
        pass

    def outcome_unknown(self, first_index: int) -> None:
        pass


def check_body(body: memoryview, position: int) -> None:
    if bytes(body[:4]) != b"good":
        raise ValueError("a body that is not good")


class Member:
    """One replica on a disk in memory; what it sends lies in ``sent``."""

    def __init__(self, name: NodeId, rng: random.Random, group: Group) -> None:
        self.name = name
        self._group = group
        self._done = 0
        self.log = SegmentLog.open(
            f"/{name}", cluster_id="c", node_id=name, segment_bytes=SEGMENT_BYTES, disk=MemoryDisk()
        )
        config = CoreConfig(append_bytes_max=2000, tail_bytes_max=8000)
        confs = [(NO_INDEX, ConfState(NODES))]
        self.application = Application()
        self.replica = Replica(
            core=core_for(self.log, confs, node_id=name, config=config, rng=rng, now=group.now),
            log=self.log,
            transport=self,
            application=self.application,
            applied_index=NO_INDEX,
            clock=lambda: group.now,
            wake=lambda: None,
            check_body=check_body,
        )

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool:
        self._group.mail.append((self.name, peer, b"".join(buffers)))
        return True

    def send_after(self, ticket: int, peer: NodeId, frame: bytes) -> bool:
        return False

    def has_left(self) -> bool:
        return False

    def receive(self, source: NodeId, frame: bytes) -> str:
        """Take a frame as the transport does; returns what became of it."""
        buffer = bytearray(frame)
        try:
            frames, consumed = wire.split_frames(memoryview(buffer))
            assert consumed == len(frame), "not one whole frame"
            for kind, payload in frames:
                self.replica.receive(source, kind, payload)
        except (WireError, FrameCorrupt) as error:
            return type(error).__name__
        finally:
            buffer[:] = bytes(len(buffer))
        return "taken"

    def pump(self) -> None:
        replica, core, log = self.replica, self.replica.core, self.log
        replica.pump()
        while log.last_ticket > self._done:
            self._done = log.last_ticket
            replica.storage_done(self._done)
            replica.pump()
        core.check_invariants()
        log.check_invariants()
        assert core.last_index == log.last_index
        assert core.last.term == log.last_term
        assert self.application.applied == replica.applied_index == min(core.commit, core.last_index)


class Group:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 10.0
        self.mail: deque[tuple[NodeId, NodeId, bytes]] = deque()
        self.members = {name: Member(name, rng, self) for name in NODES}

    def step(self) -> None:
        """Something that happens in a healthy group."""
        rng = self.rng
        member = self.members[rng.choice(NODES)]
        draw = rng.random()
        if draw < 0.3:
            for _ in range(rng.choice((1, 3, 20))):
                self.now += 0.1
                for each in self.members.values():
                    each.replica.begin_turn()
                member.replica.tick()
                member.pump()
        elif draw < 0.5:
            body = b"good" * rng.randrange(1, 100)
            assert isinstance(member.replica.append(len(body), lambda pos: (body, b"")), int | Refusal)
        elif draw < 0.55:
            member.replica.read(lambda certain: None)
        for _ in range(min(len(self.mail), rng.randrange(20))):
            source, target, frame = self.mail.popleft()
            if target in self.members:
                self.members[target].receive(source, frame)
        for each in self.members.values():
            each.pump()


def begin(seed: int) -> tuple[random.Random, Group, Member]:
    """A group that has run for a while, and the replica that is attacked."""
    rng = random.Random(seed)
    group = Group(rng)
    for _ in range(rng.randrange(80)):
        group.step()
    return rng, group, group.members[rng.choice(NODES)]


def attack(seed: int) -> Counter[str]:
    """What became of the frames. Raises whatever they trip."""
    rng, group, target = begin(seed)
    outcomes: Counter[str] = Counter()
    peers = [name for name in NODES if name != target.name]
    for _ in range(FRAMES):
        source = rng.choice((*peers, *peers, STRANGER))
        outcomes[target.receive(source, HostilePeer(rng, source, target.replica).frame())] += 1
        if rng.random() < 0.5:
            target.pump()
        if rng.random() < 0.3:
            group.step()
    target.pump()
    return outcomes


def attack_often() -> None:
    for seed in range(10):
        attack(seed)


@pytest.mark.parametrize("seed", range(40))
def test_hostile_frames_never_trip_an_assertion(seed: int) -> None:
    outcomes = attack(seed)
    assert outcomes["taken"] > 20, outcomes
    assert outcomes["WireError"] > 20, outcomes


@pytest.mark.parametrize("pos", [0, 2**63 - 1, 2**63, 2**64 - 48, 2**64 - 1])
def test_body_of_an_entry_with_a_wrong_position_is_not_checked(pos: int) -> None:
    rng, _, target = begin(1)
    checked: list[int] = []
    target.replica._received_entries._check_body = lambda body, position: checked.append(position)
    source = next(name for name in NODES if name != target.name)
    peer = HostilePeer(rng, source, target.replica)
    assert target.receive(source, peer.append_at(pos)) == "WireError"
    assert checked == []  # the check of the broker takes 63 bits
    right = place(target.log.end_pos, HEADER_BYTES + 4, SEGMENT_BYTES)
    target.receive(source, peer.append_at(right))
    assert checked == [right + HEADER_BYTES]


def test_every_role_is_attacked() -> None:
    roles = {begin(seed)[2].replica.core.role for seed in range(40)}
    assert roles == set(Role)


def test_hostile_frames_break_a_core_without_message_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.consensus.raft.check_message", lambda core, message: None)
    with pytest.raises(AssertionError, match=r"both lead in term|was verified|is committed"):
        attack_often()


def test_hostile_frames_break_a_replica_without_entry_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.net.received_entries.ReceivedEntries.check", lambda self, message: 0)
    with pytest.raises((LogDiverged, ValueError)):
        attack_often()
