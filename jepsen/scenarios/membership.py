"""Removes and adds members while others are dead or cut off."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from jepsen.deployments import operators
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.members import (
    CHANGE_SECONDS_MAX,
    ELECTION_SECONDS,
    add,
    change_members,
    confirm_members,
    make_spare,
    prepare_spare,
    readd,
    remove,
)
from jepsen.nemeses.partitions import cut
from jepsen.nemeses.processes import state_of_process
from jepsen.scenarios.away import cut_off
from jepsen.schedule import halves
from mq.cli.errors import CommandFailed
from mq.client import ClientError

WITHIN_SECONDS = 1.0
LOOK_SECONDS = 0.2
CUT_SECONDS = (1.0, 4.0)
HALVES_SECONDS = (4.0, 7.0)
"""Long enough for a second leader, if half of the voters were enough to elect one."""
REST_SECONDS = (0.2, 1.5)


async def peer_remove(injection: Injection) -> None:
    """Cut off one of five replicas, and kill three within a second: the leader, one that is being removed, and another.

    The remaining two, the one that was cut off among them, are a majority neither of five nor of four: neither may
    lead, whether the removal was committed or not.
    """
    cluster = injection.cluster
    leader = await cluster.leader()
    alone, removed_node, dead, alive = injection.rng.sample([node for node in cluster.nodes if node != leader], 4)
    async with injection.fault("members", "one is removed", (removed_node,), majority=False) as change:
        killed_nodes = (leader, removed_node, dead)
        async with (
            injection.fault("partition", "one follower", (alone,), majority=False) as cut,
            cut_off(injection, cut, alone),
            injection.fault("kill", "three of five", killed_nodes, majority=False) as kill,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_ask_to_remove, injection, removed_node)
            await trio.sleep(injection.rng.uniform(0.1, WITHIN_SECONDS))
            pids = [cluster.pid(node) for node in killed_nodes]
            async with trio.open_nursery() as kills:
                for node in killed_nodes:
                    kills.start_soon(cluster.kill, node)
            nursery.cancel_scope.cancel()
            if not any(map(state_of_process, pids)):
                injection.confirm(kill, f"no process has the ids {', '.join(map(str, pids))} any more")
        await look_at_minority(injection, (alone, alive), of=len(cluster.nodes))
        for node in killed_nodes:
            await cluster.start(node)
        await change_members(cluster, {removed_node: None}, remove(removed_node))
        await confirm_members(injection, change)
        await cluster.stop(removed_node)
        await cluster.forget(removed_node)
        await readd(cluster, removed_node)


async def _ask_to_remove(injection: Injection, node: str) -> None:
    try:
        async with operators.open_session(injection.cluster) as session:
            injection.say(f"  told to remove {node}: {(await session.change('remove', node)).text}")
    except (ClientError, CommandFailed) as error:
        injection.say(f"  not known whether {node} is removed: {error}")


async def look_at_minority(injection: Injection, nodes: Sequence[str], *, of: int) -> None:
    """Check that none of ``nodes``, a minority of ``of`` replicas, leads within the time of an election."""
    with trio.move_on_after(ELECTION_SECONDS):
        while True:
            for node in nodes:
                table = await injection.cluster.figures(node)
                if table is not None and table["raftmq.role"] == "leader":
                    did = f"leads in term {table['raftmq.term']} with {len(nodes)} of {of} replicas alive"
                    injection.record_bug(node, did)
                    return
            await trio.sleep(LOOK_SECONDS)


async def change_under_faults(injection: Injection) -> None:
    """Add a fourth replica and remove one, while faults kill or cut off one replica after the other."""
    cluster = injection.cluster
    node = await prepare_spare(cluster)
    async with injection.fault("members", "a fourth joins, one leaves", (node,)) as number:
        voters = cluster.nodes
        cluster.add_member(node)  # it may lead as soon as it is a voter
        change_done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_disturb, injection, voters, change_done)
            await change_members(cluster, {node: "voter"}, add(cluster, node, voter=True))
            change_done.set()
        await cluster.wait_caught_up(node, CHANGE_SECONDS_MAX)
        await confirm_members(injection, number)
        leaves = injection.rng.choice(cluster.nodes)
        change_done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_disturb, injection, [each for each in cluster.nodes if each != leaves], change_done)
            await change_members(cluster, {leaves: None}, remove(leaves))
            change_done.set()
        await make_spare(cluster, leaves)


async def _disturb(injection: Injection, nodes: Sequence[str], until: trio.Event) -> None:
    """Kill or cut off one replica after the other, or cut the group in halves; at least one of each."""
    cluster, rng = injection.cluster, injection.rng
    due = ["one killed", "one cut off", "halves"]
    kinds = tuple(due)
    while due or not until.is_set():
        what = due.pop(rng.randrange(len(due))) if due else rng.choice(kinds)
        await trio.sleep(rng.uniform(*REST_SECONDS))
        node = rng.choice(nodes)
        if what == "halves":
            everybody = rng.sample(cluster.nodes, len(cluster.nodes))
            async with (
                injection.fault("partition", what, tuple(everybody), majority=False) as number,
                cut(injection, number, halves(everybody)),
            ):
                await trio.sleep(rng.uniform(*HALVES_SECONDS))
            continue
        async with injection.fault("kill" if what == "one killed" else "partition", what, (node,)) as number:
            if what == "one cut off":
                async with cut_off(injection, number, node):
                    await trio.sleep(rng.uniform(*CUT_SECONDS))
            else:
                pid = cluster.pid(node)
                await cluster.kill(node)
                if not state_of_process(pid):
                    injection.confirm(number, f"no process has the id {pid} any more")
                await cluster.start(node)
                await cluster.wait_caught_up(node, CHANGE_SECONDS_MAX)
