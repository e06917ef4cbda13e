"""One replica: connects a consensus core, its log on disk, and its peers by synchronous code.

Nothing in here awaits. Frames, finished writes, timers and proposals arrive as plain calls; `Replica.pump`, called at
the end of every turn of the event loop, carries out the core's effects:

1. entries are passed to the log and its writer thread, in the core's order; 2. messages are sent, with entries as the
very bytes in the log; 3. committed entries are passed to the application, in order, each exactly once per run of the
process.

Clock, log, transport and application are arguments, so the same code runs in a process and in a simulation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from raftlog.consensus.confchange import encode_conf
from raftlog.consensus.effects import Effects, Fetch, StorageOp
from raftlog.consensus.messages import AppendReq, AppendResp, Message
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import Beginning, ConfChange, ConfState, EntryKind, NodeId, Refusal, Role, RoleChange, Span
from raftlog.consensus.validation import PeerMessageInvalid
from raftlog.finished_writes import FinishedWrites, SenderOfWriter
from raftlog.log_numbers import NO_INDEX, LogIndex, Term, index_range
from raftlog.net import frames
from raftlog.net.frames import Kind, WireError
from raftlog.net.received_entries import CheckBody, ReceivedEntries
from raftlog.net.transport import Lane
from raftlog.read_barrier import OnRead, ReadBarriers
from raftlog.segment.codec import HEADER_BYTES, EntryRef
from raftlog.segment.entry_reader import StoredRun
from raftlog.segment.errors import EntryGone, SegmentError, StorageCorrupt
from raftlog.segment.log import SegmentLog
from raftlog.segment.note_names import ABSTAINING, EARLY

DISK_STALL_SECONDS = 1.0
"""The age of the oldest unsynced write from which the core treats the disk as stalled."""

DISK_EASED = 0.02
"""Hysteresis: the used fraction must fall by this much until the disk no longer counts as full, so that no single file
decides.
"""

_SPARE_SHARE = 0.25
"""A turn is taken without any event when a heartbeat interval and this fraction of it are over: where the leader's
heartbeats arrive in time, a follower needs no timer.
"""

_LATE_SHARE = 0.25
"""Fraction of a heartbeat interval by which a turn may be late without counting as a stall."""

STALLS_MAX = 64
"""Number of recorded stalls of this process, which are subtracted from the age of a write."""

ConfHandler = Callable[[LogIndex, ConfState, frozenset[NodeId]], None]
Build = Callable[[int], tuple[bytes, bytes]]
Job = Callable[[], Callable[[], None]]
"""Work for any thread, and its completion for the event loop."""


class CommittedEntry(Protocol):
    """An entry as an application gets it.

    ``pos`` is the physical offset of the entry's header; ``annotation`` is the leader's, or empty.
    """

    @property
    def index(self) -> LogIndex: ...
    @property
    def term(self) -> Term: ...
    @property
    def kind(self) -> int: ...
    @property
    def pos(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def annotation(self) -> bytes: ...


class Application(Protocol):
    """The application of a replicated log. Called on the event loop, between a turn's input and its output."""

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply committed entries; called in index order, without gap or repetition.

        Raises:
            raftlog.segment.errors.EntryUnusable: an entry cannot be applied; the node stops.
        """

    def role_changed(self, change: RoleChange) -> None:
        """Called when role, term or leader changed."""

    def outcome_unknown(self, first_index: LogIndex) -> None:
        """Called when leadership was lost: entries from ``first_index`` on may or may not become committed."""


class PeerSender(SenderOfWriter, Protocol):
    """The part of a transport that a replica needs."""

    def send(self, peer: NodeId, lane: Lane, buffers: list[bytes | memoryview], nbytes: int) -> bool: ...


class _StoredEntry:
    """A committed entry that was read back from its segment."""

    __slots__ = ("annotation", "body", "index", "kind", "pos", "term")

    def __init__(self, ref: EntryRef, body: bytes) -> None:
        self.index = ref.index
        self.term = ref.term
        self.kind = ref.kind
        self.pos = ref.pos
        self.body = body
        self.annotation = b""


class Replica:
    """Connects core, log, transport and application.

    Args:
        applied_index: the last entry that the application has already applied, from its own checkpoint. It may be
            ahead of the log, if it came in a snapshot.
        clock: monotonic seconds.
        wake: requests another turn soon.
        confs: as given to the core: the entries with configurations, and the configurations.
        on_conf: called with the entry whose configuration is in force from now on, and with removed nodes.
        on_reset: called with a peer that needs more than the log still has, repeatedly while it does.
        in_background: runs a job that waits for the disk; its completion may be called at any later time, or never.
        check_body: the requirements of `Application.apply` on a body. Entries of peers that fail it are refused.

    Attributes:
        note_writes, has_in_flight: see `FinishedWrites`; called in each turn, as not all writes are signalled.
    """

    def __init__(
        self,
        *,
        core: RaftCore,
        log: SegmentLog,
        transport: PeerSender,
        application: Application,
        applied_index: LogIndex,
        clock: Callable[[], float],
        wake: Callable[[], None],
        confs: Sequence[tuple[LogIndex, ConfState]] = (),
        on_conf: ConfHandler = lambda index, conf, removed: None,
        on_reset: Callable[[NodeId], None] = lambda peer: None,
        in_background: Callable[[Job], None] = lambda job: job()(),
        check_body: CheckBody = lambda body, position: None,
    ) -> None:
        self.core = core
        self.log = log
        self._apply_bytes_max = log.limits.apply_bytes_max
        self._unsynced_bytes_max = log.limits.unsynced_bytes_max
        self._transport = transport
        self._application = application
        self._clock = clock
        self._wake = wake
        self._applied_index = applied_index
        self._commit_index = core.commit
        self._confs = list(confs) or [(NO_INDEX, core.conf)]
        self._on_conf = on_conf
        self._removed_nodes: frozenset[NodeId] = frozenset()
        self._on_reset = on_reset
        self._in_background = in_background
        # The running read for a peer, and the bytes of the last one, which are sent in its next message.
        self._running_reads: dict[NodeId, Fetch] = {}
        self._finished_reads: dict[NodeId, tuple[Sequence[Span], StoredRun]] = {}
        self._barriers = ReadBarriers()
        self._abstaining = core.abstaining
        self._disk_full = self._paused = False
        # Maximum interval of turns, the start of the last one, and the stalls: the end of each, and its seconds.
        self._turn_seconds = (1 + _SPARE_SHARE) * core.config.heartbeat_seconds
        self._late_seconds = _LATE_SHARE * core.config.heartbeat_seconds
        self._turn_at = clock()
        self._stalls: deque[tuple[float, float]] = deque(maxlen=STALLS_MAX)
        self._received_entries = ReceivedEntries(core, log, check_body)
        self._writes = FinishedWrites(core, log, transport, clock, wake)
        self.note_writes = self._writes.poll
        self.has_in_flight = self._writes.has_in_flight

    @property
    def applied_index(self) -> LogIndex:
        """Return the index of the last applied entry."""
        return self._applied_index

    @property
    def commit_index(self) -> LogIndex:
        """Return the index of the last entry known to be committed."""
        return self._commit_index

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads, as far as it knows."""
        return self.core.role is Role.LEADER

    def append(self, nbytes: int, build: Build) -> LogIndex | Refusal:
        """Append one entry with a body of ``nbytes`` bytes.

        ``build(physical_offset)`` is called at once, with the physical offset of the body's first byte, and returns the
        body and its annotation. Returns the index of the entry, or why it was refused (then ``build`` was not called
        and nothing happened).
        """
        index = self.core.propose(1, HEADER_BYTES + nbytes, self._clock())
        if isinstance(index, Refusal):
            return index
        # A leader's log ends with entries of its term: the first one opened it.
        entry = self.log.append_built(EntryKind.NORMAL, index, self.log.last_term, nbytes, build)
        assert entry.index == index, f"entry {entry.index} was framed for index {index}"
        return index

    def read(self, on_read: OnRead) -> None:
        """Call ``on_read(True)`` once everything is applied that was committed anywhere in the group before this call.

        The application's state is linearizable then, on a follower as well. ``on_read(False)`` if that cannot be
        confirmed, at the latest after `raftlog.read_barrier.READ_SECONDS_MAX`. Never called from within this method.
        """
        self._barriers.add(on_read)
        self._wake()

    def change(self, change: ConfChange) -> LogIndex | Refusal:
        """Start a membership change; returns the index of its first entry, or the reason of a refusal.

        It is complete once a configuration that is not joint is in force and committed, see `CoreStatus.conf`.
        """
        index = self.core.propose_conf(change, self._clock())
        self._wake()
        return index

    def transfer(self, to: NodeId | None = None) -> Refusal | None:
        """Start transferring leadership to ``to``, or to the best voter; returns None unless it is refused."""
        refusal = self.core.transfer(to, self._clock())
        self._wake()
        return refusal

    def disk_usage(self, free_bytes: int, total_bytes: int, full_ratio: float, pause_ratio: float) -> None:
        """Set the disk usage; called about once a second.

        From ``full_ratio`` in use on, this replica refuses proposals and prefers not to lead; from ``pause_ratio`` on
        it also refuses a leader's entries. It always votes, for which space is reserved.
        """
        used = 1 - free_bytes / total_bytes
        self._disk_full = used >= full_ratio - (DISK_EASED if self._disk_full else 0)
        self._paused = used >= pause_ratio - (DISK_EASED if self._paused else 0)
        self.core.disk_full(self._disk_full, self._clock())
        if self.core.has_effects:
            self._wake()

    def note_commit(self) -> None:
        """Update the committed index in the vote file; called about once a second.

        Entries bring that with them, but no entry follows the last ones before a pause. Readers of the files of a
        running replica, such as a backup, have no other source.
        """
        if self._commit_index > self.log.commit_hint:
            self.core.persist(self._clock())
            self._wake()

    def beginning(self) -> tuple[Beginning, NodeId | None]:
        """Compare the beginning of this log with the other replicas' logs, as `RaftCore.beginning`."""
        return self.core.beginning(self._clock())

    def drop_prefix(self, base_pos: int, early: bytes | None = None) -> bool:
        """Move the beginning of the log to ``base_pos``; see `SegmentLog.drop_prefix` for the conditions.

        The application must have applied and stored everything below. Returns False if the first entry above is not
        durable yet, or not known to be committed in this run; then nothing happened, and the caller retries a moment
        later.

        ``early`` says that retention would have kept what is deleted; it is stored as the note `EARLY`.
        """
        first = next(segment.first_index for segment in self.log.segments() if segment.start == base_pos)
        assert first - 1 <= self._applied_index, f"base {first - 1}, applied is {self._applied_index}"
        # Pending effects may name or read entries that are deleted now.
        while self.core.has_effects:
            self._carry_out(self.core.take_effects())
        if first > self.log.durable_index or first > self._commit_index:
            return False
        if early is not None:
            self.note_early(early)
        self.log.drop_prefix(base_pos, encode_conf(self.core.conf_at(first - 1)), self._commit_index)
        self.core.compact(first - 1, self._clock())
        self.core.persist(self._clock())
        while len(self._confs) > 1 and self._confs[1][0] < first:
            del self._confs[0]
        self._wake()
        return True

    def note_early(self, note: bytes | None) -> None:
        """Set the note `EARLY`, or remove it: the log has again all files that retention would have kept."""
        self.core.began_early = note is not None
        self.remember(EARLY, note)

    def decline_install(self, peer: NodeId) -> None:
        """Tell the core that ``peer`` has no files to fetch: send it entries."""
        self.core.decline_install(peer, self._clock())
        self._wake()

    def wake(self) -> None:
        """Request another turn of the event loop soon."""
        self._wake()

    def remember(self, key: str, value: bytes | None, then: Callable[[], None] = lambda: None) -> None:
        """Set or remove a note of the log, and call ``then`` once that is durable."""
        self.log.set_note(key, value)
        self._writes.call_after_next(then)
        self.core.persist(self._clock())
        self._wake()

    def receive(self, source: NodeId, kind: Kind, payload: memoryview) -> None:
        """Process one frame of a peer.

        Raises:
            WireError, raftlog.segment.errors.FrameCorrupt: the frame is damaged, or no correct replica sends it;
                nothing has changed. The connection must be closed.
        """
        target = self.core.node_id
        now = self._clock()
        if kind is Kind.APPENDED:
            self._give(frames.decode_appended(payload, source, target), now)
        elif kind is Kind.APPEND:
            if self._paused or self.log.end_pos - self.log.durable_pos > self._unsynced_bytes_max:
                return  # the leader sends it again; only its heartbeats, on the other lane, tell that it is alive
            message = frames.decode_append(payload, source, target)
            new = self._received_entries.check(message)
            self._give(message.request, now)
            self._received_entries.keep(message, new)
        else:
            value = frames.decode_cold(kind, payload)
            if getattr(value, "src", None) != source or value.dst != target:
                raise WireError(f"{kind.name} frame is not from {source!r} to {target!r}")
            self._give(value, now)

    def _give(self, message: Message, now: float) -> None:
        try:
            self.core.receive(message, now)
        except PeerMessageInvalid as error:
            raise WireError(str(error)) from error

    def peer_gone(self, peer: NodeId) -> None:
        """Start an election if the leader was ``peer``, whose process has ended."""
        self.core.peer_lost(peer, self._clock())

    def storage_done(self, ticket: int) -> None:
        """Called when everything up to ``ticket`` is durable."""
        self._writes.on_durable(ticket)

    def begin_turn(self) -> None:
        """Begin a turn of the event loop, before the sockets are read.

        There is a turn at least every 1.25 heartbeat intervals (`next_deadline`). If one is much later, this process
        did not run, or was busy, and messages from peers in that time are unread: the core must know.
        """
        now = self._clock()
        if now - self._turn_at > self._turn_seconds:
            self._record_stall(now)
        self._turn_at = now
        self.note_writes()

    def tick(self) -> None:
        """Handle expired timeouts; called in a turn, after its input.

        Messages that arrived during a long turn are unread, so that time counts as a stall, too. Timeouts are handled
        all the same: a leader with only long turns must keep sending heartbeats.
        """
        now = self._clock()
        self._record_stall(now)
        age = self._disk_age(now)
        if age > DISK_STALL_SECONDS:
            self.core.disk_slow(age, now)
        self.core.tick(now)
        self._barriers.expire(now)

    def _record_stall(self, now: float) -> None:
        late = now - self._turn_at - self._turn_seconds
        if late > self._late_seconds:
            self._stalls.append((now, late))
            self.core.record_stall(late, now)
            self._turn_at = now

    def _disk_age(self, now: float) -> float:
        """The age of the oldest write in flight in seconds, without the time in which this process did not run."""
        age = self.log.oldest_unsynced_age(now)
        if age > DISK_STALL_SECONDS and self._stalls:
            age -= sum(seconds for ended_at, seconds in self._stalls if ended_at > now - age)
        return age

    def next_deadline(self) -> float:
        """The latest time of the next turn with `tick`."""
        deadline = min(self.core.next_deadline(), self._turn_at + self._turn_seconds)
        return min(deadline, self._barriers.deadline) if self._barriers.open else deadline

    def pump(self) -> None:
        """Carry out all effects of the core, in the order of the module's list."""
        core = self.core
        if self._barriers.new_reads:
            now = self._clock()
            core.read(self._barriers.ask(now), now)
        while core.has_effects:
            self._carry_out(core.take_effects())
        if self._received_entries.entries:
            self._received_entries.entries.clear()  # all that the core has accepted are in the log
        if self._applied_index < self._commit_index:
            self._apply()
        if self._abstaining and not core.abstaining:
            self._abstaining = False
            self.remember(ABSTAINING, None)
        if self._barriers.open:
            self._barriers.on_apply(self._applied_index)
        self._writes.choose_signals()

    def _carry_out(self, effects: Effects) -> None:
        if effects.failed_from is not None:
            self._application.outcome_unknown(effects.failed_from)
        if effects.storage is not None:
            self._store(effects.storage, effects.commit)
        if effects.role is not None:
            # Only a leader reads for peers, and only from its own term's log.
            self._running_reads.clear()
            self._finished_reads.clear()
        for message in effects.send:
            self._send(message)
        if effects.acknowledgement is not None and effects.storage is not None:
            self._writes.acknowledge(effects.storage.ticket, effects.acknowledgement)
        for fetch in effects.fetch:
            self._fetch(fetch)
        for ctx, index in effects.reads:
            self._barriers.complete(ctx, index)
        for peer in effects.install:
            self._on_reset(peer)
        if effects.conf is not None:
            self._on_conf(*self._confs[-1], self._removed_nodes)
            self._removed_nodes = frozenset()
        if effects.commit is not None:
            self._commit_index = effects.commit
        if effects.role is not None:
            self._application.role_changed(effects.role)

    def _fetch(self, fetch: Fetch) -> None:
        read = self.log.stored_reader(fetch.first, fetch.bytes_max)
        if read is None:
            refs, data = self.log.read_entries(fetch.first, fetch.bytes_max)
            self.core.on_fetch(fetch.peer, frames.spans_of(refs, _bodies(refs, data)), self._clock())
            return
        self._running_reads[fetch.peer] = fetch
        reader = read

        def job() -> Callable[[], None]:
            try:
                outcome: StoredRun | SegmentError = reader()
            except SegmentError as error:
                outcome = error
            return lambda: self._take_fetched(fetch, outcome)

        self._in_background(job)

    def _take_fetched(self, fetch: Fetch, outcome: StoredRun | SegmentError) -> None:
        """Give spans read for a peer to the core, or damage to the log. Raises `SegmentError` if the disk
        failed.
        """
        peer = fetch.peer
        if self._running_reads.get(peer) is not fetch:
            return  # the log may have been cut since, or something else is needed by now
        del self._running_reads[peer]
        spans: tuple[Span, ...] = ()
        if isinstance(outcome, StoredRun):
            spans = frames.spans_of(outcome.refs, _bodies(outcome.refs, outcome.data))
            self._finished_reads[peer] = (spans, outcome)
        elif isinstance(outcome, StorageCorrupt):
            # The node then transfers leadership before the log is repaired. The only voter continues without the peer,
            # for which the core retries when it connects again.
            self.log.damage_found(outcome)
            return
        elif not isinstance(outcome, EntryGone):
            raise outcome
        self.core.on_fetch(peer, spans, self._clock())

    def _store(self, op: StorageOp, commit: LogIndex | None) -> None:
        log = self.log
        if op.truncate_from is not None:
            assert op.truncate_from > self._commit_index, (
                f"entries from {op.truncate_from} were to be cut, {self._commit_index} is committed"
            )
            log.truncate(op.truncate_from)
            while self._confs[-1][0] >= op.truncate_from:
                self._confs.pop()
        for span in op.spans:
            for index in index_range(max(span.first, log.last_index + 1), span.last + 1):
                if (received_entries := self._received_entries.get(index, span.term)) is not None:
                    log.append_framed(*received_entries)
                else:
                    assert span.kind is not EntryKind.NORMAL, f"entry {index} of term {span.term} has no bytes"
                    body = b"" if span.conf is None else encode_conf(span.conf)
                    log.append(span.kind, index, span.term, body)
            if span.conf is not None:
                self._configure(span.first, span.conf)
        hard_state = op.hard_state
        log.submit(
            op.ticket,
            term=None if hard_state is None else hard_state.term,
            voted_for=None if hard_state is None else hard_state.voted_for,
            commit_hint=self._commit_index if commit is None else commit,
        )
        if self._writes.waits_for_next:
            self._writes.on_submit(op.ticket)

    def _configure(self, index: LogIndex, conf: ConfState) -> None:
        self._removed_nodes |= self._confs[-1][1].members - conf.members
        self._confs.append((index, conf))

    def _send(self, message: Message) -> None:
        if type(message) is AppendReq:
            buffers = self._encode_append(message)
            # Empty ones too: on the other lane they would overtake entries and look like a gap.
            self._transport.send(message.dst, Lane.BULK, buffers, sum(map(len, buffers)))
        elif type(message) is AppendResp:
            frame = frames.encode_appended(message)
            self._transport.send(message.dst, Lane.CONTROL, [frame], len(frame))
        else:
            frame = frames.encode_cold(message)
            self._transport.send(message.dst, Lane.CONTROL, [frame], len(frame))

    def _encode_append(self, message: AppendReq) -> list[bytes | memoryview]:
        log = self.log
        if not message.spans:
            return frames.encode_append(message, 0, (), 0, ())
        chain: int | None = None
        if self._finished_reads and (spans_and_run := self._finished_reads.get(message.dst)) is not None:
            spans, run = spans_and_run
            if spans is message.spans:
                return frames.encode_append(message, run.chain, [run.data], len(run.data), [b""] * len(run.refs))
            if run.refs[-1].index == message.prev.index:
                chain = run.refs[-1].chain
        entries: list[bytes | memoryview] = []
        annotations: list[bytes] = []
        nbytes = 0
        for span in message.spans:
            index = span.first
            while index <= span.last:
                entry = log.entry(index)
                if entry is not None:
                    entries += (entry.header, entry.body)
                    annotations.append(entry.annotation)
                    nbytes += entry.size
                    index += 1
                    continue
                refs, data = self._read_stored(index, span.last, span.nbytes)
                entries.append(data)
                annotations += [b""] * len(refs)
                nbytes += len(data)
                index = refs[-1].index + 1
        if chain is None:
            chain = log.chain_at(message.prev.index)
        return frames.encode_append(message, chain, entries, nbytes, annotations)

    def _read_stored(self, first: LogIndex, last: LogIndex, nbytes: int) -> tuple[list[EntryRef], bytes]:
        """Entries that are no longer in memory, up to ``last`` or about ``nbytes``."""
        refs, data = self.log.read_entries(first, min(nbytes, self._apply_bytes_max))
        refs_to_last = [ref for ref in refs if ref.index <= last]
        return refs_to_last, data[: sum(ref.size for ref in refs_to_last)]

    def _apply(self) -> None:
        log = self.log
        budget = self._apply_bytes_max
        batch: list[CommittedEntry] = []
        index = self._applied_index + 1
        while index <= self._commit_index and budget > 0:
            if (entry := log.entry(index)) is not None:
                batch.append(entry)
                budget -= entry.size
                index += 1
                continue
            refs, data = self._read_stored(index, self._commit_index, budget)
            at = 0
            for ref in refs:
                batch.append(_StoredEntry(ref, data[at + HEADER_BYTES : at + ref.size]))
                at += ref.size
                index += 1
            budget -= at
        self._applied_index = index - 1
        self._application.apply(batch)
        if self._applied_index < self._commit_index:
            self._wake()


def _bodies(refs: list[EntryRef], data: bytes) -> Callable[[int], memoryview]:
    """A function that returns the body of an entry by its number in ``refs``; they are back to back in ``data``."""

    def body_of(number: int) -> memoryview:
        at = sum(ref.size for ref in refs[:number])
        return memoryview(data)[at + HEADER_BYTES : at + refs[number].size]

    return body_of
