"""Repeats queries to one replica, without waiting for the responses to earlier ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable

import trio

from jepsen.deployments.cluster import Cluster
from jepsen.wire import Wire, open_wire
from jepsen.workloads.workload import QUEUES

CONNECT_SECONDS = 1.0
_ANSWER_SECONDS_MAX = 10.0
"""Longer than brokers are paused."""
_REST_SECONDS = 0.05


async def watch(
    cluster: Cluster, node: str, ask: Callable[[Wire, str, int], Awaitable[None]], until: trio.Event
) -> None:
    """Call ``ask`` for one queue id after another until ``until`` is set. Reconnects whenever the connection fails.

    A replica that was paused finds queries when it resumes, on known connections, the newest sent a moment ago: its
    responses must not be stale. ``ask`` records the outcome itself, as unknown if it raises or is cancelled.
    """
    queue_ids = itertools.cycle(range(QUEUES))

    async def ask_in_time(wire: Wire, queue_id: int) -> None:
        with trio.fail_after(_ANSWER_SECONDS_MAX):
            await ask(wire, node, queue_id)

    while not until.is_set():
        try:
            with trio.move_on_after(CONNECT_SECONDS) as timeout:
                async with open_wire(*cluster.network.clients_reach(node)) as wire, trio.open_nursery() as questions:
                    timeout.deadline = math.inf
                    while not until.is_set():
                        questions.start_soon(ask_in_time, wire, next(queue_ids))
                        await trio.sleep(_REST_SECONDS)
        except* (OSError, trio.BrokenResourceError, trio.TooSlowError):
            pass  # operations in flight are recorded as unknown
        await trio.sleep(_REST_SECONDS)
