"""Damages the logs of all nodes at once, so that no node has a log that the others could simply copy."""

from __future__ import annotations

import random
from contextlib import ExitStack

from chaos.faults import SharedDamage
from chaos.log_sim.group import Group
from chaos.log_sim.node import DIRECTORY, Node, Process
from raftlog.log_numbers import LogIndex

_BEHIND = 2
"""Entries behind the damage that are certainly intact."""


def damage_all(cluster: Group, fault: SharedDamage, rng: random.Random) -> bool:
    """Flip bits as ``fault`` says, and make each node verify its log. Return False if that is not possible yet.

    Only while all nodes run and nothing else was ever damaged: then it is known which bytes are intact somewhere.
    """
    nodes = list(cluster.nodes.values())
    processes = [node.process for node in nodes if node.process is not None and node.node_id not in cluster.paused]
    if len(processes) < len(nodes) or any(node.flips for node in nodes):
        return False
    flips: list[tuple[Node, int, int]] = []
    with ExitStack() as withheld:
        for node in nodes:
            withheld.enter_context(node.disk.suspend_faults())  # those are for the code under test
        first = 1 + max(process.log.base[0] for process in processes)
        last = min(min(p.replica.commit_index, p.log.durable_index, _marked_index(p)) for p in processes) - _BEHIND
        count = last - first + 1
        if count < len(nodes):
            return False
        start = first + int(fault.place * count)
        for number, process in enumerate(processes):
            index = start if fault.same_entry else first + (start - first + number) % count
            entry = process.log.locate(LogIndex(index))
            at = entry.pos + rng.randrange(entry.size)
            flips.append((process.node, at, rng.randrange(8)))
    for node, at, bit in flips:
        flip(cluster, node, at, bit)
        node.flips.append(at)
    for node, at, _ in flips:
        cluster.verify_log(node, at)
    if fault.same_entry:
        back = rng.choice(flips)
        cluster.at(cluster.now + fault.absence_seconds, _bring_back, cluster, *back)
    return True


def flip(cluster: Group, node: Node, at: int, bit: int) -> None:
    """Flip one bit of a node's log, at a physical offset."""
    start = at - at % cluster.scenario.segment_bytes
    node.disk.flip_bit(f"{DIRECTORY}/{start:020d}", at - start, bit)


def _bring_back(cluster: Group, node: Node, at: int, bit: int) -> None:
    """Restore an old, damaged copy of a node's file, as an operator may do."""
    if node.repair is None and node.process is not None:
        return  # truncated, which is for the checks to judge
    cluster.trace_event(f"{node.node_id} gets back what was damaged at {at}")
    node.kill(power_cut=False)
    flip(cluster, node, at, bit)
    cluster.restart(node)


def _marked_index(process: Process) -> int:
    """Return the last entry that the disk itself records as durable. Damage behind it looks like a torn write."""
    entry = process.log.entry_at(process.node.marked_pos() - 1)
    return 0 if entry is None else entry.index
