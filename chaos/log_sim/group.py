"""The group of nodes, as those see it who strike, damage and repair them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from chaos.log_sim.node import Node, Process, World
from chaos.log_sim.schedule import Scenario
from chaos.network import Network
from raftlog.consensus.types import NodeId
from raftlog.segment.errors import SegmentError

__all__ = ["Group"]


class Group(World, Protocol):
    """What `Nemesis`, `Repairs` and `CatchUp` need of the cluster; see `chaos.log_sim.cluster.Cluster`."""

    scenario: Scenario
    rng: random.Random
    network: Network
    nodes: dict[NodeId, Node]
    paused: dict[NodeId, list[Callable[[], None]]]
    healing: bool

    def at(self, time: float, event: Callable[..., object], *arguments: object) -> None:
        """Let ``event`` happen then."""

    def on(self, node: Node, what: str, step: Callable[[], object]) -> None:
        """Let something happen in the node's process, now or when it is resumed; the end of a turn follows."""

    def note(self, line: str) -> None:
        """Something happened."""

    def ask_newest(self) -> None:
        """A client asks the newest leader that there is."""

    def resume(self, node_id: NodeId) -> None:
        """Let a paused node go on with everything that came in meanwhile."""

    def restart(self, node: Node) -> None:
        """Start the node's process unless it runs."""

    def reopen(self, node: Node, process: Process | None) -> None:
        """Stop a process in order and start the next one, unless it has ended already."""

    def look_for_damage(self, node: Node, pos: int) -> None:
        """Open the node's log again so that everything is read: a read failed at ``pos``, or a scrub found it."""

    def repair_fails(self, node: Node, error: SegmentError) -> None:
        """The disk of a node whose log is being repaired refuses something."""

    def flip_derived(self, node: Node, place: float) -> bool:
        """Flip a bit in a file that a node has derived from its log; returns whether there was one."""
