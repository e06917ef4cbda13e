"""A replicated state machine for other programs: see ``docs/embedding.md``.

Everything here is for one trio event loop. The broker runs on the same code below it: a program that needs speed uses
`Node.replica` and appends by plain calls.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog
import trio

from raftlog.consensus.types import ConfChange, CoreStatus, EntryKind, NodeId, Refusal, RoleChange
from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.node import Hosted, NodeRun, serve_node
from raftlog.node_settings import NodeSettings
from raftlog.replica import CommittedEntry, Replica
from raftlog.segment.disk import Disk, RealDisk, write_file
from raftlog.segment.snapshot_install import SNAPSHOT_NAME

_INDEX = struct.Struct(">Q")
_RETRY_SECONDS: Final = 0.02
_ASIDE: Final = ".tmp"

_LOGGER: Final = logging.getLogger("raftlog")
_LOGGER.addHandler(logging.NullHandler())  # a library logs nothing unless its program configures it


class StateMachine(Protocol):
    """The replicated state machine. The same bodies in the same order must give the same state on every node."""

    def apply(self, index: LogIndex, body: bytes) -> None:
        """Apply one committed body."""

    def snapshot(self) -> bytes:
        """Return the state after everything that was applied so far."""

    def restore(self, data: bytes) -> None:
        """Restore the state from a `snapshot` of this or another node."""


M = TypeVar("M", bound=StateMachine)


class Refused(Exception):
    """The node refused the operation. The state did not change."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.value)
        self.refusal = refusal


class NotLeader(Refused):
    """Another node leads, or none. ``leader`` is that node, None if unknown."""

    def __init__(self, leader: NodeId | None) -> None:
        super().__init__(Refusal.NOT_LEADER)
        self.leader = leader


class OutcomeUnknown(Exception):
    """The operation may take effect, may have taken effect, or never will. Repeating it may execute it twice."""


class SnapshotMissing(Exception):
    """The beginning of the log was deleted, and the snapshot that replaces it is missing."""


class Node(Generic[M]):
    """A running node, from `open_node`. After a restart in place, ``machine`` is another object."""

    machine: M

    def __init__(self, settings: NodeSettings, machine: Callable[[], M]) -> None:
        self.settings = settings
        self._new_machine = machine
        self._run: NodeRun | None = None
        self._disk: Disk = RealDisk()
        self._applied_index = NO_INDEX
        self._compaction_lock = trio.Lock()
        self._proposals: dict[LogIndex, tuple[trio.Event, list[bool]]] = {}

    @property
    def replica(self) -> Replica:
        """Return the replica of the current run. Raises `Refused` between two runs."""
        if self._run is None:
            raise Refused(Refusal.NOT_READY)
        return self._run.replica

    def status(self) -> CoreStatus:
        """Return the status of this node and, while it leads, of the others."""
        return self.replica.core.status()

    async def append(self, body: bytes) -> LogIndex:
        """Replicate ``body``; returns its index once it is committed and applied here.

        Raises:
            NotLeader: append it there.
            Refused: too much in flight, disk full, the node is starting, or the like.
            OutcomeUnknown: leadership was lost in the meantime.
        """
        index = self._index_or_raise(self.replica.append(len(body), lambda pos: (body, b"")))
        return await self._until_applied(index)

    async def read(self) -> None:
        """Wait until ``machine`` has everything that was acknowledged anywhere before this call (linearizable read).

        Works on every node. Raises `OutcomeUnknown` if it cannot be confirmed, for want of a majority, and `Refused`
        while the node is starting.
        """
        event, answers = trio.Event(), list[bool]()

        def on_read(certain: bool) -> None:
            answers.append(certain)
            event.set()

        self.replica.read(on_read)
        await event.wait()
        if not answers[0]:
            raise OutcomeUnknown("no majority answers")

    async def change(self, change: ConfChange) -> None:
        """Change the membership; returns once the change is complete and committed. Raises the errors of `append`."""
        await self._until_applied(self._index_or_raise(self.replica.change(change)))
        while self.replica.core.conf.is_joint:  # noqa: ASYNC110 - plain state without an event
            await trio.sleep(_RETRY_SECONDS)

    async def transfer(self, to: NodeId | None = None) -> None:
        """Transfer leadership to ``to``, or to the best other voter; returns once this node has stopped leading.

        Raises:
            NotLeader, Refused: it is not possible, or the other node did not take over.
        """
        await trio.lowlevel.checkpoint()
        replica = self.replica
        if (refusal := replica.transfer(to)) is not None:
            raise self._refusal_error(refusal)
        while replica.core.transferring:  # noqa: ASYNC110 - plain state without an event
            await trio.sleep(_RETRY_SECONDS)
        if replica.is_leader:
            raise Refused(Refusal.NOT_CAUGHT_UP)

    async def compact(self) -> None:
        """Write a snapshot, and delete the log files that it replaces. If it raises OSError, nothing is lost.

        No effect on a log that was replaced in the meantime.
        """
        async with self._compaction_lock:
            run, replica = self._run, self.replica
            index, data = self._applied_index, self.machine.snapshot()
            await trio.to_thread.run_sync(write_file, self._disk, self._path + _ASIDE, _INDEX.pack(index) + data)
            if self._run is not run:
                return  # there may be a newer snapshot by now
            self._disk.rename(self._path + _ASIDE, self._path)
            await trio.to_thread.run_sync(self._disk.sync_directory, self.settings.directory)
            last = min(index, replica.log.durable_index)
            fit = [part.start for part in replica.log.segments() if part.first_index <= last]
            if self._run is run and fit and fit[-1] > replica.log.base_pos:
                replica.drop_prefix(fit[-1])

    async def stop(self) -> None:
        """Stop this node; if it leads, transfer leadership first if another node takes over at once."""
        await trio.lowlevel.checkpoint()
        if self._run is None:
            return
        with trio.move_on_after(1.0), contextlib.suppress(Refused):
            await self.transfer()
        self._run.stop()

    # -- the application of the replica ----------------------------------------------------------------------------

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply committed entries to ``machine``, and wake the calls that wait for them."""
        for entry in entries:
            if entry.kind == EntryKind.NORMAL:
                self.machine.apply(entry.index, bytes(entry.body))
            self._applied_index = entry.index
            if (proposal := self._proposals.pop(entry.index, None)) is not None:
                proposal[1].append(True)
                proposal[0].set()

    def role_changed(self, change: RoleChange) -> None:
        """Do nothing: no call waits for a change of role."""

    def outcome_unknown(self, first_index: LogIndex) -> None:
        """Wake the calls that wait for entries from ``first_index`` on, which raise `OutcomeUnknown`."""
        for index in [index for index in self._proposals if index >= first_index]:
            self._proposals.pop(index)[0].set()

    def host(self, run: NodeRun) -> Hosted:
        """Build the application for a run, see `raftlog.node`."""
        self.machine = self._new_machine()
        self._applied_index = base_index = run.segment_log.base[0]
        if (snapshot := self._read_snapshot()) is not None and snapshot[0] >= base_index:
            self._applied_index, data = snapshot
            self.machine.restore(data)
        elif base_index:
            raise SnapshotMissing(f"{self._path}: the log begins after entry {base_index}")
        run.undo.callback(self._on_close)

        def attach(replica: Replica) -> None:
            self._run = run

        return Hosted(
            application=self,
            applied_index=self._applied_index,
            attach=attach,
            end_turn=lambda: run.replica.pump(),
            snapshot=self._snapshot,
        )

    def _on_close(self) -> None:
        self._run = None
        self.outcome_unknown(NO_INDEX)

    def _snapshot(self) -> tuple[LogIndex, Callable[[], bytes]]:
        data = _INDEX.pack(self._applied_index) + self.machine.snapshot()
        return self._applied_index, lambda: data

    @property
    def _path(self) -> str:
        return os.path.join(self.settings.directory, SNAPSHOT_NAME)

    def _read_snapshot(self) -> tuple[LogIndex, bytes] | None:
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        return _INDEX.unpack_from(data)[0], data[_INDEX.size :]

    def _index_or_raise(self, index: LogIndex | Refusal) -> LogIndex:
        if isinstance(index, Refusal):
            raise self._refusal_error(index)
        assert self._run is not None, "an entry was taken between two runs"
        self._run.reactor.wake()
        return index

    def _refusal_error(self, refusal: Refusal) -> Refused:
        return NotLeader(self.replica.core.leader_id) if refusal is Refusal.NOT_LEADER else Refused(refusal)

    async def _until_applied(self, index: LogIndex) -> LogIndex:
        event, terms = self._proposals[index] = (trio.Event(), [])
        await event.wait()
        if not terms:
            raise OutcomeUnknown(f"leadership was lost before entry {index} was committed")
        return index


@contextlib.asynccontextmanager
async def open_node(settings: NodeSettings, machine: Callable[[], M]) -> AsyncIterator[Node[M]]:
    """Run a node while the block runs; ``machine()`` creates the empty state machine.

    Raises:
        SecretUnusable, ListenRefused, SegmentError, SnapshotMissing: as `serve_node`.
    """
    node = Node(settings, machine)
    log = _library_log().bind(group=settings.group, node_id=settings.node_id)
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: trio.TaskStatus[None]) -> None:
            await serve_node(settings, node.host, log=log, task_status=task_status)

        await nursery.start(serve)
        yield node
        await node.stop()
        nursery.cancel_scope.cancel()


def _library_log() -> Any:
    """Return structlog, if the program has configured it; else Python's own logging under the name ``raftlog``."""
    if structlog.is_configured():
        return structlog.get_logger("raftlog")
    return structlog.wrap_logger(
        _LOGGER,
        processors=[structlog.stdlib.filter_by_level, _as_text],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def _as_text(_: Any, __: str, event: Any) -> Any:
    exc_info = event.pop("exc_info", None)
    text = " ".join([event.pop("event"), *(f"{name}={value!r}" for name, value in event.items())])
    return (text,), {"exc_info": exc_info}
