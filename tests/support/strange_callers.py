"""An isolated replica, and callers that connect to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from raftlog.net.frames import Hello
from tests.free_ports import free_ports
from tests.unit.replica.caller import Caller
from tests.unit.replica.group import CLUSTER, SEGMENT_BYTES, Node

NAMES = ("n0", "n1", "n2")
ADDRESSES = dict.fromkeys(NAMES, "127.0.0.1:1")
HELLO = Hello(CLUSTER, "g", "n1", "n0", SEGMENT_BYTES, "control", addresses=ADDRESSES)


@contextlib.asynccontextmanager
async def lonely(directory: Path, refusal_log_seconds: float = 0.0) -> AsyncIterator[tuple[Node, int]]:
    """A replica whose peers do not run: it neither follows nor leads. By default it logs every refusal."""
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    node = Node(directory, "n0", ports, refusal_log_seconds=refusal_log_seconds)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        yield node, ports["n0"]
        nursery.cancel_scope.cancel()


async def connected_peer(node: Node, port: int) -> Caller:
    """A connection of n1."""
    caller = await Caller.open(port, node.secrets.current)
    assert (await caller.greet(HELLO)).refusal is None
    return caller


async def check_unharmed(node: Node, port: int, last_index: int) -> None:
    await (await connected_peer(node, port)).stream.aclose()
    assert node.log.last_index == last_index
    assert not node.failures
