"""Real servers in a directory of a run, on one of several networks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from jepsen.deployments import netns
from jepsen.deployments.local import open_loopback
from jepsen.deployments.network import Network

BACKENDS = ("netns", "local")


def default_backend() -> str:
    """The one with the most faults that can be had here."""
    return "netns" if netns.unavailable() is None else "local"


def why_not(backend: str) -> str | None:
    """Why a back end cannot be used here; None when it can."""
    return netns.unavailable() if backend == "netns" else None


def open_network(backend: str, count: int) -> AbstractAsyncContextManager[Network]:
    """The network of a back end, for brokers n0, n1, ... Raises what the back end does."""
    opened: dict[str, Callable[[int], AbstractAsyncContextManager[Network]]] = {
        "netns": _namespaces,
        "local": open_loopback,
    }
    return opened[backend](count)


@asynccontextmanager
async def _namespaces(count: int) -> AsyncIterator[Network]:
    async with netns.open_networks(count) as networks:
        yield networks
