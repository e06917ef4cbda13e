"""Replicas joined by real sockets and files."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import trio

from raftlog import CoreConfig, Refusal
from raftlog.segment.limits import LogLimits
from tests.free_ports import free_ports
from tests.unit.replica.group import Node, started, wait_leader

NAMES = ("n0", "n1", "n2")


async def test_entries_reach_every_replica_with_their_annotations(tmp_path: Path) -> None:
    async with started(tmp_path) as (leader, followers):
        bodies = [b"%d" % number * 100 for number in range(300)]  # several segments of 64 KiB
        for body in bodies:
            assert isinstance(leader.append(body, b"hint"), int)
        for node in (leader, *followers):
            await node.wait_until(lambda node: len(node.application.bodies) == len(bodies))
            assert node.application.bodies == bodies
            assert set(node.application.annotations) == {b"hint"}
            assert not node.failures
            assert node.log.chain == leader.log.chain


async def test_follower_refuses_to_append(tmp_path: Path) -> None:
    async with started(tmp_path) as (leader, followers):
        assert followers[0].append(b"body") is Refusal.NOT_LEADER
        assert followers[0].log.last_index <= leader.log.last_index


async def test_dead_leader_is_replaced_without_waiting_for_silence(tmp_path: Path) -> None:
    """Its closed connections and a refused reconnect start the election; silence alone would take a minute here."""
    patient = CoreConfig(election_timeout_seconds_min=60, election_timeout_seconds_max=120)
    async with started(tmp_path, patient) as (leader, survivors):
        index = leader.append(b"before")
        assert isinstance(index, int)
        for node in (leader, *survivors):
            await node.wait_until(lambda node: node.replica.log.last_index >= index)
        await leader.wait_until(lambda node: node.replica.applied_index >= index)
        old_term = leader.replica.core.term
        leader.scope.cancel()
        new = await wait_leader(survivors)
        assert new.replica.core.term > old_term
        assert isinstance(new.append(b"after"), int)
        for node in survivors:
            await node.wait_until(lambda node: node.application.bodies == [b"before", b"after"])


async def test_returning_replica_catches_up_from_disk(tmp_path: Path) -> None:
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    nodes = [Node(tmp_path, name, ports) for name in NAMES[:2]]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        leader = await wait_leader(nodes)
        for number in range(100):
            assert isinstance(leader.append(b"%d" % number * 50), int)
        await leader.wait_until(lambda node: len(node.application.bodies) == 100)
        late = Node(tmp_path, "n2", ports)
        await nursery.start(late.run)
        await late.wait_until(lambda node: len(node.application.bodies) == 100)
        assert late.application.bodies == leader.application.bodies
        nursery.cancel_scope.cancel()
    restarted = Node(tmp_path, "n0", {"n0": ports["n0"]})
    assert restarted.log.last_index == leader.log.last_index
    assert restarted.log.chain == leader.log.chain
    restarted.log.close()
    restarted.transport.close()
    restarted.reactor.close()


async def test_replicas_of_two_clusters_do_not_connect(tmp_path: Path) -> None:
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    nodes = [Node(tmp_path, "n0", ports), Node(tmp_path, "n1", ports, cluster="ff" * 16)]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        for node in nodes:
            await node.wait_until(lambda node: len(node.transport.refusals) > 0)
        assert not nodes[0].transport.connected(nodes[1].replica.core.node_id)
        nursery.cancel_scope.cancel()


async def test_peer_that_resets_the_handshake_is_redialled(tmp_path: Path) -> None:
    """A process that dies between accepting a connection and answering must not take its peers with it."""
    ports = dict(zip(NAMES, free_ports(3), strict=True))
    listener = socket.create_server(("127.0.0.1", ports["n1"]))
    listener.setblocking(False)
    node = Node(tmp_path, "n0", ports)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        for _ in range(4):
            await trio.lowlevel.wait_readable(listener)
            sock, _ = listener.accept()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        nursery.cancel_scope.cancel()
    listener.close()


async def test_follower_with_a_hanging_disk_stops_at_its_buffer_limit(tmp_path: Path) -> None:
    """The leader's window is freed by what was received, so only the follower itself can bound what it keeps."""
    async with started(tmp_path, limits=LogLimits(unsynced_bytes_max=20_000)) as (leader, (slow, _)):
        hanging = HangingDisk(slow)
        for number in range(60):
            index = leader.append(b"%02d" % number * 500)
            assert isinstance(index, int)
            await leader.wait_until(lambda node, index=index: node.replica.applied_index >= index)  # type: ignore[misc]
        assert slow.log.end_pos < 20_000 + 2 * 1100, f"{slow.log.end_pos} bytes were kept unsynced"
        hanging.recover()
        await slow.wait_until(lambda node: len(node.application.bodies) == 60)


class HangingDisk:
    """Holds back what the writer of a node reports, as if its disk did not finish."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._writer = node.log._writer
        node.log._writer = self  # type: ignore[assignment]
        self.done_ticket = self._writer.done_ticket
        self._ops: list[object] = []

    def submit(self, op: object) -> None:
        self._ops.append(op)

    def signal_from(self, ticket: int) -> int:
        return self._writer.signal_from(ticket)

    def send_after(self, ticket: int, fd: int, frame: bytes) -> bool:
        return self._writer.send_after(ticket, fd, frame)

    def take_back(self) -> int:
        return self._writer.take_back()

    def close(self, *, clean: bool) -> None:
        self._writer.close(clean=clean)

    def recover(self) -> None:
        self._node.log._writer = self._writer
        for op in self._ops:
            self._writer.submit(op)  # type: ignore[arg-type]
