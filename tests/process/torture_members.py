"""Torments of who belongs to the group, of those that fetch whole files, and of those that lost their directory."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from mq.protocol.group_admin import GroupAction
from raftlog.segment import RealDisk
from raftlog.segment.verify import StoppedLog
from tests.process.torture_kinds import kind
from tests.process.torture_run import Torture
from tests.process.torture_wire import figures


async def _must(run: Torture, action: GroupAction, node: str, *replaced: str) -> None:
    """A change that is done, perhaps only when asked for again: after a change of leader its outcome is not known."""
    with trio.fail_after(120):
        while True:
            answer = await run.group.change(action, node, *replaced)
            members = {member.node_id: member.role for member in answer.view.members}
            if answer.done or _is_so(members, action, node, *replaced):
                return
            run.done[f"{action}: {answer.code}"] += 1
            run.say(f"         {action} {node}: {answer.code}: {answer.text}")
            await trio.sleep(0.3)


def _is_so(members: Mapping[str, str], action: str, node: str, *replaced: str) -> bool:
    if action == "remove":
        return node not in members
    if action == "add":
        return node in members
    return members.get(node) == "voter" and not any(old in members for old in replaced)


async def _join(run: Torture) -> str:
    """Start a broker that has nothing and let it be added."""
    node = run.group.spare
    run.group.wipe(node)
    await run.group.start(node)
    await _must(run, "add", node)
    run.group.members.append(node)
    return node


async def _leave(run: Torture, node: str) -> None:
    """Remove a member, and its directory."""
    await _must(run, "remove", node)
    run.group.members.remove(node)
    await run.group.stop(node)
    run.group.wipe(node)


async def _kill_some(run: Torture, *, pause: tuple[float, float]) -> None:
    """Kill one member after the other, so that a majority is there at any time, and start it again."""
    for _ in range(2):
        await trio.sleep(run.rng.uniform(*pause))
        node = run.rng.choice(run.group.members)
        await run.group.kill(node)
        await run.group.start(node)
        await run.wait_leader()


@kind
async def add_promote_remove(run: Torture) -> None:
    """A learner with an empty directory, when the beginning of the log may be gone; then any of the four goes."""
    node = await _join(run)
    await run.level(node)
    await _must(run, "promote", node)
    await run.flow()
    await _leave(run, run.rng.choice(run.group.members))
    run.group.joining |= set(run.group.members) & {node}
    await run.flow()


@kind
async def change_under_kills(run: Torture) -> None:
    """As before, while members die."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: _kill_some(run, pause=(0.0, 2.0)))
        node = await _join(run)
    await run.level(node)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: _kill_some(run, pause=(0.0, 0.5)))
        await _must(run, "promote", node)
    leaves = run.rng.choice([member for member in run.group.members if member != node])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: _kill_some(run, pause=(0.0, 0.5)))
        await _must(run, "remove", leaves)
    run.group.members.remove(leaves)
    await run.group.stop(leaves)
    run.group.wipe(leaves)
    await run.flow()


@kind
async def replace(run: Torture) -> None:
    """A dead voter by a new node."""
    dead = run.rng.choice(run.group.members)
    await run.group.kill(dead)
    run.group.members.remove(dead)
    node = next(f"n{number}" for number in range(5) if f"n{number}" not in (*run.group.members, dead))
    run.group.joining.add(node)
    run.group.wipe(node)
    await run.group.start(node)
    await _must(run, "replace", node, dead)
    run.group.members.append(node)
    run.group.wipe(dead)
    await run.flow()


@kind
async def remove_wipe_readd(run: Torture) -> None:
    """The same id with a new directory is welcome after it was removed."""
    node = run.rng.choice(run.group.members)
    await _leave(run, node)
    run.group.joining.add(node)
    await run.flow()
    run.group.members.append(node)
    await run.group.start(node)
    await _must(run, "add", node)
    await run.level(node)
    await _must(run, "promote", node)
    await run.flow()


@kind
async def wiped_voter(run: Torture) -> None:
    """One comes back under its id with nothing: it is refused and elects nobody, until it is removed and added anew."""
    wiped, other = await run.followers()
    await run.group.kill(wiped)
    run.group.wipe(wiped)
    if run.rng.random() < 0.5:
        run.group.joining ^= {wiped}  # with --join, or as a founder
    since = run.group.log_end(wiped)
    await run.group.start(wiped)
    await run.flow()
    leader = await run.wait_leader()
    # Now it is asked for its vote by the one that is left, which must not get it.
    await run.group.kill(leader)
    await trio.sleep(run.rng.uniform(4, 8))
    for node in (wiped, other):
        table = await figures(run.group, node, 3.0)
        if table is not None and table["raftmq.role"] == "leader":
            run.broken(f"{node} leads in term {table['raftmq.term']} with {wiped} wiped and {leader} dead")
        if table is not None and node == wiped and int(table["raftmq.lastIndex"]) > 0:
            run.broken(f"{wiped} was wiped and has {table['raftmq.lastIndex']} entries without being added anew")
    await run.group.start(leader)
    await run.flow()
    said = [line for line in run.group.said(wiped, since) if "another directory" in str(line)]
    if not said:
        run.broken(f"{wiped} was wiped and nobody told it so")
    await run.group.stop(wiped)
    log = StoppedLog(RealDisk(), str(run.group.commitlog(wiped)))
    if log.state is not None and log.state.voted_for is not None:
        run.broken(f"{wiped} was wiped and voted for {log.state.voted_for} in term {log.state.term}")
    log.close()
    run.group.wipe(wiped)
    await _must(run, "remove", wiped)
    run.group.members.remove(wiped)
    run.group.joining.add(wiped)
    await run.group.start(wiped)
    run.group.members.append(wiped)
    await _must(run, "add", wiped)
    await run.level(wiped)
    await _must(run, "promote", wiped)


@kind
async def fall_behind(run: Torture) -> None:
    """A follower comes back when the others have removed what it needs next."""
    node = await run.a_follower()
    await run.group.stop(node)
    await run.below_base(node)
    since = run.group.log_end(node)
    await run.group.start(node)
    await run.level(node)
    if not run.group.has_said(node, "reset_begun", since):
        run.broken(f"{node} was below the base and is level without a reset")


@kind
async def kill_in_reset(run: Torture) -> None:
    """As before, killed again and again while it fetches and while it installs; sometimes its source is, too."""
    node = await run.a_follower()
    await run.group.kill(node)
    await run.below_base(node)
    staged = run.group.commitlog(node) / "reset"
    for attempt in range(4):
        since = run.group.log_end(node)
        await run.group.start(node)
        awaited = run.rng.choice(("reset_begun", "node_restarts", "READY", "INSTALL"))
        with trio.move_on_after(5):
            while not ((staged / awaited).exists() or run.group.has_said(node, awaited, since)):  # noqa: ASYNC110
                await trio.sleep(0.002)
            run.done[f"killed at {awaited}"] += 1
        await trio.sleep(run.rng.choice((0.0, 0.0, 0.01, 0.1, 0.5)))
        await run.group.kill(node)
        if attempt == 2:
            leader = await run.wait_leader()
            await run.group.kill(leader)
            await run.group.start(leader)
    await run.group.start(node)
    await run.level(node)
