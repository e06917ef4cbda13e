"""Elections: pre-vote, vote, and the rules for granting votes (Raft thesis 3.4, 3.6.1, 4.2.3, 9.6)."""

from __future__ import annotations

from raftlog.consensus.causes import Cause, CauseKind
from raftlog.consensus.membership import Membership
from raftlog.consensus.messages import Denial, PreVoteReq, PreVoteResp, TimeoutNow, VoteReq, VoteResp
from raftlog.consensus.quorum import VoteResult, joint_vote_result
from raftlog.consensus.types import LogId, NodeId, Role
from raftlog.terms import TERM_MAX

_BACKOFF_MAX = 8

_SILENCES_OF_OTHERS = 2
"""The number of election timeouts for which a replica that leaves the group, has a full disk, or has deleted entries
that others still have, lets others campaign first.
"""


class Election(Membership):
    """The part of `RaftCore` that campaigns and votes."""

    # -- campaigning -------------------------------------------------------------------------------------------

    @property
    def _electable(self) -> bool:
        may_vote = self._conf.is_voter(self.node_id) or self._may_be_needed
        if self._abstaining or not may_vote or self._term + 1 >= TERM_MAX:
            return False
        # A leader with a full disk is better than none: it refuses proposals, but answers reads.
        reluctant = (self._disk_full or self._leaves) and self._election.timeouts_left_to_others < _SILENCES_OF_OTHERS
        return self._alone or not (self._disk_slow or reluctant)

    @property
    def _waits_for_older_log(self) -> bool:
        """Whether entries that were deleted here early were in another log when the last leader was heard: then others
        campaign first.
        """
        oldest = self._follower_state.oldest
        if not self.began_early or self._alone or oldest is None or oldest >= self._log.base.index:
            return False
        return self._election.timeouts_left_to_others < _SILENCES_OF_OTHERS

    @property
    def _may_be_needed(self) -> bool:
        """Whether the newest configuration, which removes this voter, may be in no other log: then electing any leader
        may need this node, and only this one can be elected, by the votes of the others (thesis 4.2.2).
        """
        return len(self._confs) > 1 and self._confs[-1][0] > self._commit and self._confs[-2][1].is_voter(self.node_id)

    @property
    def _backoff(self) -> int:
        """The factor of the wait before a retry; doubles in each failed round, since writing the vote may be slow."""
        return int(min(2**self._election.failed_rounds, _BACKOFF_MAX))

    def _on_election_timeout(self) -> None:
        """Begin an election, or leave it to others, after a time without a leader or without answers of a majority."""
        if not self._electable or self._waits_for_older_log:
            self._election.timeouts_left_to_others += 1
            self._wait_for_leader()
        else:
            if self._leader_id is not None:
                silent = self._now - self._follower_state.heard_at
                self._cause = Cause(CauseKind.LEADER_SILENT, self._leader_id, silent)
            else:
                self._cause = Cause(CauseKind.NO_LEADER, None, self._now - self._election.waiting_since)
            if self._role is Role.CANDIDATE:
                self._election.failed_rounds += 1
            self._pre_campaign()

    def _pre_campaign(self) -> None:
        """Start or repeat a pre-vote: would a majority elect this node? No state changes until it would."""
        self._become_pre_candidate()
        if self._count_votes() is VoteResult.WON:
            self._cause = Cause(CauseKind.PRE_VOTE_WON)
            self._campaign(force=False)
            return
        for peer in self._electors:
            self._post(PreVoteReq(self.node_id, peer, self._term, self._term + 1, self._log.last))

    def _campaign(self, *, force: bool) -> None:
        """Campaign in the next term, voting for itself."""
        assert self._electable, f"{self.node_id} must not lead, yet it campaigns in term {self._term + 1}"
        self._become_candidate()
        if self._count_votes() is VoteResult.WON:
            self._become_leader()
            return
        for peer in self._electors:
            self._post(VoteReq(self.node_id, peer, self._term, self._log.last, force))

    def _become_pre_candidate(self) -> None:
        self._change_role(Role.PRE_CANDIDATE)
        self._leader_id = None
        self._election.votes = {self.node_id: True}
        self._wait_to_retry()
        self._election.pre_vote_rounds += 1

    def _become_candidate(self) -> None:
        """Enter the next term, voting for itself.

        That counts before it is durable: vote requests wait until it is, and a single voter commits nothing before the
        following write is done. After an earlier crash, it may lead in the same term again, with other entries in place
        of the first ones, which no peer saw.
        """
        self._enter_term(self._term + 1, self.node_id)
        self._change_role(Role.CANDIDATE)
        self._leader_id = None
        self._election.votes = {self.node_id: True}
        self._wait_to_retry(self._backoff)

    @property
    def _electors(self) -> list[NodeId]:
        return [peer for peer in self._peers if self._conf.is_voter(peer)]

    def _count_votes(self) -> VoteResult:
        return joint_vote_result(self._conf.voters, self._conf.outgoing, self._election.votes)

    def _on_pre_vote_resp(self, message: PreVoteResp) -> None:
        if self._role is not Role.PRE_CANDIDATE or message.term != self._term + message.granted:
            return
        self._election.votes[message.src] = message.granted
        if self._count_votes() is VoteResult.WON:
            self._cause = Cause(CauseKind.PRE_VOTE_WON)
            self._campaign(force=False)

    def _on_vote_resp(self, message: VoteResp) -> None:
        if self._role is not Role.CANDIDATE:
            return
        self._election.votes[message.src] = message.granted
        if self._count_votes() is VoteResult.WON:
            self._become_leader()

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """Campaign at once, since the leader transfers leadership: no need to ask whether it is alive."""
        if self._electable and self._role is not Role.LEADER:
            self._cause = Cause(CauseKind.ASKED_TO_LEAD, message.src)
            self._campaign(force=True)

    # -- voting ------------------------------------------------------------------------------------------------

    def _follows_another(self, candidate: NodeId) -> bool:
        """Whether there is a leader, heard within an election timeout, that ``candidate`` would disrupt.

        A leader that requests votes itself has stopped leading.
        """
        if self._role is Role.LEADER or self._now < self._election.no_votes_before:
            return True
        if self._now - self._follower_state.heard_at >= self.config.election_timeout_seconds_min:
            return False
        # A newer term makes a voter forget its leader, but must not end that leader's lease early.
        return self._leader_id not in (None, candidate) or (self._leader_id is None and self.config.lease_reads)

    def _on_pre_vote_req(self, message: PreVoteReq) -> None:
        if not self._conf.voters:
            return
        own = self._log.last
        denial: Denial | None = None
        if self._abstaining:
            denial = Denial.ABSTAINING
        elif message.next_term <= self._term:
            denial = Denial.STALE_TERM
        elif self._follows_another(message.src):
            denial = Denial.LEADER_ALIVE
        elif not message.last.is_at_least(own):
            denial = Denial.STALE_LOG
        elif self._yields_to(message.src, message.last):
            self._change_role(Role.FOLLOWER)
            self._cause = Cause(CauseKind.OTHER_CANDIDATE, message.src)
            self._wait_to_retry()
        term = self._term if denial else message.next_term
        self._post(PreVoteResp(self.node_id, message.src, term, denial is None, own, denial))

    def _yields_to(self, candidate: NodeId, last: LogId) -> bool:
        """Whether this node's own campaign would only split the vote.

        The longer log takes precedence; between equal ones the names decide, which both sides know.
        """
        if self._role is Role.CANDIDATE:
            return last != self._log.last
        return self._role is Role.PRE_CANDIDATE and (last != self._log.last or candidate < self.node_id)

    def _on_vote_req(self, message: VoteReq) -> None:
        """Vote by the log alone, ignoring who is a voter here: the candidate may know a newer configuration."""
        if not self._conf.voters:
            # Every voter was a learner before, and got the log from then on.
            return
        denial: Denial | None = None
        if self._abstaining:
            denial = Denial.ABSTAINING
        elif self._voted_for not in (None, message.src) or self._leader_id is not None:
            denial = Denial.VOTED
        elif not message.force and self._follows_another(message.src):
            denial = Denial.LEADER_ALIVE
        elif not message.last.is_at_least(self._log.last):
            denial = Denial.STALE_LOG
        elif self._voted_for is None:
            self._voted_for = message.src
            self._hard_state_changed = True
        if denial is None:
            if self._role is not Role.FOLLOWER:
                self._cause = Cause(CauseKind.VOTED, message.src)
            self._become_follower(self._term, None)
        self._post(VoteResp(self.node_id, message.src, self._term, denial is None, denial))
