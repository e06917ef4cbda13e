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
from raftlog.segment.meta import SLOT_BYTES, MetaState, decode_slot
from raftlog.segment.recovery import LogDamaged
from raftlog.segment.repair import Repair

DIRECTORY = "/log"


class Process(Protocol):
    """What runs on a node, as the simulation around it sees that; see `chaos.log_sim.process.LogProcess`."""

    node: Node
    node_id: NodeId
    core: RaftCore
    replica: Replica
    log: SegmentLog
    writer: SimWriter

    def begun(self) -> None:
        """The process runs: what it does from now on by itself begins."""

    def stops(self) -> None:
        """The process is about to end in order."""

    def ended(self, *, power_cut: bool) -> None:
        """The process has ended, in whatever way."""

    def next_wake(self) -> float:
        """When the process must have a turn at the latest, as the world counts time."""

    def pump(self) -> None:
        """End a turn, and check what must hold between turns."""

    def receive(self, source: NodeId, data: bytearray, *, garbled: bool) -> bool:
        """Take a frame as it came from the network; returns False when it was no frame."""

    def propose(self, values: Sequence[int], nbytes: int) -> None:
        """Append entries as clients ask."""

    def read(self) -> None:
        """Read as a client does."""

    def snapshot(self) -> bytes | None:
        """What a node needs that begins with the log's base; None while there is nothing to give."""

    def vouches_for(self, index: int, data: bytes) -> bool:
        """Whether the log counts this very entry as durable."""

    def range_for(self, pos: int, nbytes: int) -> bytes | None:
        """Bytes of the log for a peer that fetches all of it; None when it never will have them."""

    def drop_files(self, share: float, floor: int) -> bool:
        """Let the log begin later, not above the entry ``floor``; returns whether it does."""

    def note_damage(self, pos: int) -> None:
        """Let the next opening look at everything, since something cannot be read."""

    def check_durable(self) -> None:
        """Raise `Violation` if the log counts bytes as durable that are in the cache only."""


class World(Protocol):
    """What a node needs of the simulation around it."""

    now: float
    history: History
    wires: Wires
    buggify: Buggify

    def later(self, node: Node, seconds: float, step: Callable[[], object]) -> None:
        """Let ``step`` happen at the node's process, unless it has ended by then."""

    def process_ends(self, node: Node, error: Exception) -> None:
        """The node's process gives up."""

    def offers(self, process: Process, peer: NodeId) -> None:
        """The node leads, and ``peer`` needs files of its log."""

    def leads(self, node: Node, term: int) -> None:
        """The node was elected."""


class NewProcess(Protocol):
    """Starts a process on a node. Raises SegmentError: the log cannot be opened."""

    def __call__(
        self, node: Node, world: World, scenario: Scenario, rng: random.Random, core_class: type[RaftCore], /
    ) -> Process:
        """See above."""


class Node:
    """A machine that can lose its power, and a process on it that can be killed, stopped, paused and started."""

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
        """By how much its wall clock is wrong."""
        self._rng = rng
        self.checkpoint = 0
        self.replacing = False
        """Fetched files are put in the log's place by the next start."""

    # -- life --------------------------------------------------------------------------------------------------

    def start(self, *, found_damage: bool = False) -> SegmentError | None:
        """Start the process from what the disk holds; returns why it did not start, if the disk is to blame.

        ``found_damage``: a start just before ended with damage, and noted it.
        """
        assert self.process is None, f"{self.node_id} runs already"
        assert self.repair is None, f"{self.node_id} is being repaired"
        self.replacing |= bool({"READY", "INSTALL"} & set(self.disk.names(f"{DIRECTORY}/reset")))
        if self.disk.has_lost and self._world.buggify("evicted-cache"):
            self.disk.evict(self._rng)
        # Who may have forgotten something does not vote, so where nothing is synced all but one open in peace.
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
                raise Violation(f"{self.node_id}: damage where nobody did any: {error}") from error
            others = [node for node in (*self._scenario.nodes, *self._scenario.spares) if node != self.node_id]
            try:
                self.repair = Repair(self.disk, error, peers=others)
            except StorageFailed as refused:
                self.disk.kill()
                return refused
            return None
        except StorageCorrupt as error:
            # It is noted, and a start that looks at everything follows, as in `serve_node`.
            if not self.flips or found_damage:
                raise Violation(f"{self.node_id} does not start: {error}") from error
            return self.start(found_damage=True)
        except SegmentError as error:
            self.disk.kill()
            return error
        self.disk.power_stays()
        self.process.begun()
        return None

    def finish_repair(self) -> None:
        """The log is in order again; the process can be started."""
        assert self.repair is not None, f"{self.node_id} repairs nothing"
        repair, self.repair = self.repair, None
        if repair.cut_at is not None:
            self.checkpoint = repair.meta.starts_at.index
        repair.finish()

    def kill(self, *, power_cut: bool) -> None:
        """The process ends where it stands, and with a power cut the machine does."""
        process, self.process = self.process, None
        self.repair = None
        self.awake()
        if process is not None:
            if self._world.buggify("crash-in-write"):
                process.writer.stop_midway(self.disk, self._rng.randrange(8))
            elif self._world.buggify("crash-after-write"):
                process.writer.stop_midway(self.disk, 1 << 40)
            process.writer.abandon()
            process.ended(power_cut=power_cut)
        if power_cut:
            self.disk.crash(self._rng)
        else:
            self.disk.kill()

    def stop(self) -> None:
        """The process ends in order."""
        process, self.process = self.process, None
        if process is not None:
            process.stops()
            try:
                process.log.close(clean=True)
            except (SegmentError, OSError):
                self.disk.kill()
            process.ended(power_cut=False)

    # -- time --------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        """What the node takes for the time: its timers run by it."""
        return self._world.now * self._clock_rate + self._clock_ahead

    def monotonic(self) -> float:
        """The same without the time for which the machine was suspended, as Linux's monotonic clock tells it."""
        return self.clock() - self._suspended_seconds

    def suspend(self) -> None:
        """The machine sleeps; its process is to be paused, too."""
        if self._suspended_at is None:
            self._suspended_at = self.clock()

    def awake(self) -> None:
        """The machine runs, whether it slept or not."""
        if self._suspended_at is not None:
            self._suspended_seconds += self.clock() - self._suspended_at
            self._suspended_at = None

    def leap(self, seconds: float) -> None:
        """The clock goes ahead."""
        self._clock_ahead += seconds

    def world_time(self, local: float) -> float:
        """When the node's clock will show ``local``."""
        return (local - self._clock_ahead) / self._clock_rate + 1e-6

    def disk_latency(self) -> float:
        """Seconds that the next write takes."""
        return self._rng.uniform(0.0, self.disk_seconds_max)

    # -- the disk, as it would be found after a power cut ------------------------------------------------------

    def holds(self, pos: int, data: bytes) -> bool:
        """Whether ``data`` lies durably at a physical offset of the log."""
        if any(pos <= flip < pos + len(data) for flip in self.flips):
            return True  # it did, before the disk forgot
        start = pos - pos % self._scenario.segment_bytes
        return self.disk.durable(f"{DIRECTORY}/{start:020d}", pos - start, len(data)) == data

    def hard_state(self) -> HardState:
        """Term and vote that are durable."""
        state = self._meta()
        if state is None:
            return HardState()
        return HardState(state.term, None if state.voted_for is None else NodeId(state.voted_for))

    def marked_pos(self) -> int:
        """What the disk itself knows to be durable of the log, wherever the truth is."""
        state = self._meta()
        return 0 if state is None else state.durable_pos

    def _meta(self) -> MetaState | None:
        slots = [
            decode_slot(self.disk.durable(f"{DIRECTORY}/meta", number * SLOT_BYTES, SLOT_BYTES)) for number in (0, 1)
        ]
        newest = max((slot for slot in slots if slot is not None), key=lambda slot: slot[0], default=None)
        return None if newest is None else newest[1]
