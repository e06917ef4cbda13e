"""Cuts links between brokers, and between brokers and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from jepsen.deployments.network import Grudges
from jepsen.nemeses.injection import CONFIRM_SECONDS_MAX, Injection
from jepsen.schedule import FaultStep, grudges


async def partition(injection: Injection, step: FaultStep, leader: str) -> None:
    """Drop everything that some servers receive from others, for a while."""
    node_grudges = grudges(step.variant.what, leader, injection.cluster.nodes, injection.rng)
    number = injection.begin(step, tuple(sorted(node_grudges)))
    async with cut(injection, number, node_grudges):
        await trio.sleep(step.seconds)
    injection.end(number)


@asynccontextmanager
async def cut(injection: Injection, number: int, node_grudges: Grudges) -> AsyncIterator[None]:
    """Cut links until the block ends. Confirmed by the number of dropped packets."""
    network = injection.cluster.network
    try:
        await network.drop(node_grudges)
        with trio.move_on_after(CONFIRM_SECONDS_MAX):
            while not (count := await network.dropped_count()):  # noqa: ASYNC110 (no event to wait for)
                await trio.sleep(0.1)
            injection.confirm(number, f"{count} packets were dropped or held back at once")
        yield
    finally:
        with trio.CancelScope(shield=True):  # a few short commands
            await network.heal()
