"""Slows down the disk or the link of one replica: the others must acknowledge as fast as before."""

from __future__ import annotations

import trio

from jepsen.deployments.netns import Networks
from jepsen.deployments.network import CLIENTS
from jepsen.deployments.packets import Shape
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.shims import confirm_hits

CALM_SECONDS = 4.0
"""Seconds between the faults, whose figures are the standard of comparison."""
SLOW_SECONDS = 8.0
SYNC_SECONDS = 0.5
"""Seconds of a slow sync: more than twice a send's time, also on a busy machine."""
LINK = Shape(delay=0.5)
VARIANTS = (("slow-disk", "follower"), ("packets", "follower"), ("slow-disk", "leader"))


async def slow_node(injection: Injection) -> None:
    """Slow down the disk of a follower or the leader, or the link of a follower, for a while."""
    cluster = injection.cluster
    await trio.sleep(CALM_SECONDS)
    leader = await cluster.leader()
    kind, whose = injection.draw("slow", VARIANTS)
    node = leader if whose == "leader" else injection.rng.choice([each for each in cluster.nodes if each != leader])
    async with injection.fault(kind, f"{whose} is slow", (node,)) as number:
        if kind == "slow-disk":
            await _slow_disk(injection, number, node)
        else:
            await _slow_link(injection, number, node)


async def _slow_disk(injection: Injection, number: int, node: str) -> None:
    shim = injection.cluster.shims[node]
    shim.order(sync_seconds=SYNC_SECONDS)
    try:
        await confirm_hits(injection, number, (node,), lambda shim: shim.hit_syncs, "syncs were slow of")
        await trio.sleep(SLOW_SECONDS)
    finally:
        shim.order()


async def _slow_link(injection: Injection, number: int, node: str) -> None:
    network = injection.cluster.network
    assert isinstance(network, Networks), f"{network.backend} has no switch"
    others = [each for each in (*injection.cluster.nodes, CLIENTS) if each != node]
    shapes = {link: LINK for other in others for link in ((node, other), (other, node))}
    try:
        await network.shape(shapes)
        await trio.sleep(SLOW_SECONDS)
        counts = await network.shape({})
        if counts:
            injection.confirm(number, ", ".join(f"{count} packets {name}" for name, count in sorted(counts.items())))
    finally:
        with trio.CancelScope(shield=True):  # one line to a process of ours
            await network.shape({})
