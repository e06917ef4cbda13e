"""State shared by all roles of a core: its log, its hard state, and its unwritten and unsent output."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.consensus.causes import Cause
from raftlog.consensus.effects import StorageOp
from raftlog.consensus.log_terms import LogTerms
from raftlog.consensus.messages import AppendReq, AppendResp, Message, ReadIndexResp
from raftlog.consensus.pending_reads import ForwardedReads
from raftlog.consensus.progress import Progress
from raftlog.consensus.quorum import Value, majority_value
from raftlog.consensus.roles import TRANSITIONS
from raftlog.consensus.span_cache import Tail
from raftlog.consensus.state_parts import (
    ElectionState,
    FollowerState,
    LeaderState,
    OutputState,
    ReadState,
    TransferState,
)
from raftlog.consensus.types import (
    Beginning,
    ConfState,
    CoreConfig,
    EntryKind,
    HardState,
    LogId,
    NodeId,
    PeerState,
    Role,
    RoleChange,
    Span,
)
from raftlog.consensus.write_tickets import WriteTickets
from raftlog.log_numbers import NO_INDEX, LogIndex, Term

NEVER: Final = 2**63
"""An index beyond any log."""

OWN_READ: Final = -1
"""The number of a read that the core does for itself."""

PRIORITY_SECONDS: Final = 0.1
"""Seconds that a replica waits longer before its first round if another one is preferred; half of it in the second, and
so on.
"""


class CoreState:
    """State of a core and the steps shared by the roles; see `RaftCore`."""

    began_early = False
    """Whether the entries before the base were deleted earlier than retention allows, so that members in no reach are
    asked, too, before a replica says that they are deleted.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        confs: Sequence[tuple[LogIndex, ConfState]],
        config: CoreConfig,
        hard_state: HardState,
        term_runs: Sequence[tuple[LogIndex, Term]],
        base: LogId,
        last_index: LogIndex,
        commit: LogIndex,
        rng: random.Random,
        now: float,
        abstaining: bool = False,
    ) -> None:
        self.node_id = node_id
        self.config = config
        self._rng = rng
        self._now = now
        self._log = LogTerms(base, term_runs, last_index)
        self._tail = Tail(config.tail_bytes_max, config.tail_spans_max)
        self._tickets = WriteTickets(last_index)
        self._commit = max(base.index, min(commit, last_index))

        # A crash may keep entries of a term and lose the hard state written with them. No vote of that term can have
        # been sent then, since it waits for the same write: the term may be taken from the log, with the vote still
        # free.
        self._term = max(hard_state.term, self._log.last.term)
        self._voted_for = hard_state.voted_for if self._term == hard_state.term else None
        self._hard_state_changed = self._term != hard_state.term
        self._persist_due = False
        self._role = Role.FOLLOWER
        self._leader_id: NodeId | None = None
        self._verified_end = self._commit  # how far a follower's log was compared with this term's leader
        self._follower_state = FollowerState()
        # With leases a voter that restarts must act as if it had just heard a leader.
        no_votes_before = now + config.election_timeout_seconds_min if config.lease_reads else now
        self._election = ElectionState(waiting_since=now, no_votes_before=no_votes_before)
        self._disk_slow = False
        self._disk_full = False

        self._abstaining = abstaining
        # What must be durable here in this term before this node votes again:
        self._abstain_until: LogIndex | None = None
        self._abstain_ask_at = now  # when to ask (again) how much that is
        self._term_start = NO_INDEX  # first entry of a leader
        self._conf_committed = False  # a membership change was committed, and the leader has to take its next step
        self._leader_state = LeaderState(heartbeat_at=now)
        self._reads = ReadState(ForwardedReads(rng.getrandbits(62)))
        self._transfer = TransferState()
        self._cause: Cause | None = None

        # The configurations of the log, oldest first; the newest is in force, the first is the one at the base.
        self._confs = list(confs)
        self._peers: dict[NodeId, Progress] = {}
        self._quorums: list[tuple[bool, list[Progress]]] = []
        self._adopt_conf()
        self._output = OutputState(last_index, self._commit, RoleChange(self._role, self._term, None), self._conf)
        self.has_effects = self._hard_state_changed
        self._wait_after_start()

    def _wait_after_start(self) -> None:
        if self._alone:
            self._wait_for_leader()
            return
        # An existing leader would be heard at once, and a pre-vote disturbs no replica.
        self._wait_to_retry()
        self._election.timeout += self._election.no_votes_before - self._now

    # -- membership --------------------------------------------------------------------------------------------

    def _adopt_conf(self) -> None:
        """Apply the newest configuration of the log, from the moment it is there (thesis 4.1)."""
        index, conf = self._confs[-1]
        uncommitted = index > self._commit
        members = conf.members
        if uncommitted and len(self._confs) > 1:
            # A removed member still gets the entry that removes it.
            members |= self._confs[-2][1].members
        self._conf = conf
        self._conf_open = index if uncommitted else NEVER
        peers = self._peers
        self._peers = {
            peer: peers.get(peer) or Progress(peer, self._log.last_index + 1, self._now)
            for peer in sorted(members - {self.node_id})
        }
        # Per set of voters: whether this node has a vote in it, and the others.
        self._quorums = [
            (self.node_id in voters, [self._peers[voter] for voter in voters if voter != self.node_id])
            for voters in (conf.voters, conf.outgoing)
            if voters
        ]
        # A leader without a vote leads only until all know that it has none.
        self._leaves = not conf.is_voter(self.node_id)
        self._alone = conf.voters == (self.node_id,) and not conf.is_joint
        if self._role is Role.LEADER and self._peers and self._leader_state.heartbeat_at == float("inf"):
            self._leader_state.heartbeat_at = self._now
        self.has_effects = True

    def _beginning(self) -> tuple[Beginning, NodeId | None]:
        """Compare the beginning of this log with the others; also returns a replica with earlier entries.

        Entries that retention has deleted here are gone, even if another replica has not deleted them yet.
        """
        if self._log.base.index == 0 or not self.began_early:
            return Beginning.FIRST, None
        if self._role is not Role.LEADER:
            return self._beginning_of_follower(self._log.base.index)
        holder, is_open = self._older_log()
        if holder is not None:
            return Beginning.LATER, holder.peer
        return (Beginning.UNKNOWN if is_open else Beginning.FIRST), None

    def _older_log(self) -> tuple[Progress | None, bool]:
        """Find, as a leader, the reachable peer whose log begins earliest, before the own one; if there is none, also
        tell whether there may be one.
        """
        own = self._log.base.index
        is_new = self._now - self._leader_state.since <= self.config.election_timeout_seconds_min
        best: Progress | None = None
        is_open = False
        for progress in self._peers.values():
            base, is_active = progress.base, self._is_active(progress)
            if base is not None and base >= own:
                continue
            is_compared = progress.has_answered and not (progress.state is PeerState.PROBE and is_active)
            holds = base is not None and base < progress.match
            if not is_compared:
                is_open |= is_new or self.began_early
            elif not (holds and is_active):
                # It is out of reach, or runs older software, which does not tell.
                is_open |= self.began_early and (base is None or not is_active)
            elif best is None or best.base is None or (base or 0) < best.base:
                best = progress
        return best, is_open and best is None

    def _beginning_of_follower(self, own: LogIndex) -> tuple[Beginning, NodeId | None]:
        follower, leader_id = self._follower_state, self._leader_id
        if leader_id is None or not follower.leader_told or follower.leader_base is None:
            # There is no leader, or its software is older and does not tell.
            return Beginning.UNKNOWN, leader_id
        if follower.oldest is None and own <= follower.leader_base:
            return Beginning.UNKNOWN, leader_id
        lowest = follower.leader_base if follower.oldest is None else follower.oldest
        return (Beginning.FIRST, None) if own <= lowest else (Beginning.LATER, leader_id)

    @property
    def _oldest(self) -> LogIndex | None:
        """The lowest base of all logs in reach; None while a leader does not know it."""
        own = self._log.base.index
        if own == 0:
            return own
        holder, is_open = self._older_log()
        if is_open:
            return None
        return own if holder is None or holder.base is None else holder.base

    @property
    def _oldest_for_followers(self) -> LogIndex | None:
        """Works like `_oldest`; also None while another replica may have entries that were deleted here early."""
        return self._oldest if self._beginning()[0] is Beginning.FIRST else None

    def _is_active(self, progress: Progress) -> bool:
        return self._now - progress.silent_since <= self.config.election_timeout_seconds_min

    @property
    def _heard_since(self) -> float:
        """Send time of the newest messages that a majority has answered. Real time, as leases need it."""
        return self._majority_value(self._now, lambda progress: progress.contact_at)

    @property
    def _silent_since(self) -> float:
        """The time since which a leader has heard no majority; stalls of this process are not silence."""
        return self._majority_value(self._now, lambda progress: progress.silent_since)

    # -- the log -----------------------------------------------------------------------------------------------

    def _append(self, span: Span, *, exact: bool = True) -> None:
        """Add entries to the log and to the next write; not ``exact`` if ``span.nbytes`` is an estimate."""
        log = self._log
        assert span.first == log.last_index + 1, f"entry {span.first} appended to a log that ends at {log.last_index}"
        log.append(span.last, span.term)
        if exact:
            self._tail.append(span, self._commit)
        else:
            self._tail.clear()
        self._output.new_spans.append(span)
        self.has_effects = True
        if span.kind is EntryKind.CONFIG:
            assert span.conf is not None, f"entry {span.first} is a configuration, and nobody read it"
            assert span.first == span.last, f"entries {span.first} to {span.last} are one configuration"
            self._confs.append((span.first, span.conf))
            self._adopt_conf()

    def _truncate(self, first: LogIndex) -> None:
        """Cut the end of the log, in memory and on its way to the disk."""
        assert first > self._commit, f"entries from {first} were to be cut, {self._commit} is committed"
        assert self._role is not Role.LEADER, f"the leader of term {self._term} was to cut its own log at {first}"
        self._log.truncate(first)
        self._tail.truncate(first)
        self._tickets.truncate(first - 1)
        spans = self._output.new_spans
        while spans and spans[-1].last >= first:
            span = spans.pop()
            if span.first < first:
                spans.append(span.up_to(first - 1))
        if first <= self._output.shell_last:
            self._output.shell_last = first - 1
            if self._output.truncate_from is None or first < self._output.truncate_from:
                self._output.truncate_from = first
        self.has_effects = True
        if self._confs[-1][0] >= first:
            while self._confs[-1][0] >= first:
                self._confs.pop()
            self._adopt_conf()

    def _commit_to(self, index: LogIndex) -> None:
        """Note that entries up to ``index`` are committed."""
        assert self._commit < index <= self._log.last_index, (
            f"commit index {self._commit} cannot move to {index}, the log ends at {self._log.last_index}"
        )
        self._commit = index
        self.has_effects = True
        open_spans = self._leader_state.uncommitted
        while open_spans and open_spans[0].last <= index:
            self._leader_state.uncommitted_bytes -= open_spans.popleft().nbytes
        if index >= self._conf_open:
            self._conf_open = NEVER
            self._conf_committed = True

    @property
    def _verified_durable(self) -> LogIndex:
        """The entry up to which this term's leader's log is on this replica's disk."""
        return min(self._tickets.durable, self._verified_end)

    def _majority_value(self, own: Value, value: Callable[[Progress], Value]) -> Value:
        """The largest value that a majority of the voters has reached, in both sets during a change."""
        minima: list[Value] = []
        for votes, others in self._quorums:
            values: list[Value] = [value(progress) for progress in others]
            if votes:
                values.append(own)
            minima.append(majority_value(values))
        return min(minima)

    # -- roles and terms ---------------------------------------------------------------------------------------

    def _change_role(self, role: Role) -> None:
        """Change the role; no other code does."""
        assert (self._role, role) in TRANSITIONS, f"a {self._role.value} was to become a {role.value}"
        self._role = role
        self.has_effects = True

    def _become_follower(self, term: Term, leader_id: NodeId | None) -> None:
        """Follow ``leader_id``, or wait for a leader of ``term``."""
        if self._role is Role.LEADER:
            self._fail_proposals()
            self._fail_reads()
        if term > self._term:
            self._enter_term(term, None)
        assert term == self._term, f"term {term} after term {self._term}"
        self._change_role(Role.FOLLOWER)
        self._leader_id = leader_id
        self._wait_for_leader()

    def _fail_reads(self) -> None:
        for read in self._reads.rounds.abandon():
            self._answer_read(read.asker, read.ctx, None)

    def _fail_proposals(self) -> None:
        first = max(self._commit + 1, self._term_start)
        if first <= self._log.last_index and (self._output.failed_from is None or first < self._output.failed_from):
            self._output.failed_from = first
        self._leader_state.uncommitted.clear()
        self._leader_state.uncommitted_bytes = 0
        self._transfer.end()
        self._verified_end = self._commit
        # They may name entries that the next leader truncates before this step's messages are sent.
        self._output.outbox = [m for m in self._output.outbox if type(m) is not AppendReq]
        self._output.fetches.clear()
        self._output.offers.clear()

    def _enter_term(self, term: Term, voted_for: NodeId | None) -> None:
        assert term > self._term, f"term {term} does not follow term {self._term}"
        self._term = term
        self._voted_for = voted_for
        self._hard_state_changed = True
        # Only the committed part of the log is certain to agree with the leader of the new term.
        self._verified_end = self._commit
        self._follower_state.leader_seq = 0
        self._follower_state.reported_durable = NO_INDEX
        self._follower_state.unreported_bytes = 0
        self._follower_state.answer_due = False
        self._follower_state.leader_told = False
        # The next leader's log may be shorter.
        self._abstain_until = None

    def _wait_for_leader(self) -> None:
        """Wait a newly drawn election timeout from now on; a single voter need not wait for anybody, unless it may be
        the last one of a group whose leader is about to leave.

        If another node is preferred, its timeout certainly ends first.
        """
        low, high = self.config.election_timeout_seconds_min, self.config.election_timeout_seconds_max
        self._election.waiting_since = self._now
        self._election.pre_vote_rounds = 0
        if self._surely_alone and not self._abstaining:
            self._election.timeout = 0.0
        else:
            self._election.timeout = self._rng.uniform(low, high) + (high - low) * self._is_outranked

    @property
    def _surely_alone(self) -> bool:
        """Whether this is the only voter by every configuration that may be in force elsewhere."""
        for index, conf in reversed(self._confs):
            if conf.voters != (self.node_id,) or conf.is_joint:
                return False
            if index <= self._commit:
                break
        return True

    @property
    def _is_outranked(self) -> bool:
        priority = self._election.preferred_priority
        return priority is not None and self.config.priority < priority

    def _wait_to_retry(self, factor: int = 1) -> None:
        """Wait a short while before the next round of an election."""
        config, election = self.config, self._election
        election.waiting_since = self._now
        election.timeout = factor * self._rng.uniform(config.vote_retry_seconds_min, config.vote_retry_seconds_max)
        if self._is_outranked:
            election.timeout += PRIORITY_SECONDS * 0.5**election.pre_vote_rounds

    # -- output ------------------------------------------------------------------------------------------------

    def _post(self, message: Message) -> None:
        self._output.outbox.append(message)
        self.has_effects = True

    def _answer_read(self, asker: NodeId | None, ctx: int, index: LogIndex | None) -> None:
        """Answer a read: it waits until ``index`` is applied; None if it could not be confirmed."""
        if asker is not None:
            self._post(ReadIndexResp(self.node_id, asker, self._term, ctx, index, self._log.last_index))
        elif ctx != OWN_READ:
            self._reads.results.append((ctx, index))
            self.has_effects = True

    def _answer_appends(self) -> None:
        """Report progress to the leader once, for any number of requests and writes."""
        self._follower_state.answer_due = False
        if self._role is not Role.FOLLOWER or self._leader_id is None:
            return
        message = self._progress_report(self._leader_id, self._tickets.durable)
        self._record_report(message)
        self._output.outbox.append(message)

    def _acknowledgement_of(self, op: StorageOp) -> AppendResp | None:
        """The report to send once ``op``, which was just issued, is durable; None if there is nothing new to report.

        That is right also if the term is over by then. A leader of that term is still told, as by a message that
        was long under way, that this replica has accepted its entries before it took part in a later term. A leader of
        a later term has them, or they were not committed; and it ignores the report.
        """
        if self._leader_id is None or not op.spans or not self._tickets.hard_state_durable:
            return None
        if self._abstaining:
            return None  # it may vote again when this write is durable, so the core must learn that at once
        message = self._progress_report(self._leader_id, self._log.last_index)
        return message if message.durable > self._follower_state.reported_durable else None

    def _progress_report(self, leader_id: NodeId, durable: LogIndex) -> AppendResp:
        """Tell the leader how far this replica has its log, if the own log is on disk up to ``durable``."""
        return AppendResp(
            self.node_id,
            leader_id,
            self._term,
            self._follower_state.leader_seq,
            True,
            self._verified_end,
            min(durable, self._verified_end),
            self._log.last,
        )

    def _record_report(self, message: AppendResp) -> None:
        follower = self._follower_state
        follower.reported_durable = max(follower.reported_durable, message.durable)
        if message.accepted == self._verified_end:
            follower.unreported_bytes = 0

    def _issue_storage(self) -> StorageOp | None:
        """Return the write of all changes since the last ticket; None if there are none."""
        output = self._output
        if not (output.new_spans or self._hard_state_changed or output.truncate_from is not None or self._persist_due):
            return None
        self._persist_due = False
        hard_state = HardState(self._term, self._voted_for) if self._hard_state_changed else None
        ticket = self._tickets.issue(self._log.last_index, with_hard_state=hard_state is not None)
        op = StorageOp(ticket, output.truncate_from, tuple(output.new_spans), hard_state)
        output.new_spans.clear()
        output.truncate_from = None
        self._hard_state_changed = False
        output.shell_last = self._log.last_index
        return op

    def _take_messages(self) -> Sequence[Message]:
        """Messages that may leave now; while term or vote are not durable, new ones are held."""
        output = self._output
        outbox = output.outbox
        if outbox and not self._tickets.hard_state_durable:
            ticket = self._tickets.last_issued
            output.held_messages.extend([(ticket, message) for message in outbox])
            outbox.clear()
        if output.released_messages:
            outbox = output.released_messages + outbox
            output.released_messages = []
        output.outbox = []
        return outbox

    def _release_held(self) -> bool:
        """Release messages that waited for completed tickets, but not of past terms; returns whether any were held."""
        messages = self._output.held_messages
        if not messages or messages[0][0] > self._tickets.last_done:
            return False
        while messages and messages[0][0] <= self._tickets.last_done:
            message = messages.popleft()[1]
            if message.term >= self._term:
                self._output.released_messages.append(message)
        self.has_effects = True
        return True
