"""TLS between replicas: nobody in between reads or changes what they send. Members switch it on one by one."""

from __future__ import annotations

import itertools
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from mq.certificate import Certificate
from raftlog import NodeId
from raftlog.net.replication_tls import ReplicationTls, bound_purpose
from tests.free_ports import free_ports
from tests.support.certificates import Authority
from tests.support.man_in_the_middle import Wire
from tests.unit.replica.group import Node, wait_leader

NAMES = ("n0", "n1", "n2")
BODY = b"what nobody in between is to read" * 50


def certificate(directory: Path, name: str) -> Certificate:
    return Certificate(
        *Authority(directory).sign(name, "replica"), None, structlog.get_logger("test"), lambda: time.time_ns() // 10**6
    )


def enforcing(directory: Path, name: str) -> ReplicationTls:
    return ReplicationTls(certificate(directory, name).for_replicas, required=True)


def permissive(directory: Path, name: str) -> ReplicationTls:
    return ReplicationTls(certificate(directory, name).for_replicas, required=False)


def without(directory: Path, name: str) -> None:
    return None


@pytest.mark.parametrize(
    "modes",
    [
        (enforcing, enforcing, enforcing),
        (permissive, permissive, permissive),
        (without, permissive, permissive),
        (without, without, permissive),
        (enforcing, permissive, permissive),
        (enforcing, enforcing, permissive),
    ],
    ids=lambda modes: " ".join(mode.__name__ for mode in modes),
)
async def test_entries_reach_every_replica_in_each_step_of_enabling_tls(
    tmp_path: Path, modes: tuple[Callable[[Path, str], ReplicationTls | None], ...]
) -> None:
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    nodes = [Node(tmp_path, name, ports, tls=mode(tmp_path, name)) for name, mode in zip(NAMES, modes, strict=True)]
    with capture_logs() as log:
        async with trio.open_nursery() as nursery:
            for node in nodes[:2]:
                await nursery.start(node.run)
            for node in nodes[:2]:  # that calls failed before a peer was there must not keep them from TLS
                await node.wait_until(lambda node: NodeId("n2") in node.transport.failures)
            await nursery.start(nodes[2].run)
            leader = await wait_leader(nodes)
            for _ in range(100):
                assert isinstance(leader.append(BODY, b"hint"), int)
            for node in nodes:
                await node.wait_until(lambda node: len(node.application.bodies) == 100)
                await node.wait_until(lambda node: all(map(node.transport.connected, node.transport.peers)))
                assert set(node.application.bodies) == {BODY}
                assert not node.failures
            nursery.cancel_scope.cancel()
    has_tls = {name for name, mode in zip(NAMES, modes, strict=True) if mode is not without}
    connected = {(line["peer"], line["tls"]) for line in log if line["event"] == "peer_connected"}
    assert connected == {(peer, {caller, peer} <= has_tls) for caller, peer in itertools.permutations(NAMES, 2)}


async def test_replicas_with_and_without_required_tls_do_not_connect(tmp_path: Path) -> None:
    ports = dict(zip(NAMES[:2], free_ports(2), strict=True))
    nodes = [Node(tmp_path, "n0", ports, tls=enforcing(tmp_path, "n0")), Node(tmp_path, "n1", ports)]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        await nodes[0].wait_until(lambda node: NodeId("n1") in node.transport.failures)
        await nodes[1].wait_until(lambda node: NodeId("n0") in node.transport.failures)
        assert not any(node.transport.connected(NodeId("n0")) for node in nodes)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def two_with_a_wire(
    directory: Path, tls: tuple[ReplicationTls | None, ReplicationTls | None], shown: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Node, Node, Wire]]:
    """Two replicas, of which the first one reaches the other one over a wire only."""
    here, there, between = free_ports(3)
    wire = Wire(there, shown)
    first = Node(directory, "n0", {"n0": here, "n1": between}, tls=tls[0])
    second = Node(directory, "n1", {"n0": here, "n1": there}, tls=tls[1])
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(wire.serve, between))
        for node in (first, second):
            await nursery.start(node.run)
        yield first, second, wire
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("has_tls", [True, False])
async def test_tls_hides_entries_on_the_wire(tmp_path: Path, has_tls: bool) -> None:
    tls = [enforcing(tmp_path, name) if has_tls else None for name in NAMES[:2]]
    async with two_with_a_wire(tmp_path, (tls[0], tls[1])) as (first, second, wire):
        leader = await wait_leader([first, second])
        assert isinstance(leader.append(BODY), int)
        for node in (first, second):
            await node.wait_until(lambda node: BODY in node.application.bodies)
        assert wire.seen
        if leader is first:  # entries go over the wire
            assert (BODY in wire.seen) is not has_tls
        # The hello: the name as CBOR, and the names of all members, since two bytes alone also occur by chance.
        assert all(b"\x62" + name.encode() in wire.seen for name in NAMES[:2]) is not has_tls


async def test_interceptor_with_another_certificate_gets_no_proof(tmp_path: Path) -> None:
    """Certificates are vouched for by nobody, so the proofs must notice that there are two connections."""
    (tmp_path / "other").mkdir()
    shown = certificate(tmp_path / "other", "n1").for_replicas()[0]
    tls = enforcing(tmp_path, "n0"), enforcing(tmp_path, "n1")
    async with two_with_a_wire(tmp_path, tls, shown) as (first, _second, wire):
        await first.wait_until(lambda node: "authentication failed" in node.transport.failures.get(NodeId("n1"), ""))
        assert not first.transport.connected(NodeId("n1"))
        assert wire.seen, "the call arrived there"


def test_purposes_differ_by_certificate() -> None:
    assert len({bound_purpose(b"p", None), bound_purpose(b"p", b"one"), bound_purpose(b"p", b"two")}) == 3
