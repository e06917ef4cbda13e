"""Starts a broker process: opens its directory, joins its group, serves its clients, and stops cleanly.

Everything that runs lives in the one nursery of `serve`: the reactor, the lanes to the peers, the name server
registrations, and a few timers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from typing import TypeVar

import structlog
import trio

from mq.broker.broker import Broker
from mq.broker.metadata import Metadata, SnapshotDamaged
from mq.broker.registration import Registrar
from mq.broker.settings import Address, BrokerSettings, parse_address
from mq.broker.tuning import allow_descriptors, freeze_startup_objects, tune_process
from mq.store.checkpoint import Checkpoint, Checkpointer
from mq.store.errors import StoreError, StoreLost
from mq.store.opening import LogBounds, OpenedStore, open_store
from raftlog import (
    Admission,
    ConfState,
    CoreConfig,
    Deadline,
    HardState,
    Identity,
    Kind,
    Listener,
    LogId,
    Mailbox,
    NodeId,
    RaftCore,
    Reactor,
    RealDisk,
    Replica,
    SegmentError,
    SegmentLog,
    Transport,
    Writer,
    format_address,
)

Log = structlog.stdlib.BoundLogger
T = TypeVar("T")

_ANNOUNCE_SECONDS = 0.005
_EXPIRE_PULLS_SECONDS = 0.1
_EXPIRE_CLIENTS_SECONDS = 10.0
_FLUSH_QUEUES_SECONDS = 1.0


class StartRefused(Exception):
    """The broker cannot start as it is set up; the message says what is wrong and where. Nothing was damaged."""


async def serve(  # noqa: ASYNC128 - `_serve` says that it started
    settings: BrokerSettings, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Run a broker until cancelled; then write a checkpoint and close the log.

    Raises:
        StartRefused: the directory or a port does not allow it.
        raftlog.SegmentError: the disk failed. The process must end; a restart verifies what is there.
    """
    with contextlib.ExitStack() as undo:
        await _serve(settings, undo, task_status)


async def _serve(settings: BrokerSettings, undo: contextlib.ExitStack, task_status: trio.TaskStatus[None]) -> None:
    """`serve`; whatever must be closed is left to ``undo``, which closes it in reverse order."""
    tune_process()
    log: Log = structlog.get_logger("broker").bind(group=settings.group, node_id=settings.node_id)
    store_ip = await _store_ip(settings)
    reactor = Reactor()
    undo.callback(reactor.close)
    rng = random.Random(int.from_bytes(os.urandom(8), "big"))

    def storage_done(ticket: object) -> None:
        assert isinstance(ticket, int)
        replica.storage_done(ticket)

    def storage_failed(error: object) -> None:
        assert isinstance(error, BaseException)
        raise error

    def receive(source: NodeId, kind: Kind, payload: memoryview) -> None:
        replica.receive(source, kind, payload)

    def peer_gone(peer: NodeId) -> None:
        replica.peer_gone(peer)

    done, failed = Mailbox(reactor, storage_done), Mailbox(reactor, storage_failed)
    undo.callback(done.close)
    undo.callback(failed.close)
    members = settings.members
    segment_log = _open_log(settings, Writer(on_done=done.put, on_failed=failed.put))
    undo.callback(segment_log.close)
    opened = _open_store(settings, segment_log, log)
    undo.callback(opened.queues.close)
    applied = opened.checkpoint.applied_index
    broker = Broker(
        settings=settings,
        store_ip=store_ip,
        reactor=reactor,
        metadata=_metadata(settings, opened.checkpoint),
        store=opened.queues,
        filling=opened.filling,
        checkpointer=Checkpointer(str(settings.data_dir), opened.queues),
        rng=rng,
        clock=trio.current_time,
        on_registration_changed=lambda: registrar.changed(),
        descriptors_max=allow_descriptors(),
        log=log,
    )
    transport = _bound(
        "replication",
        members[settings.node_id],
        lambda address: Transport(
            reactor=reactor,
            admission=Admission(_identity(settings), {}, lambda stores: None),
            incarnation=f"{os.getpid()}.{rng.getrandbits(64):x}",
            listen=address,
            on_frame=receive,
            on_peer_gone=peer_gone,
            log=log,
        ),
    )
    undo.callback(transport.close)
    transport.set_members(0, {NodeId(name): format_address(at) for name, at in members.items()})
    replica = Replica(
        core=_core(settings, segment_log, rng),
        log=segment_log,
        transport=transport,
        application=broker,
        applied_index=applied,
        clock=trio.current_time,
        wake=reactor.wake,
    )
    broker.attach(replica)
    listener = _bound("client", settings.listen_address, lambda address: Listener(reactor, *address, broker.accept))
    undo.callback(lambda: log.info("stopped", last_index=segment_log.last_index))
    undo.callback(_checkpoint_last, broker, log)
    undo.callback(broker.close_connections)
    undo.callback(listener.close)
    registrar = Registrar(
        namesrv=settings.namesrv_addresses,
        period_seconds=settings.register_seconds,
        current=broker.registration,
        log=log,
    )

    def tick() -> None:
        replica.tick()
        reactor.wake()

    def flush_queues() -> None:
        try:
            broker.flush_queues()
        except OSError as error:
            log.error("queues_not_flushed", error=str(error))  # they stay in memory, and the log has it all

    timer = Deadline(replica.next_deadline, tick)
    reactor.at_turn_end(broker.end_turn)
    reactor.at_turn_end(timer.refresh)
    freeze_startup_objects()
    log.info(
        "started",
        listen=settings.listen,
        data_dir=str(settings.data_dir),
        durability=settings.durability,
        last_index=segment_log.last_index,
        applied_index=applied,
    )
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reactor.run)
            nursery.start_soon(transport.run)
            nursery.start_soon(timer.run)
            nursery.start_soon(registrar.run)
            for seconds, action in (
                (_EXPIRE_PULLS_SECONDS, broker.expire_pulls),
                (_EXPIRE_CLIENTS_SECONDS, broker.expire_clients),
                (_FLUSH_QUEUES_SECONDS, flush_queues),
                (settings.offset_commit_seconds, broker.replicate_offsets),
                (settings.idle_seconds_max, broker.close_idle_connections),
            ):
                nursery.start_soon(_every, seconds, action, reactor)
            nursery.start_soon(_checkpoint_forever, settings.checkpoint_seconds, broker, log)
            reactor.wake()
            task_status.started()
    except* SegmentError as errors:
        failure = errors.exceptions[0]
    if failure is not None:
        # Not raised in the clause above, which would wrap it in a group again.
        log.error("disk_failed", error=str(failure))
        raise failure


async def _store_ip(settings: BrokerSettings) -> str:
    """The IPv4 address that message ids carry."""
    host, port = parse_address(settings.advertise or settings.listen)
    try:
        found = await trio.socket.getaddrinfo(host, port, trio.socket.AF_INET, trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise StartRefused(f"client address {host}:{port} has no IPv4 address: {error}") from error
    return str(found[0][4][0])


def _open_log(settings: BrokerSettings, writer: Writer) -> SegmentLog:
    try:
        return SegmentLog.open(
            str(settings.data_dir / "commitlog"),
            cluster_id=settings.identity,
            node_id=settings.node_id,
            segment_bytes=settings.segment_bytes,
            disk=RealDisk(),
            writer=writer,
        )
    except SegmentError as error:
        raise StartRefused(str(error)) from error
    except OSError as error:
        raise StartRefused(f"{settings.data_dir}: {error.strerror}") from error


def _open_store(settings: BrokerSettings, segment_log: SegmentLog, log: Log) -> OpenedStore:
    """What was derived from the log before, as far as it belongs to this log; nothing otherwise."""
    directory = str(settings.data_dir)
    base_index, _ = segment_log.base
    bounds = LogBounds(
        base_index=base_index,
        last_index=segment_log.last_index,
        term_at=lambda index: segment_log.locate(index).term,
    )
    try:
        opened = open_store(directory, log=bounds, incoming=str(settings.data_dir / "commitlog" / "snapshot"))
    except StoreLost as error:
        raise StartRefused(str(error)) from error
    except OSError as error:
        raise StartRefused(f"{error.filename or directory}: {error.strerror}") from error
    if opened.rebuild_reason is not None:
        log.warning("queues_rebuilt", reason=opened.rebuild_reason)
    return opened


def _metadata(settings: BrokerSettings, checkpoint: Checkpoint) -> Metadata:
    metadata = Metadata()
    try:
        metadata.restore(checkpoint.state)
    except SnapshotDamaged as error:
        raise StartRefused(f"{settings.data_dir}: {error}") from error
    return metadata


def _core(settings: BrokerSettings, segment_log: SegmentLog, rng: random.Random) -> RaftCore:
    meta = segment_log.meta
    base_index, base_term = segment_log.base
    return RaftCore(
        node_id=NodeId(settings.node_id),
        confs=[(0, ConfState(tuple(NodeId(name) for name in settings.members)))],
        config=CoreConfig(
            heartbeat_seconds=settings.heartbeat_seconds,
            announce_seconds=_ANNOUNCE_SECONDS,
            election_timeout_seconds_min=settings.election_timeout_seconds_min,
            election_timeout_seconds_max=settings.election_timeout_seconds_max,
            durable_commit=settings.durability == "quorum-fsync",
        ),
        hard_state=HardState(meta.term, None if meta.voted_for is None else NodeId(meta.voted_for)),
        term_runs=segment_log.term_runs,
        base=LogId(base_index, base_term),
        last_index=segment_log.last_index,
        commit=meta.commit_hint,
        rng=rng,
        now=trio.current_time(),
    )


def _identity(settings: BrokerSettings) -> Identity:
    return Identity(settings.identity, settings.group, NodeId(settings.node_id), settings.segment_bytes)


def _bound(purpose: str, address: Address, open_listener: Callable[[Address], T]) -> T:
    try:
        return open_listener(address)
    except (OSError, UnicodeError) as error:
        where = f"{address[0]}:{address[1]}"
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "is in use" if in_use else f"cannot be used: {getattr(error, 'strerror', None) or error}"
        raise StartRefused(f"{purpose} address {where} {why}") from error


async def _every(seconds: float, action: Callable[[], None], reactor: Reactor) -> None:
    while True:
        await trio.sleep(seconds)
        action()
        reactor.wake()


async def _checkpoint_forever(seconds: float, broker: Broker, log: Log) -> None:
    while True:
        await trio.sleep(seconds)
        try:
            if (checkpoint := broker.prepare_checkpoint()) is not None:
                await trio.to_thread.run_sync(checkpoint.commit)
        except (OSError, StoreError) as error:
            # Nothing is lost: without it, a restart derives more from the log.
            log.error("checkpoint_failed", error=str(error))


def _checkpoint_last(broker: Broker, log: Log) -> None:
    try:
        if (checkpoint := broker.prepare_checkpoint()) is not None:
            checkpoint.commit()
    except (OSError, StoreError) as error:
        log.error("checkpoint_failed", error=str(error))
