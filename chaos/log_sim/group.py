"""The interface of a simulated group for code that injects faults and repairs logs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from chaos.log_sim.node import Node, Process, World
from chaos.log_sim.schedule import Scenario
from chaos.network import Network
from raftlog.consensus.types import NodeId
from raftlog.segment.errors import SegmentError


class Group(World, Protocol):
    """The parts of the cluster that `Nemesis`, `Repairs` and `CatchUp` need; see `chaos.log_sim.cluster.Cluster`."""

    scenario: Scenario
    rng: random.Random
    network: Network
    nodes: dict[NodeId, Node]
    paused: dict[NodeId, list[Callable[[], None]]]
    is_healed: bool

    def at(self, time: float, event: Callable[..., object], *arguments: object) -> None:
        """Run ``event`` at ``time``, in simulated seconds."""

    def on(self, node: Node, what: str, step: Callable[[], object]) -> None:
        """Run a step in the node's process, now or when the node is resumed, and end the turn."""

    def trace_event(self, line: str) -> None:
        """Add a line to the trace."""

    def send_to_newest(self) -> None:
        """Send a client's request to the newest leader."""

    def resume(self, node_id: NodeId) -> None:
        """Let a paused node handle everything that arrived meanwhile."""

    def restart(self, node: Node) -> None:
        """Start the node's process unless it runs."""

    def reopen(self, node: Node, process: Process | None) -> None:
        """Stop a process cleanly and start the next one, unless it has ended already."""

    def verify_log(self, node: Node, pos: int) -> None:
        """Restart the node so that it verifies its whole log: a read failed at ``pos``, or a scrub found damage."""

    def fail_repair(self, node: Node, error: SegmentError) -> None:
        """End the repair of a node because its disk fails, and start the node later."""

    def flip_derived(self, node: Node, fraction: float) -> bool:
        """Flip a bit in a derived file of a node. Return whether the node has one."""
