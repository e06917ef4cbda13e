"""Everything at once, at random: what was committed stays, and no read is answered with less than was committed.

`Group` asserts both while it runs; here are the steps that try to make it fail.
"""

from __future__ import annotations

import random

import pytest

from raftlog.consensus.types import CoreConfig, NodeId, PeerState, Role
from raftlog.log_numbers import LogIndex
from tests.paper.group import ENTRY_BYTES, Group

STEPS = 4000


class Walk:
    """A group of three or five whose messages are lost, repeated and reordered, and whose nodes fail."""

    def __init__(self, seed: int, config: CoreConfig) -> None:
        self.rng = random.Random(seed)
        self.group = Group(self.rng.choice((3, 5)), config=config)
        self.group.writers_acknowledge = True
        self.relaxed = not config.durable_commit
        self.terms: dict[int, int] = {}
        self.stopped: NodeId | None = None

    def step(self) -> None:
        """Let something happen, most often the arrival of a message."""
        rng, group = self.rng, self.group
        node = rng.choice(group.nodes)
        roll = rng.random()
        if roll < 0.70 and group.mail:
            self._deliver()
        elif roll < 0.85:
            self._pass_time()
        elif roll < 0.90:
            group[node].propose(rng.randint(1, 3), ENTRY_BYTES, group.now)
        elif roll < 0.95:
            group.read(node)
        elif roll < 0.952:
            self._restart(node)
        elif roll < 0.957:
            group.slow_disks ^= {node}
        elif roll < 0.985:
            group.finish_writes(node, rng.randint(1, 3))
        elif roll < 0.987:
            group[node].transfer(None, group.now)
        elif roll < 0.989:
            group[node].disk_full(rng.random() < 0.3, group.now)
        elif roll < 0.9925:
            self._cut(node)
        else:
            self._compact_or_install(node)
        group.pump()
        self._check_committed()

    def _deliver(self) -> None:
        mail = self.group.mail
        message = mail.pop(min(int(self.rng.expovariate(0.5)), len(mail) - 1))
        fate = self.rng.random()
        if fate < 0.03:
            mail.append(message)
        if not 0.03 <= fate < 0.05:
            self.group.hand_over(message)

    def _cut(self, node: NodeId) -> None:
        """Cut a node off, preferably one that leads; half of them do not notice how time goes by either."""
        if self.group.cut:
            self.group.heal()
            self.stopped = None
            return
        leaders = [peer for peer in self.group.nodes if self.group[peer].role is Role.LEADER]
        node = self.rng.choice([node, *leaders])
        self.group.isolate(node)
        self.stopped = self.rng.choice((None, node))

    def _pass_time(self) -> None:
        group = self.group
        group.now += self.rng.choice((0.001, 0.01, 0.05, 0.1))
        for node in group.nodes:
            if node != self.stopped and self.rng.random() < 0.9:
                group[node].tick(group.now)

    def _restart(self, node: NodeId) -> None:
        """A crash; in relaxed mode a power cut, which takes acknowledged entries along."""
        group = self.group
        if self.relaxed:
            # No message outlives the connections of the process that sent it or was to get it.
            group.drop(lambda message: node in (message.src, message.dst))
        group.start(node, abstaining=self.relaxed)

    def _compact_or_install(self, node: NodeId) -> None:
        group = self.group
        core, disk = group[node], group.disks[node]
        if group.offers:
            _, leader, peer = group.offers.pop()
            source = group[leader]
            if source.role is not Role.LEADER or leader == peer or source.commit <= group[peer].commit:
                return
            # Whoever installs has its earlier acknowledgements in the new log too, since that is the leader's.
            if group.disks[leader].last_index >= source.commit > group.disks[leader].base.index:
                group.drop(lambda message: peer in (message.src, message.dst))
                group.install(peer, leader, source.commit)
        elif min(core.commit, core.durable, disk.last_index) > disk.base.index + 5:
            group.compact(node, min(core.commit, core.durable, disk.last_index) - 2)

    def _check_committed(self) -> None:
        for node in self.group.nodes:
            log, commit = self.group[node]._log, self.group[node].commit
            for index in range(max(log.base.index, commit - 3, 1), commit + 1):
                term = log.term_at(LogIndex(index))
                assert self.terms.setdefault(index, term) == term, f"entry {index} was committed twice"

    def settle(self) -> None:
        """With all faults over a leader is there soon, everybody has its log, and reads are answered."""
        group = self.group
        group.slow_disks.clear()
        group.heal()
        self.stopped = None
        for node in group.nodes:
            group.finish_writes(node)
            group[node].disk_full(False, group.now)
        group.pump()
        group.pass_time(20.0)
        leaders = [node for node in group.nodes if group[node].ready]
        assert len(leaders) == 1
        for peer in group[leaders[0]].status().peers:
            if peer.state is PeerState.SNAPSHOT:
                group.install(peer.peer, leaders[0], group[leaders[0]].commit)
        group.pass_time(5.0)
        ends = {group[node].last for node in group.nodes}
        assert len(ends) == 1
        open_reads = [group.read(node) for node in group.nodes]
        group.deliver()
        assert all(group.answers[ctx] == group[leaders[0]].commit for ctx in open_reads)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["plain", "leases", "segments"])
def test_random_walk_keeps_all_invariants(kind: str, seed: int) -> None:
    config = CoreConfig(
        lease_reads=kind == "leases",
        install_entries_min=8 if kind == "segments" else 4096,
        tail_spans_max=20,
        inflight_messages_max=4,
    )
    walk = Walk(seed, config)
    for _ in range(STEPS):
        walk.step()
    walk.settle()
    assert any(index is not None for index in walk.group.answers.values())


@pytest.mark.parametrize("seed", [*range(5), pytest.param(5, marks=pytest.mark.slow)])
def test_random_walk_in_relaxed_mode(seed: int) -> None:
    """Power cuts take what was acknowledged. Nothing committed is lost, though a majority may abstain for good."""
    walk = Walk(seed, CoreConfig(durable_commit=False, inflight_messages_max=4))
    for _ in range(STEPS):
        if sum(walk.group[node].abstaining for node in walk.group.nodes) * 2 < len(walk.group.nodes):
            walk.step()
        else:
            walk.group.pass_time(0.5)
