"""One node of a group: its directory, log, core, connections and application, opened, run, and reopened.

A *run* lasts from opening the directory to closing it. Some operations need everything closed, such as installing a log
that was fetched from a peer; then the run ends and the next one begins, in the same process and through the same code
as a cold start.

The *host* is a callable that builds the application for each run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import cbor2
import structlog
import trio

from raftlog.bootstrap import Confs, configurations, core_for
from raftlog.catch_up_from_archive import OpenArchive
from raftlog.consensus.confchange import CONF_PROPOSED_BYTES_MAX, encode_conf
from raftlog.consensus.types import ConfState, NodeId
from raftlog.latency_histogram import LatencyHistogram
from raftlog.lease_clock import LeaseClock
from raftlog.log_numbers import LogIndex
from raftlog.log_transfer import Offers, Puller
from raftlog.net import frames
from raftlog.net.admission import Admission
from raftlog.net.frames import Kind, RangeReq
from raftlog.net.machine import this_machine
from raftlog.net.reactor import Deadline, Mailbox
from raftlog.net.received_entries import CheckBody
from raftlog.net.secret_file import SecretFile, SecretMissing, SecretUnusable, create_secret
from raftlog.net.thread_signal import ThreadSignal
from raftlog.net.transport import Transport
from raftlog.node_settings import NodeSettings
from raftlog.prefix_refill import PrefixRefill
from raftlog.range_server import DAMAGED_HERE, GONE, RangeRefused, RangeServer, read_log
from raftlog.repair_mode import RepairMode, encode_members, stores_in
from raftlog.replica import Application, Replica
from raftlog.scrub_task import scrub_log
from raftlog.segment.errors import SegmentError, StorageCorrupt, StorageFailed
from raftlog.segment.log import SegmentLog
from raftlog.segment.meta import Base
from raftlog.segment.note_names import DAMAGED, MEMBERS, STORES
from raftlog.segment.recovery import LogDamaged
from raftlog.segment.snapshot_install import encode_manifest
from raftlog.shared_wakeups import sleep_to_step
from raftlog.workers import BackgroundJobs

Log = structlog.stdlib.BoundLogger

HANDOVER_SECONDS_MAX: Final = 2.0
"""Seconds for which a leader with a damaged log waits for another replica to lead, before it repairs the log."""
_HANDOVER_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosted:
    """An application, with all that a node needs from it during one run.

    Attributes:
        applied_index: the last entry that it has applied already.
        attach: gets the replica, before anything else happens.
        end_turn: called at the end of each turn of the event loop; must call `Replica.pump`.
        snapshot: the state for a peer that gets the log only from a later entry on: the index of the last entry in it,
            and a function that encodes it, in a worker thread. None if there is none now.
        refill_bytes: how many bytes of entries that were deleted here early to fetch from the leader now, 0 for none,
            below 0 if the disk needs space. After a fetch, the next run begins with the note `REFILLED`, and with older
            entries in the log than the application has read; it removes the note.
        archived: how much of the log an archive has, for a peer that gets the log; None for nothing.
        encode_for_copies: what a peer that gets the log must know of its files: the note `COPIED` of its next run, some
            hundred bytes; empty for nothing. The application removes that note when it has read it.
        open_archive: reads that archive, when this node gets the log; None if it cannot.
        tasks: run next to the replica until they are cancelled.
        check_body: see `Replica`.
    """

    application: Application
    applied_index: LogIndex
    attach: Callable[[Replica], None]
    end_turn: Callable[[], None]
    snapshot: Callable[[], tuple[LogIndex, Callable[[], bytes]] | None] = lambda: None
    refill_bytes: Callable[[], int] = lambda: 0
    archived: Callable[[], Base | None] = lambda: None
    encode_for_copies: Callable[[], bytes] = lambda: b""
    open_archive: OpenArchive | None = None
    tasks: tuple[Callable[[], Awaitable[None]], ...] = ()
    check_body: CheckBody = lambda body, position: None


Host = Callable[["NodeRun"], Hosted]


class NodeRun:
    """Runs a node from opening its directory to closing it.

    Attributes:
        undo: what to close at the end of the run, in reverse order; the log is closed after everything of the host.
        secrets: the group secrets that are valid now.
        sync_latency: duration of log writes including syncs.
    """

    def __init__(
        self, settings: NodeSettings, secrets: SecretFile, host: Host, undo: contextlib.ExitStack, log: Log
    ) -> None:
        self.settings = settings
        self.secrets = secrets
        self.undo = undo
        self._log = log
        self._restart_reason: str | None = None
        self._damage: StorageCorrupt | None = None
        self._damage_found = trio.Event()
        self._scope = trio.CancelScope()
        rng = random.Random(int.from_bytes(os.urandom(8), "big"))
        machine = this_machine()
        self.reactor = machine.open_reactor()
        undo.callback(self.reactor.close)
        self._disk = machine.open_disk()
        self.sync_latency = LatencyHistogram()
        self.segment_log = self._open_log()
        try:
            self._hosted = host(self)
            confs = configurations(self.segment_log, settings.initial)
        except StorageCorrupt as damage:
            self._keep_damage(damage)
            raise
        self._log_members(confs)
        self.admission = Admission(
            replace(settings.identity, store_id=self.segment_log.store_id),
            stores_in(self.segment_log.notes),
            self._remember_stores,
        )
        self.transport = self._open_transport(f"{os.getpid()}.{rng.getrandbits(64):x}")
        self.transport.set_members(confs[-1][0], _addresses(confs[-1][1]))
        self._background = BackgroundJobs(self.reactor.wake)
        self._lease_clock = LeaseClock(trio.current_time) if settings.core.lease_reads else None
        self.replica = self._build_replica(confs, rng)
        hosted = self._hosted
        self._offers = Offers(
            self.replica, self.transport, hosted.snapshot, log, hosted.archived, hosted.encode_for_copies
        )
        self._puller = self._file_puller()
        self._refill = self._prefix_refill()
        self._ranges = RangeServer(
            self.transport, self.reactor.wake, self._read_range, settings.catch_up_bytes_per_second
        )
        self._hosted.attach(self.replica)
        self._tick_due = False
        self._timer = Deadline(self._next_deadline, self._time_is_up)
        self.reactor.expect_soon(self.replica.has_in_flight)
        self.reactor.at_turn_begin(self.replica.begin_turn)
        self.reactor.at_turn_end(self._tick)
        self.reactor.at_turn_end(self._hosted.end_turn)
        self.reactor.at_turn_end(self._timer.refresh)

    def _open_log(self) -> SegmentLog:
        """Open the log, with mailboxes for its threads. Raises SegmentError."""

        def mailbox(deliver: Callable[[object], None]) -> Mailbox:
            box = Mailbox(self.reactor, deliver)
            self.undo.callback(box.close)
            return box

        settings = self.settings
        # All of them stay open as long as the log, whose threads write to them.
        failures, damages = map(mailbox, (self._storage_failed, self._found_damage))
        write_signal = ThreadSignal(self.reactor, lambda events: self.replica.note_writes())
        self.undo.callback(write_signal.close)
        writer = this_machine().open_writer(
            write_signal.fd, failures.put, self.sync_latency.observe, settings.limits.log.sync_bytes_max
        )
        segment_log = SegmentLog.open(
            settings.directory,
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            segment_bytes=settings.segment_bytes,
            disk=self._disk,
            writer=writer,
            acknowledges_unsynced=not settings.core.durable_commit,
            limits=settings.limits.log,
        )
        self.undo.callback(segment_log.close)
        segment_log.set_damage_handler(damages.put)
        self._log.info("log_opened", directory=settings.directory, found=segment_log.opening_state)
        return segment_log

    def _log_members(self, confs: Confs) -> None:
        """Store the newest configuration in the notes; durable with the next write."""
        note = encode_members(*confs[-1])
        if confs[-1][1].members and len(note) <= CONF_PROPOSED_BYTES_MAX:
            self.segment_log.set_note(MEMBERS, note)

    def _open_transport(self, incarnation: str) -> Transport:
        transport = Transport(
            reactor=self.reactor,
            admission=self.admission,
            secrets=self.secrets,
            incarnation=incarnation,
            listen=self.settings.listen,
            on_frame=self._receive,
            on_peer_gone=lambda peer: self.replica.peer_gone(peer),
            writer=self.segment_log.writer,
            log=self._log,
            tls=self.settings.tls,
            refusal_log_seconds=self.settings.limits.refusal_log_seconds,
        )
        self.undo.callback(transport.close)
        return transport

    def _build_replica(self, confs: Confs, rng: random.Random) -> Replica:
        settings, hosted = self.settings, self._hosted
        clock = self._lease_clock or trio.current_time
        return Replica(
            core=core_for(
                self.segment_log,
                confs,
                node_id=settings.node_id,
                config=settings.core,
                rng=rng,
                now=clock(),
                applied_index=hosted.applied_index,
            ),
            log=self.segment_log,
            transport=self.transport,
            application=hosted.application,
            applied_index=hosted.applied_index,
            clock=clock,
            wake=self.reactor.wake,
            confs=confs,
            on_conf=self._on_conf,
            on_reset=self._offer,
            in_background=self._background.put,
            check_body=hosted.check_body,
        )

    def _file_puller(self) -> Puller:
        settings = self.settings
        return Puller(
            self._disk,
            settings.directory,
            settings.segment_bytes,
            self.transport,
            self.replica,
            self._on_log_fetch,
            self._log,
            settings.initial,
            self._hosted.check_body,
            settings.limits,
            self._hosted.open_archive,
        )

    def _prefix_refill(self) -> PrefixRefill:
        return PrefixRefill(
            self._disk,
            self.settings.directory,
            self.settings.segment_bytes,
            self.replica,
            self.transport,
            self._hosted.refill_bytes,
            lambda: self.restart("the beginning of the log was fetched from a peer"),
            self._log,
            self._hosted.check_body,
            self.settings.limits.refill_look_seconds,
        )

    def set_level(self, level: int) -> None:
        """Set the group's format level, that of the applied log. Replicas that do not support it are refused."""
        self.admission.level = level

    def restart(self, reason: str) -> None:
        """End this run and start the next one."""
        if self._restart_reason is None:
            self._restart_reason = reason
            self._log.info("node_restarts", reason=reason)
        self._scope.cancel()

    def stop(self) -> None:
        """End this run and the node."""
        self._scope.cancel()

    async def run(self, task_status: trio.TaskStatus[None]) -> bool:
        """Run until cancelled or, returning True, until `restart` is called.

        Raises:
            SegmentError: the disk failed. Damage is not raised: it is recorded, and True is returned. Neither is a disk
                without room for another file.
        """
        await trio.lowlevel.checkpoint()
        failure: SegmentError | None = None
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.reactor.run)
                    nursery.start_soon(self.transport.run)
                    nursery.start_soon(self._ranges.run)
                    nursery.start_soon(self._offers.run)
                    nursery.start_soon(self._background.run)
                    nursery.start_soon(self._puller.run)
                    nursery.start_soon(self._refill.run)
                    nursery.start_soon(self._watch_disk)
                    nursery.start_soon(self._timer.run)
                    nursery.start_soon(self._scrub)
                    nursery.start_soon(self._leave_when_damaged)
                    for task in self._hosted.tasks:
                        nursery.start_soon(task)
                    self.reactor.wake()
                    task_status.started()
        except* SegmentError as errors:
            failure = _first_error(errors)
        if isinstance(failure, StorageCorrupt):
            self._keep_damage(failure)
            return True
        if isinstance(failure, StorageFailed) and (failure.errno, failure.operation) == (errno.ENOSPC, "preparation"):
            # Nothing is torn, there is just no room for another file. Reopened, the node votes, and accepts entries
            # when it can.
            self._log.error("disk_full", error=str(failure))
            return True
        if failure is not None:
            # Not raised in the clause above, which would wrap it in a group again.
            raise failure
        return self._restart_reason is not None

    async def _watch_disk(self) -> None:
        settings = self.settings
        while True:
            look = partial(self._disk.usage, settings.directory)
            free, total = await this_machine().in_thread_together(look)
            self.replica.disk_usage(free, total, *settings.disk_ratios(total))
            self.replica.note_commit()
            await sleep_to_step(settings.limits.disk_poll_seconds)

    def _found_damage(self, damage: object) -> None:
        """End this run, so that the log is repaired: a read found a damaged entry, and was refused."""
        assert isinstance(damage, StorageCorrupt)
        if self._damage is None:
            self._damage = damage
            self._log.error("damage_found", error=str(damage))
            self._damage_found.set()

    async def _leave_when_damaged(self) -> None:
        """Transfer leadership, so that the group continues, and end this run. Raises StorageCorrupt.

        The only voter has no peer to repair its log from: it continues, and refuses reads of damaged entries.
        """
        await self._damage_found.wait()
        assert self._damage is not None, "damage was found, and nobody knows which"
        replica = self.replica
        if replica.core.conf.voters == (replica.core.node_id,):
            self._log.error("damage_not_repairable", reason="no other voter has this log", error=str(self._damage))
            return
        with trio.move_on_after(HANDOVER_SECONDS_MAX):
            while replica.is_leader:
                replica.transfer()
                await trio.sleep(_HANDOVER_POLL_SECONDS)
        raise self._damage

    def _keep_damage(self, damage: StorageCorrupt) -> None:
        """Record the damage for the next opening."""
        if self._damage is None:
            self._log.error("damage_found", error=str(damage))
        log = self.segment_log
        log.set_note(DAMAGED, b"%d" % damage.physical_offset)
        log.submit(log.last_ticket + 1)

    async def _scrub(self) -> None:
        try:
            await scrub_log(self.segment_log, lambda: self.replica.commit_index, log=self._log)
        except StorageCorrupt as damage:
            self._found_damage(damage)
            await trio.lowlevel.checkpoint()

    async def _read_range(self, request: RangeReq) -> bytes:
        if request.source == "prefix":
            await trio.lowlevel.checkpoint()
            return self._prefix(request)
        if request.source == "log":
            try:
                return await read_log(self.segment_log, self.replica.commit_index, request)
            except StorageCorrupt as damage:
                # It ends this run once another replica leads; the only voter continues.
                self._found_damage(damage)
                raise RangeRefused(DAMAGED_HERE) from damage
        await trio.lowlevel.checkpoint()
        return self._offers.read_snapshot(request)

    def _prefix(self, request: RangeReq) -> bytes:
        """The manifest of the closed files before a position. Raises `RangeRefused` without any."""
        core = self.replica.core
        try:
            manifest = self.segment_log.prefix_before(
                request.pos, request.nbytes, lambda index: encode_conf(core.conf_at(index))
            )
        except StorageCorrupt as damage:
            self._found_damage(damage)
            raise RangeRefused(DAMAGED_HERE) from damage
        if manifest is None:
            raise RangeRefused(GONE)
        return encode_manifest(manifest)

    def _receive(self, source: NodeId, kind: Kind, payload: memoryview) -> None:
        match kind:
            case Kind.RANGE:
                self._ranges.ask(source, frames.decode_cold(kind, payload))
            case Kind.RANGE_RESPONSE:
                response = frames.decode_cold(kind, payload)
                self._puller.on_response(source, response)
                self._refill.on_response(response)
            case Kind.INSTALL_OFFER:
                offer = frames.decode_cold(kind, payload)
                core = self.replica.core
                # Only the leader knows what is committed. It repeats its offer, so an early one is not missed.
                if source == core.leader_id and offer.term == core.term and not self.replica.is_leader:
                    self._puller.on_offer(source, offer)
            case _:
                self.replica.receive(source, kind, payload)

    def _offer(self, peer: NodeId) -> None:
        self._offers.offer(peer)

    def _on_log_fetch(self) -> None:
        # The fetched log may skip removals; the members' directories are learned again.
        self.replica.remember(STORES, None, lambda: self.restart("a log was fetched from a peer"))

    def _storage_failed(self, error: object) -> None:
        assert isinstance(error, BaseException)
        raise error

    def _next_deadline(self) -> float:
        if self._tick_due:
            return float("inf")
        suspension = self._lease_clock.suspended_seconds() if self._lease_clock is not None else 0.0
        return self.replica.next_deadline() - suspension

    def _time_is_up(self) -> None:
        """Take a turn, which reads the waiting input before any timeout is judged."""
        self._tick_due = True
        self.reactor.turn_now()

    def _tick(self) -> None:
        if self._tick_due:
            self._tick_due = False
            self.replica.tick()

    def _remember_stores(self, stores: dict[str, str]) -> None:
        def on_record() -> None:
            self.admission.on_record(stores)

        self.replica.remember(STORES, cbor2.dumps(stores), on_record)

    def _on_conf(self, conf_index: LogIndex, conf: ConfState, removed_nodes: frozenset[NodeId]) -> None:
        self._log.info(
            "configured",
            index=conf_index,
            voters=list(conf.voters),
            outgoing=list(conf.outgoing),
            learners=list(conf.learners),
        )
        self.replica.remember(MEMBERS, encode_members(conf_index, conf))
        self.admission.forget(removed_nodes)
        self.transport.set_members(conf_index, _addresses(conf))


async def serve_node(
    settings: NodeSettings, host: Host, *, log: Log, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a node of a group until cancelled.

    ``host(run)`` is called at the beginning of each run, with `NodeRun.reactor` and `NodeRun.segment_log` set; it may
    add things to close to `NodeRun.undo`.

    Raises:
        SecretMissing, SecretUnusable: there is no usable secret of the group; nothing was changed.
        ListenRefused: the address is not available.
        SegmentError: the directory is unusable, or the disk failed. The process must end; a restart verifies the files.
    """
    secrets = open_secret(settings, log)
    corruption: StorageCorrupt | None = None
    while True:
        try:
            with contextlib.ExitStack() as undo:
                run = NodeRun(settings, secrets, host, undo, log)
                corruption = None
                if not await run.run(task_status):
                    return
        except StorageCorrupt as damage:
            # A start only verifies the end of the log, and the host read something older. The next one verifies
            # everything, since the damage is recorded; if that finds nothing, it cannot be repaired here.
            if corruption is not None:
                raise
            corruption = damage
            continue
        except LogDamaged as damaged:
            with contextlib.ExitStack() as undo:
                repair_mode = RepairMode(
                    damaged,
                    disk=this_machine().open_disk(),
                    identity=settings.identity,
                    listen=settings.listen,
                    secrets=secrets,
                    initial=settings.initial,
                    bytes_per_second=settings.catch_up_bytes_per_second,
                    tls=settings.tls,
                    limits=settings.limits,
                    undo=undo,
                    log=log,
                )
                try:
                    await repair_mode.run(task_status)
                except* StorageCorrupt as errors:
                    # Damaged since the opening: the next one verifies again.
                    log.error("damage_found", error=str(_first_error(errors)))
                    await trio.sleep(settings.limits.room_seconds)
                except* StorageFailed as errors:
                    failure = _first_error(errors)
                    if not isinstance(failure, StorageFailed) or failure.errno != errno.ENOSPC:
                        raise
                    log.error("repair_waits", error=str(failure))
                    await trio.sleep(settings.limits.room_seconds)
        task_status = trio.TASK_STATUS_IGNORED


def open_secret(settings: NodeSettings, log: Log) -> SecretFile:
    """Read the secret of the group. In a new group, the first member in the settings creates it."""
    path = settings.secret_file
    first = next(iter(settings.members), None)
    try:
        is_new = first == settings.node_id and create_secret(path)
    except OSError as error:
        raise SecretUnusable(path, f"the secret of the group cannot be written: {error.strerror or error}") from error
    if is_new:
        log.warning("group_secret_made", path=path, reason="the other replicas of the group need a copy of this file")
    try:
        return SecretFile(path)
    except SecretMissing:
        source = "a replica of the group" if first is None else f"{first}, which creates it at its first start"
        raise SecretMissing(path, f"the secret of the group is missing: copy this file from {source}") from None


def _addresses(conf: ConfState) -> dict[NodeId, str]:
    return {node: text for node, text in conf.addresses if node in conf.members}


def _first_error(errors: BaseExceptionGroup[SegmentError]) -> SegmentError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SegmentError), f"{error!r} is no error of a log"
    return error
