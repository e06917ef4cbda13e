"""A group of cores in simulated time: one loop over a heap of events, and no other source of order or chance.

A run has two parts. In the first anything in the schedule may happen and only safety is asked for. Then everything is
healed and restarted, and the group must elect a leader, commit something new and agree, within a bound.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from chaos.faults import (
    Ambush,
    Crash,
    Deaf,
    DiskSpeed,
    Fault,
    Heal,
    Pause,
    Restart,
    Resume,
    Rumor,
)
from chaos.history import History, Violation
from chaos.network import Network
from chaos.node import Node, Packet
from chaos.schedule import Scenario
from raftlog.consensus.invariants import check_group
from raftlog.consensus.quorum import majority
from raftlog.consensus.raft import RaftCore
from raftlog.consensus.types import ConfState, NodeId, Role

ENTRY_BYTES = 100
_GROUP_CHECK_STEPS = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to; ``digest`` is equal for equal runs, ``broke`` tells the first broken promise."""

    seed: int
    steps: int
    committed: int
    acknowledged: int
    terms: int
    digest: int
    broke: str | None


class Cluster:
    """The simulated group of a scenario.

    Args:
        core_class: the core under test.
        trace: gets one line per event, when given.
    """

    def __init__(
        self,
        scenario: Scenario,
        core_class: type[RaftCore] = RaftCore,
        trace: Callable[[str], object] | None = None,
    ) -> None:
        self._scenario = scenario
        self._trace = trace
        self._rng = random.Random(f"{scenario.seed} run")
        self._network = Network(scenario.nodes, scenario.weather, self._rng)
        self.history = History(majority(len(scenario.nodes)))
        conf = ConfState(scenario.nodes)
        self.nodes = {
            node_id: Node(
                node_id=node_id,
                conf=conf,
                config=scenario.config,
                core_class=core_class,
                clock_rate=rate,
                history=self.history,
                rng=self._rng,
            )
            for node_id, rate in zip(scenario.nodes, scenario.clock_rates, strict=True)
        }
        self.history.watch([node.disk.log for node in self.nodes.values()])
        self.now = 0.0
        self.steps = 0
        self._digest = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._wakes: dict[NodeId, float] = {}
        self._paused: dict[NodeId, list[Callable[[], None]]] = {}
        self._next_value = 1
        self._ambush: Ambush | None = None
        self._healing = False

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run both parts. Raises `Violation` or `AssertionError` where something breaks."""
        scenario = self._scenario
        for node in self.nodes.values():
            node.start(0.0)
            self._settle(node)
        for at, fault in scenario.faults:
            self._at(at, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
        self._at(0.0, self._propose)
        self._run_until(scenario.safety_seconds)
        self._heal()
        self._check_liveness()

    def _run_until(self, end: float) -> None:
        while self._heap and self._heap[0][0] <= end:
            self.now, _, event = heapq.heappop(self._heap)
            self.steps += 1
            event()
            if self.steps % _GROUP_CHECK_STEPS == 0:
                check_group([node.core for node in self.nodes.values() if node.core is not None])
        self.now = end

    def _at(self, time: float, event: Callable[[], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._heap, (time, self._scheduled, event))

    def _note(self, line: str) -> None:
        line = f"{self.now:10.6f} {line}"
        self._digest = zlib.crc32(line.encode(), self._digest)
        if self._trace is not None:
            self._trace(line)

    # -- events ------------------------------------------------------------------------------------------------

    def _on(self, node: Node, what: str, step: Callable[[], object]) -> None:
        """Let something happen at ``node``, now or when it is resumed."""
        if (waiting := self._paused.get(node.node_id)) is not None:
            waiting.append(lambda: self._on(node, what, step))
            return
        self._note(f"{node.node_id} {what}")
        step()
        self._settle(node)

    def _settle(self, node: Node) -> None:
        """Carry out what a step led to, and arrange for what follows from it."""
        writes, leading_term = len(node.writes), node.leading_term
        for packet in node.pump(self.now):
            self._send(packet)
        for write in list(node.writes)[writes:]:
            self._at(write.done_at, lambda: self._finish_writes(node))
        if self._ambush is not None and node.leading_term > leading_term:
            self._spring(self._ambush, node.node_id)
        if node.core is not None:
            wake = max(node.next_tick(), self.now)
            if self._wakes.get(node.node_id, float("inf")) > wake:
                self._wakes[node.node_id] = wake
                self._at(wake, lambda: self._wake(node, wake))

    def _finish_writes(self, node: Node) -> None:
        if node.writes and node.writes[0].done_at <= self.now:
            self._on(node, "disk", lambda: node.complete_writes(self.now))

    def _wake(self, node: Node, wake: float) -> None:
        if self._wakes.get(node.node_id) != wake:
            return
        del self._wakes[node.node_id]
        if node.core is not None:
            self._on(node, "tick", lambda: node.tick(self.now))

    def _send(self, packet: Packet) -> None:
        message = packet.message
        node = self.nodes[message.dst]
        if self._trace is not None:
            self._trace(f"{self.now:10.6f}   -> {message}")
        for delay in self._network.delays(message.src, message.dst):
            self._at(
                self.now + delay,
                lambda: self._on(
                    node, f"<- {type(message).__name__} {message.src}", lambda: node.deliver(packet, self.now)
                ),
            )

    def _propose(self) -> None:
        """A client asks whoever believes to lead."""
        node = self._rng.choice(list(self.nodes.values()))
        leaders = [n for n in self.nodes.values() if n.core is not None and n.core.role is Role.LEADER]
        if leaders:
            node = self._rng.choice(leaders)
        self._offer(node, self._rng.randint(1, 4))
        if not self._healing:
            self._at(self.now + self._rng.expovariate(1 / self._scenario.proposal_seconds), self._propose)

    def _offer(self, node: Node, count: int) -> range:
        values = range(self._next_value, self._next_value + count)
        self._next_value += count
        self._on(node, f"propose {values}", lambda: node.propose(values, ENTRY_BYTES, self.now))
        return values

    # -- faults ------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        if self._healing:
            return
        self._note(str(fault))
        match fault:
            case Crash(node_id):
                self._crash(self.nodes[node_id])
            case Restart(node_id):
                self._restart(self.nodes[node_id])
            case Pause(node_id):
                self._paused.setdefault(node_id, [])
            case Resume(node_id):
                self._resume(node_id)
            case DiskSpeed(node_id, seconds_max):
                self.nodes[node_id].disk_seconds_max = seconds_max
            case Rumor(node_id, about):
                node = self.nodes[node_id]
                self._on(node, f"hears that {about} has ended", lambda: node.hear_of_end(about, self.now))
            case Ambush():
                self._ambush = fault
            case _:
                self._network.disturb(fault)

    def _spring(self, ambush: Ambush, leader: NodeId) -> None:
        at = self.now + self._rng.uniform(0.0, ambush.delay_seconds_max)
        back = at + ambush.absence_seconds
        if ambush.crash:
            self._at(at, lambda: self._strike(Crash(leader)))
            self._at(back, lambda: self._strike(Restart(leader)))
        else:
            self._at(at, lambda: self._strike(Deaf(leader)))
            self._at(back, lambda: self._network.reconnect(leader))

    def _crash(self, node: Node) -> None:
        if node.core is None:
            return
        node.crash()
        self._paused.pop(node.node_id, None)
        self._wakes.pop(node.node_id, None)
        for other in self.nodes.values():
            # Refused connections tell some of the others.
            if other is not node and self._network.connected(node.node_id, other.node_id) and self._rng.random() < 0.5:
                self._at(
                    self.now + self._rng.uniform(0.0, 0.02),
                    lambda other=other: self._strike(Rumor(other.node_id, node.node_id)),  # type: ignore[misc]
                )

    def _restart(self, node: Node) -> None:
        if node.core is None:
            node.start(self.now)
            self._settle(node)

    def _resume(self, node_id: NodeId) -> None:
        for step in self._paused.pop(node_id, []):
            step()

    # -- the end -----------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Stop all faults, and bring everybody back but perhaps a minority."""
        scenario, rng = self._scenario, self._rng
        self._note("everything heals")
        self._healing = True
        self._ambush = None
        self._network.disturb(Heal())
        self._network.disturb(scenario.weather)
        spare = (len(self.nodes) - 1) // 2 if rng.random() < 0.3 else 0
        for node in rng.sample(list(self.nodes.values()), len(self.nodes)):
            node.disk_seconds_max = 0.005
            self._resume(node.node_id)
            if spare and node.core is None:
                spare -= 1
            else:
                self._restart(node)

    def _check_liveness(self) -> None:
        """A leader is elected in time and commits something new, and all that run come to agree.

        With windows as small as some scenarios have them, agreeing may take long; but it must never stand still.
        """
        patience = 10 * self._scenario.config.election_timeout_seconds_max
        running = [node for node in self.nodes.values() if node.core is not None]
        mark = range(0)
        deadline = self.now + patience
        best = -1
        while self.now < deadline:
            self._run_until(self.now + patience / 40)
            leader = next((n for n in running if n.core is not None and n.core.role is Role.LEADER), None)
            if leader is None:
                continue
            if (progress := sum(node.applied + len(node.disk.log) for node in running)) > best:
                best = progress
                deadline = self.now + patience
            if leader.applied < len(leader.log):
                continue
            if leader.log[-1].value not in mark:
                mark = self._offer(leader, 1)
            elif all(node.log == leader.log and node.applied == len(node.log) for node in running):
                self._check_end(running)
                return
        raise Violation(
            f"liveness: {patience} s after everything healed nothing moves: "
            + "; ".join(f"{n.node_id} {n.core.status() if n.core else 'down'}" for n in self.nodes.values())
        )

    def _check_end(self, running: list[Node]) -> None:
        for node in running:
            self.history.check_acknowledged(node.node_id, node.log)
            if node.log != self.history.committed:
                raise Violation(f"agreement: {node.node_id} ends with a log that differs from what was committed")

    def outcome(self, broke: str | None) -> Outcome:
        """What the run came to so far."""
        terms = max((node.core.term for node in self.nodes.values() if node.core is not None), default=0)
        return Outcome(
            seed=self._scenario.seed,
            steps=self.steps,
            committed=len(self.history.committed),
            acknowledged=len(self.history.acked),
            terms=terms,
            digest=self._digest,
            broke=broke,
        )


def simulate(
    scenario: Scenario,
    core_class: type[RaftCore] = RaftCore,
    trace: Callable[[str], object] | None = None,
) -> Outcome:
    """Run a scenario; a broken promise ends it and is told in the outcome."""
    cluster = Cluster(scenario, core_class, trace)
    try:
        cluster.run()
    except AssertionError as error:
        return cluster.outcome(f"{type(error).__name__} at {cluster.now:.6f} s: {error}")
    return cluster.outcome(None)
