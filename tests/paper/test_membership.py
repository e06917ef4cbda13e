"""Membership: learners, joint changes, and what a crash or a lost message leaves of them (Raft thesis 4)."""

from __future__ import annotations

import pytest

from raftlog.consensus.messages import AppendReq, AppendResp, Heartbeat, PreVoteReq, VoteReq, VoteResp
from raftlog.consensus.types import NONE, ConfChange, ConfChangeKind, ConfState, CoreConfig, NodeId, Refusal, Role
from raftlog.log_numbers import LogIndex, Term
from tests.paper.group import A, B, C, D, E, Group


def add(node: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.ADD_LEARNER, node, f"{node}:1")


def promote(node: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.PROMOTE, node)


def remove(node: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.REMOVE, node)


def replace(old: NodeId, new: NodeId) -> ConfChange:
    return ConfChange(ConfChangeKind.REPLACE, new, replaced=old)


def change(group: Group, leader: NodeId, wish: ConfChange) -> int:
    """Begin a change; nothing travels before `Group.deliver`."""
    index = group[leader].propose_conf(wish, group.now)
    assert not isinstance(index, Refusal), f"{wish} was refused: {index}"
    group.pump()
    return index


def with_learner(size: int = 4, voters: int = 3, learner: NodeId = D) -> Group:
    """A group that A leads, with a learner that has the whole log."""
    group = Group(size, voters=voters).led_by(A)
    change(group, A, add(learner))
    group.deliver()
    group.pass_time(1.0)
    assert group[learner].conf.learners == (learner,)
    return group


def leader_of(group: Group, *nodes: NodeId) -> NodeId:
    """The only leader of the newest term."""
    term = max(group[node].term for node in nodes)
    leaders = [node for node in nodes if group[node].role is Role.LEADER and group[node].term == term]
    assert len(leaders) == 1, f"{leaders} lead"
    return leaders[0]


def test_added_learner_counts_after_promotion() -> None:
    """A learner gets the log and counts nowhere; it is promoted once it has caught up, and counts from then on."""
    group = Group(4, voters=3).led_by(A)
    group.isolate(D)
    change(group, A, add(D))
    group.deliver()
    assert group[A].conf.learners == (D,)
    assert group[B].conf.learners == (D,)
    assert group[A].propose_conf(promote(D), group.now) is Refusal.NOT_CAUGHT_UP
    group.heal()
    group.pass_time(1.0)
    assert group[D].commit == group[A].commit == 2

    group.isolate(A, D)
    group.replicate(A)
    assert group.terms(D) == [1, 1, 1]
    assert group[A].commit == 2, "the learner is no second voter"
    group.heal()
    group.pass_time(1.0)
    assert group[A].commit == 3

    change(group, A, promote(D))
    group.pass_time(1.0)
    assert group[A].conf == group[D].conf == ConfState((A, B, C, D), (), (), ((D, "d:1"),))
    assert group[A].commit == 5
    group.isolate(A, D)
    group.replicate(A)
    assert group[A].commit == 5, "two of four are no majority"


def test_learner_is_promoted_once_it_holds_its_own_membership() -> None:
    """However little it lacks: it would not know that it may vote, and its vote may be needed."""
    group = Group(4, voters=3).led_by(A)
    change(group, A, add(D))
    # D hears the leader and holds all before the entry that made it a member; of that its disk has nothing yet.
    member_at = group[A].last_index
    progress = group[A]._peers[D]
    group.pass_time(1.0)
    progress.match = member_at - 1
    assert group[A]._has_caught_up(progress), "one entry is little enough"
    assert group[A].propose_conf(promote(D), group.now) is Refusal.NOT_CAUGHT_UP
    progress.match = member_at
    assert not isinstance(group[A].propose_conf(promote(D), group.now), Refusal)


def test_unjoined_node_neither_campaigns_nor_votes() -> None:
    """It never campaigns, however long it hears nothing."""
    group = Group(4, voters=3)
    group.pass_time(30.0, [D])
    assert (group[D].role, group[D].term, group.mail) == (Role.FOLLOWER, 0, [])
    group.hand_over(VoteReq(A, D, Term(1), NONE))
    assert group.mail == []


def test_new_leader_refuses_changes_before_its_first_commit() -> None:
    """Before an entry of the own term is committed, older changes may be undecided: refused."""
    group = Group(4, voters=3)
    group.time_out(A)
    group.deliver(lambda message: not isinstance(message, AppendReq))
    assert group[A].role is Role.LEADER
    assert group[A].propose_conf(add(D), group.now) is Refusal.NOT_READY
    group.deliver()
    change(group, A, add(D))


def test_second_change_waits_for_commit_of_first() -> None:
    """The second waits until the first is committed, its last step included."""
    group = with_learner()
    change(group, A, promote(D))
    assert group[A].propose_conf(remove(C), group.now) is Refusal.CHANGE_PENDING
    group.deliver(lambda message: not (isinstance(message, AppendReq) and message.prev.index > 2))
    assert group[A].conf.voters == (A, B, C, D)
    assert not group[A].conf.is_joint
    assert group[A].propose_conf(remove(C), group.now) is Refusal.CHANGE_PENDING
    group.deliver()
    change(group, A, remove(C))
    group.pass_time(1.0)
    assert group[A].conf.voters == (A, B, D)


@pytest.mark.parametrize("wish", [add(B), promote(B), promote(E), remove(E), replace(A, E), replace(E, D)])
def test_contradicting_changes_are_refused(wish: ConfChange) -> None:
    """A change that makes no sense is refused before anything happens."""
    group = with_learner()
    last = group[A].last_index
    assert group[A].propose_conf(wish, group.now) is Refusal.INVALID_CHANGE
    assert group[B].propose_conf(wish, group.now) is Refusal.NOT_LEADER
    assert group[A].last_index == last


def test_uncommitted_change_is_undone_with_its_entry() -> None:
    """A change that never was committed goes with its entry: the configuration before it is in force again."""
    group = with_learner()
    before = group[A].conf
    group.isolate(A, D)
    change(group, A, promote(D))
    group.deliver()
    assert group[A].conf.is_joint
    assert group[D].conf.is_joint
    group.pass_time(10.0, [B, C])
    leader = leader_of(group, B, C)
    group.heal()
    group.pass_time(5.0)
    assert leader_of(group, A, B, C, D) == leader
    assert [group[node].conf for node in group.nodes] == [before] * 4
    assert group.terms(A) == group.terms(leader)
    assert A not in group[A]._peers
    assert set(group[A]._peers) == {B, C, D}


def test_learner_must_vote_when_promoted_unknowingly() -> None:
    """A learner whose promotion it has not heard of is needed for the majority, and votes."""
    group = with_learner(3, voters=2, learner=C)
    group.cut |= {(A, C), (C, A)}
    change(group, A, promote(C))
    group.deliver()
    assert group[B].conf == ConfState((A, B, C), (), (), ((C, "c:1"),))
    assert group[C].conf.learners == (C,)
    group.isolate(A)
    group.pass_time(5.0, [B])
    assert (group[B].role, group[C].conf) == (Role.LEADER, group[B].conf)
    assert any(isinstance(m, VoteResp) and m.src == C and m.granted for m in group.delivered)
    assert group[B].ready


def all_of(group: Group, *nodes: NodeId) -> bool:
    """Whether ``nodes`` agree on log and configuration."""
    first = group[nodes[0]]
    return all((group[n].last, group[n].commit, group[n].conf) == (first.last, first.commit, first.conf) for n in nodes)


@pytest.mark.parametrize(
    ("wish", "victim"),
    [
        (replace(C, D), A),
        (replace(C, D), B),
        (replace(A, D), A),
        (replace(A, D), B),
        (promote(D), A),
        (promote(D), B),
        (remove(B), B),
        (remove(A), A),
    ],
)
def test_joint_replace_1_of_3(wish: ConfChange, victim: NodeId) -> None:
    """Whoever crashes after whatever number of messages: the change completes or rolls back, as one."""
    outcomes = set()
    for delivered in range(30):
        group = with_learner()
        old = group[A].conf
        index = change(group, A, wish)
        for _ in range(delivered):
            if group.mail:
                group.hand_over(group.mail.pop(0))
        crash(group, victim)
        alive = [node for node in group.nodes if node != victim]
        group.pass_time(8.0, alive)
        leader = leader_of(group, *alive)
        now = group[leader].conf
        assert group[leader].ready
        assert not now.is_joint
        outcomes.add(now == old)
        if now != old:
            assert group[leader].commit > index
        revive(group, victim)
        members = [*now.voters, *now.learners]
        assert leader_of(group, *members) in now.voters
        assert all_of(group, *members)
        group.propose(leader_of(group, *members))
        group.pass_time(1.0)
        assert all_of(group, *members)
    assert False in outcomes
    assert (True in outcomes) == (victim == A), "the change is lost with the leader only"


def crash(group: Group, victim: NodeId) -> None:
    group.isolate(victim)
    group.drop(lambda message: victim in (message.src, message.dst))


def revive(group: Group, victim: NodeId) -> None:
    group.heal()
    group.drop()
    group.start(victim)
    group.pass_time(5.0)


@pytest.mark.slow
def test_joint_shrink_5_to_3() -> None:
    """Two voters leave one after the other, the leader crashes anywhere in between, and its successor goes on."""
    for delivered in range(0, 48, 4):
        group = Group(5).led_by(A)
        for wish in (remove(E), remove(D)):
            leader = leader_of(group, *group.nodes)
            change(group, leader, wish)
            for _ in range(delivered):
                if group.mail:
                    group.hand_over(group.mail.pop(0))
            crash(group, leader)
            alive = [node for node in group.nodes if node != leader]
            group.pass_time(8.0, alive)
            leader_of(group, *alive)
            revive(group, leader)
            successor = leader_of(group, *group.nodes)
            if wish.node in group[successor].conf.members:
                change(group, successor, wish)
                group.pass_time(1.0)
            assert wish.node not in group[leader_of(group, *group.nodes)].conf.members
        assert group[leader_of(group, *group.nodes)].conf == ConfState((A, B, C))
        assert all_of(group, A, B, C)
        term = group[A].term
        group.pass_time(30.0)
        assert (group[A].term, group[E].role is Role.LEADER) == (term, False)


def test_removed_leader_leads_until_new_configuration_commits(group: Group) -> None:
    """It leads until the configuration without it is committed by the others, and a successor is there at once."""
    change(group, A, remove(A))
    group.deliver(lambda message: not isinstance(message, AppendReq) or message.prev.index < 2)
    assert group[A].conf == ConfState((B, C))
    assert group[A].role is Role.LEADER
    assert group[A].propose(1, 100, group.now) is Refusal.TRANSFERRING
    assert group[A].transferring
    assert group[A].commit == 2
    group.deliver(lambda message: message.dst != A)
    assert (group[A].role, group[A].commit) == (Role.LEADER, 2)
    group.deliver()
    assert group[A].role is Role.FOLLOWER
    assert A not in group.failed_from
    successor = leader_of(group, B, C)
    assert group[successor].ready
    group.pass_time(30.0)
    assert not [m for m in group.delivered if m.src == A and isinstance(m, PreVoteReq | VoteReq) and m.term > 1]
    assert leader_of(group, *group.nodes) == successor
    assert group[successor].term == 2


def test_remove_leader_needs_a_majority_of_the_others(group: Group) -> None:
    """Without a vote in the final configuration the leader's own log does not count for it."""
    change(group, A, remove(A))
    group.deliver(lambda message: not isinstance(message, AppendReq) or message.prev.index < 2)
    group.cut |= {(C, A), (A, C)}
    group.deliver()
    assert (group[A].commit, group[A].role) == (2, Role.LEADER)


def test_leader_that_loses_its_vote_is_needed_once_more() -> None:
    """Only it has the entry without it; B's log is shorter, and under the joint configuration B needs its vote."""
    group = Group(2).led_by(A)
    change(group, A, remove(A))
    group.deliver(lambda message: not isinstance(message, AppendReq) or message.prev.index < 2)
    assert (group[A].conf, group[B].conf) == (ConfState((B,)), ConfState((B,), (A, B)))
    group.drop()
    crash(group, A)
    group.pass_time(1.0, [B])
    group.drop()
    group.heal()
    group.start(A)
    group.pass_time(20.0)
    assert leader_of(group, A, B) == B
    assert group[B].conf == ConfState((B,))
    assert group[B].commit == group[B].last_index


def test_recovered_joint_commits_first() -> None:
    """A new leader with a joint configuration in its log commits it in its term before it ends the change."""
    group = with_learner()
    index = change(group, A, promote(D))
    group.deliver(lambda message: isinstance(message, AppendReq))
    crash(group, A)
    group.time_out(B)
    group.deliver(lambda message: not (isinstance(message, AppendReq) and message.src == B))
    while group[B].role is not Role.LEADER:
        group.time_out(B)
        group.deliver(lambda message: not (isinstance(message, AppendReq) and message.src == B))
    noop = index + 1
    assert group[B].conf.is_joint
    assert (group[B].last_index, group[B].commit < index) == (noop, True)
    # Answers for the joint entry alone decide nothing.
    group.hand_over(AppendResp(C, B, group[B].term, 9, True, LogIndex(index), LogIndex(index), NONE))
    group.hand_over(AppendResp(D, B, group[B].term, 9, True, LogIndex(index), LogIndex(index), NONE))
    assert (group[B].last_index, group[B].conf.is_joint) == (noop, True)
    group.deliver()
    assert group[B].conf == ConfState((A, B, C, D), (), (), ((D, "d:1"),))
    assert group[B].commit == group[B].last_index == noop + 1


def test_committed_recovered_joint_is_ended_by_the_next_leader() -> None:
    """Also when its commit is known before the new term begins."""
    group = with_learner()
    change(group, A, promote(D))
    group.slow_disks.add(A)
    group.deliver(lambda message: not (isinstance(message, AppendReq) and message.prev.index > 2))
    joint = group[A].commit
    group.slow_disks.clear()
    for node in (B, C, D):
        group.disks[node].terms = group.disks[node].terms[:joint]
        group.disks[node].confs.pop(joint + 1, None)
    crash(group, A)
    for node in (B, C, D):
        group.start(node, joint)
        assert group[node].conf.is_joint
    group.pass_time(10.0, [B, C, D])
    assert group[leader_of(group, B, C, D)].conf == ConfState((A, B, C, D), (), (), ((D, "d:1"),))


def test_joint_election_needs_both_majorities() -> None:
    """A majority of the new voters alone elects nobody while the change is under way."""
    group = with_learner()
    change(group, A, replace(B, D))
    group.deliver(lambda message: isinstance(message, AppendReq) and message.dst != B)
    assert group[C].conf == group[D].conf == ConfState((A, D, C), (A, B, C), (), ((D, "d:1"),))
    crash(group, A)
    group.isolate(A, B)
    group.pass_time(20.0, [C, D])
    assert {group[C].role, group[D].role} <= {Role.FOLLOWER, Role.PRE_CANDIDATE}
    group.heal()
    group.isolate(A)
    group.pass_time(20.0, [B, C, D])
    assert group[leader_of(group, C, D)].conf.voters == (A, D, C)


def test_joint_commit_needs_both_majorities() -> None:
    """Nor does a majority of the new voters alone commit, not even the change itself, nor does one of the old."""
    for lost in ((B, C), (C, D)):
        group = with_learner()
        commit = group[A].commit
        group.isolate(A, *{B, C, D} - {*lost})
        change(group, A, replace(B, D))
        group.replicate(A)
        assert group[A].conf.is_joint
        assert group[A].commit == commit
        group.heal()
        group.pass_time(2.0)
        assert group[A].conf.voters == (A, D, C)


def test_removed_server_campaigns() -> None:
    """A server that does not know of its removal disturbs nobody, and never leads, not even without a leader."""
    group = Group(4).led_by(A)
    group.isolate(D)
    change(group, A, remove(D))
    group.deliver()
    group.heal()
    group.pass_time(30.0)
    assert any(message.src == D and isinstance(message, PreVoteReq) for message in group.delivered)
    assert group[D].conf.voters == (A, B, C, D)
    assert (group[A].role, group[A].term) == (Role.LEADER, 1)
    group.isolate(A)
    group.pass_time(20.0, [B, C, D])
    assert leader_of(group, B, C, D) in (B, C)
    assert D not in [message.src for message in group.delivered if isinstance(message, VoteReq)]


def test_reachable_removed_server_is_notified(group: Group) -> None:
    """It gets the entry that removes it, and that this is committed."""
    change(group, A, remove(C))
    group.deliver()
    assert group[C].conf == ConfState((A, B))
    assert group[C].commit == 3
    group.drop()
    group.pass_time(30.0)
    assert not [message for message in group.delivered if message.src == C and isinstance(message, PreVoteReq)]
    assert set(group[A]._peers) == {B}


@pytest.mark.parametrize("down", [None, D])
def test_removed_leader_may_crash_with_the_only_copy(down: NodeId | None) -> None:
    """Where the old voters are even in number, nobody can be elected without the removed leader, whose log is longer:
    it must stand for election itself, though the newest configuration leaves it out (thesis 4.2.2).
    """
    group = Group(2 if down is None else 4).led_by(A)
    others = [node for node in group.nodes if node not in (A, down)]
    if down:
        group.isolate(down)
    change(group, A, remove(A))
    group.deliver(lambda message: not isinstance(message, AppendReq) or message.prev.index < 2)
    assert not group[A].conf.is_joint
    assert group[A].commit == 2
    group.drop()
    group.start(A)
    group.pass_time(30.0, [A, *others])
    leader = leader_of(group, A, *others)
    assert leader != A
    assert A not in group[leader].conf.members
    assert group[leader].ready
    term = group[leader].term
    group.pass_time(30.0, [A, *others])
    assert group[leader].term == term


def test_last_voter_tolerates_the_leaving_leader() -> None:
    """It could elect itself at any time, but it waits while it hears the leader, whose lease may not have ended."""
    group = Group(2).led_by(A)
    change(group, A, remove(A))
    group.deliver(lambda message: not (isinstance(message, AppendResp) and message.durable >= 3))
    assert (group[B].conf, group[A].commit) == (ConfState((B,)), 2)
    group.hand_over(Heartbeat(A, B, Term(1), 99, LogIndex(2), 0, preferred=7))
    group.tick(B)
    assert (group[B].role, group[B].term) == (Role.FOLLOWER, 1)
    group.isolate(A)
    group.pass_time(4.0, [B])
    assert group[B].ready


def test_two_changes_in_one_turn() -> None:
    """One change is committed and not acted upon yet: the next must not be ended in its stead, uncommitted."""
    group = with_learner(size=5)
    wish = add(E)
    change(group, A, wish)
    group.deliver(lambda message: isinstance(message, AppendReq))
    answers = [message for message in group.drop() if isinstance(message, AppendResp)]
    for answer in answers:
        group[A].receive(answer, group.now)
    assert group[A].commit == group[A].last_index
    replacement = ConfChange(ConfChangeKind.REPLACE, D, replaced=C)
    assert group[A].propose_conf(replacement, group.now) is Refusal.CHANGE_PENDING
    group.pump()
    index = group[A].propose_conf(replacement, group.now)
    group.pump()
    assert group[A].last_index == index
    assert group[A].conf.is_joint


@pytest.mark.parametrize("leader", [A, B, C, D, E])
def test_half_connected_group_of_five_keeps_leader(leader: NodeId) -> None:
    """Two of five reach one other each; they keep asking, and whoever sees a majority leads in peace."""
    group = Group(5)
    group.elect(leader)
    links = {(A, B), (A, C), (B, C), (A, D), (B, E)}
    group.cut |= {(x, y) for x in group.nodes for y in group.nodes if (x, y) not in links and (y, x) not in links}
    group.pass_time(30.0)
    chosen = leader_of(group, *group.nodes)
    term, commit = group[chosen].term, group[chosen].commit
    assert chosen in (A, B, C)
    group.pass_time(60.0)
    assert (group[chosen].role, group[chosen].term) == (Role.LEADER, term)
    group.propose(chosen)
    group.pass_time(1.0)
    assert group[chosen].commit > commit


def test_single_voter_with_a_learner_leads_at_once_and_alone() -> None:
    """Learners do not make it wait, and its slow disk is nobody else's business."""
    group = with_learner(2, voters=1, learner=B)
    group.start(A)
    group.tick(A)
    assert group[A].ready
    group[A].disk_slow(5.0, group.now)
    assert group[A].role is Role.LEADER
    group.isolate(B)
    group.pass_time(30.0, [A])
    assert (group[A].role, group[A].commit) == (Role.LEADER, group[A].last_index)


def test_old_configurations_are_forgotten_with_the_log() -> None:
    """The one in force at the base stays known."""
    group = with_learner()
    change(group, A, promote(D))
    group.pass_time(1.0)
    core = group[A]
    assert [index for index, _ in core._confs] == [0, 2, 3, 4]
    assert [len(core.conf_at(LogIndex(index)).voters) for index in range(6)] == [3, 3, 3, 4, 4, 4]
    core.compact(LogIndex(3), group.now)
    core.check_invariants()
    assert [index for index, _ in core._confs] == [3, 4]
    assert core.conf_at(LogIndex(3)).is_joint
    core.compact(LogIndex(4), group.now)
    assert [index for index, _ in core._confs] == [4]


def test_relaxed_commit_ends_a_change_too() -> None:
    """Where receiving is enough, the steps of a change follow one another within one turn."""
    group = Group(2, voters=1, config=CoreConfig(durable_commit=False))
    group.tick(A)
    change(group, A, add(B))
    group.pass_time(1.0)
    change(group, A, promote(B))
    group.pass_time(1.0)
    assert group[B].conf == ConfState((A, B), (), (), ((B, "b:1"),))
    change(group, A, remove(B))
    group.pass_time(1.0)
    assert group[A].conf == ConfState((A,))
    assert group[A].commit == group[A].last_index
