"""A few cores on one table: every message and every write can be held back, looked at, dropped or repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from raftlog.consensus.effects import Fetch, StorageOp
from raftlog.consensus.invariants import check_group
from raftlog.consensus.messages import AppendResp, Message
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import NONE, ConfState, CoreConfig, EntryKind, HardState, NodeId, Refusal, Role
from raftlog.log_numbers import NO_INDEX, LogIndex, Term
from tests.support.log_values import log_id, span_of

A, B, C, D, E = (NodeId(name) for name in "abcde")
ENTRY_BYTES = 100


class Disk:
    """What a core's storage operations amount to: terms of the entries behind ``base``, in order, configurations."""

    def __init__(self, terms: Sequence[int], hard_state: HardState) -> None:
        self.base = NONE
        self.terms = [Term(term) for term in terms]
        self.confs: dict[LogIndex, ConfState] = {}
        self.hard_state = hard_state

    def apply(self, op: StorageOp) -> None:
        if op.truncate_from is not None:
            del self.terms[op.truncate_from - 1 - self.base.index :]
            self.confs = {index: conf for index, conf in self.confs.items() if index < op.truncate_from}
        for span in op.spans:
            assert span.first == self.last_index + 1
            self.terms += [span.term] * (span.last - span.first + 1)
            if span.conf is not None:
                self.confs[span.first] = span.conf
        if op.hard_state is not None:
            self.hard_state = op.hard_state

    @property
    def last_index(self) -> int:
        return self.base.index + len(self.terms)

    def drop_prefix(self, index: int) -> None:
        """Delete the entries up to ``index``."""
        count = index - self.base.index
        self.base = log_id(index, self.terms[count - 1])
        del self.terms[:count]

    def runs(self) -> list[tuple[LogIndex, Term]]:
        """First index and term of each run of equal terms."""
        first = self.base.index + 1
        return [(first + i, term) for i, term in enumerate(self.terms) if i == 0 or self.terms[i - 1] != term]


class Group:
    """``size`` cores with one clock.

    The first ``voters`` of them are the group in the beginning, all if it is 0; the others have not joined. They may
    have ``priorities``.
    ``logs`` gives the terms of the entries that a node starts with, ``term`` is at least its own. Messages wait in
    ``mail`` until `deliver`; those on a link in ``cut`` are dropped. Writes finish at once,
    except on nodes in ``slow_disks``, where they wait in ``writes`` until `finish_writes`. ``offers`` lists the resets
    that a leader wanted offered: when, the leader, the peer. With ``writers_acknowledge``, every second acknowledgement
    leaves with its write, and the core hears of it; otherwise the core sends all of them.
    """

    writers_acknowledge = False

    def __init__(
        self,
        size: int = 3,
        *,
        logs: Mapping[NodeId, Sequence[int]] | None = None,
        term: int = 0,
        commit: int = 0,
        config: CoreConfig | None = None,
        core_class: type[RaftCore] = RaftCore,
        voters: int = 0,
        priorities: Mapping[NodeId, int] | None = None,
    ) -> None:
        self.nodes = (A, B, C, D, E)[:size]
        self.voters = self.nodes[: voters or size]
        self.config = config or CoreConfig()
        self._priorities = priorities or {}
        self._core_class = core_class
        self.now = 100.0
        self.mail: list[Message] = []
        self.delivered: list[Message] = []
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.slow_disks: set[NodeId] = set()
        self.acknowledgements: dict[tuple[NodeId, int], AppendResp] = {}
        self.writes: dict[NodeId, list[StorageOp]] = {node: [] for node in self.nodes}
        self.fetches: list[Fetch] = []
        self.failed_from: dict[NodeId, int] = {}
        self.offers: list[tuple[float, NodeId, NodeId]] = []
        self.answers: dict[int, int | None] = {}
        self._reads: dict[int, int] = {}
        self._committed = 0
        self.disks: dict[NodeId, Disk] = {}
        self.cores: dict[NodeId, RaftCore] = {}
        for node in self.nodes:
            terms = (logs or {}).get(node, ())
            self.disks[node] = Disk(terms, HardState(Term(max([term, *terms]))))
            self.start(node, commit)

    def __getitem__(self, node: NodeId) -> RaftCore:
        return self.cores[node]

    def start(self, node: NodeId, commit: int = 0, *, abstaining: bool = False) -> None:
        """(Re)start ``node`` from its disk."""
        disk = self.disks[node]
        self.writes[node].clear()
        self.acknowledgements = {key: kept for key, kept in self.acknowledgements.items() if key[0] != node}
        self.cores[node] = self._core_class(
            node_id=node,
            confs=[(NO_INDEX, ConfState(self.voters if node in self.voters else ())), *disk.confs.items()],
            config=replace(self.config, priority=self._priorities.get(node, self.config.priority)),
            hard_state=disk.hard_state,
            term_runs=disk.runs(),
            base=disk.base,
            last_index=LogIndex(disk.last_index),
            commit=LogIndex(commit),
            rng=random.Random(f"{node}{self.now}"),
            now=self.now,
            abstaining=abstaining,
        )

    # -- time and elections ------------------------------------------------------------------------------------

    def time_out(self, node: NodeId) -> None:
        """Let time pass for everybody until ``node`` runs out of patience; only it notices."""
        self.now = max(self.now, self[node].next_deadline())
        self.tick(node)

    def tick(self, node: NodeId, seconds: float = 0.0) -> None:
        """``seconds`` pass, and only ``node`` notices."""
        self.now += seconds
        self[node].tick(self.now)
        self.pump()

    def elect(self, node: NodeId) -> RaftCore:
        """Make ``node`` leader by silence, and let everything settle."""
        self.time_out(node)
        self.deliver()
        assert self[node].role is Role.LEADER, f"{node} is {self[node].role}"
        return self[node]

    def led_by(self, node: NodeId, seconds: float = 0.0) -> Self:
        """The group after ``node`` was elected and ``seconds`` have passed."""
        self.elect(node)
        if seconds:
            self.pass_time(seconds)
        return self

    def pass_time(self, seconds: float, alive: Sequence[NodeId] | None = None) -> None:
        """Let time pass with every deadline met and every message delivered."""
        end = self.now + seconds
        while (due := min(self[node].next_deadline() for node in alive or self.nodes)) <= end:
            self.now = max(due, self.now)
            for node in alive or self.nodes:
                self[node].tick(self.now)
            self.pump()
            self.deliver()
        self.now = end

    # -- messages ----------------------------------------------------------------------------------------------

    def deliver(self, only: Callable[[Message], bool] = lambda message: True) -> None:
        """Carry out all effects and deliver what satisfies ``only``, and what follows from it, until nothing does.

        The rest keeps waiting.
        """
        self.pump()
        while matching := [message for message in self.mail if only(message)]:
            self.mail = [message for message in self.mail if not only(message)]
            for message in matching:
                self.hand_over(message)

    def hand_over(self, message: Message) -> None:
        """Let one message arrive, unless its link is cut."""
        if (message.src, message.dst) not in self.cut:
            self.delivered.append(message)
            self[message.dst].receive(message, self.now)
            self.pump()

    def drop(self, only: Callable[[Message], bool] = lambda message: True) -> list[Message]:
        """Take waiting messages out of the mail."""
        dropped = [message for message in self.mail if only(message)]
        self.mail = [message for message in self.mail if not only(message)]
        return dropped

    def isolate(self, *nodes: NodeId) -> None:
        """Cut every link between ``nodes`` and the others."""
        for one in nodes:
            for other in self.nodes:
                if other not in nodes:
                    self.cut |= {(one, other), (other, one)}

    def heal(self) -> None:
        """All links work again."""
        self.cut.clear()

    # -- effects -----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Carry out the effects of all cores."""
        while any(core.has_effects for core in self.cores.values()):
            for node, core in self.cores.items():
                if core.has_effects:
                    self._carry_out(node, core)
        check_group(self.cores.values())

    def _carry_out(self, node: NodeId, core: RaftCore) -> None:
        effects = core.take_effects()
        core.check_invariants()
        self._committed = max(self._committed, core.commit)
        if effects.failed_from is not None:
            self.failed_from[node] = effects.failed_from
        self.offers += [(self.now, node, peer) for peer in effects.install]
        for ctx, index in effects.reads:
            floor = self._reads.pop(ctx)
            assert index is None or index >= floor, f"read {ctx} may be answered at {index}, {floor} was committed"
            self.answers[ctx] = index
        if effects.storage is not None:
            self.writes[node].append(effects.storage)
            if effects.acknowledgement is not None:
                self.acknowledgements[node, effects.storage.ticket] = effects.acknowledgement
            if node not in self.slow_disks:
                self.finish_writes(node)
        self.mail += effects.send
        for fetch in effects.fetch:
            self.fetches.append(fetch)
            disk = self.disks[node]
            last = min(disk.last_index, fetch.first + max(fetch.bytes_max // ENTRY_BYTES, 1) - 1)
            spans = []
            for i in range(fetch.first, last + 1) if fetch.first > disk.base.index else ():
                conf = disk.confs.get(LogIndex(i))
                kind = EntryKind.NORMAL if conf is None else EntryKind.CONFIG
                spans.append(span_of(i, i, disk.terms[i - 1 - disk.base.index], ENTRY_BYTES, kind, conf))
            core.on_fetch(fetch.peer, tuple(spans), self.now)

    def finish_writes(self, node: NodeId, count: int | None = None) -> None:
        """Let the disk of ``node`` finish its oldest ``count`` writes, or all."""
        finished = self.writes[node][:count]
        del self.writes[node][:count]
        for op in finished:
            self.disks[node].apply(op)
            acknowledgement = self.acknowledgements.pop((node, op.ticket), None)
            if acknowledgement is not None and self.writers_acknowledge and op.ticket % 2:
                self.mail.append(acknowledgement)
                self[node].on_acknowledgement(acknowledgement, self.now)
            self[node].storage_done(op.ticket, self.now)

    def propose(self, node: NodeId, count: int = 1) -> int:
        """Propose entries; they do not travel before `deliver`."""
        index = self[node].propose(count, count * ENTRY_BYTES, self.now)
        assert not isinstance(index, Refusal), f"{node} refused: {index}"
        self.pump()
        return index

    def replicate(self, node: NodeId, count: int = 1) -> int:
        """Propose entries and deliver all messages."""
        index = self.propose(node, count)
        self.deliver()
        return index

    def read(self, node: NodeId) -> int:
        """Ask ``node`` which index a read needs; ``answers`` has it by the number returned, once it is there.

        No answer may be below what anybody knew to be committed when the read came in, and none comes twice.
        """
        ctx = len(self._reads) + len(self.answers) + 1
        self._reads[ctx] = self._committed
        self[node].read(ctx, self.now)
        self.pump()
        return ctx

    def compact(self, node: NodeId, index: int) -> None:
        """Delete the entries of ``node`` up to ``index``."""
        self.disks[node].drop_prefix(index)
        self[node].compact(LogIndex(index), self.now)
        self.pump()

    def install(self, node: NodeId, source: NodeId, last_index: int) -> None:
        """Give ``node`` the log of ``source`` up to ``last_index``, as a reset does, and restart it from there."""
        ours, theirs = self.disks[node], self.disks[source]
        ours.base = theirs.base
        ours.confs = {index: conf for index, conf in theirs.confs.items() if index <= last_index}
        ours.terms = theirs.terms[: last_index - theirs.base.index]
        self.start(node, last_index)

    def terms(self, node: NodeId) -> list[Term]:
        """Terms of the durable entries of ``node`` behind its base."""
        return self.disks[node].terms
