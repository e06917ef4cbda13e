"""Upgrades brokers from the earlier release one by one, and downgrades one, while replicas die or are cut off."""

from __future__ import annotations

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.processes import state_of_process
from jepsen.scenarios.away import cut_off

LEVEL_SECONDS_MAX = 60.0
MIXED_SECONDS = 2.0
CUT_SECONDS = 3.0


async def upgrade_and_back(injection: Injection) -> None:
    """Upgrade one replica and downgrade it again, then upgrade all, the leader last. Each is stopped or killed, at
    random; after each, another replica is killed or cut off. Rounds after the first restart a replica of the new
    release.
    """
    cluster = injection.cluster
    leader = await cluster.leader()
    followers = injection.rng.sample([node for node in cluster.nodes if node != leader], len(cluster.nodes) - 1)
    if not any(cluster.is_earlier(node) for node in cluster.nodes):
        await _replace(injection, followers[0], earlier=False)
        return
    await _replace(injection, followers[0], earlier=False)
    await _disturb(injection, followers[1])
    await _replace(injection, followers[0], earlier=True)
    for node in (*followers, leader):
        await _replace(injection, node, earlier=False)
        await _disturb(injection, injection.rng.choice([each for each in cluster.nodes if each != node]))


async def _replace(injection: Injection, node: str, *, earlier: bool) -> None:
    """Restart a replica with the other release; confirmed by the version that it reports."""
    cluster = injection.cluster
    async with injection.fault("upgrade", f"to the {'earlier' if earlier else 'new'} release", (node,)) as number:
        await (cluster.kill if injection.rng.random() < 0.5 else cluster.stop)(node)
        cluster.use_earlier(node, earlier)
        await cluster.start(node)
        await cluster.wait_caught_up(node, LEVEL_SECONDS_MAX)
        if (version := await _describe_version(cluster, node)) is not None:
            injection.confirm(number, version)
        await trio.sleep(MIXED_SECONDS)


async def _describe_version(cluster: Cluster, node: str) -> str | None:
    """The code that a broker's process runs, and its version."""
    table = await cluster.figures(node, 3.0)
    code = cluster.code_of(node)
    return None if table is None or code is None else f"{node} runs {code}, {table.get('brokerVersionDesc', '')}"


async def _disturb(injection: Injection, node: str) -> None:
    """Kill a replica and start it, or cut it off for a while."""
    cluster = injection.cluster
    if injection.rng.random() < 0.5:
        async with injection.fault("partition", "one", (node,)) as number, cut_off(injection, number, node):
            await trio.sleep(CUT_SECONDS)
        return
    async with injection.fault("kill", "one", (node,)) as number:
        pid = cluster.pid(node)
        await cluster.kill(node)
        if not state_of_process(pid):
            injection.confirm(number, f"no process has the id {pid} any more")
        await cluster.start(node)
        await cluster.wait_caught_up(node, LEVEL_SECONDS_MAX)
