"""Cuts the power of all replicas: at once, or of one shortly after the other."""

from __future__ import annotations

import trio

from jepsen.nemeses.injection import Injection
from jepsen.nemeses.power import lose_power

APART_SECONDS_MAX = 2.0
OFF_SECONDS = 0.5


async def all_at_once(injection: Injection) -> None:
    """Cut the power of all replicas at the same moment, and restart them."""
    cluster = injection.cluster
    async with injection.fault("power-loss", "all at once", cluster.nodes, majority=False) as number:
        await lose_power(injection, number, cluster.nodes)
        for node in cluster.nodes:
            await cluster.start(node)


async def one_after_the_other(injection: Injection) -> None:
    """Cut the power of the replicas up to two seconds apart, so that the last ones acknowledge without the first.
    Restart them in another order.
    """
    cluster, rng = injection.cluster, injection.rng
    order = rng.sample(cluster.nodes, len(cluster.nodes))
    async with injection.fault("power-loss", "one after the other", tuple(order), majority=False) as number:
        for node in order:
            await lose_power(injection, number, (node,))
            await trio.sleep(rng.uniform(0.0, APART_SECONDS_MAX))
        await trio.sleep(OFF_SECONDS)
        for node in rng.sample(order, len(order)):
            await cluster.start(node)
            await trio.sleep(rng.uniform(0.0, APART_SECONDS_MAX))
