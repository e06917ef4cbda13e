"""One simulated machine: a disk, and at times a process on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from chaos.buggify import Buggify
from chaos.disk import MemoryDisk
from chaos.disk import PowerCut as OutOfPower
from chaos.log_sim.history import History
from chaos.log_sim.schedule import Scenario
from chaos.log_sim.writer import SimWriter
from chaos.network import Wires
from chaos.violation import Violation
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import HardState, NodeId
from raftlog.replica import Replica
from raftlog.segment.errors import SegmentError, StorageCorrupt, StorageFailed
from raftlog.segment.log import SegmentLog
from raftlog.segment.meta import SLOT_BYTES, Base, MetaState, decode_slot
from raftlog.segment.recovery import LogDamaged
from raftlog.segment.repair import Repair

DIRECTORY = "/log"


class Process(Protocol):
    """The interface of a process on a node for the simulation; see `chaos.log_sim.process.LogProcess`."""

    node: Node
    node_id: NodeId
    core: RaftCore
    replica: Replica
    log: SegmentLog
    writer: SimWriter

    def archive_end(self) -> Base | None:
        """Return the end of the log's archived part, which the leader offers to other nodes."""

    def read_archived(self, archive_end: Base, pos: int, nbytes: int, then: Callable[[bytes | None], None], /) -> bool:
        """Begin to read archived bytes for a new replica; returns False if there is no archive."""

    def on_begin(self) -> None:
        """Start the timers and I/O of a running process."""

    def prepare_stop(self) -> None:
        """Prepare for a clean stop of the process."""

    def on_exit(self, *, power_cut: bool) -> None:
        """Handle the end of the process, for whatever reason it ended."""

    def next_wake(self) -> float:
        """Return the latest simulated time at which the process needs a turn."""

    def pump(self) -> None:
        """End a turn and check the invariants that must hold between turns."""

    def receive(self, source: NodeId, data: bytearray, *, garbled: bool) -> bool:
        """Handle a frame from the network. Return False if the bytes are not a frame."""

    def propose(self, values: Sequence[int], nbytes: int) -> None:
        """Append entries for clients."""

    def read(self) -> None:
        """Read as a client does."""

    def snapshot(self) -> bytes | None:
        """Return the snapshot for a node that starts at the log's base; None while there is none."""

    def vouches_for(self, index: int, data: bytes) -> bool:
        """Return whether the log considers exactly this entry durable."""

    def range_for(self, pos: int, nbytes: int) -> bytes | None:
        """Return bytes of the log for a peer that fetches all of it; None if this node will never have them."""

    def drop_files(self, share: float, floor: int) -> bool:
        """Drop the start of the log, at most up to the entry ``floor``. Return whether anything was dropped."""

    def record_damage(self, pos: int) -> None:
        """Make the next start verify the whole log, because the byte at ``pos`` is unreadable."""

    def check_durable(self) -> None:
        """Raise `Violation` if the log takes bytes for durable that are in the cache only."""


class World(Protocol):
    """The parts of the simulation that a node needs."""

    now: float
    history: History
    wires: Wires
    buggify: Buggify

    def later(self, node: Node, seconds: float, step: Callable[[], object]) -> None:
        """Run ``step`` in the node's process, unless it has ended by then."""

    def end_process(self, node: Node, error: Exception) -> None:
        """End a node's process, which failed with ``error``."""

    def offer_files(self, process: Process, peer: NodeId) -> None:
        """Offer the leader's log files to ``peer``, which needs them."""

    def on_election(self, node: Node, term: int) -> None:
        """Handle the election of a node in ``term``."""


class NewProcess(Protocol):
    """Starts a process on a node. Raises SegmentError if the log cannot be opened."""

    def __call__(
        self, node: Node, world: World, scenario: Scenario, rng: random.Random, core_class: type[RaftCore], /
    ) -> Process:
        """Open the log and build the process."""


class Node:
    """A machine that can lose power, and a process on it that can be killed, stopped, paused and started."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        world: World,
        scenario: Scenario,
        clock_rate: float,
        priority: int,
        rng: random.Random,
        core_class: type[RaftCore] = RaftCore,
        new_process: NewProcess,
    ) -> None:
        self.node_id = node_id
        self.config = replace(scenario.config, priority=priority)
        self.repair: Repair | None = None
        self.flips: list[int] = []
        """Physical offsets at which a bit was flipped."""
        self.disk = MemoryDisk()
        self.disk_seconds_max = scenario.disk_seconds_max
        self.process: Process | None = None
        self._world = world
        self._scenario = scenario
        self._core_class = core_class
        self._new_process = new_process
        self._clock_rate = clock_rate
        self._clock_ahead = 0.0
        self._suspended_seconds = 0.0
        self._suspended_at: float | None = None
        self.wall_ahead_ms = 0
        """The error of the node's wall clock in milliseconds."""
        self._rng = rng
        self.socket_faults = random.Random(f"{scenario.seed} sockets of {node_id}")
        self.short_writes = random.Random(f"{scenario.seed} short writes of {node_id}")
        self.checkpoint = 0
        self.replaces_log = False
        """The next start replaces the log by the fetched files."""

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, *, found_damage: bool = False) -> SegmentError | None:
        """Start the process from the files on disk; returns the reason if the disk keeps it from starting.

        ``found_damage``: the start just before failed on damage, and recorded it.
        """
        assert self.process is None, f"{self.node_id} runs already"
        assert self.repair is None, f"{self.node_id} is being repaired"
        self.replaces_log |= bool({"READY", "INSTALL"} & set(self.disk.names(f"{DIRECTORY}/reset")))
        if self.disk.has_lost and self._world.buggify("evicted-cache"):
            self.disk.evict(self._rng)
        # A node that may have forgotten something does not vote, so where nothing is synced all but one start without a
        # crash.
        may_crash = self.config.durable_commit or self.node_id == self._scenario.nodes[1]
        if may_crash and self._world.buggify("crash-while-opening"):
            self.disk.cut_power_after(self._rng.randrange(12))
        try:
            self.process = self._new_process(self, self._world, self._scenario, self._rng, self._core_class)
        except OutOfPower:
            if self.config.durable_commit:
                self.disk.crash(self._rng)
            else:
                self.disk.kill()
            return self.start()
        except LogDamaged as error:
            self.disk.kill()
            if not self.flips:
                raise Violation(f"{self.node_id}: damage that no fault caused: {error}") from error
            others = [node for node in (*self._scenario.nodes, *self._scenario.spares) if node != self.node_id]
            try:
                self.repair = Repair(self.disk, error, peers=others, limits=self._scenario.limits)
            except StorageFailed as refused:
                self.disk.kill()
                return refused
            return None
        except StorageCorrupt as error:
            # It is recorded, and a start that verifies everything follows, as in `serve_node`.
            if not self.flips or found_damage:
                raise Violation(f"{self.node_id} does not start: {error}") from error
            return self.start(found_damage=True)
        except SegmentError as error:
            self.disk.kill()
            return error
        self.disk.cancel_power_cut()
        self.process.on_begin()
        return None

    def finish_repair(self) -> None:
        """Keep the result of a finished repair, so that the process can be started."""
        assert self.repair is not None, f"{self.node_id} repairs nothing"
        repair, self.repair = self.repair, None
        if repair.cut_at is not None:
            self.checkpoint = repair.meta.starts_at.index
        repair.finish()

    def kill(self, *, power_cut: bool) -> None:
        """Kill the process. With ``power_cut``, the machine loses power, too."""
        process, self.process = self.process, None
        self.repair = None
        self.wake()
        if process is not None:
            if self._world.buggify("crash-in-write"):
                process.writer.stop_midway(self.disk, self._rng.randrange(8))
            elif self._world.buggify("crash-after-write"):
                process.writer.stop_midway(self.disk, 1 << 40)
            process.writer.abandon()
            process.on_exit(power_cut=power_cut)
        if power_cut:
            self.disk.crash(self._rng)
        else:
            self.disk.kill()

    def stop(self) -> None:
        """Stop the process cleanly."""
        process, self.process = self.process, None
        if process is not None:
            process.prepare_stop()
            try:
                process.log.close(clean=True)
            except (SegmentError, OSError):
                self.disk.kill()
            process.on_exit(power_cut=False)

    # -- time --------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Return the node's time in seconds, which drives its timers."""
        return self._world.now * self._clock_rate + self._clock_ahead

    def monotonic(self) -> float:
        """Return the seconds of `clock` without suspended time, like Linux's monotonic clock."""
        return self.clock() - self._suspended_seconds

    def suspend(self) -> None:
        """Suspend the machine; its process must be paused, too."""
        if self._suspended_at is None:
            self._suspended_at = self.clock()

    def wake(self) -> None:
        """Let the machine run again if it was suspended."""
        if self._suspended_at is not None:
            self._suspended_seconds += self.clock() - self._suspended_at
            self._suspended_at = None

    def leap(self, seconds: float) -> None:
        """Put the clock ahead by ``seconds``."""
        self._clock_ahead += seconds

    def world_time(self, local: float) -> float:
        """Return the simulated time at which the node's clock will show ``local``."""
        return (local - self._clock_ahead) / self._clock_rate + 1e-6

    def disk_latency(self) -> float:
        """Draw the seconds that the next write takes."""
        return self._rng.uniform(0.0, self.disk_seconds_max)

    # -- the disk, as after a power cut --------------------------------------------------------------------------------

    def holds(self, pos: int, data: bytes) -> bool:
        """Return whether ``data`` is durable at the physical offset ``pos`` of the log."""
        if any(pos <= flip < pos + len(data) for flip in self.flips):
            return True  # it was, before the disk forgot
        start = pos - pos % self._scenario.segment_bytes
        return self.disk.durable(f"{DIRECTORY}/{start:020d}", pos - start, len(data)) == data

    def hard_state(self) -> HardState:
        """Return the term and the vote that are durable."""
        state = self._meta()
        if state is None:
            return HardState()
        return HardState(state.term, None if state.voted_for is None else NodeId(state.voted_for))

    def marked_pos(self) -> int:
        """Return the position up to which the disk itself records the log as durable."""
        state = self._meta()
        return 0 if state is None else state.durable_pos

    def _meta(self) -> MetaState | None:
        slots = [
            decode_slot(self.disk.durable(f"{DIRECTORY}/meta", number * SLOT_BYTES, SLOT_BYTES)) for number in (0, 1)
        ]
        newest = max((slot for slot in slots if slot is not None), key=lambda slot: slot[0], default=None)
        return None if newest is None else newest[1]
