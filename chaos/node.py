"""One simulated replica: a core, its log in memory, and a disk that writes slowly and forgets when it crashes.

It does for simulated entries what `raftlog.replica.Replica` does for real ones, in the same order.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.history import Entry, History, Violation
from raftlog.consensus.effects import Effects, StorageOp
from raftlog.consensus.messages import AppendReq, Message, VoteResp
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import (
    NONE,
    ConfState,
    CoreConfig,
    EntryKind,
    HardState,
    NodeId,
    Refusal,
    Role,
    Span,
)

DISK_STALL_SECONDS = 1.0


class Packet(NamedTuple):
    """A message with the entries that its spans stand for."""

    message: Message
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class Disk:
    """What survives a crash."""

    log: list[Entry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=HardState)
    commit_hint: int = 0


class Write(NamedTuple):
    """A storage operation on its way to the disk."""

    ticket: int
    truncate_from: int | None
    entries: tuple[Entry, ...]
    hard_state: HardState | None
    commit_hint: int
    submitted_at: float
    done_at: float

    def apply_log(self, disk: Disk, entries: int) -> None:
        """Cut the log and write the first ``entries`` of the new ones."""
        if self.truncate_from is not None:
            del disk.log[self.truncate_from - 1 :]
        disk.log += self.entries[:entries]

    def apply_state(self, disk: Disk) -> None:
        """Write the hard state and the commit hint."""
        if self.hard_state is not None:
            disk.hard_state = self.hard_state
        disk.commit_hint = self.commit_hint


class Node:
    """A replica that can be crashed, restarted and paused.

    Args:
        core_class: the core under test.
        clock_rate: how fast the node's clock runs, 1.0 being right.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        conf: ConfState,
        config: CoreConfig,
        core_class: type[RaftCore],
        clock_rate: float,
        history: History,
        rng: random.Random,
    ) -> None:
        self.node_id = node_id
        self._conf = conf
        self._config = config
        self._core_class = core_class
        self._clock_rate = clock_rate
        self._history = history
        self._rng = rng
        self.disk = Disk()
        self.disk_seconds_max = 0.005
        self.core: RaftCore | None = None
        self.log: list[Entry] = []
        self.writes: deque[Write] = deque()
        self.applied = 0
        self._pending: dict[int, Entry] = {}
        self._staged: dict[tuple[int, int], Entry] = {}
        self._out: list[Packet] = []
        self.leading_term = 0

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Start from what the disk holds."""
        assert self.core is None, f"{self.node_id} runs already"
        disk = self.disk
        self.log = list(disk.log)
        runs = [
            (e.index, e.term) for e, before in zip(disk.log, [None, *disk.log], strict=False) if _opens_run(e, before)
        ]
        self.core = self._core_class(
            node_id=self.node_id,
            confs=[(0, self._conf)],
            config=self._config,
            hard_state=disk.hard_state,
            term_runs=runs,
            base=NONE,
            last_index=len(disk.log),
            commit=disk.commit_hint,
            rng=self._rng,
            now=self._local(now),
        )
        self.applied = self.core.commit
        self.leading_term = 0

    def crash(self) -> None:
        """Stop, keeping of the unfinished writes what a power cut might keep.

        The log keeps a prefix of what was to be written to it. Hard states lie elsewhere and may be older or newer.
        """
        writes, disk = list(self.writes), self.disk
        whole = self._rng.randint(0, len(writes))
        for write in writes[:whole]:
            write.apply_log(disk, len(write.entries))
        if whole < len(writes) and self._rng.random() < 0.5:
            writes[whole].apply_log(disk, self._rng.randint(0, len(writes[whole].entries)))
        for write in writes[: self._rng.randint(0, len(writes))]:
            write.apply_state(disk)
        if len(self._conf.voters) == 1:
            # Entries that were acknowledged or committed are on the disk, or the next `committing` fails.
            self._history.lost(entry for entry in self.log if entry not in disk.log)
        self.core = None
        self.log = []
        self.writes.clear()
        self._pending.clear()
        self._staged.clear()
        self._out.clear()

    # -- inputs ------------------------------------------------------------------------------------------------

    def deliver(self, packet: Packet, now: float) -> None:
        """Take a message from the network."""
        if self.core is None:
            return
        for entry in packet.entries:
            self._staged[entry.index, entry.term] = entry
        self.core.receive(packet.message, self._local(now))

    def propose(self, values: Sequence[int], nbytes: int, now: float) -> bool:
        """Append entries as a client asks; returns whether they were taken."""
        core = self.core
        if core is None or core.role is not Role.LEADER or core.last_index != len(self.log):
            return False
        index = core.propose(len(values), nbytes * len(values), self._local(now))
        if isinstance(index, Refusal):
            return False
        for offset, value in enumerate(values):
            entry = Entry(index + offset, core.term, value, nbytes)
            self._append(entry)
            self._pending[entry.index] = entry
        return True

    def complete_writes(self, now: float) -> None:
        """Finish what the disk has finished by now."""
        if self.core is None:
            return
        ticket = 0
        while self.writes and self.writes[0].done_at <= now:
            write = self.writes.popleft()
            write.apply_log(self.disk, len(write.entries))
            write.apply_state(self.disk)
            ticket = write.ticket
        if ticket:
            self.core.storage_done(ticket, self._local(now))

    def tick(self, now: float) -> None:
        """Let time pass."""
        if self.core is None:
            return
        if self.writes and (age := now - self.writes[0].submitted_at) > DISK_STALL_SECONDS:
            self.core.disk_slow(age, self._local(now))
        self.core.tick(self._local(now))

    def hear_of_end(self, peer: NodeId, now: float) -> None:
        """Believe that the process of ``peer`` has ended."""
        if self.core is not None:
            self.core.peer_lost(peer, self._local(now))

    def next_tick(self) -> float:
        """When `tick` must be called."""
        assert self.core is not None, f"{self.node_id} does not run"
        return self.core.next_deadline() / self._clock_rate + 1e-6

    # -- effects -----------------------------------------------------------------------------------------------

    def pump(self, now: float) -> list[Packet]:
        """Carry out what the core decided; returns what leaves."""
        core = self.core
        if core is None:
            return []
        while core.has_effects:
            self._carry_out(core, core.take_effects(), now)
        self._staged.clear()
        core.check_invariants()
        if core.last_index != len(self.log):
            raise Violation(f"{self.node_id}: the core's log ends at {core.last_index}, the node's at {len(self.log)}")
        out, self._out = self._out, []
        return out

    def _carry_out(self, core: RaftCore, effects: Effects, now: float) -> None:
        if effects.failed_from is not None:
            for index in [index for index in self._pending if index >= effects.failed_from]:
                del self._pending[index]
        if effects.storage is not None:
            self._store(effects.storage, min(core.commit, core.durable), now)
        for message in effects.send:
            self._send(message)
        for fetch in effects.fetch:
            core.fetched(fetch.peer, self._spans_from(fetch.first, fetch.bytes_max), self._local(now))
        if effects.commit is not None:
            self._apply(effects.commit)
        if effects.role is not None:
            if effects.role.role is Role.LEADER and effects.role.term > self.leading_term:
                self.leading_term = effects.role.term
                self._history.elected(self.node_id, effects.role.term, self.log)
            if effects.role.role is not Role.LEADER and self._pending:
                raise Violation(f"{self.node_id} leads no more, the outcome of {sorted(self._pending)} is open")

    def _store(self, op: StorageOp, commit_hint: int, now: float) -> None:
        if op.truncate_from is not None:
            if op.truncate_from <= self.applied:
                raise Violation(f"{self.node_id} cuts its log at {op.truncate_from}, committed is {self.applied}")
            del self.log[op.truncate_from - 1 :]
        entries = []
        for span in op.spans:
            for index in range(span.first, span.last + 1):
                if index > len(self.log):
                    if span.kind is EntryKind.NOOP and (index, span.term) not in self._staged:
                        self._append(Entry(index, span.term, None, span.nbytes))
                    else:
                        self._append(self._staged[index, span.term])
                entries.append(self.log[index - 1])
        # Own proposals were appended before an older part of the same operation may have been cut off.
        latency = self._rng.uniform(0.0, self.disk_seconds_max)
        done_at = max(now + latency, self.writes[-1].done_at if self.writes else 0.0)
        self.writes.append(Write(op.ticket, op.truncate_from, tuple(entries), op.hard_state, commit_hint, now, done_at))

    def _append(self, entry: Entry) -> None:
        assert entry.index == len(self.log) + 1, f"{self.node_id} appends {entry} to {len(self.log)} entries"
        self._history.appended(self.node_id, entry, self.log[-1].term if self.log else 0)
        self.log.append(entry)

    def _send(self, message: Message) -> None:
        entries: tuple[Entry, ...] = ()
        if isinstance(message, AppendReq):
            for span in message.spans:
                entries += tuple(self.log[span.first - 1 : span.last])
            if any(entry.term != span.term for span in message.spans for entry in self.log[span.first - 1 : span.last]):
                raise Violation(f"{self.node_id} sends spans {message.spans} that its log does not hold")
        if isinstance(message, VoteResp) and message.granted:
            self._history.voted(self.node_id, message.term, message.dst, self.disk.hard_state)
        self._out.append(Packet(message, entries))

    def _spans_from(self, first: int, bytes_max: int) -> tuple[Span, ...]:
        spans: list[Span] = []
        nbytes = 0
        for entry in self.log[first - 1 :]:
            nbytes += entry.nbytes
            if spans and nbytes > bytes_max:
                break
            kind = EntryKind.NOOP if entry.value is None else EntryKind.NORMAL
            if spans and spans[-1].term == entry.term and spans[-1].kind is kind:
                run = spans[-1]
                spans[-1] = Span(run.first, entry.index, run.term, run.nbytes + entry.nbytes, kind)
            else:
                spans.append(Span(entry.index, entry.index, entry.term, entry.nbytes, kind))
        return tuple(spans)

    def _apply(self, commit: int) -> None:
        if commit <= self.applied:
            raise Violation(f"{self.node_id}: commit index {self.applied} goes back to {commit}")
        self._history.committing(self.node_id, self.log[self.applied : commit])
        for index in range(self.applied + 1, commit + 1):
            if (entry := self._pending.pop(index, None)) is not None:
                if self.log[index - 1] != entry:
                    raise Violation(f"{self.node_id} acknowledges {entry}, committed is {self.log[index - 1]}")
                self._history.acknowledged(entry)
        self.applied = commit

    def _local(self, now: float) -> float:
        return now * self._clock_rate


def _opens_run(entry: Entry, before: Entry | None) -> bool:
    return before is None or before.term != entry.term
