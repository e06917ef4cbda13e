"""Draws from a seed what happens to a simulated group of brokers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from chaos.faults import HitNewLeaders, LinkQuality, WallStep
from chaos.limits import draw
from chaos.log_sim.schedule import Event, Scenario, bit_rot, draw_config, draw_faults, draw_limits, drops, queue_rot
from mq.broker.limits import DEFAULT, TEST_MIN, BrokerLimits
from raftlog.consensus.types import NodeId

SAFETY_SECONDS = 20.0

KINDS = (
    "partition", "one-way", "cut-link", "deaf", "link-quality", "crash", "crash-all", "pause", "depose", "transfer",
    "clock", "slow-disk", "rumors",
)  # fmt: skip
"""The faults of the log simulation that need no repair afterwards."""

HARD_KINDS = ("disk-error", "disk-full", "bit-flip", "membership", "membership")
"""The other faults; some runs get one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerScenario(Scenario):
    """A run with brokers, whose wall clocks differ from the true time by at most ``wall_skew_ms``."""

    workload: str
    wall_skew_ms: int
    entry_bytes_max: int
    entries_per_file: int
    checkpoint_seconds: float
    broker_limits: BrokerLimits
    loses_derived: bool
    """Whether a power cut may lose derived files that no checkpoint covers."""


def draw_broker_scenario(seed: int, workload: str, safety_seconds: float = SAFETY_SECONDS) -> BrokerScenario:
    """Generate the scenario of ``seed``, which stays the same as long as the schedules are the same."""
    rng = random.Random(f"{seed} brokers")
    nodes = tuple(NodeId(f"n{number}") for number in range(rng.choice((1, 3, 3, 3, 3, 3, 3, 5))))
    hunted = rng.random() < 0.2
    kinds = tuple(kind for kind in KINDS if rng.random() < (0.1 if hunted else 0.3))
    link_quality = LinkQuality(latency_seconds_min=0.0005, latency_seconds_max=rng.choice((0.001, 0.01, 0.05)))
    config = draw_config(rng, hunted=hunted, uncommitted_bytes_max=(10_000, 64 * 1024 * 1024))
    faults = draw_faults(rng, nodes, kinds, link_quality, safety_seconds)
    if retention := rng.random() < 0.4:
        faults += drops(rng, nodes, safety_seconds)
        kinds += ("retention",)
    wall_skew_ms = rng.choice((0, 0, 0, 20, 500))
    if wall_skew_ms:
        kinds += ("wall-clock",)
        for _ in range(rng.randint(2, 12)):
            step = WallStep(rng.choice(nodes), rng.randint(-wall_skew_ms, wall_skew_ms))
            faults.append((rng.uniform(0.0, safety_seconds), step))
    if hunted:
        absence = config.election_timeout_seconds_min * rng.uniform(1.0, 5.0)
        faults.append((0.0, HitNewLeaders(rng.choice((0.02, 0.1, 0.3)), absence, crash=rng.random() < 0.8)))
        kinds += ("ambush",)
    segment_bytes = rng.choice((8 * 1024, 16 * 1024) if retention else (16 * 1024, 64 * 1024, 1024 * 1024))
    # Drawn separately, so that earlier draws stay the same.
    hard = random.Random(f"{seed} harder")
    spares: tuple[NodeId, ...] = ()
    if not hunted and hard.random() < 0.35:
        kind = hard.choice(HARD_KINDS)
        kinds += (kind,)
        if kind == "membership":
            spares = tuple(NodeId(f"n{len(nodes) + number}") for number in range(hard.choice((1, 1, 2))))
        machines = nodes + spares
        usual = ("crash", "transfer") if kind == "membership" else ("crash",)
        faults += draw_faults(hard, machines, (kind, kind, *usual), link_quality, safety_seconds)
    rot = random.Random(f"{seed} bit rot")
    if not hunted and not spares and rot.random() < 0.25:
        kinds += ("bit-rot",)
        faults += bit_rot(rot, nodes, safety_seconds)
    queues = random.Random(f"{seed} consume queue files")
    if not spares and queues.random() < 0.15:
        kinds += ("queue-rot",)
        faults += queue_rot(queues, nodes, safety_seconds)
    return BrokerScenario(
        seed=seed,
        nodes=nodes,
        spares=spares,
        priorities=(0,) * len(nodes + spares),
        config=config,
        link_quality=link_quality,
        clock_rates=(*(rng.choice((1.0, 1.0, 0.95, 1.05)) for _ in nodes), *(1.0 for _ in spares)),
        safety_seconds=safety_seconds,
        proposal_seconds=rng.choice((0.02, 0.05, 0.1)),
        body_bytes_max=300,
        segment_bytes=segment_bytes,
        log_tail_bytes_max=rng.choice((1, 5000, 32 * 1024 * 1024)),
        disk_seconds_max=rng.choice((0.0005, 0.005, 0.02)),
        streams=rng.random() < 0.7,
        limits=draw_limits(rng, seed),
        kinds=kinds,
        faults=tuple(sorted(faults, key=lambda timed: timed[0])),
        workload=workload,
        wall_skew_ms=wall_skew_ms,
        entry_bytes_max=rng.choice((1536, 4096)),
        entries_per_file=rng.choice((4, 50, 1000)),
        checkpoint_seconds=rng.choice((0.3, 1.0) if retention else (0.3, 1.0, 5.0)),
        broker_limits=draw(random.Random(f"{seed} limits"), TEST_MIN, DEFAULT),
        loses_derived=rng.random() < 0.5,
    )


__all__ = ["BrokerScenario", "Event", "draw_broker_scenario"]
