"""One to five cores on a table, moved by the commands of a script; each command answers with what happened.

Messages wait until `deliver`; the disks finish at once unless `slow` says otherwise; time stands still except in
`elect`, `tick` and `wait`. Chance is replaced by character: A is the least patient, E the most.

Commands (MATCH is ``A->B``, ``*->B``, ``A->*``, with ``:append`` or another kind of message behind it, or only that):

``group n=3 [A=1,1,2 ...] [commit=1] [term=3] [learners=D] [setting=value ...]``: new cores; ``A=...`` gives the terms
of the entries in a log, a setting is one of `CoreConfig`.
``elect A``: time passes until A runs out of patience, and all is delivered. ``tick A [s]``: time passes until A has
something to do, or for s seconds, and only A looks at its clock. ``wait s``: all look at theirs, all is delivered.
``deliver [MATCH ...] [drop=MATCH] [hold=MATCH] [once]``: what waits, and what follows from it, unless ``once``.
``drop [MATCH]``: lose what waits. ``copy [MATCH]`` and later ``again``: what waits arrives twice. ``mail``: show it.
``cut A [B]`` or ``cut A->B``, ``heal``.
``slow A``, ``fast A``, ``write A [n]``: hold writes back, stop that, finish n. ``stall A s``: tell A that its oldest
write is s seconds old. ``full A yes``: its disk is full. ``compact A 5``: drop entries up to 5 from its log.
``install C A``: C begins anew where the log of A begins, as after a reset.
``crash A [keep=n]``: n of its unfinished writes survive. ``restart A [abstaining]``. ``lost A B``: tell A that the
process of B ended.
``propose A [n] [size=100]``, ``read A [n]``, ``transfer A [B]``, ``change A add D`` (``promote D``, ``remove D``,
``replace B D``).
``status [A]``, ``log [A]``. Behind any command ``quiet`` leaves the messages out of the answer, ``silent`` all of it.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from raftlog.consensus.effects import Effects, StorageOp
from raftlog.consensus.invariants import check_group
from raftlog.consensus.messages import Message
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import (
    NONE,
    ConfChange,
    ConfChangeKind,
    ConfState,
    CoreConfig,
    HardState,
    LogId,
    NodeId,
    Refusal,
    Role,
    Span,
)
from raftlog.log_numbers import LogIndex, Term
from tests.interaction import wording
from tests.support.log_values import span_of

NAMES = tuple(NodeId(name) for name in "ABCDE")
ENTRY_BYTES = 100
STEPS_MAX = 10_000


class BadCommand(Exception):
    """A script says something that the runner does not understand."""


class Temper(random.Random):
    """Draws the same share of every range: the more patient a node, the larger."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self._share = share

    def random(self) -> float:
        return self._share

    def getrandbits(self, k: int, /) -> int:
        return 0


@dataclass(slots=True)
class Node:
    """A core with its disk: ``written`` is what it asked to write, ``disk`` what would survive a crash now."""

    core: RaftCore
    written: list[Span]
    disk: list[Span]
    hard_state: HardState
    base_conf: ConfState
    base: LogId = NONE
    writes: list[StorageOp] = field(default_factory=list)
    slow: bool = False
    up: bool = True


def apply(op: StorageOp, log: list[Span]) -> None:
    """Carry out a write; a log is a list of spans of one entry each."""
    if op.truncate_from is not None:
        log[:] = [span for span in log if span.first < op.truncate_from]
    log += [replace_one(span, index) for span in op.spans for index in range(span.first, span.last + 1)]


def replace_one(span: Span, index: int) -> Span:
    return span.up_to(LogIndex(index)).since(LogIndex(index))


class Runner:
    """Runs commands one after the other; ``core_class`` may observe the cores."""

    def __init__(self, core_class: type[RaftCore] = RaftCore) -> None:
        self._core_class = core_class
        self._config = CoreConfig()
        self.nodes: dict[NodeId, Node] = {}
        self._mail: list[Message] = []
        self._copies: list[Message] = []
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self._now = 100.0
        self._reads = 0
        self._quiet = False
        self._said: list[str] = []

    def run(self, command: str) -> Sequence[str]:
        """Carry out one command; what happened, line by line. Raises BadCommand."""
        name, *words = shlex.split(command)
        self._quiet = "quiet" in words
        silent = "silent" in words
        words = [word for word in words if word not in ("quiet", "silent")]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        self._said = []
        method = getattr(self, f"_do_{name}", None)
        if method is None:
            raise BadCommand(f"no command {name!r}: {command}")
        method(*words, **options)
        self._pump()
        return [] if silent else [line for text in self._said for line in text.split("\n")]

    def _say(self, text: str) -> None:
        self._said.append(text)

    # -- making cores --------------------------------------------------------------------------------------------

    def _do_group(self, **options: str) -> None:
        size = int(options.pop("n"))
        voters = tuple(NodeId(name) for name in options.pop("voters", ",".join(NAMES[:size])).split(","))
        learners = tuple(NodeId(name) for name in options.pop("learners", "").split(",") if name)
        commit, term = int(options.pop("commit", "0")), int(options.pop("term", "0"))
        logs = {name: [int(t) for t in options.pop(name, "").split(",") if t] for name in NAMES}
        self._config = replace(CoreConfig(), **{name: _setting(name, value) for name, value in options.items()})
        conf = ConfState(voters, (), learners)
        self.nodes = {}
        for name in NAMES[:size]:
            log = [span_of(i, i, t, ENTRY_BYTES) for i, t in enumerate(logs[name], 1)]
            known = conf if name in conf.members else ConfState()
            hard_state = HardState(Term(max([term, *logs[name]])))
            core = self._core(name, log, hard_state, known, NONE, commit)
            self.nodes[name] = Node(core, [*log], log, hard_state, known)
        self._mail, self._cut = [], set()
        self._say(f"{wording.membership(conf)[1:-1]}" + (f", {len(self.nodes)} nodes" if size != len(voters) else ""))

    def _core(
        self,
        name: NodeId,
        log: Sequence[Span],
        hard_state: HardState,
        conf: ConfState,
        base: LogId,
        commit: int,
        **options: bool,
    ) -> RaftCore:
        runs = [(s.first, s.term) for i, s in enumerate(log) if i == 0 or log[i - 1].term != s.term]
        return self._core_class(
            node_id=name,
            confs=[(base.index, conf), *((span.first, span.conf) for span in log if span.conf is not None)],
            config=self._config,
            hard_state=hard_state,
            term_runs=runs,
            base=base,
            last_index=log[-1].last if log else base.index,
            commit=LogIndex(commit),
            rng=Temper(0.1 + 0.2 * NAMES.index(name)),
            now=self._now,
            **options,
        )

    def _do_crash(self, name: NodeId, *, keep: str = "0") -> None:
        node = self.nodes[name]
        for op in node.writes[: int(keep)]:
            self._complete(node, op)
        lost = len(node.writes) - int(keep)
        node.writes.clear()
        node.written = [*node.disk]
        node.up, node.slow = False, False
        self._mail = [message for message in self._mail if message.dst != name]
        self._say(f"{name}: down" + (f", {lost} writes lost" if lost else ""))

    def _do_restart(self, name: NodeId, *flags: str) -> None:
        node = self.nodes[name]
        options = dict.fromkeys(flags, True)
        node.core = self._core(name, node.disk, node.hard_state, node.base_conf, node.base, node.base.index, **options)
        node.up = True
        self._say(f"{name}: {wording.role(node.core)}, log {wording.place(node.core.last)}")

    # -- time ----------------------------------------------------------------------------------------------------

    def _do_elect(self, name: NodeId) -> None:
        core = self.nodes[name].core
        self._do_tick(name)
        self._do_deliver()
        if core.role is not Role.LEADER:
            self._say(f"{name} does not lead: {wording.role(core)}")

    def _do_tick(self, name: NodeId, seconds: str | None = None) -> None:
        core = self.nodes[name].core
        self._now = max(self._now, core.next_deadline()) if seconds is None else self._now + float(seconds)
        core.tick(self._now)
        self._pump()

    def _do_wait(self, seconds: str) -> None:
        end = self._now + float(seconds)
        for _ in range(STEPS_MAX):
            due = min(node.core.next_deadline() for node in self.nodes.values() if node.up)
            if due > end:
                break
            self._now = max(self._now, due)
            for node in self.nodes.values():
                if node.up:
                    node.core.tick(self._now)
            self._pump()
            self._do_deliver()
        self._now = end

    # -- messages ------------------------------------------------------------------------------------------------

    def _do_deliver(self, *words: str, drop: str = "", hold: str = "") -> None:
        wanted = _matching([word for word in words if word != "once"])
        dropped = _matching(drop.split(",")) if drop else _nothing
        held = _matching(hold.split(",")) if hold else _nothing
        for _ in range(STEPS_MAX):
            batch = [m for m in self._mail if wanted(m) and not held(m)]
            if not batch:
                return
            self._mail = [m for m in self._mail if not wanted(m) or held(m)]
            for message in batch:
                self._hand_over(message, lost=dropped(message))
            if "once" in words:
                return
        raise BadCommand(f"messages follow one another for ever, last {wording.told(self._mail[-1])}")

    def _hand_over(self, message: Message, *, lost: bool) -> None:
        node = self.nodes.get(message.dst)
        lost = lost or (message.src, message.dst) in self._cut or node is None or not node.up
        if not self._quiet:
            self._say(wording.told(message) + (" -- lost" if lost else ""))
        if not lost:
            assert node is not None, f"a message for {message.dst}, who is not here"
            try:
                node.core.receive(message, self._now)
            except AssertionError as error:
                self._halt(message.dst, error)
            self._pump()

    def _halt(self, name: NodeId, error: AssertionError) -> None:
        """A broken promise ends the process rather than the data."""
        self.nodes[name].up = False
        self._say(f"  {name} halts: {error}")

    def _do_drop(self, *words: str) -> None:
        wanted = _matching(words)
        for message in self._mail:
            if wanted(message):
                self._say(f"{wording.told(message)} -- lost")
        self._mail = [message for message in self._mail if not wanted(message)]

    def _do_copy(self, *words: str) -> None:
        self._copies = [message for message in self._mail if _matching(words)(message)]

    def _do_again(self) -> None:
        self._mail += self._copies

    def _do_mail(self) -> None:
        for message in self._mail:
            self._say(wording.told(message))

    def _do_cut(self, *words: str) -> None:
        first = words[0]
        if "->" in first:
            src, dst = first.split("->")
            self._cut.add((NodeId(src), NodeId(dst)))
            return
        others = words[1:] or [name for name in self.nodes if name != first]
        for other in others:
            self._cut |= {(NodeId(first), NodeId(other)), (NodeId(other), NodeId(first))}

    def _do_heal(self) -> None:
        self._cut.clear()

    # -- disks ---------------------------------------------------------------------------------------------------

    def _do_slow(self, name: NodeId) -> None:
        self.nodes[name].slow = True

    def _do_fast(self, name: NodeId) -> None:
        self.nodes[name].slow = False
        self._do_write(name)

    def _do_write(self, name: NodeId, count: str | None = None) -> None:
        node = self.nodes[name]
        for _ in range(len(node.writes) if count is None else int(count)):
            op = node.writes.pop(0)
            self._complete(node, op)
            self._say(f"{name} disk: {wording.written(op)}")
            node.core.storage_done(op.ticket, self._now)

    def _complete(self, node: Node, op: StorageOp) -> None:
        apply(op, node.disk)
        if op.hard_state is not None:
            node.hard_state = op.hard_state

    def _do_stall(self, name: NodeId, seconds: str) -> None:
        self.nodes[name].core.disk_slow(float(seconds), self._now)

    def _do_full(self, name: NodeId, full: str) -> None:
        self.nodes[name].core.disk_full(full == "yes", self._now)

    def _do_compact(self, name: NodeId, index: str) -> None:
        node, base = self.nodes[name], int(index)
        node.base = LogId(LogIndex(base), next(span.term for span in node.disk if span.last == base))
        confs = [span.conf for span in node.disk if span.conf is not None and span.last <= base]
        node.base_conf = confs[-1] if confs else node.base_conf
        for log in (node.disk, node.written):
            log[:] = [span for span in log if span.first > base]
        node.core.compact(LogIndex(base), self._now)

    def _do_install(self, name: NodeId, source: NodeId) -> None:
        """What the shell does with a finished reset: another log takes the place of the old one, and a new start."""
        node, other = self.nodes[name], self.nodes[source]
        index = other.base.index
        node.base, node.base_conf, node.disk, node.written = other.base, other.base_conf, [], []
        self._do_restart(name)
        self._say(f"{name}: log begins behind {index}")

    # -- what clients and operators want -------------------------------------------------------------------------

    def _do_propose(self, name: NodeId, count: str = "1", *, size: str = str(ENTRY_BYTES)) -> None:
        result = self.nodes[name].core.propose(int(count), int(count) * int(size), self._now)
        self._answer(name, result if isinstance(result, Refusal) else None)

    def _do_change(self, name: NodeId, verb: str, *nodes: NodeId) -> None:
        kind = ConfChangeKind(verb)
        joining = nodes[-1]
        replaced = nodes[0] if kind is ConfChangeKind.REPLACE else None
        address = f"{joining}:1" if kind is ConfChangeKind.ADD_LEARNER else ""
        result = self.nodes[name].core.propose_conf(ConfChange(kind, joining, address, replaced), self._now)
        self._answer(name, result if isinstance(result, Refusal) else None)

    def _do_transfer(self, name: NodeId, to: NodeId | None = None) -> None:
        self._answer(name, self.nodes[name].core.transfer(to, self._now))

    def _do_read(self, name: NodeId, count: str = "1") -> None:
        for _ in range(int(count)):
            self._reads += 1
            self._say(f"{name}: read {self._reads}")
            self.nodes[name].core.read(self._reads, self._now)

    def _do_lost(self, name: NodeId, peer: NodeId) -> None:
        self.nodes[name].core.peer_lost(peer, self._now)

    def _answer(self, name: NodeId, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._say(f"{name} refuses: {refusal.value}")

    # -- looking -------------------------------------------------------------------------------------------------

    def _do_status(self, *names: NodeId) -> None:
        for name in names or self.nodes:
            node = self.nodes[NodeId(name)]
            self._say(f"{name}: " + (wording.state(node.core) if node.up else "down"))

    def _do_log(self, *names: NodeId) -> None:
        for name in names or self.nodes:
            node = self.nodes[NodeId(name)]
            on_disk = node.disk[-1].last if node.disk else node.base.index
            self._say(f"{name}: {wording.log_text(node.written, on_disk, node.core.commit)}")

    # -- effects -------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        for _ in range(STEPS_MAX):
            waiting = [name for name, node in self.nodes.items() if node.up and node.core.has_effects]
            if not waiting:
                break
            for name in waiting:
                self._carry_out(name, self.nodes[name])
        check_group([node.core for node in self.nodes.values() if node.up])

    def _carry_out(self, name: NodeId, node: Node) -> None:
        core = node.core
        effects = core.take_effects()
        core.check_invariants()
        for line in _outcome(core, effects):
            self._say(f"  {name}: {line}")
        if effects.storage is not None:
            node.writes.append(effects.storage)
            apply(effects.storage, node.written)
            if not node.slow:
                op = node.writes.pop(0)
                self._complete(node, op)
                core.storage_done(op.ticket, self._now)
        self._mail += effects.send
        for fetch in effects.fetch:
            count = max(fetch.bytes_max // ENTRY_BYTES, 1)
            spans = tuple(s for s in node.written if fetch.first <= s.first < fetch.first + count)
            spans = spans if spans and spans[0].first == fetch.first else ()
            self._say(f"  {name}: reads {wording.entries(spans) or 'nothing'} from its log for {fetch.peer}")
            core.on_fetch(fetch.peer, spans, self._now)


def _outcome(core: RaftCore, effects: Effects) -> Iterator[str]:
    """What a core says of itself, apart from messages."""
    if effects.role is not None:
        yield wording.role(core)
    if effects.storage is not None:
        yield f"write {wording.written(effects.storage)}"
    if effects.conf is not None:
        yield f"in force {wording.membership(effects.conf)}"
    if effects.commit is not None:
        yield f"commit {effects.commit}"
    if effects.failed_from is not None:
        yield f"outcome unknown from {effects.failed_from} on"
    for ctx, index in effects.reads:
        yield f"read {ctx} " + ("failed" if index is None else f"may be answered at {index}")
    for peer in effects.install:
        yield f"offers {peer} its segments"


def _setting(name: str, value: str) -> Any:
    known = {field.name: field.type for field in fields(CoreConfig)}
    if name not in known:
        raise BadCommand(f"no setting {name!r}")
    read: dict[str, Callable[[str], Any]] = {"bool": lambda text: text == "yes", "int": int, "float": float}
    return read[str(known[name])](value)


def _nothing(_: Message) -> bool:
    return False


def _matching(words: Sequence[str]) -> Callable[[Message], bool]:
    """Whether one of ``words`` describes a message; no word describes all."""
    return lambda message: not words or any(_describes(word, message) for word in words)


def _describes(word: str, message: Message) -> bool:
    link, _, kind = word.rpartition(":") if "->" not in word or ":" in word else (word, "", "")
    if kind and kind not in wording.KINDS.values():
        raise BadCommand(f"no message is called {kind!r}")
    if link:
        src, dst = link.split("->")
        if src not in ("*", message.src) or dst not in ("*", message.dst):
            return False
    return not kind or wording.kind(message) == kind
