"""Whole nodes, as a process runs them, with real sockets and files, in one event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import cbor2
import structlog
import trio

from raftlog import (
    ConfChange,
    ConfChangeKind,
    ConfState,
    CoreConfig,
    Hosted,
    NodeId,
    NodeRun,
    NodeSettings,
    Refusal,
    Replica,
    serve_node,
)
from raftlog.log_numbers import LogIndex
from raftlog.node_limits import DEFAULT, NodeLimits
from tests.free_ports import free_ports
from tests.support.waiting import until, until_found
from tests.unit.replica.group import CLUSTER, Recorder

SEGMENT_BYTES = 16 * 1024
CONFIG = CoreConfig(
    heartbeat_seconds=0.05,
    election_timeout_seconds_min=1.0,
    election_timeout_seconds_max=2.0,
    vote_retry_seconds_min=0.2,
    vote_retry_seconds_max=0.5,
    install_entries_min=50,
)


class Member:
    """One node; `run` and `application` are those of its present run, and change when it restarts in place."""

    run: NodeRun
    application: Recorder

    def __init__(
        self,
        directory: Path,
        name: str,
        port: int,
        members: dict[str, str],
        *,
        config: CoreConfig = CONFIG,
        limits: NodeLimits = DEFAULT,
    ) -> None:
        self.name = NodeId(name)
        self.address = f"127.0.0.1:{port}"
        self.directory = directory / name
        self.runs = 0
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.settings = NodeSettings(
            cluster_id=CLUSTER,
            group="g",
            node_id=self.name,
            directory=str(self.directory),
            listen=("127.0.0.1", port),
            secret_file=str(directory / "group.secret"),
            members={NodeId(node): address for node, address in members.items()},
            segment_bytes=SEGMENT_BYTES,
            disk_full_ratio=1,
            disk_pause_ratio=1,
            core=config,
            limits=limits,
        )

    @property
    def replica(self) -> Replica:
        return self.run.replica

    @property
    def conf(self) -> ConfState:
        return self.replica.core.conf

    def host(self, run: NodeRun) -> Hosted:
        self.run = run
        self.runs += 1
        self.application = recorder = Recorder()
        applied_index = run.segment_log.base[0]
        snapshot = self.directory / "snapshot"
        if snapshot.exists():
            applied_index, recorder.bodies = cbor2.loads(snapshot.read_bytes())
            assert applied_index >= run.segment_log.base[0]
        return Hosted(
            application=recorder,
            applied_index=applied_index,
            snapshot=self._snapshot,
            attach=lambda replica: None,
            end_turn=lambda: run.replica.pump(),
        )

    def _snapshot(self) -> tuple[LogIndex, Callable[[], bytes]]:
        content = [self.replica.applied_index, list(self.application.bodies)]
        return self.replica.applied_index, lambda: cbor2.dumps(content)

    async def drop_files(self, keep: int = 1, *, early: bool = False) -> None:
        """Retention: let the log begin with its last ``keep`` files, as soon as it may."""
        start = self.replica.log.segments()[-keep].start
        await until(lambda: self.replica.drop_prefix(start, b"early" if early else None))

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self.scope, self.ended = trio.CancelScope(), trio.Event()
        try:
            with self.scope:
                await serve_node(self.settings, self.host, log=structlog.get_logger("test"), task_status=task_status)
        finally:
            self.ended.set()

    async def stop(self, *, clean: bool = True) -> None:
        """Stop the node; not ``clean``, its log looks as after a crash."""
        if not clean:
            self.replica.log.close(clean=False)
        self.scope.cancel()
        await self.ended.wait()

    def append(self, body: bytes) -> int | Refusal:
        index = self.replica.append(len(body), lambda pos: (body, b""))
        self.run.reactor.wake()
        return index

    async def append_all(self, bodies: Iterable[bytes]) -> int:
        """Append and wait until all of it is applied here."""
        last = 0
        for body in bodies:
            index = self.append(body)
            assert isinstance(index, int), index
            last = index
        await self.until(lambda member: member.replica.applied_index >= last)
        return last

    async def change(self, change: ConfChange) -> None:
        """Change the membership and wait until that is committed here, on the leader."""

        def proposed() -> int | None:
            index = self.replica.change(change)
            if index in (Refusal.NOT_CAUGHT_UP, Refusal.CHANGE_PENDING, Refusal.NOT_READY):
                return None
            assert isinstance(index, int), index
            return index

        index = await until_found(proposed)
        await self.until(lambda member: member.replica.commit_index >= index and not member.conf.is_joint)

    async def read(self) -> bool:
        """A linearizable read."""
        done = trio.Event()
        answers: list[bool] = []

        def on_read(certain: bool) -> None:
            answers.append(certain)
            done.set()

        self.replica.read(on_read)
        with trio.fail_after(60):
            await done.wait()
        assert len(answers) == 1
        return answers[0]

    async def until(self, condition: Callable[[Member], bool], seconds: float = 60) -> None:
        await until(lambda: condition(self), seconds=seconds)


class Group:
    """Nodes of one group, and the nursery that they run in."""

    def __init__(self, directory: Path, nursery: trio.Nursery, config: CoreConfig, limits: NodeLimits) -> None:
        self._limits = limits
        self._config = config
        self.directory = directory
        self.members: dict[str, Member] = {}
        self._nursery = nursery

    def make(self, name: str, members: dict[str, str], port: int | None = None) -> Member:
        member = Member(
            self.directory, name, port or free_ports(1)[0], members, config=self._config, limits=self._limits
        )
        self.members[name] = member
        return member

    async def start(self, member: Member) -> None:
        await self._nursery.start(member.serve)

    async def leader(self, *but: Member) -> Member:
        """The member that leads and may be used, once there is one; none of ``but``."""

        def look() -> Member | None:
            at_work = (each for each in self.others(*but) if not each.ended.is_set() and each.runs)
            return next((each for each in at_work if each.replica.core.ready), None)

        return await until_found(look)

    def others(self, *but: Member) -> list[Member]:
        return [member for member in self.members.values() if member not in but]


@asynccontextmanager
async def group(
    directory: Path,
    names: Iterable[str] = ("n0", "n1", "n2"),
    *,
    config: CoreConfig = CONFIG,
    limits: NodeLimits = DEFAULT,
) -> AsyncIterator[Group]:
    """A running group of these voters."""
    names = list(names)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    async with trio.open_nursery() as nursery:
        running = Group(directory, nursery, config, limits)
        for name in names:
            await running.start(running.make(name, addresses, ports[name]))
        yield running
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def led_group(
    directory: Path,
    names: Iterable[str] = ("n0", "n1", "n2"),
    *,
    bodies: Iterable[bytes] = (),
    config: CoreConfig = CONFIG,
    limits: NodeLimits = DEFAULT,
) -> AsyncIterator[tuple[Group, Member]]:
    """A running group of these voters and its leader, which has appended ``bodies``."""
    async with group(directory, names, config=config, limits=limits) as nodes:
        leader = await nodes.leader()
        await leader.append_all(bodies)
        yield nodes, leader


async def add_learner(nodes: Group, leader: Member, *, installs: list[bytes] | None = None) -> Member:
    """A new node that learns from the leader; with ``installs`` it has restarted with files that have these bodies."""
    new = nodes.make("n3", {})
    await nodes.start(new)
    await leader.change(ConfChange(ConfChangeKind.ADD_LEARNER, new.name, new.address))
    if installs is not None:
        await new.until(lambda member: member.runs == 2 and member.application.bodies == installs)
    return new


def same_files(one: Member, other: Member) -> bool:
    """Whether the closed files that both have are equal, byte by byte."""
    names = [f"{part.start:020d}" for part in other.replica.log.segments() if part.closed]
    assert names
    return all((one.directory / name).read_bytes() == (other.directory / name).read_bytes() for name in names)
