"""Kills or pauses clients in separate processes: members of a consumer group that also send."""

from __future__ import annotations

import signal

import trio

from jepsen.deployments.network import CLIENTS, NAME_SERVERS
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.nemeses.partitions import cut
from jepsen.nemeses.processes import pause_broker, state_of_process
from jepsen.schedule import FaultStep


async def clients(injection: Injection, step: FaultStep, leader: str) -> None:
    """Kill or pause one client or all, or drop their packets.

    The workload restarts killed ones.
    """
    cluster = injection.cluster
    if step.variant.what == "all cut off":
        number = injection.begin(step, (CLIENTS,))
        grudges = {name: frozenset({CLIENTS}) for name in (*cluster.nodes, *NAME_SERVERS)}
        async with cut(injection, number, grudges):
            await trio.sleep(step.seconds)
        injection.end(number)
        return
    whose, _, what = step.variant.what.partition(" ")
    with trio.move_on_after(CONFIRM_SECONDS_MAX):
        while not (at_work := cluster.clients_at_work()):  # noqa: ASYNC110 (they come back by themselves)
            await trio.sleep(0.05)
    names = at_work if whose == "all" else [injection.rng.choice(at_work)] if at_work else []
    number = injection.begin(step, tuple(names))
    if what == "killed":
        pids = [cluster.pid(name) for name in names]
        for name in names:
            cluster.send_signal(name, signal.SIGKILL)
        with trio.move_on_after(CONFIRM_SECONDS_MAX):
            while any(state_of_process(pid) not in ("", "Z") for pid in pids):  # noqa: ASYNC110 (no event to wait for)
                await trio.sleep(0.01)
            if pids:
                injection.confirm(number, f"no process has the ids {', '.join(map(str, pids))} any more")
        await trio.sleep(step.seconds)
    else:
        for name in names:
            async with pause_broker(injection, number, name):
                await trio.sleep(step.seconds)
    injection.end(number)
