"""A group of replicas in simulated time: one loop over a heap of events, the only source of order and randomness.

A run has two parts. In the first anything in the schedule may happen and only safety is checked. Then everything is
healed and restarted, and the group must elect a leader, commit something new and agree, within a time limit; in the end
the files of all replicas are compared byte by byte.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from chaos.buggify import Buggify
from chaos.faults import Fault, Heal
from chaos.log_sim.catchup import CatchUp
from chaos.log_sim.history import History
from chaos.log_sim.nemesis import Nemesis
from chaos.log_sim.node import DIRECTORY, NewProcess, Node, Process
from chaos.log_sim.process import LogProcess
from chaos.log_sim.repair import Repairs
from chaos.log_sim.schedule import Scenario
from chaos.network import Network, Wires
from chaos.violation import Violation
from raftlog.consensus.invariants import check_group
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import NodeId, Role
from raftlog.segment.codec import HEADER
from raftlog.segment.errors import DirectoryUnusable, SegmentError, StorageCorrupt, StorageFailed

_GROUP_CHECK_STEPS = 64
_STALL_POLL_SECONDS = 0.3
_PATIENCES_MAX = 100


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. ``digest`` is equal for equal runs, ``broke`` describes the first broken promise.

    ``injected`` and ``effective`` are the numbers of faults by kind: all, and the ones that changed anything. ``asked``
    and ``happened`` are the numbers of evaluations and triggers of the points of `Buggify`.
    """

    seed: int
    seconds: float
    steps: int
    committed: int
    acknowledged: int
    reads: int
    terms: int
    elections: int
    repairs: int
    resets: int
    digest: int
    broke: str | None
    injected: dict[str, int] = field(default_factory=dict)
    effective: dict[str, int] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    happened: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Figures of the workload."""


class Cluster:
    """The simulated group of a scenario. ``new_process`` starts the processes on its machines.

    Args:
        core_class: the core under test.
        trace: gets one line per event, when given.
    """

    new_process: ClassVar[NewProcess] = LogProcess

    def __init__(
        self,
        scenario: Scenario,
        core_class: type[RaftCore] = RaftCore,
        trace: Callable[[str], object] | None = None,
    ) -> None:
        self.scenario = scenario
        self.trace = trace
        self.rng = random.Random(f"{scenario.seed} run")
        self.buggify = Buggify(random.Random(f"{scenario.seed} points"))
        self.buggify.calm = scenario.steady
        self.now = 0.0
        self.steps = 0
        self.elections = 0
        self.is_healed = False
        self.paused: dict[NodeId, list[Callable[[], None]]] = {}
        machines = scenario.nodes + scenario.spares
        self.network = Network(machines, scenario.link_quality, self.rng)
        self.wires = Wires(
            self.network,
            streams=scenario.streams,
            at=self.at,
            now=lambda: self.now,
            deliver=self._deliver,
            buggify=self.buggify,
            rng=self.rng,
        )
        self.history = History(self._holders, durable=scenario.config.durable_commit)
        self.nodes = {
            node_id: Node(
                node_id=node_id,
                world=self,
                scenario=scenario,
                clock_rate=rate,
                priority=priority,
                rng=self.rng,
                core_class=core_class,
                new_process=self.new_process,
            )
            for node_id, rate, priority in zip(machines, scenario.clock_rates, scenario.priorities, strict=True)
        }
        self.nemesis = Nemesis(self)
        self.catch_up = CatchUp(self)
        self.repairs = Repairs(self)
        self._digest = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._event_count = 0
        self._wakes: dict[NodeId, float] = {}
        self._next_value = 1

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run both parts, with faults and without. Raises `Violation` or `AssertionError` for a broken promise."""
        scenario = self.scenario
        for node in self.nodes.values():
            self.start(node)
        for at, fault in scenario.faults:
            self.at(at, self._strike, fault)
        self.begin_load()
        self._run_until(scenario.safety_seconds)
        self._heal()
        self._check_liveness()

    def _run_until(self, end: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, event, arguments = heapq.heappop(heap)
            self.steps += 1
            event(*arguments)
            if self.steps % _GROUP_CHECK_STEPS == 0:
                self._check_group()
        self.now = end

    def _check_group(self) -> None:
        processes = [node.process for node in self.nodes.values() if node.process is not None]
        check_group([process.core for process in processes])
        for process in processes:
            process.log.check_invariants()
            process.check_durable()

    def at(self, time: float, event: Callable[..., object], *arguments: object) -> None:
        """Run ``event`` at ``time``, in simulated seconds."""
        self._event_count += 1
        heapq.heappush(self._heap, (time, self._event_count, event, arguments))

    def trace_event(self, line: str) -> None:
        """Add a line to the trace."""
        line = f"{self.now:.6f} {line}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        if self.trace is not None:
            self.trace(line)

    # -- World, as nodes see it --------------------------------------------------------------------------------

    def later(self, node: Node, seconds: float, step: Callable[[], object]) -> None:
        self.at(self.now + seconds, self._later, node, node.process, step)

    def _later(self, node: Node, process: object, step: Callable[[], object]) -> None:
        if node.process is process:
            self.on(node, "goes on", step)

    def end_process(self, node: Node, error: Exception) -> None:
        may_fail = self.nemesis.may_fail(node.node_id)
        is_damage = isinstance(error, StorageCorrupt) and (bool(node.flips) or may_fail)  # a read may fail just once
        is_failure = isinstance(error, StorageFailed) and may_fail
        if not is_damage and not is_failure:
            raise Violation(f"{node.node_id} stops without a reason: {error}") from error
        self.trace_event(f"{node.node_id} stops: {error}")
        if isinstance(error, StorageCorrupt):
            self.verify_log(node, error.physical_offset)
            return
        self.nemesis.end(node, power_cut=False)
        self.at(self.now + self.rng.uniform(0.1, 1.5), self.restart, node)

    def offer_files(self, process: Process, peer: NodeId) -> None:
        self.catch_up.offer(process, peer)

    def flip_derived(self, node: Node, fraction: float) -> bool:
        """Flip a bit in a derived file of a node. Return whether the node has one; here it has none."""
        return False

    def on_election(self, node: Node, term: int) -> None:
        self.elections += 1
        self.trace_event(f"{node.node_id} leads term {term}")
        if self.scenario.steady and self.elections > 1:
            raise Violation(f"steadiness: {node.node_id} leads term {term}, although there were only stalls")
        self.nemesis.on_election(node)

    def _holders(self, pos: int, data: bytes) -> frozenset[NodeId]:
        """Return the nodes that have an entry on disk. Raises Violation for a node that claims it without having it."""
        holders = frozenset(node.node_id for node in self.nodes.values() if node.holds(pos, data))
        index = HEADER.unpack_from(data)[2]
        for node in self.nodes.values():
            if node.process is None or node.node_id in holders:
                continue
            with node.disk.suspend_faults():
                vouches = node.process.vouches_for(index, data)
            if vouches:
                raise Violation(f"durability: {node.node_id} counts entry {index} as durable, but its disk lacks it")
        return holders

    # -- events ------------------------------------------------------------------------------------------------

    def on(self, node: Node, what: str, step: Callable[[], object]) -> None:
        """Run a step in the node's process, now or when the node is resumed, and end the turn."""
        if (calls := self.paused.get(node.node_id)) is not None:
            process = node.process
            calls.append(lambda: self.on(node, what, step) if node.process is process else None)
            return
        if node.process is None:
            return
        self.trace_event(f"{node.node_id} {what}")
        try:
            node.process.replica.begin_turn()
            step()
        except (StorageCorrupt, StorageFailed) as error:
            self.end_process(node, error)
        if self.buggify("turn-with-many-inputs"):
            self.later(node, self.rng.uniform(0.0, 0.002), lambda: None)
        else:
            self.end_turn(node)

    def end_turn(self, node: Node) -> None:
        """End a turn of the node, and schedule its next one."""
        process = node.process
        if process is None:
            return
        try:
            process.pump()
        except (StorageCorrupt, StorageFailed) as error:
            # A process whose disk fails on any read ends.
            self.end_process(node, error)
        if node.process is not process:
            return
        wake = max(process.next_wake(), self.now)
        if process.writer.busy:
            wake = min(wake, self.now + _STALL_POLL_SECONDS)
        if self.buggify("early-tick"):
            wake = self.now + 0.001
        if self._wakes.get(node.node_id, float("inf")) > wake:
            self._wakes[node.node_id] = wake
            self.at(wake + (self.rng.uniform(0.0, 0.1) if self.buggify("late-tick") else 0.0), self._wake, node, wake)

    def _wake(self, node: Node, wake: float) -> None:
        if self._wakes.get(node.node_id) != wake:
            return
        if node.node_id in self.paused:
            # A turn handles arrived frames before it looks at the clock, see `raftlog.node.NodeRun`.
            self.paused[node.node_id].append(lambda: self.at(self.now, self._wake, node, wake))
            return
        del self._wakes[node.node_id]
        if node.process is not None:
            self.on(node, "ticks", node.process.replica.tick)

    def _deliver(self, src: NodeId, dst: NodeId, frame: bytearray, garbled: bool) -> bool:
        """Deliver a frame. Return False if the receiver cannot read it. A paused receiver reads it later."""
        node = self.nodes[dst]
        is_readable = True

        def step() -> None:
            nonlocal is_readable
            if node.process is not None:
                is_readable = node.process.receive(src, frame, garbled=garbled)

        self._digest = zlib.crc32(frame, self._digest)
        self.on(node, f"<- {src} {frame[4]} {len(frame)}", step)
        return is_readable

    def begin_load(self) -> None:
        """Start the clients."""
        self.at(0.0, self._propose)

    def _propose(self) -> None:
        """Send a client's append to a node that considers itself the leader."""
        node = self.rng.choice(list(self.nodes.values()))
        leaders = [n for n in self.nodes.values() if n.process is not None and n.process.core.role is Role.LEADER]
        if leaders:
            node = self.rng.choice(leaders)
        self._offer(node, self.rng.randint(1, 4))
        if self.rng.random() < 0.4:
            # The longest-serving leader is the most likely not to know that it is deposed.
            if len(leaders) > 1 or self.rng.random() < 0.5:
                node = min(leaders, key=lambda n: n.process.core.term if n.process else 0, default=node)
            else:
                node = self.rng.choice(list(self.nodes.values()))
            if node.process is not None:
                self.on(node, "is read", node.process.read)
        if not self.is_healed:
            self.at(self.now + self.rng.expovariate(1 / self.scenario.proposal_seconds), self._propose)

    def send_to_newest(self) -> None:
        """Send a client's request to the newest leader."""
        processes = [node.process for node in self.nodes.values() if node.process is not None]
        leaders = [process for process in processes if process.core.role is Role.LEADER]
        if leaders and not self.is_healed:
            self._offer(max(leaders, key=lambda process: process.core.term).node, 1)

    def _offer(self, node: Node, count: int) -> range:
        values = range(self._next_value, self._next_value + count)
        self._next_value += count
        if (process := node.process) is not None:
            nbytes = self.rng.randint(8, self.scenario.body_bytes_max)
            self.on(node, f"is asked for {values}", lambda: process.propose(values, nbytes))
        return values

    def _strike(self, fault: Fault) -> None:
        if not self.is_healed:
            self.trace_event(str(fault))
            self.nemesis.strike(fault)

    def start(self, node: Node) -> None:
        """Start the node's process. If its disk fails, start it some time later."""
        if (error := node.start()) is None:
            self._wakes.pop(node.node_id, None)
            if node.repair is not None:
                self.repairs.begin(node, node.repair)
            self.end_turn(node)
            return
        self._check_refusal(node, error)
        self.trace_event(f"{node.node_id} does not start: {error}")
        self.at(self.now + self.rng.uniform(0.1, 1.0), self.restart, node)

    def restart(self, node: Node) -> None:
        """Start the node's process unless it runs."""
        if node.process is None and node.repair is None:
            self.trace_event(f"{node.node_id} starts")
            self.start(node)

    def verify_log(self, node: Node, pos: int) -> None:
        """Restart the node so that it verifies its whole log: a read failed at ``pos``, or a scrub found damage."""
        if node.process is None:
            return
        node.process.record_damage(pos)
        self.reopen(node, node.process)

    def reopen(self, node: Node, process: Process | None) -> None:
        """Stop a process cleanly and start the next one, unless it has ended already."""
        if process is None or node.process is not process:
            return
        node.stop()
        self.wires.break_connections(node.node_id)
        self.restart(node)

    def fail_repair(self, node: Node, error: SegmentError) -> None:
        """End the repair of a node because its disk fails, and start the node later."""
        self._check_refusal(node, error)
        self.trace_event(f"{node.node_id} gives its repair up: {error}")
        node.kill(power_cut=False)
        self.at(self.now + self.rng.uniform(0.1, 1.0), self.restart, node)

    def _check_refusal(self, node: Node, error: SegmentError) -> None:
        of_the_disk = isinstance(error, StorageFailed | StorageCorrupt | DirectoryUnusable)
        if not of_the_disk or not self.nemesis.may_fail(node.node_id):
            raise Violation(f"{node.node_id} does not start, although its disk is intact: {error}") from error

    def resume(self, node_id: NodeId) -> None:
        """Let a paused node handle everything that arrived meanwhile."""
        node, calls = self.nodes[node_id], self.paused.pop(node_id, [])
        node.wake()
        if calls and node.process is not None and self.buggify("read-first-after-pause"):
            self.on(node, "is read", node.process.read)
        for step in calls:
            step()

    # -- the end -----------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """End all faults and restart all nodes, except perhaps a minority."""
        self.trace_event("everything heals")
        self.is_healed = True
        self.buggify.calm = True
        self.nemesis.heal(Heal())
        spare = (len(self.nodes) - 1) // 2 if self.rng.random() < 0.2 and not self._all_are_needed() else 0
        for node in self.rng.sample(list(self.nodes.values()), len(self.nodes)):
            self.resume(node.node_id)
            if node.flips:
                self.at(self.now + 0.3, self.verify_log, node, 0)
            if spare and node.process is None:
                spare -= 1
            else:
                self.restart(node)

    def _all_are_needed(self) -> bool:
        """Return whether the group may need even a minority of its nodes to elect a leader.

        Its members may have changed; a node that may have forgotten something does not vote before there is a leader,
        and a damaged node needs the bytes, or the confirmation, of all others.
        """
        nodes = self.nodes.values()
        may_forget = not self.scenario.config.durable_commit
        has_abstainer = any(node.process is not None and node.process.core.abstaining for node in nodes)
        return bool(self.scenario.spares) or may_forget or has_abstainer or any(node.flips for node in nodes)

    def _check_liveness(self) -> None:
        """Check that a leader is elected in time and commits something new, and all running nodes come to agree.

        With the small windows of some scenarios, agreeing may take long; but it must always progress. A follower's log
        is judged as far as it matches its leader's: the rest may have to be truncated first.
        """
        patience = 10 * self.scenario.config.election_timeout_seconds_max
        mark = range(0)
        deadline = self.now + patience
        # Leaders that keep replacing one another would each make some progress.
        end = self.now + _PATIENCES_MAX * patience
        best = (0, 0)
        while self.now < min(deadline, end):
            self._run_until(self.now + patience / 40)
            processes = [node.process for node in self.nodes.values() if node.process is not None]
            leader = max((p for p in processes if p.core.role is Role.LEADER), key=lambda p: p.core.term, default=None)
            if leader is None:
                continue
            # Nodes that were removed, or have not joined, promise nothing.
            processes = [process for process in processes if process.node_id in leader.core.conf.members]
            match_sum = sum(peer.match for peer in leader.core.status().peers)
            progress = (leader.core.term, match_sum + sum(process.replica.applied_index for process in processes))
            if progress > best:
                best = progress
                deadline = self.now + patience
            last = leader.log.last_index
            if leader.replica.applied_index < last:
                continue
            if self.history.committed[-1].value not in mark:
                mark = self._offer(leader.node, 1)
            elif any(node.repair is not None for node in self.nodes.values()):
                continue
            elif all(p.replica.applied_index == p.log.last_index == last and not p.writer.busy for p in processes):
                self._check_end(processes)
                return
        raise Violation(
            f"liveness: {patience} s after everything healed nothing moves: "
            + "; ".join(f"{n.node_id} {n.process.core.status() if n.process else 'down'}" for n in self.nodes.values())
        )

    def _check_end(self, processes: list[Process]) -> None:
        """Check that no acknowledged entry is lost, and that the logs are equal, byte by byte."""
        files: dict[str, tuple[NodeId, bytes]] = {}
        for process in processes:
            node = process.node
            self.history.check_acknowledged(node.node_id, process.replica.applied_index)
            start = process.log.end_pos - process.log.end_pos % self.scenario.segment_bytes
            for name in node.disk.listdir(DIRECTORY):
                if name.isdigit() and int(name) <= start:
                    content = node.disk.content(f"{DIRECTORY}/{name}")
                    first = files.setdefault(name, (node.node_id, content))
                    if content != first[1]:
                        raise Violation(f"agreement: segment {name} of {node.node_id} differs from that of {first[0]}")

    def outcome(self, broke: str | None) -> RunResult:
        """Return the result of the run so far."""
        terms = max((node.process.core.term for node in self.nodes.values() if node.process is not None), default=0)
        return RunResult(
            seed=self.scenario.seed,
            seconds=self.now,
            steps=self.steps,
            committed=len(self.history.committed),
            acknowledged=len(self.history.acked),
            reads=self.history.reads,
            terms=terms,
            elections=self.elections,
            repairs=self.repairs.finish_count,
            resets=self.catch_up.finish_count,
            digest=self._digest,
            broke=broke,
            injected=dict(self.nemesis.injected),
            effective=dict(self.nemesis.effective),
            asked=dict(self.buggify.evaluations),
            happened=dict(self.buggify.triggers),
        )


def simulate(
    scenario: Scenario,
    core_class: type[RaftCore] = RaftCore,
    trace: Callable[[str], object] | None = None,
) -> RunResult:
    """Run a scenario. A broken promise ends the run and is in the result."""
    return outcome_of(Cluster(scenario, core_class, trace))


def outcome_of(cluster: Cluster) -> RunResult:
    """Run a cluster. A broken promise ends the run and is in the result."""
    try:
        cluster.run()
    except Exception as broken:
        place = broken.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_qualname}:{place.tb_lineno}" if place is not None else "?"
        return cluster.outcome(f"{type(broken).__name__} at {cluster.now:.6f} s in {where}: {broken}")
    return cluster.outcome(None)
