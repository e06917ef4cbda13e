"""Replicas that leave the group under load, lose everything, and come back as new ones."""

from __future__ import annotations

import trio

from jepsen.deployments.cluster import Cluster, ClusterFailed
from jepsen.nemeses.injection import Injection
from jepsen.schedule import Step, targets

CHANGE_SECONDS_MAX = 60.0
RETRY_SECONDS = 0.5


async def members(injection: Injection, step: Step, leader: str) -> None:
    """A replica is removed by an operator, its directory is deleted, and it is added again and given a vote."""
    cluster = injection.cluster
    (node,) = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, (node,))
    await _change(cluster, node, None, "remove", node)
    injection.confirm(number, f"the group has the members {', '.join(sorted(await cluster.members()))}")
    await cluster.stop(node)
    await cluster.forget(node)
    await trio.sleep(step.seconds)
    await cluster.start(node)
    address = "{}:{}".format(*cluster.network.replicates(node))
    await _change(cluster, node, "voter", "add", f"{node}@{address}", "--voter")
    await cluster.wait_caught_up(node, CHANGE_SECONDS_MAX)
    injection.end(number)


async def _change(cluster: Cluster, node: str, role: str | None, *command: str) -> None:
    """Ask for a change until the node has this role, None for none. Raises ClusterFailed."""
    told = ""
    with trio.move_on_after(CHANGE_SECONDS_MAX):
        while True:
            done = await cluster.command("group", *command, "--namesrv", cluster.namesrv)
            told = done.stderr.decode(errors="replace").strip()
            now = await cluster.members()
            if now and now.get(node) == role:
                return
            await trio.sleep(RETRY_SECONDS)
    raise ClusterFailed(f"raftmq group {' '.join(command)} was not done within {CHANGE_SECONDS_MAX:g} s: {told}")
