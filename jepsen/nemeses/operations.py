"""Restarts brokers one by one, transfers leadership, and kills name servers."""

from __future__ import annotations

import trio

from jepsen.deployments.network import NAME_SERVERS
from jepsen.deployments.operators import open_session
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.nemeses.processes import state_of_process
from jepsen.schedule import FaultStep, targets
from mq.cli.errors import CommandFailed
from mq.client import ClientError

LEVEL_SECONDS_MAX = 60.0
ROUNDS = 6


async def restart(injection: Injection, step: FaultStep, leader: str) -> None:
    """Restart brokers by SIGTERM, each one after the one before has caught up."""
    cluster = injection.cluster
    nodes = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    codes = {}
    for node in nodes:
        await cluster.stop(node)
        codes[node] = cluster.exit_code(node)
        if codes[node] != 0:
            injection.recorder.note("ended", n=node, err=f"exit code {codes[node]} after SIGTERM")
        await trio.sleep(step.seconds)
        await cluster.start(node)
        await cluster.wait_caught_up(node, LEVEL_SECONDS_MAX)
    injection.confirm(number, f"ended with exit codes {codes}")
    injection.end(number)


async def transfer(injection: Injection, step: FaultStep, leader: str) -> None:
    """Transfer leadership as `raftmq group transfer` does. Confirmed if another broker leads, or the target died."""
    match step.variant.what:
        case "leadership to a follower that is killed":
            await _transfer_to_dead(injection, step, leader)
        case "leadership, six times in a row":
            await _transfer(injection, step, leader, rounds=ROUNDS)
        case _:
            await _transfer(injection, step, leader, rounds=1)


async def _transfer(injection: Injection, step: FaultStep, leader: str, *, rounds: int) -> None:
    cluster = injection.cluster
    number = injection.begin(step, (leader,))
    leaders = [leader]
    for _ in range(rounds):
        await _ask_for_transfer(injection)
        with trio.move_on_after(CONFIRM_SECONDS_MAX):
            while (now := await cluster.leader()) == leaders[-1]:  # noqa: ASYNC110 (no event to wait for)
                await trio.sleep(0.05)
            leaders.append(now)
        await trio.sleep(step.seconds)
    if len(leaders) > 1:
        injection.confirm(number, f"{', then '.join(leaders)} led")
    injection.end(number)


async def _transfer_to_dead(injection: Injection, step: FaultStep, leader: str) -> None:
    """Kill the follower just before the request: the leader must not wait for it for long."""
    cluster = injection.cluster
    to = injection.rng.choice([node for node in cluster.nodes if node != leader])
    number = injection.begin(step, (leader, to))
    pid = cluster.pid(to)
    await cluster.kill(to)
    if not state_of_process(pid):
        injection.confirm(number, f"no process has the id {pid} any more")
    await _ask_for_transfer(injection, to)
    await trio.sleep(step.seconds)
    await cluster.start(to)
    injection.end(number)


async def _ask_for_transfer(injection: Injection, to: str = "") -> None:
    """Ask for a transfer as the command does, without starting a process."""
    try:
        async with open_session(injection.cluster) as session:
            response = await session.change("transfer", to)
    except (ClientError, CommandFailed) as error:
        injection.say(f"  not answered: {error}")
    else:
        if not response.done:
            injection.say(f"  refused: {response.text}")


async def kill_name_servers(injection: Injection, step: FaultStep, leader: str) -> None:
    """Kill one or both name servers, and restart them. They know no broker until brokers register again."""
    cluster = injection.cluster
    names = {"the first": NAME_SERVERS[:1], "the second": NAME_SERVERS[1:], "both": NAME_SERVERS}[step.variant.what]
    number = injection.begin(step, names)
    pids = [cluster.pid(name) for name in names]
    for name in names:
        await cluster.kill(name)
    if not any(map(state_of_process, pids)):
        injection.confirm(number, f"no process has the ids {', '.join(map(str, pids))} any more")
    await trio.sleep(step.seconds)
    for name in names:
        await cluster.start(name)
    injection.end(number)
