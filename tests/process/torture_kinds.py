"""What can be done to a group, by name: the processes and who leads. Others are in modules of their own."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import trio

from tests.process.torture_run import Torture

Kind = Callable[[Torture], Awaitable[None]]
KINDS: dict[str, Kind] = {}


def kind(torment: Kind) -> Kind:
    """Register a torment under its name."""
    KINDS[torment.__name__] = torment
    return torment


async def _kill(run: Torture, *nodes: str, seconds: float) -> None:
    await run.group.kill(*nodes)
    await trio.sleep(seconds)
    for node in nodes:
        await run.group.start(node)


@kind
async def kill_leader(run: Torture) -> None:
    """SIGKILL, and a restart."""
    await _kill(run, await run.wait_leader(), seconds=run.rng.choice((0.0, 0.5, 4.0)))


@kind
async def kill_follower(run: Torture) -> None:
    """SIGKILL, and a restart."""
    await _kill(run, await run.a_follower(), seconds=run.rng.choice((0.0, 1.0, 5.0)))


@kind
async def kill_both_followers(run: Torture) -> None:
    """The leader stays alone for a while."""
    await _kill(run, *await run.followers(), seconds=run.rng.choice((0.0, 3.0)))


@kind
async def kill_all(run: Torture) -> None:
    """All at once."""
    await _kill(run, *run.group.members, seconds=0.0)


async def _pause(run: Torture, node: str, seconds: float) -> None:
    run.group.signal(node, signal.SIGSTOP)
    try:
        await trio.sleep(seconds)
    finally:
        run.group.signal(node, signal.SIGCONT)


@kind
async def pause_leader_long(run: Torture) -> None:
    """Another one leads meanwhile."""
    await _pause(run, await run.wait_leader(), run.rng.uniform(4, 6))


@kind
async def pause_leader_shortly(run: Torture) -> None:
    """Again and again, around the election timeout."""
    leader = await run.wait_leader()
    for _ in range(5):
        await _pause(run, leader, run.rng.uniform(0.1, 2.0))
        await trio.sleep(run.rng.uniform(0.01, 0.2))


@kind
async def pause_follower(run: Torture) -> None:
    """Its queues at the others fill up."""
    await _pause(run, await run.a_follower(), run.rng.uniform(1, 5))


@kind
async def stop_one(run: Torture) -> None:
    """In order, and started again."""
    node = run.rng.choice(run.group.members)
    await run.group.stop(node)
    await trio.sleep(run.rng.uniform(0, 2))
    await run.group.start(node)


@kind
async def restart_namesrv(run: Torture) -> None:
    """It knows nothing after."""
    await run.group.kill("namesrv")
    await trio.sleep(run.rng.uniform(0, 2))
    await run.group.cluster._start_namesrv()


@kind
async def rolling_restart(run: Torture) -> None:
    """Each of them by SIGTERM, the next one as soon as this one is level."""
    for node in run.rng.sample(run.group.members, len(run.group.members)):
        await run.group.stop(node)
        await run.group.start(node)
        await run.level(node)
        await run.flow()


@kind
async def transfer(run: Torture) -> None:
    """Leadership goes round, with pauses from none to some; now and then whoever shall get it is killed."""
    for _ in range(6):
        to = await run.a_follower()
        dies = run.rng.random() < 0.2
        if dies:
            await run.group.kill(to)
        answer = await run.group.change("transfer", to)
        run.done["transferred" if answer.done else f"transfer: {answer.code}"] += 1
        if dies:
            await run.group.start(to)
        await trio.sleep(run.rng.choice((0.0, 0.0, 0.3)))
    await run.flow()


@kind
async def second_process(run: Torture) -> None:
    """A second process with the id and directory of a member that runs is refused, and does no harm."""
    node = run.rng.choice(run.group.members)
    code, said = await run.group.ended(*run.group.arguments(node))
    if code != 2 or "in use" not in said:
        run.broken(f"a second {node} ended with {code} and said {said[-300:]}")
    await run.flow()


@kind
async def wrong_cluster(run: Torture) -> None:
    """A follower comes back as a node of another cluster: its own directory refuses."""
    node = await run.a_follower()
    await run.group.stop(node)
    code, said = await run.group.ended(*run.group.arguments(node), "--set", "cluster_id=another")
    if code != 2 or "cluster" not in said:
        run.broken(f"{node} with another cluster id ended with {code} and said {said[-300:]}")
    await run.flow()
    await run.group.start(node)
    await run.level(node)
