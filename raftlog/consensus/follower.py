"""The follower: accepts the leader's log (Raft thesis 3.5, 3.6)."""

from __future__ import annotations

from raftlog.consensus.causes import Cause, CauseKind
from raftlog.consensus.messages import AppendReq, AppendResp, Heartbeat, HeartbeatResp
from raftlog.consensus.state import CoreState
from raftlog.consensus.types import NodeId, Role, Span
from raftlog.log_numbers import LogIndex, Term


class FollowerRole(CoreState):
    """The part of `RaftCore` that handles a leader's messages."""

    def _follow(self, leader_id: NodeId) -> None:
        """Follow this term's leader, from which a message arrived."""
        if self._role is not Role.FOLLOWER or self._leader_id != leader_id:
            assert self._role is not Role.LEADER, f"{leader_id} and {self.node_id} both lead in term {self._term}"
            assert self._leader_id in (None, leader_id), (
                f"{leader_id} and {self._leader_id} both lead in term {self._term}"
            )
            self._cause = Cause(CauseKind.LEADER_FOUND, leader_id)
            self._become_follower(self._term, leader_id)
        self._election.failed_rounds = self._election.pre_vote_rounds = self._election.timeouts_left_to_others = 0
        self._follower_state.heard_at = self._election.waiting_since = self._now

    def _on_append_req(self, message: AppendReq) -> None:
        self._follow(message.src)
        prev = message.prev
        if not self._log.holds(prev):
            if prev.index > self._commit:
                if message.seq:
                    self._reject(message)
                return
            # Entries committed here are in every later leader's log, deleted or not.
            assert prev.index < self._log.base.index, (
                f"entry {prev.index} is committed, and leader {message.src} has it with term {prev.term}"
            )
        if message.seq > self._follower_state.leader_seq:
            # Not earlier: an answer to another message must not look like acceptance of what was rejected.
            self._follower_state.leader_seq = message.seq
        nbytes = self._take_over(message)
        if message.commit > self._commit and self._verified_end > self._commit:
            self._commit_to(min(message.commit, self._verified_end))
        if not nbytes:
            self._follower_state.answer_due |= message.seq > 0
            self.has_effects = True
            return
        self._follower_state.unreported_bytes += nbytes
        if not self.config.durable_commit or self._follower_state.unreported_bytes > self.config.accept_ack_bytes:
            self._follower_state.answer_due = True

    def _take_over(self, message: AppendReq) -> int:
        """Make the log agree with the request's entries; returns the size of the new ones in bytes."""
        nbytes = 0
        end = message.prev.index
        for span in message.spans:
            assert span.first == end + 1, f"a request with a span at {span.first} behind entry {end}"
            assert span.term <= message.term, f"an entry of term {span.term} came from a leader of {message.term}"
            end = span.last
            # What was once compared with this leader's log stays equal: leaders only append.
            if end > self._verified_end:
                nbytes += self._take_over_span(span)
            else:
                self._check_term_of(end, span.term)
        if end > self._verified_end:
            self._verified_end = end
        return nbytes

    def _take_over_span(self, span: Span) -> int:
        log = self._log
        whole = span
        if span.first != log.last_index + 1:
            if span.first <= self._verified_end:
                self._check_term_of(self._verified_end, span.term)
                span = span.since(self._verified_end + 1)
            first = log.first_difference(span)
            if first > span.last:
                return 0
            if first <= log.last_index:
                assert first > self._verified_end, (
                    f"entry {first} of leader {self._leader_id} differs, {self._verified_end} was verified"
                )
                self._truncate(first)
            if first > span.first:
                span = span.since(first)
        self._append(span, exact=span is whole)
        return max(span.nbytes, 1)

    def _check_term_of(self, index: LogIndex, term: Term) -> None:
        """Assert that a verified or committed entry has the same term in the leader's log."""
        log = self._log
        assert index <= log.base.index or log.term_at(index) == term, (
            f"entry {index} has term {log.term_at(index)} and was verified, leader {self._leader_id} has term {term}"
        )

    def _reject(self, message: AppendReq) -> None:
        hint = self._log.last_at_most(message.prev)
        self._post(
            AppendResp(
                self.node_id,
                message.src,
                self._term,
                message.seq,
                False,
                self._verified_end,
                self._verified_durable,
                hint,
            )
        )

    def _on_heartbeat(self, message: Heartbeat) -> None:
        self._follow(message.src)
        if message.preferred != self._election.preferred_priority:
            # The election timeout depends on it.
            self._election.preferred_priority = message.preferred
            self._wait_for_leader()
        self._follower_state.leader_told = True
        self._follower_state.leader_base, self._follower_state.oldest = message.base, message.oldest
        # Only entries compared with this leader's log can be known to be committed.
        index = min(message.commit, self._verified_end)
        if index > self._commit:
            self._commit_to(index)
        self._post(
            HeartbeatResp(
                self.node_id,
                message.src,
                self._term,
                message.seq,
                message.read_round,
                self._verified_durable,
                not (self._disk_slow or self._disk_full),
                self._commit,
                self.config.priority,
                self._log.base.index,
                self.began_early,
            )
        )
