"""Opens connections to a broker until it has no file descriptors left."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import trio

from jepsen.deployments.cluster import ClusterFailed
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.schedule import FaultStep, targets

DESCRIPTORS = 256
"""A broker keeps half of them for itself."""
CALLERS = DESCRIPTORS
HUNG_UP_SECONDS_MAX = 0.5
SERVES_SECONDS_MAX = 30.0


async def descriptors(injection: Injection, step: FaultStep, leader: str) -> None:
    """Restart a broker with few file descriptors, and use them up by connections. When these end, it must serve again.

    Confirmed by connections that it closed, and by its open files. Raises ClusterFailed if it does not serve again.
    """
    cluster = injection.cluster
    (node,) = targets(step.variant.what, leader, cluster.nodes, injection.rng)
    number = injection.begin(step, (node,))
    await cluster.stop(node)
    await cluster.start(node, descriptors_max=DESCRIPTORS)
    await cluster.wait_caught_up(node, SERVES_SECONDS_MAX)
    address = cluster.network.clients_reach(node)
    async with AsyncExitStack() as calls:
        with trio.move_on_after(CONFIRM_SECONDS_MAX):
            for _ in range(CALLERS):
                await calls.enter_async_context(await trio.open_tcp_stream(*address))
            while not await _hangs_up(address):  # noqa: ASYNC110 (no event to wait for)
                await trio.sleep(0.1)
            count = open_files(cluster.pid(node))
            injection.confirm(number, f"{node} has {count} of {DESCRIPTORS} files open and hangs up on new callers")
        await trio.sleep(step.seconds)
    with trio.move_on_after(SERVES_SECONDS_MAX) as timeout:
        while await cluster.figures(node) is None:  # noqa: ASYNC110 (no event to wait for)
            await trio.sleep(0.1)
    if timeout.cancelled_caught:
        raise ClusterFailed(f"{node} does not serve {SERVES_SECONDS_MAX:g} s after callers gave its descriptors back")
    injection.end(number)


def open_files(pid: int) -> int:
    """Return the number of open files and connections of a process. Raises OSError if it does not exist."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def _hangs_up(address: tuple[str, int]) -> bool:
    """Whether a new connection is closed at once."""
    try:
        async with await trio.open_tcp_stream(*address) as stream:
            with trio.move_on_after(HUNG_UP_SECONDS_MAX):
                return not await stream.receive_some(1)
    except (OSError, trio.BrokenResourceError):
        return True
    return False
