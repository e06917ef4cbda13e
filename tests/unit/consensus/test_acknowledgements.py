"""The acknowledgement that a follower's log writer may send: what it says, and what the core takes from that."""

from __future__ import annotations

import random

from raftlog.consensus.effects import Effects
from raftlog.consensus.messages import AppendReq, AppendResp, Message
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import NONE, ConfState, CoreConfig, HardState, LogId, NodeId, Span
from raftlog.log_numbers import NO_INDEX, LogIndex, Term

A, B, C = (NodeId(name) for name in "abc")


class Follower:
    """Replica A of three, and what the others say to it."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.core = RaftCore(
            node_id=A,
            confs=[(NO_INDEX, ConfState((A, B, C)))],
            config=config or CoreConfig(),
            hard_state=HardState(Term(1)),
            term_runs=[],
            base=NONE,
            last_index=NO_INDEX,
            commit=NO_INDEX,
            rng=random.Random(1),
            now=0.0,
        )
        self.seq = 0

    def append(self, leader: NodeId, term: int, prev: LogId, last: int) -> Effects:
        """Entries behind ``prev`` come from a leader; returns what the core wants then."""
        self.seq += 1
        first = LogIndex(prev.index + 1)
        spans = (Span(first, LogIndex(last), Term(term), 100),)
        self.core.receive(AppendReq(leader, A, Term(term), prev, spans, NO_INDEX, self.seq), 0.0)
        return self.core.take_effects()

    def finish(self, effects: Effects) -> list[Message]:
        """The write is durable; returns what the core sends then."""
        assert effects.storage is not None
        self.core.storage_done(effects.storage.ticket, 0.0)
        return list(self.core.take_effects().send) if self.core.has_effects else []


def told_term(follower: Follower) -> None:
    """Entries of the first term are here, and it is durable."""
    follower.finish(follower.append(B, 2, NONE, 1))


def test_sent_acknowledgement_is_not_repeated() -> None:
    follower = Follower()
    told_term(follower)
    effects = follower.append(B, 2, LogId(LogIndex(1), Term(2)), 3)
    message = effects.acknowledgement
    assert message == AppendResp(A, B, Term(2), 2, True, LogIndex(3), LogIndex(3), LogId(LogIndex(3), Term(2)))
    assert not effects.send, "it is not durable yet"
    follower.core.on_acknowledgement(message, 0.0)
    assert follower.finish(effects) == []


def test_core_sends_the_unsent_acknowledgement() -> None:
    follower = Follower()
    told_term(follower)
    effects = follower.append(B, 2, LogId(LogIndex(1), Term(2)), 3)
    assert follower.finish(effects) == [effects.acknowledgement]


def test_acknowledgement_waits_until_the_term_is_durable() -> None:
    effects = Follower().append(B, 2, NONE, 1)
    assert effects.storage is not None
    assert effects.storage.hard_state is not None
    assert effects.acknowledgement is None


def test_acknowledgement_of_an_older_term_reports_nothing_in_the_new_term() -> None:
    follower = Follower()
    told_term(follower)
    old = follower.append(B, 2, LogId(LogIndex(1), Term(2)), 3)
    assert old.acknowledgement is not None
    # The next leader does not have these entries, and has another one in their place.
    new = follower.append(C, 3, LogId(LogIndex(1), Term(2)), 2)
    assert new.storage is not None
    assert new.storage.truncate_from == 2
    follower.core.on_acknowledgement(old.acknowledgement, 0.0)
    follower.finish(old)
    (answer,) = follower.finish(new)
    assert isinstance(answer, AppendResp)
    assert (answer.dst, answer.term, answer.durable) == (C, 3, 2)


def test_follower_without_durable_commits_sends_the_acknowledgement_itself() -> None:
    follower = Follower(CoreConfig(durable_commit=False))
    told_term(follower)
    effects = follower.append(B, 2, LogId(LogIndex(1), Term(2)), 3)
    assert effects.acknowledgement is None
    assert [type(message) for message in effects.send] == [AppendResp]
