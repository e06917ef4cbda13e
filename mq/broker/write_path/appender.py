"""Collects messages and commands into log entries, and answers their senders when the entries are committed.

Theory of operation. While one *round* of entries is written and replicated, a list collects new messages. When the
round is committed, the list becomes the next round: one entry per 256 KiB, each with one header, one checksum and one
step of the replicated log, regardless of the number of messages and senders. A busy broker makes large rounds, an idle
one answers at once. With several senders, a round waits a moment for those that were just answered, see
`mq.broker.write_path.gathering`.

Records and replies are built when an entry is framed, see `mq.broker.write_path.entry_builder`. There is no task, event
or future per message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from itertools import pairwise
from typing import Protocol

from mq.broker.net.refusals import DISK_FULL, RequestRefused
from mq.broker.write_path.entry_builder import Entry, EntryBuilder, PendingItem
from mq.broker.write_path.gathering import Gathering
from mq.broker.write_path.outcome import DiskFull, LeadershipLost, OnOutcome, Unknown
from mq.broker.write_path.pending import AtomicGroup, InternalRecord, PendingCommand, PendingGroup
from mq.broker.write_path.queue_tails import QueueTail
from mq.protocol.codes import ResponseCode
from mq.protocol.wire.encoding import SendReplyTemplate
from mq.store.built_runs import BuiltRun
from raftlog import Refusal


class Log(Protocol):
    """The part of the replica that the appender calls."""

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal: ...


class Appender:
    """Appends messages and commands in rounds, one log entry each, and answers their senders.

    Args:
        disk_used: returns which part of the disk is in use, 0 to 1; called when a message is refused for a full disk.
        uncommitted_bytes_max: messages are refused while more is pending; see `check_room` for commands.
        clock: monotonic seconds, to decide how long a round waits for more messages. If it stands still, none waits.
        turn_within: requests that `start_round` is called again within this number of seconds.

    Attributes:
        is_open: whether this broker leads its group and accepts messages; set by `open` and `close`.
        pending_items: items that wait for their round.
        pending_bytes: bytes of all records that are not committed yet.
        waiting_senders: how many senders the pending items have.
        messages: number of messages and commands in all entries so far.
        on_queued: called when an entry has its place in the log, with its runs of queue entries, while
            ``awaited_queues`` is not empty. What this adds to the appender is framed behind it, in the same round.
        entry_bytes_max: the maximum of an entry with several items.
    """

    def __init__(
        self,
        *,
        log: Log,
        store_host: bytes,
        reply_template: SendReplyTemplate,
        entry_bytes_max: int,
        rounds_in_flight: int,
        wall_clock_ms: Callable[[], int],
        disk_used: Callable[[], float],
        uncommitted_bytes_max: int,
        clock: Callable[[], float] = lambda: 0.0,
        turn_within: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._log = log
        self._disk_used = disk_used
        self._commands_bytes_max = 2 * uncommitted_bytes_max
        self._builder = EntryBuilder(store_host, reply_template, wall_clock_ms)
        self.entry_bytes_max = entry_bytes_max
        self._rounds_in_flight = rounds_in_flight
        self._clock = clock
        self._turn_within = turn_within
        self._round_wait = Gathering()
        self.pending_items: list[PendingItem] = []
        self.pending_bytes = 0
        self.waiting_senders = 0
        self._entries: deque[Entry] = deque()
        self._round_ends: deque[int] = deque()
        self.is_open = False
        self.messages = 0
        self.on_queued: Callable[[list[BuiltRun]], None] = lambda runs: None
        self.awaited_queues: Collection[object] = ()

    def open(self) -> None:
        """Accept messages, since this replica leads and has dispatched all older entries."""
        assert not self.pending_items, f"{len(self.pending_items)} items were added while this replica did not lead"
        self.is_open = True

    def close(self) -> None:
        """Accept nothing more, and give back the pending items, which are not stored.

        Requests of clients are dispatched again, to the handlers of a follower; other items get `LeadershipLost`.
        """
        self.is_open = False
        items, self.pending_items = self.pending_items, []
        self.waiting_senders = 0
        self._report(items, LeadershipLost())

    @property
    def is_idle(self) -> bool:
        """Whether no item is pending or in flight, so that all senders know the outcome."""
        return not self.pending_items and not self._entries

    @property
    def waiting_requests(self) -> int:
        """The number of pending requests, and of pending groups of messages and commands."""
        return sum([item.request_count for item in self.pending_items])

    @property
    def has_room(self) -> bool:
        """Whether few enough bytes are pending to accept commands; see `check_room`."""
        return self.pending_bytes <= self._commands_bytes_max

    def check_room(self) -> None:
        """Raise RequestRefused if too many bytes are pending to accept commands.

        Commands may use twice the limit of messages, so that fast producers do not keep consumers from committing.
        """
        if not self.has_room:
            raise RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, {self.pending_bytes} bytes of messages are pending",
            )

    def _report(self, items: list[PendingItem], outcome: DiskFull | LeadershipLost) -> None:
        """Report to the senders of these items that they are not stored."""
        for item in items:
            self.pending_bytes -= item.nbytes
            item.give_back(outcome)
        assert self.pending_bytes >= 0, f"{self.pending_bytes} bytes are pending without {len(items)} items"

    def add(self, item: PendingItem) -> None:
        """Add an item to be stored in one entry, after all items that were added before."""
        self.pending_items.append(item)
        self.pending_bytes += item.nbytes
        self.waiting_senders += item.sender_count

    def add_command(
        self,
        command: bytes,
        on_outcome: OnOutcome | None = None,
        on_framed: Callable[[], None] | None = None,
    ) -> None:
        """Replicate a metadata command.

        ``on_outcome`` gets the outcome: `Stored` after it is applied. ``on_framed`` is called earlier, when an entry
        with the command is in the log: everything that is framed later follows it.
        """
        self.add_atomically([PendingCommand(command, on_outcome, on_framed)])

    def add_record(self, record: InternalRecord) -> None:
        """Store a message that is not a client's plain send. The record's ``on_outcome`` gets the outcome."""
        self.add_atomically([record])

    def add_atomically(self, group: PendingGroup) -> None:
        """Store messages and commands in one entry, in this order: all of them, or none after a failure.

        Together they must fit into an entry; see `Appender.entry_bytes_max`. Only while this broker leads.
        """
        self.add(AtomicGroup(group))

    def adds_to(self, tail: QueueTail) -> bool:
        """Whether a pending message, other than a client's plain send, goes to the queue of ``tail``."""
        return any(isinstance(item, AtomicGroup) and item.adds_to(tail) for item in self.pending_items)

    @property
    def may_start(self) -> bool:
        """Whether another round may start, because fewer than the maximum are in flight."""
        return len(self._round_ends) < self._rounds_in_flight

    def start_round(self) -> bool:
        """Start a round with the pending items, unless too many are in flight, or it pays to wait for more messages.

        Returns whether anything was framed.
        """
        if not self.pending_items or not self.is_open or len(self._round_ends) >= self._rounds_in_flight:
            return False
        now = self._clock()
        if not self._round_ends and self.pending_bytes < self.entry_bytes_max:
            seconds = self._round_wait.seconds_left(now, self.waiting_senders)
            if seconds > 0:
                self._turn_within(seconds)
                return False
        self._round_wait.round_started(now)
        items, self.pending_items = self.pending_items, []
        self.waiting_senders = 0
        start = 0
        last_index = 0
        while start < len(items):
            nbytes = items[start].nbytes
            end = start + 1
            while end < len(items) and nbytes + (more := items[end].nbytes) <= self.entry_bytes_max:
                nbytes += more
                end += 1
            entry = Entry(nbytes)
            index = self._log.append(nbytes, partial(self._builder.build, items[start:end], entry))
            if index is Refusal.DISK_FULL:
                self._report(items[start:], DiskFull(DISK_FULL.format(self._disk_used())))
                break
            if isinstance(index, Refusal):
                self.pending_items = items[start:] + self.pending_items
                self.waiting_senders = sum([item.sender_count for item in self.pending_items])
                break
            behind = self._entries[-1].index if self._entries else 0
            assert index > behind, f"entry {index} is behind {behind}, so answers would be out of order"
            entry.index = last_index = index
            self.messages += entry.messages
            for callback in entry.on_framed:
                callback()
            self._entries.append(entry)
            start = end
            if entry.runs and self.awaited_queues:
                self.on_queued(entry.runs)
            if self.pending_items:
                items += self.pending_items
                self.pending_items = []
                self.waiting_senders = 0
        if last_index:
            self._round_ends.append(last_index)
        return last_index > 0

    def on_commit(self, index: int) -> None:
        """Answer the senders of all entries up to ``index``."""
        entries = self._entries
        reply_count = messages = 0
        while entries and entries[0].index <= index:
            entry = entries.popleft()
            reply_count += len(entry.replies)
            messages += entry.messages
            self.pending_bytes -= entry.nbytes
            for sender, replies in entry.replies:
                sender.send(replies[0] if len(replies) == 1 else b"".join(replies))
            for on_outcome, result in entry.callbacks:
                on_outcome(result)
        assert self.pending_bytes >= 0, f"{self.pending_bytes} bytes are pending after entry {index}"
        while self._round_ends and self._round_ends[0] <= index:
            self._round_ends.popleft()
            if not self._round_ends:
                # With several messages of each sender, rounds are large without waiting.
                expected = reply_count if messages <= 2 * reply_count else 0
                self._round_wait.round_answered(self._clock(), expected, self.waiting_senders)

    def own_entry(self, index: int, annotation: bytes) -> Entry | None:
        """Return the entry that is being applied if this appender built it and has not answered it; otherwise None."""
        entries = self._entries
        if entries:
            number = index - entries[0].index
            if 0 <= number < len(entries) and (entry := entries[number]).annotation is annotation:
                return entry
        return None

    def outcome_unknown(self, first_index: int) -> None:
        """Forget the entries from ``first_index`` on, whose outcome is unknown.

        Closes the connections of their senders: the only answer in the protocol that promises nothing.
        """
        entries = self._entries
        while entries and entries[-1].index >= first_index:
            entry = entries.pop()
            self.pending_bytes -= entry.nbytes
            for sender, _ in entry.replies:
                sender.close("leadership was lost while a message was being stored")
            for on_outcome, _ in entry.callbacks:
                on_outcome(Unknown())
        self._round_ends.clear()
        self._round_wait.stop()

    def check_invariants(self) -> None:
        """Assert that items, entries, rounds and their counts agree between two turns; for tests.

        - Nothing waits for a round unless this replica leads: whoever adds something later would never be answered.
        - The pending bytes are at least the bytes of waiting items and of items in flight; messages that wait outside,
          for the first send of their number or for their topic, come on top: without pending bytes, no such message
          waits. Otherwise the limit would let too much in, or nothing at all.
        - Entries are answered in the order of the log, and the last one in flight ends the last round: otherwise rounds
          without waiting senders would keep the next ones from starting.
        """
        assert self.is_open or not self.pending_items, f"{len(self.pending_items)} items wait without a leader"
        senders = sum(item.sender_count for item in self.pending_items)
        assert self.waiting_senders == senders, f"{self.waiting_senders} senders were counted, {senders} wait"
        waiting_bytes = sum(item.nbytes for item in self.pending_items)
        in_flight = sum(entry.nbytes for entry in self._entries)
        assert self.pending_bytes >= waiting_bytes + in_flight, (
            f"{self.pending_bytes} bytes were counted, {waiting_bytes} wait and {in_flight} are in flight"
        )
        if self.is_idle:
            assert not self.pending_bytes, f"{self.pending_bytes} bytes were counted, and nothing is pending"
        indexes, ends = [entry.index for entry in self._entries], list(self._round_ends)
        assert all(before < behind for before, behind in pairwise(indexes)), f"entries in flight: {indexes}"
        assert all(before < behind for before, behind in pairwise(ends)), f"rounds in flight end with {ends}"
        assert len(ends) <= self._rounds_in_flight, f"{len(ends)} of {self._rounds_in_flight} rounds are in flight"
        assert not ends or ends[-1:] == indexes[-1:], f"rounds in flight end with {ends}, the entries are {indexes}"
