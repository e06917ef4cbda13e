"""Raw connections to the brokers of a cluster on this machine, and what these say of themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from jepsen.wire import Wire, ask_figures, open_wire
from mq.cli.dev_cluster import HOST

__all__ = ["HEAL_SECONDS_MAX", "Processes", "Wire", "figures", "leader_of", "wired"]

HEAL_SECONDS_MAX = 60.0


class Processes(Protocol):
    """Brokers that run on this machine."""

    def port(self, node_id: str) -> int:
        """Where clients reach a broker."""
        ...

    def check(self) -> None:
        """Raises DevClusterFailed if one has ended that nobody stopped."""
        ...


@asynccontextmanager
async def wired(port: int) -> AsyncIterator[Wire]:
    """A `Wire` to a local port; the block is cancelled when the connection ends. Raises OSError."""
    async with open_wire(HOST, port) as wire:
        yield wire


async def figures(cluster: Processes, node: str, seconds: float = 1.0) -> dict[str, str] | None:
    """What a broker says of itself, or None if it does not answer in time."""
    return await ask_figures(HOST, cluster.port(node), seconds)


async def leader_of(cluster: Processes, nodes: Callable[[], Iterable[str]]) -> str:
    """Who leads in the highest term, once there is one. Raises trio.TooSlowError."""
    with trio.fail_after(HEAL_SECONDS_MAX):
        while True:
            cluster.check()
            leaders: list[tuple[int, str]] = []
            for node in nodes():
                if (table := await figures(cluster, node)) and table["raftmq.role"] == "leader":
                    leaders.append((int(table["raftmq.term"]), node))
            if leaders:
                return max(leaders)[1]
            await trio.sleep(0.1)
