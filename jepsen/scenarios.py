"""Scenarios by name: sequences of faults that made other systems lose acknowledged messages, in rounds, under load."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

import trio

from jepsen.damage import closed_files, flip_bits, forget_sidecars, helix
from jepsen.nemeses.disks import repaired, wait_for_closed_files
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.partitions import cut
from jepsen.nemeses.power import lose_power
from jepsen.nemeses.processes import paused
from jepsen.schedule import apart

AWAY_SECONDS = 4.0
"""How long a majority continues alone: longer than clients and replicas need to notice."""
BITS_MAX = 20

Round = Callable[[Injection], Awaitable[None]]
Away = Callable[[Injection, int, str], AbstractAsyncContextManager[None]]
"""``away(injection, fault, node)``: the node takes no part until the block ends; confirms the fault."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``kinds``: the kinds of faults in each round."""

    name: str
    summary: str
    kinds: tuple[str, ...]
    round: Round


def _cut_off(injection: Injection, number: int, node: str) -> AbstractAsyncContextManager[None]:
    others = [each for each in injection.cluster.nodes if each != node]
    return cut(injection, number, apart(node, others))


async def _away_then_power_loss(kind: str, away: Away, injection: Injection) -> None:
    """The leader and one follower acknowledge; then that follower loses power, its leader is away, and the third is
    back.

    The two that are left are one that missed everything and one that should have it on its disk.
    """
    cluster = injection.cluster
    leader = await cluster.leader()
    missing, kept = injection.rng.sample([node for node in cluster.nodes if node != leader], 2)
    async with injection.fault(kind, "one follower", (missing,)) as first, away(injection, first, missing):
        await trio.sleep(AWAY_SECONDS)
    async with (
        injection.fault(kind, "the leader", (leader,)) as second,
        away(injection, second, leader),
        injection.fault("power-loss", "the other follower", (kept,)) as third,
    ):
        await lose_power(injection, third, (kept,))
        await cluster.start(kept)
        await trio.sleep(AWAY_SECONDS)


async def _power_loss_of_all(injection: Injection) -> None:
    cluster = injection.cluster
    async with injection.fault("power-loss", "all at once", cluster.nodes, majority=False) as number:
        await lose_power(injection, number, cluster.nodes)
        for node in cluster.nodes:
            await cluster.start(node)


async def _bit_errors(injection: Injection) -> None:
    cluster = injection.cluster
    node = injection.rng.choice(cluster.nodes)
    commitlog = cluster.data_dir(node) / "commitlog"
    await wait_for_closed_files(cluster, (node,))
    async with injection.fault("damage", "bits of every closed file", (node,)) as number:
        await cluster.kill(node)
        damaged = flip_bits(injection.rng, closed_files(commitlog), bits_max=BITS_MAX)
        forget_sidecars(commitlog)
        injection.confirm(number, f"{sum(each.changed_bytes for each in damaged)} bytes of {len(damaged)} files differ")
        await trio.sleep(1.0)
        await cluster.start(node)
        await repaired(injection, node, damaged)


async def _helix(injection: Injection) -> None:
    cluster = injection.cluster
    await wait_for_closed_files(cluster, cluster.nodes)
    async with injection.fault("damage", "helix", cluster.nodes, majority=False) as number:
        for node in cluster.nodes:
            await cluster.kill(node)
        logs = {node: cluster.data_dir(node) / "commitlog" for node in cluster.nodes}
        damaged = helix(injection.rng, logs)
        if all(each and all(one.is_changed for one in each) for each in damaged.values()):
            told = ", ".join(f"{sum(one.changed_bytes for one in each)} of {node}" for node, each in damaged.items())
            injection.confirm(number, f"bytes that differ: {told}; none on two of them")
        for node in cluster.nodes:
            forget_sidecars(logs[node])
            await cluster.start(node)
        async with trio.open_nursery() as nursery:
            for node in cluster.nodes:
                nursery.start_soon(repaired, injection, node, damaged[node])


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "part-kill",
            "one follower is cut off; then the other loses power while the leader is cut off (NATS 2.12.1)",
            ("partition", "power-loss"),
            partial(_away_then_power_loss, "partition", _cut_off),
        ),
        Scenario(
            "pause-kill",
            "the same with replicas that stand still (NATS 2.12.1)",
            ("pause", "power-loss"),
            partial(_away_then_power_loss, "pause", paused),
        ),
        Scenario(
            "power-loss-of-all",
            "all replicas lose power at once, again and again (NATS 2.12.1)",
            ("power-loss",),
            _power_loss_of_all,
        ),
        Scenario(
            "bit-errors",
            "bits of all closed files of a minority flip (NATS 2.12.1)",
            ("damage",),
            _bit_errors,
        ),
        Scenario(
            "helix",
            "every replica is damaged, no two of them in the same place (TigerBeetle)",
            ("damage",),
            _helix,
        ),
    )
}
"""By name."""

REST_SECONDS = 2.0


async def play(injection: Injection, scenario: Scenario, seconds: float) -> None:
    """Rounds for this long, at least one. Raises ClusterFailed if there is no leader within a minute after one."""
    until = trio.current_time() + seconds
    while True:
        await injection.cluster.leader()
        await scenario.round(injection)
        await injection.cluster.leader()
        await trio.sleep(REST_SECONDS)
        if trio.current_time() >= until:
            return
