"""Lets two replicas acknowledge while the third is away, and takes them away when the third is back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from jepsen.nemeses.injection import Injection
from jepsen.nemeses.partitions import cut
from jepsen.nemeses.power import lose_power
from jepsen.schedule import apart

AWAY_SECONDS = 4.0
"""Seconds for which a majority continues alone: longer than clients and replicas need to notice."""

Away = Callable[[Injection, int, str], AbstractAsyncContextManager[None]]
"""``away(injection, fault, node)``: the node takes no part until the block ends; confirms the fault."""


def cut_off(injection: Injection, number: int, node: str) -> AbstractAsyncContextManager[None]:
    """Cut all links between a node and the others until the block ends."""
    others = [each for each in injection.cluster.nodes if each != node]
    return cut(injection, number, apart(node, others))


async def away_then_power_loss(kind: str, away: Away, injection: Injection) -> None:
    """Take a follower away while the two others acknowledge. Then cut the power of the other follower, take the leader
    away, and bring the first follower back.

    The two that are left are one that missed everything and one that should have it on its disk.
    """
    cluster = injection.cluster
    leader = await cluster.leader()
    away_node, follower = injection.rng.sample([node for node in cluster.nodes if node != leader], 2)
    async with injection.fault(kind, "one follower", (away_node,)) as first, away(injection, first, away_node):
        await trio.sleep(AWAY_SECONDS)
    async with (
        injection.fault(kind, "the leader", (leader,)) as second,
        away(injection, second, leader),
        injection.fault("power-loss", "the other follower", (follower,)) as third,
    ):
        await lose_power(injection, third, (follower,))
        await cluster.start(follower)
        await trio.sleep(AWAY_SECONDS)
