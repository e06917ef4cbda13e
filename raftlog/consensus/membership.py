"""Membership changes on the leader (Raft thesis 4).

A configuration is in force as soon as it is in the log, and until it is truncated; `CoreState` implements that on every
replica. The leader runs changes one at a time, and ends a joint one as soon as that is committed.
"""

from __future__ import annotations

from raftlog.consensus.causes import Cause, CauseKind
from raftlog.consensus.confchange import (
    CONF_PROPOSED_BYTES_MAX,
    MEMBERS_MAX,
    encode_conf,
    start_change,
    why_invalid,
    without_outgoing,
)
from raftlog.consensus.leader import LeaderRole
from raftlog.consensus.types import (
    NOOP_BYTES,
    ConfChange,
    ConfChangeKind,
    ConfState,
    EntryKind,
    PeerState,
    Refusal,
    Role,
    Span,
)
from raftlog.log_numbers import LogIndex


class Membership(LeaderRole):
    """The part of `RaftCore` with which a leader changes the members."""

    def propose_conf(self, change: ConfChange, now: float) -> LogIndex | Refusal:
        """Start ``change``; returns the index of its first entry, or the reason of a refusal.

        It is complete when the configuration in force is committed and not joint. The entries are not framed yet: like
        those that open a term, they appear only in `Effects.storage`.
        """
        self._now = now
        if (refusal := self._why_not(change)) is not None:
            return refusal
        conf = start_change(self._conf, change)
        if len(conf.members) > MEMBERS_MAX or len(encode_conf(conf)) > CONF_PROPOSED_BYTES_MAX:
            return Refusal.INVALID_CHANGE
        self._transfer.outranked_beats = 0
        return self._append_conf(conf)

    def _why_not(self, change: ConfChange) -> Refusal | None:
        if self._role is not Role.LEADER:
            return Refusal.NOT_LEADER
        if self.transferring:
            return Refusal.TRANSFERRING
        if self._commit < self._term_start:
            return Refusal.NOT_READY
        if self._conf.is_joint or self._confs[-1][0] > self._commit or self._conf_committed:
            # The pending step would be applied to the new change, which is not committed.
            return Refusal.CHANGE_PENDING
        if why_invalid(self._conf, change) is not None:
            return Refusal.INVALID_CHANGE
        becomes_voter = change.kind in (ConfChangeKind.PROMOTE, ConfChangeKind.REPLACE)
        if becomes_voter:
            learner = self._peers[change.node]
            # A node that does not know yet that it is a member does not vote, and its vote may be needed.
            if learner.match < self._confs[-1][0] or not self._has_caught_up(learner):
                return Refusal.NOT_CAUGHT_UP
        return None

    @property
    def transferring(self) -> bool:
        """Whether this leader refuses proposals because it is about to stop leading."""
        return self._role is Role.LEADER and (self._transfer.to is not None or self._leaves)

    def _append_conf(self, conf: ConfState) -> LogIndex:
        index = self._log.last_index + 1
        nbytes = NOOP_BYTES + len(encode_conf(conf))
        self._append_own(Span(index, index, self._term, nbytes, EntryKind.CONFIG, conf))
        return index

    def _follow_conf(self) -> None:
        """End a joint configuration, and drop peers that are not members, once the present one is committed."""
        while self._conf_committed:
            self._conf_committed = False
            if self._role is not Role.LEADER:
                self._adopt_conf()
            elif self._conf.is_joint:
                self._append_conf(without_outgoing(self._conf))
            else:
                for progress in self._peers.values():
                    if progress.peer not in self._conf.members and progress.state is PeerState.REPLICATE:
                        self._announce(progress)
                self._adopt_conf()
                if not self._conf.is_voter(self.node_id):
                    self._cause = Cause(CauseKind.NOT_A_VOTER)
                    self._hand_over()
