"""The simulation is worth what it finds: each of these cores has one known mistake, and must be caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.cluster import simulate
from chaos.schedule import draw_scenario
from raftlog.consensus.effects import StorageOp
from raftlog.consensus.messages import AppendReq, HeartbeatResp, Message, PreVoteReq, VoteReq
from raftlog.consensus.quorum import VoteResult, agreed
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.tickets import Tickets
from raftlog.consensus.types import HardState, NodeId

SEEDS_MAX = 100


class CommitsOldTerms(RaftCore):
    """Counts copies of an older term's entry as a commit (figure 3.7 of the thesis)."""

    def _advance_commit(self) -> None:
        own = self._tickets.durable
        index = agreed([own, *[progress.match for progress in self._peers.values()]])
        if index > self._commit:
            self._commit_to(index)


class AcknowledgesBeforeDisk(RaftCore):
    """A follower calls durable what it only received."""

    @property
    def _verified_durable(self) -> int:
        return self._verified


class ForgetsItsVote(RaftCore):
    """The vote is given, and only the term is written."""

    def _issue_storage(self) -> StorageOp | None:
        op = super()._issue_storage()
        if op is None or op.hard_state is None:
            return op
        return StorageOp(op.ticket, op.truncate_from, op.spans, HardState(op.hard_state.term, None))


class VotesBeforeDisk(RaftCore):
    """Messages leave while the vote they speak of is still being written."""

    def _leaving(self) -> Sequence[Message]:
        self._tickets._hard_state_ticket = 0
        return super()._leaving()


class TruncatesWhatMatches(RaftCore):
    """Every request cuts off what lies behind it, so a late one takes entries away that were acknowledged."""

    def _take_over(self, message: AppendReq) -> int:
        end = message.spans[-1].last if message.spans else message.prev.index
        taken = super()._take_over(message)
        if max(end, self._commit) < self._log.last_index:
            self._truncate(max(end, self._commit) + 1)
            self._verified = min(self._verified, self._log.last_index)
        return taken


class SkipsTheLogCheck(RaftCore):
    """Appends without comparing the entry before."""

    def _on_append_req(self, message: AppendReq) -> None:
        prev = message.prev
        if prev.index <= self._log.last_index:
            message = AppendReq(
                message.src,
                message.dst,
                message.term,
                self._log.id_at(prev.index),
                message.spans,
                message.commit,
                message.seq,
            )
        super()._on_append_req(message)


class VotesForAnybody(RaftCore):
    """Gives its vote without comparing logs."""

    def _on_vote_req(self, message: VoteReq) -> None:
        super()._on_vote_req(VoteReq(message.src, message.dst, message.term, self._log.last, message.force))

    def _on_pre_vote_req(self, message: PreVoteReq) -> None:
        super()._on_pre_vote_req(PreVoteReq(message.src, message.dst, message.term, message.next_term, self._log.last))


class _NaiveTickets(Tickets):
    def truncate(self, last_index: int) -> None:
        self.durable = min(self.durable, last_index)


class OldWritesVouchForNewEntries(RaftCore):
    """A completed write counts for the entries that replaced what it wrote."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._tickets = _NaiveTickets(arguments["last_index"])


class NeverAsksAgain(RaftCore):
    """A lost request is never noticed."""

    def _on_heartbeat_resp(self, message: HeartbeatResp) -> None:
        self._peers[message.src].heard(message.seq)


class KeepsItsLeader(RaftCore):
    """Never starts an election after the first."""

    def _on_silence(self) -> None:
        if self._term == 0:
            super()._on_silence()
        else:
            self._wait_for_leader()


class CountsAVoteTooMany(RaftCore):
    """Counts a vote that was never given."""

    def _count_votes(self) -> VoteResult:
        self._votes[NodeId("n0")] = True
        return super()._count_votes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "core_class",
    [
        CommitsOldTerms,
        AcknowledgesBeforeDisk,
        ForgetsItsVote,
        VotesBeforeDisk,
        TruncatesWhatMatches,
        SkipsTheLogCheck,
        VotesForAnybody,
        OldWritesVouchForNewEntries,
        NeverAsksAgain,
        KeepsItsLeader,
        CountsAVoteTooMany,
    ],
)
def test_simulation_finds(core_class: type[RaftCore]) -> None:
    assert any(simulate(draw_scenario(seed), core_class).broke for seed in range(SEEDS_MAX)), (
        f"{core_class.__name__} went unnoticed in {SEEDS_MAX} seeds"
    )
