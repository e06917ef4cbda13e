"""Groups on hosts that take the CPU away: processes do not run for a while, and nothing else fails.

Network and disks are sound, so leadership must stay where it is (`Scenario.steady`). That is more than a group can
promise if only its leader stalls for longer than an election timeout; such stalls are drawn by
`chaos.log_sim.schedule`, where a new leader is allowed.
"""

from __future__ import annotations

import random
from dataclasses import replace

from chaos.faults import LinkQuality, Stall
from chaos.log_sim.schedule import Event, Scenario, draw_scenario
from raftlog.consensus.types import CoreConfig, NodeId

SAFETY_SECONDS = 60.0
_ELECTED_SECONDS = 5.0
"""The time by which a leader is elected."""
_SHARE = 2 / 3
"""Part of the shortest election timeout for which a leader may stall: heartbeats and latency need the rest."""
STALL_SECONDS_MIN, STALL_SECONDS_MAX = 0.01, 30.0


def draw_busy_host(seed: int, safety_seconds: float = SAFETY_SECONDS) -> Scenario:
    """Draw the scenario of ``seed``, which stays the same as long as the schedules are the same."""
    rng = random.Random(f"{seed} busy host")
    nodes = tuple(NodeId(f"n{number}") for number in range(rng.choice((3, 3, 3, 5))))
    link_quality = LinkQuality(latency_seconds_min=0.0005, latency_seconds_max=rng.choice((0.001, 0.01)))
    config = CoreConfig(lease_reads=rng.random() < 0.3)
    kind = rng.choice(("each", "follower", "host"))
    draw = {"each": _each_node, "follower": _a_follower, "host": _whole_host}[kind]
    return replace(
        draw_scenario(seed, safety_seconds),
        nodes=nodes,
        spares=(),
        priorities=(0,) * len(nodes),
        config=config,
        link_quality=link_quality,
        clock_rates=(1.0,) * len(nodes),
        disk_seconds_max=0.005,
        proposal_seconds=0.1,
        streams=True,
        kinds=(f"stalls of {kind}",),
        faults=tuple(sorted(draw(rng, nodes, config, safety_seconds), key=lambda timed: timed[0])),
        steady=True,
    )


def _each_node(rng: random.Random, nodes: tuple[NodeId, ...], config: CoreConfig, seconds: float) -> list[Event]:
    """Stall every node at random, for less than an election timeout."""
    longest = _SHARE * config.election_timeout_seconds_min
    faults: list[Event] = []
    for node in nodes:
        at = _ELECTED_SECONDS + rng.uniform(0.0, 2.0)
        while at < seconds:
            stall = Stall(node, _length(rng, longest))
            faults.append((at, stall))
            at += stall.seconds + rng.uniform(2 * config.heartbeat_seconds, 3.0)
    return faults


def _a_follower(rng: random.Random, nodes: tuple[NodeId, ...], config: CoreConfig, seconds: float) -> list[Event]:
    """Stall one follower at a time, for any time."""
    faults: list[Event] = []
    at = _ELECTED_SECONDS
    while at < seconds:
        stall = Stall(None, _length(rng, STALL_SECONDS_MAX))
        faults.append((at, stall))
        at += stall.seconds + rng.uniform(1.0, 5.0)
    return faults


def _whole_host(rng: random.Random, nodes: tuple[NodeId, ...], config: CoreConfig, seconds: float) -> list[Event]:
    """Stall all nodes together, for any time, as on a paused virtual machine."""
    faults: list[Event] = []
    at = _ELECTED_SECONDS
    while at < seconds:
        length = _length(rng, STALL_SECONDS_MAX)
        faults += [(at + rng.uniform(0.0, 0.01), Stall(node, length + rng.uniform(0.0, 0.2))) for node in nodes]
        at += length + rng.uniform(1.0, 5.0)
    return faults


def _length(rng: random.Random, longest: float) -> float:
    """Draw a length in seconds. Short and long ones are equally likely."""
    return float(STALL_SECONDS_MIN * (longest / STALL_SECONDS_MIN) ** rng.random())
