"""What operators do, or what happens to them: restarts in order, moved leadership, dead name servers."""

from __future__ import annotations

import trio

from jepsen.deployments.network import NAME_SERVERS
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.nemeses.processes import state_of_process
from jepsen.schedule import Step, targets

LEVEL_SECONDS_MAX = 60.0


async def restart(injection: Injection, step: Step, leader: str) -> None:
    """SIGTERM, and started again; the next one when this one has caught up."""
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


async def transfer(injection: Injection, step: Step, leader: str) -> None:
    """`raftmq group transfer`; the new leader is the fault's effect."""
    cluster = injection.cluster
    number = injection.begin(step, (leader,))
    done = await cluster.command("group", "transfer", "--namesrv", cluster.namesrv)
    if done.returncode:
        injection.say(f"  refused: {done.stderr.decode(errors='replace').strip()}")
    with trio.move_on_after(CONFIRM_SECONDS_MAX):
        while (now := await cluster.leader()) == leader:  # noqa: ASYNC110 (brokers tell nobody)
            await trio.sleep(0.05)
        injection.confirm(number, f"{now} leads")
    await trio.sleep(step.seconds)
    injection.end(number)


async def kill_name_servers(injection: Injection, step: Step, leader: str) -> None:
    """SIGKILL of one or both; they come back and know no broker until it registers again."""
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
