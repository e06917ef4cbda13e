"""Removes replicas from the group under load, and adds them again without data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from jepsen.deployments import operators
from jepsen.deployments.cluster import Cluster, ClusterFailed
from jepsen.nemeses.injection import Injection
from jepsen.nemeses.lagging_replica import has_logged
from jepsen.schedule import FaultStep, targets
from mq.client import ClientError
from mq.inspection.group_session import GroupSession
from mq.protocol.requests.raft_group import GroupAnswer

CHANGE_SECONDS_MAX = 60.0
RETRY_SECONDS = 0.5
LEARN_SECONDS = (0.2, 1.5)
"""Seconds for which a new member may fetch the log until it is killed."""
TOLD = "another directory"
ELECTION_SECONDS = 6.0
"""Longer than a possible election takes."""


async def members(injection: Injection, step: FaultStep, leader: str) -> None:
    """Change the members of the group as operators do. Confirmed by the members that the leader reports."""
    match step.variant.what:
        case "a fourth replica joins, one of them leaves":
            await _join_and_leave(injection, step, kills=False)
        case "a fourth replica joins and one leaves while others die":
            await _join_and_leave(injection, step, kills=True)
        case "a new replica dies while it catches up":
            await _learner_dies(injection, step)
        case "a dead replica is replaced":
            await _replace(injection, step)
        case "follower comes back with nothing":
            await _wipe(injection, step, leader)
        case whose:
            await _leave_and_come_back(injection, step, *targets(whose, leader, injection.cluster.nodes, injection.rng))


async def _leave_and_come_back(injection: Injection, step: FaultStep, node: str) -> None:
    """Remove a replica, delete its directory, add it again and give it a vote."""
    cluster = injection.cluster
    number = injection.begin(step, (node,))
    await change_members(cluster, {node: None}, remove(node))
    await confirm_members(injection, number)
    await cluster.stop(node)
    await cluster.forget(node)
    await trio.sleep(step.seconds)
    await readd(cluster, node)
    injection.end(number)


async def readd(cluster: Cluster, node: str) -> None:
    """Start a node that was removed, and make it a voter again."""
    await cluster.start(node)
    await change_members(cluster, {node: "voter"}, add(cluster, node, voter=True))
    await cluster.wait_caught_up(node, CHANGE_SECONDS_MAX)


async def _join_and_leave(injection: Injection, step: FaultStep, *, kills: bool) -> None:
    """Let a spare join and become a voter; then let any of the four leave. With ``kills``, members die meanwhile."""
    cluster = injection.cluster
    node = await prepare_spare(cluster)
    number = injection.begin(step, (node,))
    others = cluster.nodes
    cluster.add_member(node)  # it may lead as soon as it is a voter
    async with trio.open_nursery() as nursery:
        if kills:
            nursery.start_soon(_kill_one_by_one, injection, others)
        await change_members(cluster, {node: "voter"}, add(cluster, node, voter=True))
    await cluster.wait_caught_up(node, CHANGE_SECONDS_MAX)
    await confirm_members(injection, number)
    await trio.sleep(step.seconds)
    leaves = injection.rng.choice(cluster.nodes)
    others = tuple(each for each in cluster.nodes if each != leaves)
    async with trio.open_nursery() as nursery:
        if kills:
            nursery.start_soon(_kill_one_by_one, injection, others)
        await change_members(cluster, {leaves: None}, remove(leaves))
    await make_spare(cluster, leaves)
    injection.end(number)


async def _kill_one_by_one(injection: Injection, nodes: Sequence[str]) -> None:
    """Kill two of the members, one at a time, so that a majority always lives."""
    cluster = injection.cluster
    for _ in range(2):
        await trio.sleep(injection.rng.uniform(0.0, 2.0))
        node = injection.rng.choice(nodes)
        injection.say(f"  {node} is killed")
        await cluster.kill(node)
        await cluster.start(node)
        await cluster.wait_caught_up(node, CHANGE_SECONDS_MAX)


async def _learner_dies(injection: Injection, step: FaultStep) -> None:
    """Add a spare and kill it twice while it fetches the log; then make it a voter, and remove another one."""
    cluster = injection.cluster
    node = await prepare_spare(cluster)
    number = injection.begin(step, (node,))
    await change_members(cluster, {node: "learner"}, add(cluster, node, voter=False))
    await confirm_members(injection, number)
    for _ in range(2):
        await trio.sleep(injection.rng.uniform(*LEARN_SECONDS))
        await cluster.kill(node)
        await trio.sleep(step.seconds)
        await cluster.start(node)
    await cluster.wait_caught_up(node, CHANGE_SECONDS_MAX)
    await change_members(cluster, {node: "voter"}, lambda session: session.change("promote", node))
    cluster.add_member(node)
    leaves = injection.rng.choice([each for each in cluster.nodes if each != node])
    await change_members(cluster, {leaves: None}, remove(leaves))
    await make_spare(cluster, leaves)
    injection.end(number)


async def _replace(injection: Injection, step: FaultStep) -> None:
    """Kill a member for ever, and replace it by a spare."""
    cluster = injection.cluster
    dead = injection.rng.choice(cluster.nodes)
    number = injection.begin(step, (dead,))
    await cluster.kill(dead)
    cluster.remove_member(dead)
    await trio.sleep(step.seconds)
    node = await prepare_spare(cluster)
    address = _address(cluster, node)
    await change_members(
        cluster,
        {node: "voter", dead: None},
        lambda session: session.replace(dead, node, address, patience=CHANGE_SECONDS_MAX),
    )
    cluster.add_member(node)
    await confirm_members(injection, number)
    await cluster.forget(dead)
    injection.end(number)


async def _wipe(injection: Injection, step: FaultStep, leader: str) -> None:
    """Restart a follower under its name without data: it must not vote until it is removed and added as a new one.

    The other follower requests its vote while the leader is dead: with that vote, everything that only the leader and
    the wiped one acknowledged would be lost.
    """
    cluster = injection.cluster
    empty_node, other = injection.rng.sample([node for node in cluster.nodes if node != leader], 2)
    number = injection.begin(step, (empty_node, leader))
    await cluster.kill(empty_node)
    # It may start as a node that waits to be added, or as the member that it was.
    await (cluster.forget if injection.rng.random() < 0.5 else cluster.wipe)(empty_node)
    log_size = cluster.log_file(empty_node).stat().st_size
    await cluster.start(empty_node)
    await trio.sleep(step.seconds)
    await cluster.kill(leader)
    await trio.sleep(ELECTION_SECONDS)
    await look_at_wiped(injection, number, empty_node, other)
    await cluster.start(leader)
    await cluster.leader()
    await cluster.stop(empty_node)
    if not has_logged(cluster.log_file(empty_node), TOLD, log_size):
        injection.record_bug(empty_node, "was not told that its directory is another one")
    if (vote := await operators.vote(cluster, empty_node)) is not None:
        injection.record_bug(empty_node, f"voted for {vote} with an empty directory")
    await change_members(cluster, {empty_node: None}, remove(empty_node))
    await cluster.forget(empty_node)
    await readd(cluster, empty_node)
    injection.end(number)


async def look_at_wiped(injection: Injection, number: int, empty_node: str, other: str) -> None:
    """Check the last two replicas, one of them empty: neither may lead, and the empty one may not get entries.

    Confirmed by its last entry.
    """
    for node in (empty_node, other):
        table = await injection.cluster.figures(node, 3.0)
        if table is None:
            continue
        if table["raftmq.role"] == "leader":
            injection.record_bug(node, f"leads in term {table['raftmq.term']} while {empty_node} has nothing")
        if node == empty_node:
            injection.confirm(number, f"the last entry of {empty_node} is {table['raftmq.lastIndex']}")
            if table["raftmq.lastIndex"] != "0":
                injection.record_bug(empty_node, f"got {table['raftmq.lastIndex']} entries before it was added anew")


async def prepare_spare(cluster: Cluster) -> str:
    """Start a spare without data, which waits until it is added to the group. Returns its name."""
    node = cluster.spares[0]
    await cluster.forget(node)
    await cluster.start(node)
    return node


async def make_spare(cluster: Cluster, node: str) -> None:
    """Stop a removed member, delete its data, and make it a spare."""
    cluster.remove_member(node)
    await cluster.stop(node)
    await cluster.forget(node)


def _address(cluster: Cluster, node: str) -> str:
    return "{}:{}".format(*cluster.network.replicates(node))


async def confirm_members(injection: Injection, number: int) -> None:
    """Confirm a fault, with the members that the leader reports."""
    now = await operators.members(injection.cluster)
    injection.confirm(number, f"the group has the members {', '.join(sorted(now))}")


async def change_members(
    cluster: Cluster, roles: Mapping[str, str | None], operation: Callable[[GroupSession], Awaitable[GroupAnswer]]
) -> None:
    """Repeat a change until each node has the given role; None: it is no member. Raises ClusterFailed.

    If the leader dies the outcome is unknown, so the command is repeated.
    """
    reason = ""
    with trio.move_on_after(CHANGE_SECONDS_MAX):
        while True:
            try:
                async with operators.open_session(cluster) as session:
                    reason = (await operation(session)).text
                    members = (await session.status()).view.members
            except ClientError as error:
                reason = str(error)
            else:
                now = {member.node_id: member.role for member in members}
                if all(now.get(node) == role for node, role in roles.items()):
                    return
            await trio.sleep(RETRY_SECONDS)
    raise ClusterFailed(f"the members {roles} did not come about within {CHANGE_SECONDS_MAX:g} s: {reason}")


def add(cluster: Cluster, node: str, *, voter: bool) -> Callable[[GroupSession], Awaitable[GroupAnswer]]:
    """Return the operation that `raftmq group add` executes."""
    return lambda session: session.add(node, _address(cluster, node), voter=voter, patience=CHANGE_SECONDS_MAX)


def remove(node: str) -> Callable[[GroupSession], Awaitable[GroupAnswer]]:
    """Return the operation that `raftmq group remove` executes."""
    return lambda session: session.change("remove", node)
