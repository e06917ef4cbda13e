"""A simulated network between nodes: it delays, drops, doubles, reorders and partitions messages."""

from __future__ import annotations

import random
from collections.abc import Sequence

from chaos.faults import CutLink, Deaf, Heal, OneWay, Partition, Weather
from raftlog.consensus.types import NodeId


class Network:
    """Decides when, and how often, a message arrives."""

    def __init__(self, nodes: Sequence[NodeId], weather: Weather, rng: random.Random) -> None:
        self._nodes = tuple(nodes)
        self._rng = rng
        self._cut: set[tuple[NodeId, NodeId]] = set()
        self.weather = weather

    def disturb(self, fault: Partition | OneWay | CutLink | Deaf | Heal | Weather) -> None:
        """Change links; cuts add up until `Heal`."""
        match fault:
            case Partition(groups):
                group_of = {node: number for number, group in enumerate(groups) for node in group}
                self._cut |= {link for link in self._links() if group_of[link[0]] != group_of[link[1]]}
            case OneWay(src, dst):
                self._cut.add((src, dst))
            case CutLink(one, other):
                self._cut |= {(one, other), (other, one)}
            case Deaf(node):
                self._cut |= {link for link in self._links() if node in link}
            case Heal():
                self._cut.clear()
            case Weather():
                self.weather = fault

    def reconnect(self, node: NodeId) -> None:
        """All links of ``node`` work again."""
        self._cut = {link for link in self._cut if node not in link}

    def connected(self, src: NodeId, dst: NodeId) -> bool:
        """Whether messages get through at all."""
        return (src, dst) not in self._cut

    def delays(self, src: NodeId, dst: NodeId) -> list[float]:
        """After how many seconds copies of a message from ``src`` to ``dst`` arrive; empty when it is lost."""
        weather, rng = self.weather, self._rng
        if (src, dst) in self._cut or rng.random() < weather.loss:
            return []
        copies = 2 if rng.random() < weather.duplication else 1
        return [rng.uniform(weather.latency_seconds_min, weather.latency_seconds_max) for _ in range(copies)]

    def _links(self) -> list[tuple[NodeId, NodeId]]:
        return [(src, dst) for src in self._nodes for dst in self._nodes if src != dst]
