"""Cuts the power of brokers' machines: the brokers die, and lose unsynced data."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from jepsen.deployments.disks import PowerLossEffect
from jepsen.nemeses.injection import Injection
from jepsen.schedule import FaultStep, targets


async def power_loss(injection: Injection, step: FaultStep, leader: str) -> None:
    """Cut the power of the chosen brokers at once, and restart them after a while."""
    cluster = injection.cluster
    nodes = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    await lose_power(injection, number, nodes)
    await trio.sleep(step.seconds)
    for node in nodes:
        await cluster.start(node)
    injection.end(number)


async def lose_power(injection: Injection, number: int, nodes: Sequence[str]) -> None:
    """Kill brokers, and drop the unsynced data from their disks. Confirmed by two test files."""
    cluster = injection.cluster
    losses: dict[str, PowerLossEffect] = {}

    async def lose(node: str) -> None:
        losses[node] = await cluster.disks[node].lose_power()

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(cluster.kill, node)
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(lose, node)
    if all(each.unsynced_gone and each.synced_kept for each in losses.values()):
        text = ", ".join(f"{each.nbytes} bytes of {node}" for node, each in sorted(losses.items()))
        injection.confirm(number, f"a file that was not synced is gone, a synced one is not; changed: {text}")
