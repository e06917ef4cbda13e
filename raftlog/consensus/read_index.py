"""Linearizable reads without a log entry: on a leader, and on other replicas through it (Raft thesis 6.4)."""

from __future__ import annotations

from raftlog.consensus.messages import Heartbeat, ReadIndexReq, ReadIndexResp
from raftlog.consensus.progress import Progress
from raftlog.consensus.state import OWN_READ, CoreState
from raftlog.consensus.types import NodeId, Role

_LEASE_SHARE = 0.8
"""Fraction of the shortest election timeout for which a lease is valid; the rest allows for differing clock speeds."""


class ReadIndex(CoreState):
    """Determines the index to apply before answering a read."""

    # -- requests ------------------------------------------------------------------------------------------------------

    def _read(self, ctx: int) -> None:
        """Start a read of this replica."""
        if self._role is Role.LEADER:
            self._take_read(None, ctx)
        elif self._leader_id is None:
            self._answer_read(None, ctx, None)
        else:
            if self._reads.sent_to != (self._term, self._leader_id):
                self._abandon_questions()
                self._reads.sent_to = (self._term, self._leader_id)
            self._reads.forwards.new_reads.append(ctx)
            self.has_effects = True

    def _ask_leader(self) -> None:
        """Send one query for all waiting reads; abandon queries that the leader has not answered for long.

        The last query is repeated while it is not answered: a reader has less patience than an election takes, and
        a query is lost if it is sent before the connection to a leader that has just been found.
        """
        if self._reads.sent_to != (self._term, self._leader_id):
            self._abandon_questions()
            return
        for ctx in self._reads.forwards.overdue(self._now - self.config.election_timeout_seconds_max):
            self._answer_read(None, ctx, None)
        if self._reads.forwards.new_reads:
            number: int | None = self._reads.forwards.ask(self._now)
        else:
            number = self._reads.forwards.ask_again(self._now, self.config.heartbeat_seconds)
        if number is not None and self._leader_id is not None:
            self._post(ReadIndexReq(self.node_id, self._leader_id, self._term, number))

    def _abandon_questions(self) -> None:
        for ctx in self._reads.forwards.abandon():
            self._answer_read(None, ctx, None)

    def _on_read_index_resp(self, message: ReadIndexResp) -> None:
        for ctx in self._reads.forwards.confirm(message.ctx):
            self._answer_read(None, ctx, message.index)
            if ctx == OWN_READ and message.index is not None:
                self._abstain_until = message.last
                self.has_effects = True

    # -- abstaining --------------------------------------------------------------------------------------------

    def _seek_release(self) -> None:
        """Vote again once everything is durable here that a leader had in its log when it answered a read of this run.

        That includes everything that this replica acknowledged in earlier runs, and may have lost, wherever it was
        counted or will be. The commit index is not enough: this leader may have, or still get, an acknowledgement that
        it counts only when others have followed. What older leaders may count is in the new leader's log, since it
        answers only after an entry of its term is committed and a majority has confirmed that it leads.
        """
        if self._abstain_until is not None:
            if self._verified_durable >= self._abstain_until:
                self._abstaining = False
        elif self._leader_id is None or self._now < self._abstain_ask_at:
            pass
        elif not self._reads.forwards.holds(OWN_READ):
            self._abstain_ask_at = self._now + self.config.heartbeat_seconds
            self._read(OWN_READ)

    # -- leading -----------------------------------------------------------------------------------------------

    def _on_read_index_req(self, message: ReadIndexReq) -> None:
        if self._role is Role.LEADER:
            if self._holds_lease and (progress := self._peers.get(message.src)) is not None:
                # It tells the commit index, up to which the asker has to wait. Without a lease, a round of them does.
                self._send_heartbeat(progress)
            self._take_read(message.src, message.ctx)
        else:
            self._answer_read(message.src, message.ctx, None)

    def _take_read(self, asker: NodeId | None, ctx: int) -> None:
        if self._holds_lease:
            self._answer_read(asker, ctx, self._commit)
        else:
            self._reads.rounds.wait(asker, ctx, self._commit)
            self.has_effects = True

    @property
    def _holds_lease(self) -> bool:
        """Whether no other leader can have been elected yet, if clocks run about equally fast (thesis 6.4.1)."""
        if not self.config.lease_reads or self._commit < self._term_start or self._reads.lease_released:
            return False
        return self._now - self._heard_since < _LEASE_SHARE * self.config.election_timeout_seconds_min

    def _begin_round(self) -> None:
        """Start a round that confirms with a majority that this replica leads. Before its first entry is committed it
        does not know what older leaders have committed, so the reads wait.
        """
        if self._commit < self._term_start:
            return
        rounds = self._reads.rounds
        rounds.begin(self._commit)
        for progress in self._peers.values():
            if self._conf.is_voter(progress.peer):
                self._send_heartbeat(progress)
        self._confirm_reads()

    def _send_heartbeat(self, progress: Progress) -> None:
        seq = progress.stamp(self._now)
        read_round, priority = self._reads.rounds.newest, self._election.preferred_priority
        base, oldest = self._log.base.index, self._oldest_for_followers
        self._post(
            Heartbeat(self.node_id, progress.peer, self._term, seq, self._commit, read_round, priority, base, oldest)
        )

    def _confirm_reads(self) -> None:
        rounds = self._reads.rounds
        for read, index in rounds.confirm(self._majority_value(rounds.newest, lambda progress: progress.read_round)):
            self._answer_read(read.asker, read.ctx, index)
