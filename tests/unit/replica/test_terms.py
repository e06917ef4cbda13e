"""Terms that no election leads to: refused from a peer, and a way out for directories that have one."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import trio
from typer.testing import CliRunner, Result

from mq.cli.app import app
from mq.cli.errors import CommandFailed
from raftlog import NodeId, RealDisk, SegmentLog
from raftlog.bootstrap import core_for
from raftlog.consensus.messages import AppendReq, Heartbeat, PreVoteReq, TimeoutNow, VoteReq
from raftlog.consensus.types import NONE, CoreConfig, Role
from raftlog.consensus.validation import PeerMessageInvalid
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from raftlog.net.frames import WireError, decode_append, encode_append, split_frames
from raftlog.segment.codec import NORMAL, frame
from raftlog.segment.errors import TermUnusable
from raftlog.segment.forced_repair import TERM_MARGIN
from raftlog.segment.meta import MetaFile
from raftlog.terms import TERM_JUMP_MAX, TERM_MAX
from tests.free_ports import free_ports
from tests.paper.group import A, B, C, Group
from tests.unit.replica.group import CLUSTER, SEGMENT_BYTES, Node, wait_leader

NAMES = ("n0", "n1", "n2")
HIGHEST = 2**64 - 1


def set_stored_term(path: Path, term: int) -> None:
    """What a heartbeat of that term did to a version that accepted any."""
    meta = MetaFile(RealDisk(), str(path / "meta"))
    assert meta.state is not None
    state = msgspec.structs.replace(meta.state, term=term, voted_for="n1")
    meta.write(state)
    meta.write(state)
    meta.close()


def start_core(path: Path, name: str) -> None:
    """What a start does first."""
    log = SegmentLog.open(str(path), cluster_id=CLUSTER, node_id=name, segment_bytes=SEGMENT_BYTES, disk=RealDisk())
    try:
        core_for(log, [], node_id=NodeId(name), config=CoreConfig(), rng=random.Random(1), now=0.0)
    finally:
        log.close()


def term_command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["log", "fix-term", *map(str, arguments)])


def refusal(result: Result) -> str:
    assert isinstance(result.exception, CommandFailed), result.output
    return str(result.exception)


@pytest.mark.parametrize("jump", [TERM_JUMP_MAX + 1, TERM_MAX + 1, 2**63 - 1])
def test_term_far_ahead_changes_nothing(jump: int) -> None:
    group = Group(3)
    group.elect(A)
    for node in (A, C):
        core = group[node]
        before = core.status()
        high = core.term + jump
        for message in (
            Heartbeat(B, node, high, 1, NO_INDEX),
            AppendReq(B, node, high, NONE, (), NO_INDEX, 1),
            VoteReq(B, node, high, NONE, True),
            PreVoteReq(B, node, high - 1, high, NONE),
            TimeoutNow(B, node, high),
        ):
            with pytest.raises(PeerMessageInvalid, match="implausible"):
                core.receive(message, group.now)
        assert core.status() == before


def test_highest_term_is_refused_as_implausible() -> None:
    group = Group(3, term=TERM_MAX - 2)
    with pytest.raises(PeerMessageInvalid, match="implausible"):
        group[C].receive(Heartbeat(B, C, TERM_MAX, 1, NO_INDEX), group.now)
    group[C].receive(Heartbeat(B, C, TERM_MAX - 1, 1, NO_INDEX), group.now)
    assert group[C].term == TERM_MAX - 1


@pytest.mark.parametrize("term", [8, TERM_MAX, TERM_MAX + 1, HIGHEST])
def test_entries_of_a_later_term_than_their_request_are_refused(term: int) -> None:
    header, _ = frame(NORMAL, LogIndex(1), Term(term), 0, b"body", 0)
    request = AppendReq(B, C, Term(7), NONE, (), NO_INDEX, 1)
    data = b"".join(encode_append(request, 0, [header, b"body"], len(header) + 4, [b""]))
    ((_, payload),), _ = split_frames(memoryview(data))
    with pytest.raises(WireError, match=f"APPEND frame of term 7 has an entry of another term, {term}"):
        decode_append(payload, B, C)


def test_far_but_possible_term_is_accepted() -> None:
    group = Group(3)
    group[C].receive(Heartbeat(B, C, Term(TERM_JUMP_MAX), 1, NO_INDEX), group.now)
    assert (group[C].term, group[C].leader_id) == (TERM_JUMP_MAX, B)


@pytest.mark.parametrize("term", [TERM_MAX - 1, TERM_MAX])
def test_replica_does_not_campaign_beyond_the_highest_term(term: int) -> None:
    group = Group(3, term=term, config=CoreConfig())
    for _ in range(20):
        group.time_out(A)
        group.deliver()
    assert [group[node].role for node in (A, B, C)] == [Role.FOLLOWER] * 3
    assert group[A].term == term


async def test_stopped_group_gets_out_of_the_highest_term(tmp_path: Path) -> None:
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    async with trio.open_nursery() as nursery:
        nodes = [Node(tmp_path, name, ports) for name in NAMES]
        for node in nodes:
            await nursery.start(node.run)
        leader = await wait_leader(nodes)
        assert isinstance(leader.append(b"before"), int)
        for node in nodes:
            await node.wait_until(lambda node: node.application.bodies == [b"before"])
        last_terms = {node.name: node.log.last_term for node in nodes}
        nursery.cancel_scope.cancel()
    for name in NAMES[:2]:
        set_stored_term(tmp_path / name, HIGHEST)  # n2 was away when it came
        with pytest.raises(TermUnusable, match="raftmq log fix-term"):
            start_core(tmp_path / name, name)

    for name in NAMES[:2]:
        shown = term_command(tmp_path / name)
        assert shown.exit_code == 0
        assert f"term {HIGHEST}, vote n1, last entry of term {last_terms[name]}" in shown.output
        assert "nothing was changed" in shown.output
        assert "every node of the group is stopped" in refusal(term_command(tmp_path / name, "--lower"))
        assert f"term {HIGHEST}" in term_command(tmp_path / name).output, "changed without --all-stopped"
        lowered = term_command(tmp_path / name, "--lower", "--all-stopped")
        assert lowered.exit_code == 0, lowered.output
        assert f"the term is {last_terms[name] + TERM_MARGIN} now" in lowered.output
    assert "no change is needed" in term_command(tmp_path / "n2").output

    async with trio.open_nursery() as nursery:
        nodes = [Node(tmp_path, name, ports) for name in NAMES]
        for node in nodes:
            await nursery.start(node.run)
        leader = await wait_leader(nodes)
        assert leader.replica.core.term > max(last_terms.values()) + TERM_MARGIN
        assert isinstance(leader.append(b"after"), int)
        for node in nodes:
            await node.wait_until(lambda node: node.application.bodies == [b"before", b"after"])
        nursery.cancel_scope.cancel()


async def test_replica_that_is_far_behind_can_be_raised(tmp_path: Path) -> None:
    """A directory whose peers were once brought to a term that is higher than plausible, though usable."""
    (port,) = free_ports(1)
    node = Node(tmp_path, "n0", {"n0": port, "n1": 1})
    node.log.close()
    node.transport.close()
    node.reactor.close()
    path = tmp_path / "n0"
    assert "; allowed: " in refusal(term_command(path, "--raise-to", TERM_MAX))
    assert term_command(path, "--raise-to", 2**50).exit_code == 0
    assert f"term {2**50}, vote for nobody" in term_command(path).output
    assert "; allowed: " in refusal(term_command(path, "--raise-to", 2**50))
    assert "contradict" in refusal(term_command(path, "--raise-to", 2**51, "--lower"))
