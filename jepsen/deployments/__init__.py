"""Starts real servers in the directory of a run, on one of several networks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from jepsen.deployments import docker, netns
from jepsen.deployments.local import open_loopback
from jepsen.deployments.network import Network

BACKENDS = ("netns", "local", "docker")


def default_backend() -> str:
    """Return the available back end that supports the most faults."""
    return "netns" if netns.unavailable() is None else "local"


def why_default() -> str:
    """Return the reason that `default_backend` lacks some faults, as text; empty if it has all."""
    reason = netns.unavailable()
    return "" if reason is None else f"the back end is local, with fewer faults; netns cannot be used: {reason}"


def why_not(backend: str) -> str | None:
    """Return the reason that this machine cannot use a back end; None if it can."""
    reasons = {"netns": netns.unavailable, "docker": docker.unavailable}
    return reasons[backend]() if backend in reasons else None


def open_network(backend: str, count: int, *, switched: bool = False) -> AbstractAsyncContextManager[Network]:
    """Open the network of a back end for brokers n0, n1, ... Raises the errors of the back end.

    Args:
        switched: links of "netns" and "docker" can be made slow, or lose packets.
    """
    openers: dict[str, Callable[[int], AbstractAsyncContextManager[Network]]] = {
        "netns": partial(_namespaces, switched=switched),
        "local": open_loopback,
        "docker": partial(_containers, switched=switched),
    }
    return openers[backend](count)


@asynccontextmanager
async def _containers(count: int, *, switched: bool) -> AsyncIterator[Network]:
    async with docker.open_containers(count, switched=switched) as containers:
        yield containers


@asynccontextmanager
async def _namespaces(count: int, *, switched: bool) -> AsyncIterator[Network]:
    async with netns.open_networks(count, switched=switched) as networks:
        yield networks
