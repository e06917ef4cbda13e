"""The leader: replication, commit, heartbeats, and resigning (Raft thesis 3.5, 3.6.2, 6.2)."""

from __future__ import annotations

from collections import deque

from raftlog.consensus.causes import Cause, CauseKind
from raftlog.consensus.effects import Fetch
from raftlog.consensus.leadership_transfer import LeadershipTransfer
from raftlog.consensus.messages import AppendReq, AppendResp, HeartbeatResp
from raftlog.consensus.progress import Progress
from raftlog.consensus.quorum import majority_value
from raftlog.consensus.read_index import ReadIndex
from raftlog.consensus.types import NOOP_BYTES, EntryKind, LogId, PeerState, Role, Span
from raftlog.log_numbers import LogIndex

_OFFER_SECONDS = 2.0
"""Minimum interval of offers to a peer that needs whole segments."""

_OLDER_LOG_SECONDS = 30.0
"""Seconds for which a new leader that deleted entries early offers nothing if another log begins earlier."""

_BEATS_PER_QUESTION = 2
"""Heartbeats to a peer that fetches segments before it is asked for its progress."""


class LeaderRole(LeadershipTransfer, ReadIndex):
    """The leader's part of a core, with the begin and the end of a leadership."""

    # -- begin and end -------------------------------------------------------------------------------------------------

    def _become_leader(self) -> None:
        """Start the term with an own entry, without which nothing older could be committed (thesis 3.6.2)."""
        self._change_role(Role.LEADER)
        self._cause = Cause(CauseKind.ELECTED)
        self._leader_id = self.node_id
        self._election.failed_rounds = 0
        first = self._log.last_index + 1
        for progress in self._peers.values():
            progress.reset(first, self._now)
        # Uncommitted entries of older leaders count against the limit, too: they are in flight all the same.
        self._leader_state.uncommitted = deque(self._tail.after(self._commit))
        self._leader_state.uncommitted_bytes = sum(span.nbytes for span in self._leader_state.uncommitted)
        self._term_start = first
        self._transfer.not_before = self._now + self.config.election_timeout_seconds_max
        self._transfer.outranked_beats = 0
        self._transfer.older_not_before = self._now
        self._leader_state.since = self._now
        self._election.preferred_priority = None
        if self._conf.is_joint:
            # The entry that begins this term must be committed before the change ends, even if that is committed.
            self._conf_open = first
        self._append_own(Span(first, first, self._term, NOOP_BYTES, EntryKind.NOOP))
        self._leader_state.heartbeat_at = self._now + self.config.heartbeat_seconds if self._peers else float("inf")
        self._leader_state.announce_at = float("inf")
        self._reads.lease_released = False

    def _append_own(self, span: Span) -> None:
        self._append(span)
        self._leader_state.uncommitted.append(span)
        self._leader_state.uncommitted_bytes += span.nbytes
        if not self.config.durable_commit:
            self._advance_commit()

    # -- replication -------------------------------------------------------------------------------------------

    def _replicate(self) -> None:
        """Send every peer the entries that it lacks, within its window, and make sure that it learns the commit."""
        last_index = self._log.last_index
        must_announce = False
        for progress in self._peers.values():
            if progress.next <= last_index:
                self._send_entries(progress, last_index)
            elif progress.state is PeerState.PROBE:
                if not progress.waits:
                    self._send_append(progress, ())
            elif progress.commit_sent < self._commit and progress.state is PeerState.REPLICATE:
                if not self.config.announce_seconds:
                    self._announce(progress)
                else:
                    must_announce = True
                    if self._leader_state.announce_at == float("inf"):
                        self._leader_state.announce_at = self._now + self.config.announce_seconds
        if not must_announce:
            # All that must be told travels with entries: the time begins again with the next commit.
            self._leader_state.announce_at = float("inf")

    def _announce(self, progress: Progress) -> None:
        progress.commit_sent = self._commit
        prev = self._log.id_at(progress.next - 1)
        self._output.outbox.append(AppendReq(self.node_id, progress.peer, self._term, prev, (), self._commit, 0))
        self.has_effects = True

    def _announce_to_all(self) -> None:
        """Send the commit index to peers that got no entries since it advanced."""
        self._leader_state.announce_at = float("inf")
        for progress in self._peers.values():
            if progress.state is PeerState.REPLICATE and progress.commit_sent < self._commit:
                self._announce(progress)

    def _send_entries(self, progress: Progress, last_index: LogIndex) -> None:
        config = self.config
        while progress.next <= last_index and progress.may_send(config):
            spans = self._tail.chunk(progress.next, config.append_bytes_max)
            if not spans:
                self._fetch(progress)
                return
            self._send_append(progress, spans)

    def _send_append(self, progress: Progress, spans: tuple[Span, ...]) -> None:
        prev_index = spans[0].first - 1 if spans else progress.next - 1
        end = spans[-1].last if spans else prev_index
        commit = self._commit
        if end >= commit:
            progress.commit_sent = commit
        seq = progress.stamp(self._now)
        prev = self._log.id_at(prev_index)
        self._post(AppendReq(self.node_id, progress.peer, self._term, prev, spans, commit, seq))
        progress.on_send(seq, spans)

    def _probe(self, progress: Progress, next_index: LogIndex, *, waits: bool) -> None:
        # Entries before the base have no known term, so they cannot be probed.
        progress.become_probe(max(next_index, self._log.base.index + 1), waits=waits)

    def _reset(self, progress: Progress) -> None:
        """Have a peer fetch segments, since it needs deleted entries, or everything."""
        progress.become_snapshot(max(progress.match, self._log.base.index) + 1)
        self._offer_reset(progress)
        self.has_effects = True

    def _offer_reset(self, progress: Progress) -> None:
        is_new = self._now < self._leader_state.since + _OLDER_LOG_SECONDS
        if self.began_early and is_new and self._has_older_voter:
            # It has more to offer, and is about to lead.
            return
        if self._now - progress.offered_at >= _OFFER_SECONDS:
            progress.offered_at = self._now
            self._output.offers.append(progress.peer)
            self.has_effects = True

    @property
    def _has_older_voter(self) -> bool:
        """Whether a voter in reach may have entries that were deleted here, and follows well enough to lead soon."""
        _, voters = self._quorums[0]
        near = [peer for peer in voters if peer.state is not PeerState.SNAPSHOT and self._is_active(peer)]
        return any(peer.base is None or peer.base < self._log.base.index for peer in near)

    def _restart_at_base(self, progress: Progress) -> None:
        """Ask a peer whose next entries were deleted whether it has the entry before the remaining ones."""
        first = self._log.base.index + 1
        if progress.state is PeerState.SNAPSHOT:
            progress.next = first
        else:
            progress.become_probe(first)
            self.has_effects = True

    def _needs_reset(self, progress: Progress, hint: LogId) -> bool:
        """Whether entries cannot help a peer whose log agrees with this one at most up to ``hint``."""
        base, last_index = self._log.base, self._log.last_index
        if hint.index == 0:
            return base.index > 0 or (last_index > self.config.install_entries_min and not progress.by_entries)
        return hint.index < base.index or hint.term < base.term

    def _fetch(self, progress: Progress) -> None:
        """Request spans that are no longer cached, a few messages ahead of the peer's answers."""
        if progress.fetch_first or progress.inflight_bytes >= self.config.catch_up_bytes_max:
            return
        progress.fetch_first = progress.next
        self._output.fetches.append(Fetch(progress.peer, progress.next, self.config.append_bytes_max))
        self.has_effects = True

    def _take_fetched(self, progress: Progress, spans: tuple[Span, ...]) -> None:
        """Send the requested spans, unless the peer's position has changed in the meantime."""
        first, progress.fetch_first = progress.fetch_first, 0
        if not first or first != progress.next:
            self.has_effects = True
            return
        if not spans:
            self._reset(progress)
            return
        assert spans[0].first == first, f"spans from {spans[0].first} were fetched for {first}"
        assert spans[-1].last <= self._log.last_index, (
            f"spans up to {spans[-1].last} were fetched from a log that ends at {self._log.last_index}"
        )
        if progress.may_send(self.config):
            self._send_append(progress, spans)
            self.has_effects = True

    # -- answers -----------------------------------------------------------------------------------------------

    def _on_append_resp(self, message: AppendResp) -> None:
        if self._role is not Role.LEADER:
            return
        progress = self._peers[message.src]
        progress.on_receipt(message.seq)
        if message.ok:
            assert message.accepted <= self._log.last_index, (
                f"{message.src} holds entry {message.accepted} of a log that ends at {self._log.last_index}"
            )
            progress.free_inflight(message.accepted)
            if message.seq >= progress.trusted_from:
                self._raise_match(progress, message.durable if self.config.durable_commit else message.accepted)
            if progress.state is not PeerState.REPLICATE and progress.is_current(message.seq):
                match = max(message.accepted, progress.match)
                if message.hint.index == 0 and self._needs_reset(progress, message.hint):
                    self._reset(progress)
                elif match >= self._log.base.index:
                    progress.become_replicate(match + 1)
                # Otherwise the base has moved since the probe, and will be probed again.
                self.has_effects = True
            elif progress.next <= self._log.last_index or progress.commit_sent < self._commit:
                self.has_effects = True
        elif progress.is_current(message.seq):
            # A peer that returned with less than it had gets entries again.
            if self._needs_reset(progress, message.hint):
                progress.on_loss(message.hint.index)
                if progress.state is not PeerState.SNAPSHOT:
                    self._reset(progress)
                return
            agreed_at_most = self._log.last_at_most(message.hint)
            progress.on_loss(agreed_at_most.index)
            # The same answer twice to the same probe: the peer will make no progress until something changes.
            is_stuck = progress.state is PeerState.PROBE and progress.next == agreed_at_most.index + 1
            self._probe(progress, agreed_at_most.index + 1, waits=is_stuck)
            self.has_effects = True

    def _on_heartbeat_resp(self, message: HeartbeatResp) -> None:
        if self._role is not Role.LEADER or not message.seq:
            return
        progress = self._peers[message.src]
        progress.on_receipt(message.seq)
        progress.disk_ok = message.disk_ok
        progress.applied = message.applied
        if self._reads.rounds.under_way:
            progress.read_round = max(progress.read_round, message.read_round)
            self._confirm_reads()
        progress.priority = message.priority
        progress.has_answered, progress.base, progress.began_early = True, message.base, message.began_early
        if message.seq < progress.trusted_from or progress.state is PeerState.SNAPSHOT:
            return
        self._raise_match(progress, message.durable)
        if progress.next > self._log.last_index and message.durable == progress.next - 1 and not progress.waits:
            return
        if progress.append_seq < message.seq:
            # Nothing was sent since that heartbeat and the peer is still behind: a request or its answer was lost, or
            # its disk is slow. An empty request behind everything sent so far finds out which.
            self._send_append(progress, ())

    def _raise_match(self, progress: Progress, index: LogIndex) -> None:
        if index <= progress.match:
            return
        progress.match = index
        if progress.next <= index:
            progress.next = index + 1
        if self._transfer.to is not None:
            self.has_effects = True
        self._advance_commit()

    def _advance_commit(self) -> None:
        """Commit the entries that a majority, with this replica, has if they reach into this term (thesis 3.6.2)."""
        own = self._tickets.durable if self.config.durable_commit else self._log.last_index
        index = self._committable(own)
        if index > self._commit and index >= self._term_start:
            assert self._log.term_at(index) == self._term, (
                f"entry {index} has term {self._log.term_at(index)}, the leader's term is {self._term}"
            )
            self._commit_to(index)

    def _committable(self, own: LogIndex) -> LogIndex:
        """The last index that a majority has, if this replica has everything up to ``own``."""
        # `_majority_value`, inlined: this runs for each acknowledgement.
        votes, others = self._quorums[0]
        index = majority_value([own, *[p.match for p in others]] if votes else [p.match for p in others])
        if len(self._quorums) > 1:
            votes, others = self._quorums[1]
            index = min(index, majority_value([*[own] * votes, *[p.match for p in others]]))
        return index

    # -- time --------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Send heartbeats, or resign if no majority was heard (check-quorum)."""
        silent = self._now - self._silent_since
        if silent > self.config.election_timeout_seconds_min:
            self._cause = Cause(CauseKind.MAJORITY_SILENT, None, silent)
            self._become_follower(self._term, None)
            return
        self._leader_state.heartbeat_at = self._now + self.config.heartbeat_seconds
        if self._transfer.to is not None:
            self._transfer.was_asked = False
            self._offer_leadership(patient=False)
        if self._disk_full and self._now >= self._transfer.not_before:
            self.transfer(None, self._now)
        self._yield_to_older_log()
        self._yield_to_preferred()
        self._election.preferred_priority = self._preferred_next
        if self._reads.rounds.under_way:
            # A smaller group may need fewer answers than there were voters to ask.
            self._confirm_reads()
        for progress in self._peers.values():
            if progress.state is PeerState.REPLICATE and not self._is_active(progress):
                self._probe(progress, progress.match + 1, waits=True)
            elif progress.waits and progress.append_seq + 2 <= progress.seq:
                # Two heartbeats without an answer to the probe: probe again, without entries.
                self._send_append(progress, ())
            elif progress.state is PeerState.SNAPSHOT:
                self._offer_reset(progress)
                progress.beats += 1
                if progress.beats % _BEATS_PER_QUESTION == 0:
                    self._send_append(progress, ())
            self._send_heartbeat(progress)
