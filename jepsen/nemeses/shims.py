"""Sets wall clocks wrong, and makes disks fail or slow, by a library that fakes both."""

from __future__ import annotations

import errno
from collections.abc import Callable

import trio

from jepsen.deployments.shim import Shim
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.schedule import FaultStep, targets

SKEWS_SECONDS = {"steps ahead": 60.0, "a day ahead": 86_400.0, "steps back": -3600.0, "strobes": 2.0}
STROBE_SECONDS = 0.01
SLOW_SYNC_SECONDS = (0.05, 0.5)
_END_SECONDS_MAX = 15.0


async def clock(injection: Injection, step: FaultStep, leader: str) -> None:
    """Set wall clocks wrong for a while, or let them jump back and forth. Confirmed when processes read wrong times."""
    whose, _, how = step.variant.what.partition(": ")
    nodes = targets(whose, leader, injection.cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    for node in nodes:
        # Several clocks are wrong by different amounts.
        by = SKEWS_SECONDS[how] * (injection.rng.uniform(-1, 1) if len(nodes) > 1 else 1)
        strobe = STROBE_SECONDS if how == "strobes" else 0.0
        injection.cluster.shims[node].order(skew_seconds=by, strobe_seconds=strobe)
    try:
        await confirm_hits(injection, number, nodes, lambda shim: shim.wrong_times, "wrong times were told to")
        await trio.sleep(step.seconds)
    finally:
        _release(injection, nodes)
    injection.end(number)


async def slow_disk(injection: Injection, step: FaultStep, leader: str) -> None:
    """Make each sync of some brokers take much longer, for a while."""
    nodes = targets(step.variant.what, leader, injection.cluster.nodes, injection.rng)
    number = injection.begin(step, nodes)
    for node in nodes:
        injection.cluster.shims[node].order(sync_seconds=injection.rng.uniform(*SLOW_SYNC_SECONDS))
    try:
        await confirm_hits(injection, number, nodes, lambda shim: shim.hit_syncs, "syncs were slow of")
        await trio.sleep(step.seconds)
    finally:
        _release(injection, nodes)
    injection.end(number)


async def disk_error(injection: Injection, step: FaultStep, leader: str) -> None:
    """Make writes or syncs of a broker fail with EIO. It must exit, and is restarted on a good disk.

    A broker that continues without its disk is killed: messages that it acknowledged since must be on the others.
    """
    cluster = injection.cluster
    whose, _, what = step.variant.what.partition(": ")
    (node,) = targets(whose, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, (node,))
    cluster.expect_end(node)
    if what == "writes":
        cluster.shims[node].order(write_errno=errno.EIO)
        await confirm_hits(injection, number, (node,), lambda shim: shim.failed_writes, "writes failed of")
    else:
        cluster.shims[node].order(sync_errno=errno.EIO)
        await confirm_hits(injection, number, (node,), lambda shim: shim.hit_syncs, "syncs failed of")
    with trio.move_on_after(_END_SECONDS_MAX):
        while cluster.is_running(node):  # noqa: ASYNC110 (no event to wait for)
            await trio.sleep(0.1)
    is_running = cluster.is_running(node)
    injection.say(f"  {node} goes on" if is_running else f"  {node} ended with exit code {cluster.exit_code(node)}")
    await cluster.kill(node)
    await trio.sleep(step.seconds)
    _release(injection, (node,))
    await cluster.start(node)
    injection.end(number)


def _release(injection: Injection, nodes: tuple[str, ...]) -> None:
    for node in nodes:
        injection.cluster.shims[node].order()


async def confirm_hits(
    injection: Injection, number: int, nodes: tuple[str, ...], count: Callable[[Shim], int], what: str
) -> None:
    """Wait until each of ``nodes`` has used its faked clock or disk, and confirm the fault."""
    shims = injection.cluster.shims
    with trio.move_on_after(CONFIRM_SECONDS_MAX):
        while not all(count(shims[node]) for node in nodes):  # noqa: ASYNC110 (no event to wait for)
            await trio.sleep(0.1)
        effect = ", ".join(f"{count(shims[node])} {what} {node}" for node in nodes)
        injection.confirm(number, f"{effect} within the first moments")
