"""One start of a simulated broker: the real `Broker` with all its services, on a simulated log, clock and network.

The state that a broker derives from its log is in real files, in memory (tmpfs) where the machine has that. After a
power cut they are unchanged or, by chance, as of the last checkpoint that made them durable.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from chaos.broker_sim.schedule import BrokerScenario
from chaos.broker_sim.sockets import SimConnection, SimReactor, SocketWorld
from chaos.log_sim.history import Entry
from chaos.log_sim.node import DIRECTORY, Node, World
from chaos.log_sim.process import LogProcess
from chaos.log_sim.schedule import Scenario
from chaos.violation import Violation
from mq.broker.base.archive_tier import QUEUES_FROM, store_queues_from
from mq.broker.base.periodic_task import REST_SECONDS_MAX
from mq.broker.base.process_tuning import DescriptorLimits
from mq.broker.base.retention import encode_early
from mq.broker.base.steady_wall_clock import SteadyWallClock
from mq.broker.broker import Broker
from mq.broker.context import ArchiveAccess, Environment
from mq.broker.limits import BrokerLimits
from mq.broker.settings import BrokerSettings
from mq.broker.state.format_level import announced_level
from mq.broker.state.metadata import Metadata
from mq.protocol.numbers import PhysicalOffset
from mq.store.checkpoint import Checkpointer
from mq.store.dispatch import check_entry
from mq.store.errors import QueueFileDamaged
from mq.store.opening import LogBounds, begin_to_note_floors, open_store
from mq.store.queue_store import QueueStoreSettings
from raftlog import Software
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import EntryKind, Role, RoleChange
from raftlog.log_numbers import LogIndex
from raftlog.replica import CommittedEntry, Job
from raftlog.segment.errors import SegmentError
from raftlog.segment.meta import Base

TICK_SECONDS = 0.1
_DESCRIPTORS_MAX = 1 << 30
_SECRETS = (bytes(32),)
EARLY_NOTE = encode_early(0, 0)
"""Half of the deletions come before their time, as on a full disk."""
_CHECK_TURNS = 48
"""Turns between checks of a broker's state, besides when everything is quiet: a check looks at all of it, and after
each turn it would take half as long as everything else.
"""
_EACH_TURN_SEEDS, _EACH_TURN_SEED = 16, 8
"""One seed in sixteen checks the state after every turn, but none of the seeds that each test run uses."""
_QUEUES_AT_ONCE = 3
"""Small, so that entries are applied between two parts of a checkpoint."""


class BrokerWorld(World, SocketWorld, Protocol):
    """The parts of the simulation that a broker's process uses; see `BrokerCluster`."""

    plan: BrokerScenario
    limits: BrokerLimits
    dropped_pos: int

    def settings_of(self, node: Node) -> BrokerSettings:
        """Return the settings with which a broker starts."""

    def software_of(self, node_id: str) -> Software | None:
        """Return the software that a node's process reports; None if the node does not run."""

    def wall_ms(self, node: Node) -> int:
        """Return the time of a node's wall clock, in milliseconds since 1970."""

    def needed_from(self) -> int:
        """Return the physical offset from which on the log must be kept."""

    def on_entry(self, index: int, body: bytes) -> None:
        """Handle a committed entry, which each replica reports."""

    def trace_line(self, line: str) -> None:
        """Write a log line of a broker or client to the trace."""

    def on_log_line(self, node: Node, event: str, values: Mapping[str, object]) -> None:
        """Handle a log line of a broker."""

    def archive_access(self, process: BrokerProcess) -> ArchiveAccess | None:
        """Return a new process's access to the archive; None if it has none."""

    def read_archived(
        self, process: BrokerProcess, archive_end: Base, pos: int, nbytes: int, on_read: Callable[[bytes | None], None]
    ) -> bool:
        """Begin to read archived bytes for a new replica; returns False if there is no archive."""

    def on_broker_start(self, process: BrokerProcess) -> None:
        """Handle the start of a broker's process."""

    def on_broker_exit(self, process: BrokerProcess) -> None:
        """Handle the end of a broker's process, for whatever reason it ended."""


class TurnLog:
    """Writes a broker's log lines to the trace. An error that no disk causes is a violation."""

    def __init__(self, cluster: BrokerWorld, node: Node) -> None:
        self._cluster = cluster
        self._node = node

    def bind(self, **values: object) -> TurnLog:
        """Return this log, and ignore the bound values."""
        return self

    def info(self, event: str, **values: object) -> None:
        """Write one line to the trace."""
        self._cluster.trace_line(f"{self._node.node_id} {event} {values}")
        self._cluster.on_log_line(self._node, event, values)

    warning = info

    def error(self, event: str, **values: object) -> None:
        """Write an error line to the trace. Raises Violation for an exception that is not a SegmentError."""
        error = values.get("exc_info")
        if isinstance(error, Exception) and not isinstance(error, SegmentError):
            raise Violation(f"{self._node.node_id}: {event}: {type(error).__name__}: {error}") from error
        self.info(event, **values)


class BrokerProcess(LogProcess):
    def __init__(
        self, node: Node, world: World, scenario: Scenario, rng: random.Random, core_class: type[RaftCore]
    ) -> None:
        self._cluster = cast("BrokerWorld", world)
        self._check_turns = 1 if scenario.seed % _EACH_TURN_SEEDS == _EACH_TURN_SEED else _CHECK_TURNS
        with ExitStack() as stack:
            self._stack = stack
            super().__init__(node, world, scenario, rng, core_class)
            stack.pop_all()  # `ended` closes it
        self.broker.attach(self.replica)
        self.reactor.serve_together(self.broker.services.sends.receive)

    # -- life ----------------------------------------------------------------------------------------------------------

    def _open_application(self) -> None:
        cluster, node, log, rng = self._cluster, self.node, self.log, self._rng
        self.settings: BrokerSettings = cluster.settings_of(node)
        directory = Path(self.settings.data_dir)
        snapshot_path = directory / "incoming"
        if "snapshot" in node.disk.names(DIRECTORY):
            directory.mkdir(parents=True, exist_ok=True)
            snapshot_path.write_bytes(node.disk.content(f"{DIRECTORY}/snapshot"))
        flush_bytes = rng.choice((20, 200, 4096))
        store = open_store(
            str(directory),
            QueueStoreSettings(
                entries_per_file=cluster.plan.entries_per_file,
                entries_per_block=cluster.plan.entries_per_file // 2,
                open_files_max=rng.choice((2, 512)),
                flush_bytes=flush_bytes,
                flush_age_calls=rng.choice((1, 20, 150)),
            ),
            log=LogBounds(
                base_index=log.base[0],
                base_pos=PhysicalOffset(log.base_pos),
                last_index=log.last_index,
                term_at=lambda index: log.locate(index).term,
            ),
            incoming=str(snapshot_path),
        )
        self.queues = store.queues
        self._stack.callback(self.queues.close)  # the power may be cut while it opens, or the disk fail
        if "snapshot" in node.disk.names(DIRECTORY):
            with node.disk.suspend_faults():
                node.disk.unlink(f"{DIRECTORY}/snapshot")
        store_queues_from(log, has_tiers=self.settings.has_tiers, is_fresh=store.is_fresh)
        if self.settings.has_tiers and store.is_fresh:
            begin_to_note_floors(str(directory), store.queues)
        if QUEUES_FROM not in log.notes:
            while self.queues.expire_some(PhysicalOffset(log.base_pos)):
                pass
        self._keep_durable()
        metadata = Metadata(announced_level(self.settings.format_level_max), cluster.limits.state)
        metadata.restore(store.checkpoint.state)
        self.metadata = metadata
        node.replaces_log = False
        node.checkpoint = store.checkpoint.applied_index
        self.reactor = SimReactor(cluster, self)
        self._lines = TurnLog(cluster, node)
        self.checkpointer = Checkpointer(str(directory), self.queues, queues_at_once=_QUEUES_AT_ONCE)
        environment = Environment(
            store_ip=cluster.address_of(node)[0],
            reactor=cast("Any", self.reactor),
            rng=random.Random(rng.getrandbits(32)),
            clock=node.clock,
            thread_clock=node.clock,
            wall_clock_ms=SteadyWallClock(partial(cluster.wall_ms, node), node.clock, cast("Any", self._lines)),
            process_id=1,
            connect_failure=lambda node: "",
            secrets=lambda: _SECRETS,
            random_bytes=random.Random(f"nonces of {node.node_id}").randbytes,
            in_background=self._in_background,
            in_bulk_background=self._in_background,
            on_registration_changed=lambda topics: None,
            descriptors=DescriptorLimits.from_limit(_DESCRIPTORS_MAX),
            log=cast("Any", self._lines),
            peer_software=cluster.software_of,
            set_level=lambda level: None,
            receive_into=self.reactor.receive_into,
            archive=cluster.archive_access(self),
        )
        self.broker = Broker(
            settings=self.settings,
            environment=environment,
            metadata=metadata,
            store=self.queues,
            catch_up=store.catch_up,
            checkpointer=self.checkpointer,
            limits=cluster.limits,
        )

    def archive_end(self) -> Base | None:
        return self.metadata.archived.known_at(self.settings.archive_url)

    def read_archived(self, archive_end: Base, pos: int, nbytes: int, on_read: Callable[[bytes | None], None]) -> bool:
        return self._cluster.read_archived(self, archive_end, pos, nbytes, on_read)

    def check_body(self, body: memoryview, position: int) -> None:
        check_entry(body, position)

    def on_start(self) -> None:
        actions = self.broker.periodic()
        now = self._world.now
        self._actions = actions
        self._due_at = [now + self._rng.uniform(0.0, min(each.seconds, 1.0)) for each in actions]
        self._rested_since = [now] * len(actions)
        self._checkpoint_at = now + self._rng.uniform(0.0, self.settings.checkpoint_seconds)
        self._next_tick()
        self._cluster.on_broker_start(self)

    def _in_background(self, job: Job) -> None:
        """Run a job some time later, as a worker thread does. Its result arrives some time after that."""

        def work() -> None:
            self._cluster.later(self.node, self._rng.choice((0.0, 0.001, 0.02)), job())

        self._cluster.later(self.node, self._rng.choice((0.0, 0.001, 0.2)), work)

    def _next_tick(self) -> None:
        is_soon = self.broker.services.has_unsent_replies() or len(self.broker.slow_responses) > 0
        self._cluster.later(self.node, 0.01 if is_soon else TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        now = self._world.now
        self.broker.services.forwarder.tick()
        self.broker.slow_responses.run_step()
        for number in [number for number, at in enumerate(self._due_at) if at <= now]:
            seconds, action, rests_until = self._actions[number]
            rests = rests_until() > self.node.clock()  # the broker's clock, which runs at another rate and jumps
            if rests and now < self._rested_since[number] + REST_SECONDS_MAX:
                continue
            self._rested_since[number], self._due_at[number] = now, now + seconds
            action()
        if now >= self._checkpoint_at:
            self._checkpoint_at = float("inf")
            self._begin_checkpoint()
        self._next_tick()

    def _begin_checkpoint(self) -> None:
        checkpoint = self.broker.prepare_checkpoint()

        def go_on() -> None:
            if checkpoint is not None and checkpoint.gather():
                self._cluster.later(self.node, self._rng.choice((0.0, 0.05)), go_on)
            else:
                self._cluster.later(self.node, self._rng.choice((0.0, 0.05, 0.5)), commit)

        def commit() -> None:
            # Like a worker thread: some time later, when more has been applied.
            if checkpoint is not None and checkpoint.commit():
                self._keep_durable()
            self._checkpoint_at = self._world.now + self.settings.checkpoint_seconds

        go_on()

    def _keep_durable(self) -> None:
        """Copy the present files, so that a power cut leaves this state."""
        durable = self._durable_copy
        shutil.rmtree(durable, ignore_errors=True)
        if self._cluster.plan.loses_derived:
            shutil.copytree(self.settings.data_dir, durable)

    @property
    def _durable_copy(self) -> Path:
        return Path(f"{self.settings.data_dir}.durable")

    def prepare_stop(self) -> None:
        """Close the connections and write a checkpoint, as a server does before it ends."""
        self.broker.close_connections()
        with suppress(SegmentError):
            if (checkpoint := self.broker.prepare_checkpoint()) is not None:
                while checkpoint.gather():
                    pass
                checkpoint.commit()
                self._keep_durable()

    def on_exit(self, *, power_cut: bool) -> None:
        self._cluster.on_broker_exit(self)
        self.reactor.vanish()
        self.queues.close()
        if power_cut and self._cluster.plan.loses_derived and self._rng.random() < 0.5:
            shutil.rmtree(self.settings.data_dir)
            shutil.copytree(self._durable_copy, self.settings.data_dir)

    def accept(self, line: SimConnection, side: int, peer: tuple[str, int]) -> None:
        """Serve a new connection."""
        sock = self.reactor.socket(line, side, peer)
        self._cluster.in_process(self, "is connected to", lambda: self.broker.accept(cast("Any", sock)))

    # -- turns ---------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Run a turn, and check the invariants of the broker's state at times; see `_CHECK_TURNS`."""
        super().pump()
        if self._turns % self._check_turns == 0:
            self.broker.check_invariants()

    def _end_turn(self) -> None:
        self.broker.end_turn()
        self.reactor.flush()

    def snapshot(self) -> bytes | None:
        state = self.broker.snapshot()
        return None if state is None else state[1]()

    def drop_files(self, share: float, floor: int) -> bool:
        """Drop the start of the log, as far as restarts, pending messages and readers allow; see `LogProcess`."""
        log = self.log
        floor = min(floor, self.replica.applied_index, log.durable_index - 1)
        held_pos = self.broker.services.leases.first_pos()
        floor_pos = min(self.checkpointer.floor_pos, self._cluster.needed_from(), held_pos)
        try:
            floor_pos = min(floor_pos, self.broker.services.kept_messages.first_pos())
        except QueueFileDamaged:
            return False
        files = [
            segment.start
            for segment in log.segments()
            if log.base_pos < segment.start <= floor_pos and segment.first_index <= floor + 1
        ]
        if not files or self.broker.snapshot() is None:
            return False  # there are none, or the queues are still being filled
        base_pos = files[int(share * (len(files) - 1))]
        self._cluster.dropped_pos = max(self._cluster.dropped_pos, base_pos)
        return self.replica.drop_prefix(base_pos, EARLY_NOTE if share > 0.5 else None)

    # -- Application ---------------------------------------------------------------------------------------------------

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        history = self._world.history
        confs = [conf for _, conf in self.confs[-2:]]
        for entry in entries:
            index = entry.index
            if index != self._applied + 1:
                raise Violation(f"{self.node_id} applies {index} after {self._applied}")
            log_entry = Entry(index, entry.term, entry.kind, entry.pos, self._chain_at(index), None)
            is_new = index > len(history.committed)
            history.check_entry(self.node_id, self.replica.core.term, log_entry, partial(self._bytes_of, index), confs)
            if is_new and entry.kind == EntryKind.NORMAL:
                self._cluster.on_entry(index, entry.body)
            self._applied = index
        self.broker.apply(entries)

    def role_changed(self, change: RoleChange) -> None:
        super().role_changed(change)
        self.broker.role_changed(change)

    def outcome_unknown(self, first_index: int) -> None:
        self.broker.outcome_unknown(LogIndex(first_index))

    @property
    def leads(self) -> bool:
        """Whether the broker leads and accepts messages."""
        return self.replica.core.role is Role.LEADER and self.broker.appender.is_open
