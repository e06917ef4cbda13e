"""Leadership transfer: on request, to a preferred node, or because the own disk fails (thesis 3.10)."""

from __future__ import annotations

from typing import Final

from raftlog.consensus.messages import TimeoutNow
from raftlog.consensus.progress import Progress
from raftlog.consensus.state import CoreState
from raftlog.consensus.types import NodeId, PeerState, Refusal, Role

NEAR_ENTRIES: Final = 256
NEAR_BYTES: Final = 1024 * 1024
"""A peer that lacks at most this much of the log gets the rest within a moment."""

_OUTRANKED_BEATS = 5
_QUIET_TIMEOUTS = 10


class LeadershipTransfer(CoreState):
    """The part of `RaftCore` with which a leader hands leadership to another voter.

    A transfer stops proposals, waits until the target has the whole log, and then tells it to campaign at once. If the
    target does not lead within an election timeout, proposals continue.
    """

    # -- candidates --------------------------------------------------------------------------------------------

    def _has_caught_up(self, progress: Progress) -> bool:
        """Whether the peer follows the end of the log, as far as it was heard recently."""
        if progress.state is not PeerState.REPLICATE or not self._is_active(progress):
            return False
        gap = self._log.last_index - progress.match
        if gap <= NEAR_ENTRIES or progress.match >= self._commit:
            return True
        spans = self._tail.after(progress.match)
        reaches_match = bool(spans) and spans[0].first <= progress.match + 1
        return reaches_match and sum(span.nbytes for span in spans) <= NEAR_BYTES

    def _successors(self) -> list[Progress]:
        """The healthy voters that could lead from now on, best first; last those whose log begins later."""
        _, voters = self._quorums[0]
        able = [peer for peer in voters if peer.disk_ok and self._has_caught_up(peer)]
        return sorted(able, key=lambda p: (self._begins_later(p), -(p.priority or 0), -p.match, p.peer))

    def _begins_later(self, progress: Progress) -> bool:
        """Whether the peer deleted entries early that this replica still has. When retention deletes an expired file,
        replicas differ for a moment, too.
        """
        return progress.began_early and progress.base is not None and progress.base > self._log.base.index

    # -- a transfer --------------------------------------------------------------------------------------------

    def transfer(self, to: NodeId | None, now: float) -> Refusal | None:
        """Start to transfer leadership to the voter ``to``, or the best one. Returns the reason of a refusal, or None.

        Until it ends, proposals are refused (`transferring`). It ends when this replica stops leading, or after
        ``election_timeout_seconds_min``, when it leads as before.
        """
        self._now = now
        if self._role is not Role.LEADER:
            return Refusal.NOT_LEADER
        if to == self.node_id or (self._transfer.to is not None and to in (None, self._transfer.to)):
            return None
        if self._transfer.to is not None:
            return Refusal.TRANSFERRING
        if to is not None and to not in self._conf.voters:
            return Refusal.UNKNOWN_NODE
        able = [peer for peer in self._successors() if to in (None, peer.peer)]
        if not able:
            return Refusal.NOT_CAUGHT_UP
        if to is not None and not able[0].has_answered:
            return Refusal.NOT_CAUGHT_UP  # it has not told yet where its log begins
        if to is not None and self._begins_later(able[0]) and not self._disk_full:
            return Refusal.BEGINS_LATER
        self._transfer.to = able[0].peer
        self._transfer.until = now + self.config.election_timeout_seconds_min
        self.has_effects = True
        return None

    def _offer_leadership(self, *, patient: bool) -> None:
        """Tell the target to take over once it has everything.

        While ``patient``, wait until all proposals are committed, so that no outcome becomes unknown.
        """
        assert self._transfer.to is not None, "nobody is to take over"
        progress = self._peers[self._transfer.to]
        last = self._log.last_index
        if self._transfer.was_asked or progress.match < last or (patient and self._commit < last):
            return
        self._transfer.was_asked = True
        self._tell_to_lead(progress)

    def _tell_to_lead(self, progress: Progress) -> None:
        assert progress.peer in self._conf.voters, f"{progress.peer} has no vote and was to take over"
        # It may be elected at any later time, even by voters that still hear this leader.
        self._reads.lease_released = True
        self._post(TimeoutNow(self.node_id, progress.peer, self._term))

    def _fail_transfer(self) -> None:
        """End a transfer whose target did not take over in time."""
        self._transfer.end()
        self._transfer.older_not_before = self._now + self.config.election_timeout_seconds_max
        self._transfer.not_before = self._now + _QUIET_TIMEOUTS * self.config.election_timeout_seconds_max
        self.has_effects = True

    # -- other reasons -----------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Stop leading, after asking the best peer to take over."""
        _, voters = self._quorums[0]
        near = [peer for peer in voters if peer.state is not PeerState.SNAPSHOT]
        if healthy := [peer for peer in near if peer.disk_ok and self._is_active(peer)]:
            self._tell_to_lead(max(healthy, key=lambda p: (not self._begins_later(p), p.match, p.priority or 0)))
        self._become_follower(self._term, None)

    def _yield_to_older_log(self) -> None:
        """Transfer to a voter that still has entries which were deleted here early: it can serve them.

        Older software does not tell where its log begins. It gets the leadership if no other voter is known to have
        more: no replica could fetch the entries from it, and readers would wait for it to be upgraded.
        """
        transfer, own = self._transfer, self._log.base.index
        if own == 0 or not self.began_early or transfer.to is not None or self._commit < self._term_start:
            return
        able = self._successors()
        older = [peer for peer in able if peer.base is not None and peer.base < own]
        if not older:
            older = [peer for peer in able if peer.base is None and peer.has_answered]
        if older and self._now >= transfer.older_not_before:
            self.transfer(min(older, key=lambda peer: peer.base or 0).peer, self._now)

    def _yield_to_preferred(self) -> None:
        """Transfer to a voter of higher priority that has been fit to lead for some heartbeats."""
        if self._now < self._transfer.not_before or self._transfer.to is not None or self._commit < self._term_start:
            return
        successor = next(iter(self._successors()), None)
        if (
            successor is None
            or successor.priority is None
            or successor.priority <= self.config.priority
            or self._begins_later(successor)
        ):
            self._transfer.outranked_beats = 0
            return
        self._transfer.outranked_beats += 1
        if self._transfer.outranked_beats >= _OUTRANKED_BEATS:
            self.transfer(successor.peer, self._now)

    @property
    def _preferred_next(self) -> int | None:
        """The highest priority among possible successors."""
        _, voters = self._quorums[0]
        return max(
            (
                p.priority
                for p in voters
                if p.priority is not None and p.disk_ok and self._is_active(p) and not self._begins_later(p)
            ),
            default=None,
        )
