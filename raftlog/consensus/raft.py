"""The consensus core: one replica's part of Raft, as a pure state machine.

Theory of operation. The inputs of a core are messages, proposals, completed writes and the time; it never acts by
itself. Inputs change its state and record what has to be done; `RaftCore.take_effects` returns that, for any number of
inputs, as one write, and as few messages per peer as possible. So a loop that feeds all available input before it takes
effects gets batching for free, and equal inputs give equal outputs, which simulation relies on.

The core counts entries by index and knows their terms and sizes, never their content. The roles are separate modules:
`state` (shared), `leader`, `follower` and `election`. The term rules, which precede any role's, are here.
"""

from __future__ import annotations

from raftlog.consensus.causes import Cause, CauseKind
from raftlog.consensus.effects import Effects
from raftlog.consensus.election import Election
from raftlog.consensus.follower import FollowerRole
from raftlog.consensus.invariants import check_core
from raftlog.consensus.messages import (
    AppendReq,
    AppendResp,
    Heartbeat,
    HeartbeatResp,
    Message,
    PreVoteReq,
    PreVoteResp,
    ReadIndexReq,
    ReadIndexResp,
    TimeoutNow,
    VoteReq,
    VoteResp,
)
from raftlog.consensus.state import PRIORITY_SECONDS
from raftlog.consensus.types import (
    NONE,
    Beginning,
    ConfState,
    CoreStatus,
    LogId,
    NodeId,
    PeerState,
    PeerStatus,
    Refusal,
    Role,
    RoleChange,
    Span,
)
from raftlog.consensus.validation import check_message
from raftlog.log_numbers import FIRST_INDEX, NO_INDEX, LogIndex, Term

_OF_STRANGERS = (AppendReq, Heartbeat, PreVoteReq, VoteReq, TimeoutNow)
"""Messages accepted from unknown nodes: the sender may know a newer configuration."""


class RaftCore(Election, FollowerRole):
    """One replica of a group.

    Args:
        node_id: this replica.
        confs: first index and configuration, ascending: the one in force at the base, then each one in the log.
        hard_state: as persisted last.
        term_runs: first index and term of each run of equal terms in the log, increasing.
        base: the entry before the first one in the log.
        last_index: the last entry in the log; everything up to it is durable.
        commit: a lower bound of the commit index, over entries that were durable when it was stored.
        rng: draws the timeouts.
        now: monotonic seconds, as in every other call; with ``lease_reads``, including time in which the machine was
            suspended.
        abstaining: entries that this replica acknowledged may be missing from its log. It follows and acknowledges,
            but neither votes nor campaigns before it has caught up; see the property of that name. While a majority
            abstains, no leader can be elected.
    """

    # -- queries -------------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """The current role."""
        return self._role

    @property
    def term(self) -> Term:
        """The current term."""
        return self._term

    @property
    def leader_id(self) -> NodeId | None:
        """The known leader of the current term."""
        return self._leader_id

    @property
    def last_index(self) -> LogIndex:
        """The last entry of the log, durable or not."""
        return self._log.last_index

    @property
    def last(self) -> LogId:
        """Index and term of the last entry."""
        return self._log.last

    @property
    def commit(self) -> LogIndex:
        """The last entry known to be committed."""
        return self._commit

    @property
    def durable(self) -> LogIndex:
        """The last entry on this replica's disk."""
        return self._tickets.durable

    @property
    def in_flight(self) -> bool:
        """Whether this replica waits for a write, or for a follower's acknowledgement of an entry."""
        last = self._log.last_index
        if self._tickets.durable < last:
            return True
        if self._role is Role.LEADER:
            for peer in self._peers.values():
                if peer.match < last and peer.state is PeerState.REPLICATE:
                    return True
        return False

    @property
    def waits_for_write(self) -> bool:
        """Whether a write in flight will have effects once it is durable, other than those of `in_flight`.

        A leader's own write matters only if it completes a majority; otherwise it may be noticed at any later time.
        """
        tickets = self._tickets
        if tickets.last_done == tickets.last_issued:
            return False
        if self._role is not Role.LEADER or tickets.hard_state_ticket > tickets.last_done or self._disk_slow:
            return True
        return self._committable(self._log.last_index) > self._commit

    def beginning(self, now: float) -> tuple[Beginning, NodeId | None]:
        """Compare the beginning of this log with the other replicas' logs; also returns a replica whose log begins
        earlier, or that knows of one.

        With `FIRST` the entries before this log are gone everywhere, as far as the group knows. Otherwise no reader may
        be told so.
        """
        self._now = now
        return self._beginning()

    @property
    def base(self) -> LogId:
        """The entry before the first one of the log."""
        return self._log.base

    @property
    def successor_with_older_log(self) -> NodeId | None:
        """Return the best voter that could lead now and has all entries of this replica; None without one."""
        own = self._log.base.index
        return next((p.peer for p in self._successors() if p.base is not None and p.base <= own), None)

    @property
    def leader_base(self) -> LogIndex | None:
        """Return the base of the followed leader's log; None if the leader has not reported it."""
        return self._follower_state.leader_base if self._follower_state.leader_told else None

    @property
    def oldest_base(self) -> LogIndex | None:
        """Return the lowest base of all logs in reach; None while it is unknown."""
        if self._role is Role.LEADER:
            return self._oldest
        return self._follower_state.oldest if self._follower_state.leader_told else None

    @property
    def leader_may_lack_entries(self) -> bool:
        """Whether the leader may have deleted early what another replica has. Older software does not report that."""
        follower = self._follower_state
        return not follower.leader_told or (follower.leader_base is not None and follower.oldest is None)

    @property
    def ready(self) -> bool:
        """Whether this replica leads and knows everything that was committed before its term."""
        return self._role is Role.LEADER and self._commit >= self._term_start

    @property
    def abstaining(self) -> bool:
        """Whether this replica abstains from elections. That ends, permanently, when its disk has everything that a
        leader had in its log when it answered a query of this run.
        """
        return self._abstaining

    @property
    def conf(self) -> ConfState:
        """The configuration in force: the newest one in the log, committed or not."""
        return self._conf

    def holds(self, entry: LogId) -> bool:
        """Whether the log has this entry. Returns False before the base, where that is unknown."""
        return self._log.holds(entry)

    def conf_at(self, index: LogIndex) -> ConfState:
        """Return the configuration that was in force at entry ``index``, which is not before the base."""
        return next(conf for first, conf in reversed(self._confs) if first <= max(index, self._confs[0][0]))

    def status(self) -> CoreStatus:
        """The status of this replica for people."""
        peers: tuple[PeerStatus, ...] = ()
        if self._role is Role.LEADER:
            peers = tuple(
                PeerStatus(
                    p.peer,
                    p.match,
                    p.next,
                    p.state,
                    self._is_active(p),
                    p.disk_ok,
                    p.applied,
                    p.priority or 0,
                    p.contact_at,
                    p.base,
                )
                for p in self._peers.values()
            )
        return CoreStatus(
            node_id=self.node_id,
            role=self._role,
            term=self._term,
            leader_id=self._leader_id,
            base=self._log.base,
            last=self._log.last,
            commit=self._commit,
            durable=self._tickets.durable,
            uncommitted_bytes=self._leader_state.uncommitted_bytes,
            peers=peers,
            conf=self._conf,
            abstaining=self._abstaining,
        )

    def check_invariants(self) -> None:
        """Assert what must hold between any two calls."""
        check_core(self)

    # -- inputs ------------------------------------------------------------------------------------------------

    def receive(self, message: Message, now: float) -> None:
        """Process a peer's message. Late, duplicate and reordered messages are harmless.

        Raises:
            PeerMessageInvalid: no correct replica sends it; nothing has changed.
        """
        self._now = now
        check_message(self, message)
        if message.src not in self._peers and not isinstance(message, _OF_STRANGERS):
            return
        if message.term != self._term and not self._take_term(message):
            return
        # The most frequent types first.
        match message:
            case AppendReq():
                self._on_append_req(message)
            case AppendResp():
                self._on_append_resp(message)
            case Heartbeat():
                self._on_heartbeat(message)
            case HeartbeatResp():
                self._on_heartbeat_resp(message)
            case PreVoteReq():
                self._on_pre_vote_req(message)
            case PreVoteResp():
                self._on_pre_vote_resp(message)
            case VoteReq():
                self._on_vote_req(message)
            case VoteResp():
                self._on_vote_resp(message)
            case TimeoutNow():
                self._on_timeout_now(message)
            case ReadIndexReq():
                self._on_read_index_req(message)
            case ReadIndexResp():
                self._on_read_index_resp(message)

    def propose(self, count: int, nbytes: int, now: float) -> LogIndex | Refusal:
        """Append ``count`` entries of ``nbytes`` bytes in total; returns the index of the first, or the reason of a
        refusal.

        Once accepted they may become committed whatever happens next; `Effects.commit` and `Effects.failed_from` report
        the outcome.
        """
        assert count > 0, f"{count} entries were proposed"
        self._now = now
        if self._role is not Role.LEADER:
            return Refusal.NOT_LEADER
        if self._transfer.to is not None or self._leaves:
            return Refusal.TRANSFERRING
        if self._leader_state.uncommitted_bytes + nbytes > self.config.uncommitted_bytes_max:
            return Refusal.TOO_LARGE if nbytes > self.config.uncommitted_bytes_max else Refusal.BUSY
        if self._disk_full:
            return Refusal.DISK_FULL
        if self._output.shell_last != self._log.last_index:
            return Refusal.NOT_READY
        first = self._log.last_index + 1
        self._append_own(Span(first, first + count - 1, self._term, nbytes))
        self._output.shell_last = self._log.last_index
        return first

    def read(self, ctx: int, now: float) -> None:
        """Request the index to apply before answering a read that arrives now; `Effects.reads` returns it.

        ``ctx`` is the caller's number for it. It is answered at most once, and not at all if a message is lost: the
        caller needs a timeout.
        """
        self._now = now
        self._read(ctx)

    def storage_done(self, ticket: int, now: float) -> None:
        """Record that everything up to ``ticket`` is durable. Repeated tickets change nothing."""
        self._now = now
        self._disk_slow = False
        has_advanced = self._tickets.complete(ticket)
        if self._output.held_messages and self._release_held() and self._role is Role.CANDIDATE:
            # The vote requests leave only now, so the round begins now.
            self._wait_to_retry(self._backoff)
        if not has_advanced:
            return
        if self._role is Role.LEADER:
            self._advance_commit()
        elif self._verified_durable > self._follower_state.reported_durable:
            self._follower_state.answer_due = True
            self.has_effects = True

    def on_acknowledgement(self, message: AppendResp, now: float) -> None:
        """Record that `Effects.acknowledgement` was sent after its write; `storage_done` need not report that."""
        self._now = now
        if message.term == self._term and message.dst == self._leader_id:
            self._record_report(message)

    def tick(self, now: float) -> None:
        """Act on a timeout that has expired."""
        self._now = now
        if now < self.next_deadline():
            return
        if self._role is not Role.LEADER:
            self._on_election_timeout()
            return
        if now >= self._leader_state.announce_at:
            self._announce_to_all()
        if now >= self._transfer.until:
            self._fail_transfer()
        if now >= self._leader_state.heartbeat_at:
            self._beat()

    def record_stall(self, seconds: float, now: float) -> None:
        """Record that this process did not run, and read no messages, for ``seconds`` until ``now``.

        No peer counts as silent because of that time: their messages wait to be read, and they get another round of
        heartbeats to answer. Call it before the next `tick`. Leases are not extended; a voter may deny its vote for
        longer than necessary.
        """
        assert seconds > 0, f"a stall of {seconds} s"
        self._now = now
        self._election.waiting_since = min(self._election.waiting_since + seconds, now)
        self._follower_state.heard_at = min(self._follower_state.heard_at + seconds, now)
        for progress in self._peers.values():
            progress.record_stall(seconds, now)

    def next_deadline(self) -> float:
        """Return the latest time at which `tick` must be called."""
        if self._role is Role.LEADER:
            return min(self._leader_state.heartbeat_at, self._leader_state.announce_at, self._transfer.until)
        return self._election.waiting_since + self._election.timeout

    def peer_lost(self, peer: NodeId, now: float) -> None:
        """Called when the process of ``peer`` has apparently ended. If it led, do not wait for its silence, unless it
        may have a lease: if the news is wrong, it still answers reads from that.
        """
        self._now = now
        if self._role is Role.LEADER:
            if (progress := self._peers.get(peer)) is not None:
                self._probe(progress, progress.match + 1, waits=True)
                if peer == self._transfer.to:
                    self._fail_transfer()
        elif peer == self._leader_id and not self.config.lease_reads:
            self._cause = Cause(CauseKind.LEADER_ENDED, peer)
            self._become_follower(self._term, None)
            self._follower_state.heard_at = float("-inf")
            if self._is_outranked:
                # A preferred node has probably noticed, too.
                self._election.timeout = PRIORITY_SECONDS
            elif self._electable and not self._waits_for_older_log:
                self._pre_campaign()

    def persist(self, now: float) -> None:
        """Request an `Effects.storage`, even an empty one: the caller writes its own data with it."""
        self._now = now
        self._persist_due = self.has_effects = True

    def disk_slow(self, age_seconds: float, now: float) -> None:
        """Neither lead nor campaign until `storage_done`, because the oldest write is ``age_seconds`` old."""
        assert age_seconds > 0, f"a write {age_seconds} s old is not slow"
        self._now = now
        if self._alone:
            return
        self._disk_slow = True
        cause = Cause(CauseKind.DISK_SLOW, None, age_seconds)
        if self._role is Role.LEADER:
            self._cause = cause
            self._hand_over()
        elif self._role is not Role.FOLLOWER:
            self._cause = cause
            self._become_follower(self._term, None)

    def disk_full(self, full: bool, now: float) -> None:
        """Set whether the disk is almost full. With a full disk a replica leads only if no other one can.

        A leader transfers to a voter with room. Without one it continues to lead, answers reads, and refuses proposals.
        """
        self._now = now
        if full == self._disk_full:
            return
        self._disk_full = full
        self._election.timeouts_left_to_others = 0
        if self._role is Role.LEADER:
            if full:
                self.transfer(None, now)
        elif full and not self._alone and self._role is not Role.FOLLOWER:
            self._cause = Cause(CauseKind.DISK_FULL)
            self._become_follower(self._term, None)

    def on_fetch(self, peer: NodeId, spans: tuple[Span, ...], now: float) -> None:
        """Take the spans that `Effects.fetch` requested, from exactly that entry on; empty if they were deleted."""
        self._now = now
        if self._role is Role.LEADER and (progress := self._peers.get(peer)) is not None:
            self._take_fetched(progress, tuple(spans))

    def decline_install(self, peer: NodeId, now: float) -> None:
        """Send all entries to a peer for which `Effects.install` has nothing to fetch."""
        self._now = now
        progress = self._peers.get(peer)
        if self._role is Role.LEADER and progress is not None and self._log.base.index == 0:
            progress.by_entries = True
            self._probe(progress, FIRST_INDEX, waits=False)
            self.has_effects = True

    def compact(self, index: LogIndex, now: float) -> None:
        """Remove the committed entries up to ``index`` from the core, after the log has deleted them."""
        self._now = now
        assert index <= self._commit, f"entries up to {index} were deleted, {self._commit} is committed"
        self._log.compact(index)
        self._tail.compact(index)
        while len(self._confs) > 1 and self._confs[1][0] <= index:
            del self._confs[0]
        if self._role is Role.LEADER:
            for progress in self._peers.values():
                if progress.next <= index:
                    self._restart_at_base(progress)

    def retain_from(self) -> LogIndex:
        """Return the lowest index that a peer still needs, as far as a leader knows. Ignores silent peers.

        Deleting entries before it sends no peer back to fetch whole segments. Only a leader knows its peers; other
        replicas return the index after the end of the log.
        """
        indexes = [self._log.last_index + 1]
        if self._role is Role.LEADER:
            for progress in self._peers.values():
                if self._is_active(progress):
                    fetches_segments = progress.state is PeerState.SNAPSHOT
                    indexes.append(self._log.base.index + 1 if fetches_segments else progress.match + 1)
        return min(indexes)

    def take_effects(self) -> Effects:
        """Remove and return all effects since the last call; the caller carries them out in the order of `Effects`."""
        effects = Effects()
        if self._conf_committed:
            self._follow_conf()
        if self._transfer.to is not None:
            self._offer_leadership(patient=True)
        if self._role is Role.LEADER:
            self._replicate()
            if self._reads.rounds.new_reads:
                self._begin_round()
        elif self._follower_state.answer_due:
            self._answer_appends()
        if self._abstaining:
            self._seek_release()
        if self._reads.forwards.new_reads or self._reads.forwards.questions:
            self._ask_leader()
        output = self._output
        effects.storage = self._issue_storage()
        if effects.storage is not None and self._role is Role.FOLLOWER and self.config.durable_commit:
            effects.acknowledgement = self._acknowledgement_of(effects.storage)
        if output.outbox or output.released_messages:
            effects.send = self._take_messages()
        if output.offers:
            effects.install = output.offers
            output.offers = []
        if output.fetches:
            effects.fetch = output.fetches
            output.fetches = []
        if self._commit != output.reported_commit:
            effects.commit = output.reported_commit = self._commit
        last_role = output.reported_role
        if last_role.role is not self._role or last_role.term != self._term or last_role.leader_id != self._leader_id:
            effects.role = output.reported_role = RoleChange(self._role, self._term, self._leader_id, self._cause)
        if self._conf is not output.reported_conf:
            effects.conf = output.reported_conf = self._conf
        effects.failed_from, output.failed_from = output.failed_from, None
        if self._reads.results:
            effects.reads = self._reads.results
            self._reads.results = []
        self.has_effects = False
        return effects

    # -- terms -------------------------------------------------------------------------------------------------

    def _take_term(self, message: Message) -> bool:
        """Process the term of a message; returns whether it is then handled as one of the current term."""
        if message.term < self._term:
            return self._answer_old_term(message)
        leader_id = None
        match message:
            case PreVoteReq() | PreVoteResp(granted=True):
                return True
            case VoteReq(force=False) if self._follows_another(message.src):
                return False
            case PreVoteResp() if self._role is not Role.PRE_CANDIDATE:
                return False
            case AppendReq() | Heartbeat() | TimeoutNow():
                leader_id = message.src
            case _:
                pass
        if self._role is Role.LEADER and message.src == self._transfer.to:
            kind = CauseKind.HANDED_OVER
        else:
            kind = CauseKind.NEWER_TERM if leader_id is None else CauseKind.LEADER_FOUND
        self._cause = Cause(kind, message.src)
        self._become_follower(message.term, leader_id)
        if isinstance(message, PreVoteResp):
            # Only the term was the obstacle, so retry soon.
            self._wait_to_retry()
        return True

    def _answer_old_term(self, message: Message) -> bool:
        """Tell a leader, candidate or reader of an older term that it is outdated; drop everything else.

        Number 0 says that nothing else is reported. A former leader may lead in the current term again, after a
        restart, and have restarted its numbers of messages and rounds: with such a number this would look like an
        answer to new ones.
        """
        if isinstance(message, AppendReq):
            self._post(AppendResp(self.node_id, message.src, self._term, 0, False, NO_INDEX, NO_INDEX, NONE))
        elif isinstance(message, Heartbeat):
            self._post(HeartbeatResp(self.node_id, message.src, self._term, 0, 0, NO_INDEX))
        elif isinstance(message, ReadIndexReq):
            self._answer_read(message.src, message.ctx, None)
        return isinstance(message, PreVoteReq)
