"""Three replicas with real sockets and files, in one event loop."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio

from raftlog import (
    CommittedEntry,
    ConfState,
    CoreConfig,
    EntryKind,
    NodeId,
    Reactor,
    RealDisk,
    Refusal,
    Replica,
    RoleChange,
    SegmentLog,
)
from raftlog.bootstrap import core_for
from raftlog.log_numbers import NO_INDEX
from raftlog.net.admission import Admission, Identity
from raftlog.net.frames import Kind
from raftlog.net.reactor import Deadline, Mailbox
from raftlog.net.replication_tls import ReplicationTls
from raftlog.net.secret_file import SecretFile, create_secret
from raftlog.net.thread_signal import ThreadSignal
from raftlog.net.transport import Transport
from raftlog.net.versions import NEWEST_VERSION, OLDEST_VERSION
from raftlog.segment.limits import DEFAULT, LogLimits
from raftlog.segment.writer import threaded_writer
from tests.free_ports import free_ports
from tests.support.waiting import until, until_found

CLUSTER = "00112233445566778899aabbccddeeff"
SEGMENT_BYTES = 64 * 1024


class Recorder:
    """An application that remembers what it was told."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.annotations: list[bytes] = []
        self.roles: list[RoleChange] = []
        self.unknown: list[int] = []

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        for entry in entries:
            if entry.kind == EntryKind.NORMAL:
                self.bodies.append(bytes(entry.body))
                self.annotations.append(entry.annotation)

    def role_changed(self, change: RoleChange) -> None:
        self.roles.append(change)

    def outcome_unknown(self, first_index: int) -> None:
        self.unknown.append(first_index)


def group_secrets(directory: Path) -> SecretFile:
    """The secret of the group whose replicas have their directories in this one."""
    path = str(directory / "group.secret")
    create_secret(path)
    return SecretFile(path)


class Node:
    """One replica, its application, and its running parts."""

    def __init__(
        self,
        directory: Path,
        name: str,
        ports: dict[str, int],
        cluster: str = CLUSTER,
        config: CoreConfig | None = None,
        versions: tuple[int, int] = (OLDEST_VERSION, NEWEST_VERSION),
        tls: ReplicationTls | None = None,
        limits: LogLimits = DEFAULT,
        refusal_log_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self.reactor = Reactor()
        self.application = Recorder()
        done = ThreadSignal(self.reactor, lambda events: self.replica.note_writes())
        self.failures: list[object] = []
        failed = Mailbox(self.reactor, self.failures.append)
        writer = threaded_writer(done.fd, failed.put)
        self.log = SegmentLog.open(
            str(directory / name),
            cluster_id=CLUSTER,
            node_id=name,
            segment_bytes=SEGMENT_BYTES,
            disk=RealDisk(),
            writer=writer,
            limits=limits,
        )
        voters = tuple(NodeId(node) for node in ports)
        core = core_for(
            self.log,
            [(NO_INDEX, ConfState(voters))],
            node_id=NodeId(name),
            config=config or CoreConfig(),
            rng=random.Random(name),
            now=trio.current_time(),
        )
        self.secrets = group_secrets(directory)
        self.transport = Transport(
            reactor=self.reactor,
            secrets=self.secrets,
            admission=Admission(
                Identity(cluster, "g", NodeId(name), SEGMENT_BYTES, oldest=versions[0], newest=versions[1]),
                {},
                lambda stores: None,
            ),
            incarnation=f"{name}-{random.Random().random()}",
            listen=("127.0.0.1", ports[name]),
            on_frame=self._receive,
            on_peer_gone=lambda peer: self.replica.peer_gone(peer),
            writer=writer,
            log=structlog.get_logger("test"),
            tls=tls,
            refusal_log_seconds=refusal_log_seconds,
        )
        self.transport.set_members(NO_INDEX, {NodeId(node): f"127.0.0.1:{port}" for node, port in ports.items()})
        self.replica = Replica(
            core=core,
            log=self.log,
            transport=self.transport,
            application=self.application,
            applied_index=NO_INDEX,
            clock=trio.current_time,
            wake=self.reactor.wake,
        )
        self.timer = Deadline(self.replica.next_deadline, self._tick)
        self.reactor.at_turn_begin(self.replica.begin_turn)
        self.reactor.at_turn_end(self.replica.pump)
        self.reactor.at_turn_end(self.timer.refresh)
        self.scope = trio.CancelScope()

    def _receive(self, source: NodeId, kind: Kind, payload: memoryview) -> None:
        self.replica.receive(source, kind, payload)

    def _tick(self) -> None:
        self.replica.tick()
        self.reactor.wake()

    def append(self, body: bytes, annotation: bytes = b"") -> int | Refusal:
        index = self.replica.append(len(body), lambda pos: (body, annotation))
        self.reactor.wake()
        return index

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.reactor.run)
                    nursery.start_soon(self.transport.run)
                    nursery.start_soon(self.timer.run)
                    task_status.started()
            finally:
                self.log.close()
                self.reactor.close()

    async def wait_until(self, what: Condition) -> None:
        await until(lambda: what(self))


Condition = Callable[[Node], bool]


async def wait_leader(nodes: Sequence[Node]) -> Node:
    return await until_found(lambda: next((node for node in nodes if node.replica.core.ready), None))


@asynccontextmanager
async def started(
    directory: Path, config: CoreConfig | None = None, limits: LogLimits = DEFAULT
) -> AsyncIterator[tuple[Node, list[Node]]]:
    """Three running replicas: the leader, and its followers."""
    names = ("n0", "n1", "n2")
    ports = dict(zip(names, free_ports(3), strict=True))
    nodes = [Node(directory, name, ports, config=config, limits=limits) for name in names]
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        leader = await wait_leader(nodes)
        yield leader, [node for node in nodes if node is not leader]
        nursery.cancel_scope.cancel()
