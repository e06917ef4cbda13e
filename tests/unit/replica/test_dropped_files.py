"""Replicas that drop the beginning of their logs, while the ends of those are still in dispute."""

from __future__ import annotations

import random
from collections.abc import Iterable

from chaos.disk import MemoryDisk
from raftlog import ConfChange, ConfState, CoreConfig, NodeId, Replica, SegmentLog
from raftlog.bootstrap import configurations, core_for
from raftlog.consensus.types import ConfChangeKind
from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.net import frames
from raftlog.net.transport import Lane
from tests.unit.replica.group import CLUSTER, Recorder

A, B, C, D, E, NEW = (NodeId(name) for name in ("a", "b", "c", "d", "e", "new"))
SEGMENT_BYTES = 1024
LARGE = b"two of these fill a file".ljust(400)
SMALL = b"fits in behind them"


class Member:
    """A replica on a disk in memory; what it sends waits in ``sent``."""

    def __init__(self, node: NodeId, voters: tuple[NodeId, ...], table: Table) -> None:
        self.sent: list[tuple[NodeId, bytes]] = []
        self.confs: list[tuple[int, ConfState]] = []
        self.log = SegmentLog.open(
            "/log", cluster_id=CLUSTER, node_id=node, segment_bytes=SEGMENT_BYTES, disk=MemoryDisk()
        )
        confs = configurations(self.log, ConfState(voters))
        config = CoreConfig(append_bytes_max=1)
        core = core_for(self.log, confs, node_id=node, config=config, rng=random.Random(node), now=0.0)
        self.application = Recorder()
        self.replica = Replica(
            core=core,
            log=self.log,
            transport=self,
            application=self.application,
            applied_index=NO_INDEX,
            clock=lambda: table.now,
            wake=lambda: None,
            confs=confs,
            on_conf=lambda index, conf, removed: self.confs.append((index, conf)),
        )

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool:
        self.sent.append((peer, b"".join(buffers)))
        return True

    def send_after(self, ticket: int, peer: NodeId, frame: bytes) -> bool:
        return False

    def has_left(self) -> bool:
        return False

    def pump(self) -> None:
        while self.replica.core.has_effects:
            self.replica.pump()
            self.replica.storage_done(self.log.last_ticket)

    def tick(self) -> None:
        self.replica.begin_turn()
        self.replica.tick()

    def append(self, *bodies: bytes) -> None:
        for body in bodies:
            index = self.replica.append(len(body), lambda pos, body=body: (body, b""))  # type: ignore[misc]
            assert isinstance(index, int), index
            self.pump()


class Table:
    """Five replicas; those in ``away`` hear nothing and are not heard."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away: set[NodeId] = set()
        self.members = {node: Member(node, (A, B, C, D, E), self) for node in (A, B, C, D, E)}

    def __getitem__(self, node: NodeId) -> Member:
        return self.members[node]

    def deliver(self, *, only_to: Iterable[NodeId] = (A, B, C, D, E)) -> None:
        """Until nobody has anything to say."""
        busy = True
        while busy:
            busy = False
            for node, member in self.members.items():
                member.pump()
                sent, member.sent = member.sent, []
                for peer, data in sent:
                    if self.away & {node, peer} or peer not in only_to:
                        continue
                    ((kind, payload),), _ = frames.split_frames(memoryview(data))
                    self[peer].replica.receive(node, kind, payload)
                    busy = True

    def elect(self, node: NodeId) -> Member:
        """Nobody else's time-out happens before that of ``node``."""
        self.now += 60.0
        member = self[node]
        while not member.replica.is_leader:
            member.tick()
            self.deliver()
            self.now = max(self.now, member.replica.next_deadline())
        return member


def disputed(end: Member, table: Table) -> Member:
    """What ``end`` has appended reached B only; the other three elect C. Returns B."""
    table.deliver(only_to=[B])
    table.away |= {A, B}
    return table[B]


def test_configuration_that_is_cut_off_after_older_ones_were_dropped() -> None:
    table = Table()
    leader = table.elect(A)
    first = leader.replica.core.conf
    leader.append(*[LARGE] * 5)
    table.deliver()
    assert leader.replica.commit_index == 6
    table.now += 1.0
    leader.tick()
    table.deliver()
    assert isinstance(leader.replica.change(ConfChange(ConfChangeKind.ADD_LEARNER, NEW, "new:1")), int)
    follower = disputed(leader, table)
    assert follower.replica.core.conf.learners == (NEW,)
    assert follower.replica.drop_prefix(2 * SEGMENT_BYTES)
    follower.pump()
    table.elect(C)
    table.away.clear()
    table.now += 1.0
    table[C].tick()
    table.deliver()
    assert follower.replica.core.conf == first
    assert follower.confs[-1] == (0, first)
    assert follower.log.chain == table[C].log.chain


def test_files_are_kept_while_their_next_entry_may_be_truncated() -> None:
    """The next leader has a smaller entry in its place, which fits into the file before."""
    table = Table()
    leader = table.elect(A)
    leader.append(LARGE, LARGE)
    table.deliver()
    table.now += 1.0
    leader.tick()
    table.deliver()
    leader.append(LARGE)
    follower = disputed(leader, table)
    assert follower.log.locate(LogIndex(4)).pos == SEGMENT_BYTES
    assert follower.replica.commit_index == 3
    assert not follower.replica.drop_prefix(SEGMENT_BYTES)
    table.elect(C).append(SMALL)
    table.away.clear()
    table.now += 1.0
    table[C].tick()
    table.deliver()
    assert follower.log.chain == table[C].log.chain
    assert follower.application.bodies == [LARGE, LARGE, SMALL]
    assert follower.log.locate(LogIndex(4)).pos < SEGMENT_BYTES
