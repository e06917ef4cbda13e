"""Starts a broker process: opens its directory, joins its group, serves clients, and stops cleanly.

`raftlog.serve_node` runs the replica; this module adds the store, the client listener, registrations and timers.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import structlog
import trio

from mq.broker.archive.access import open_archive, open_archive_to_join
from mq.broker.base.archive_tier import QUEUES_FROM
from mq.broker.base.name_server_registration import Registrar
from mq.broker.base.periodic_task import Periodic, PeriodicTask
from mq.broker.base.process_tuning import (
    allow_descriptors,
    descriptor_limits,
    freeze_startup_objects,
    tune_process,
)
from mq.broker.base.rate_limited_log import Log
from mq.broker.base.steady_wall_clock import SteadyWallClock
from mq.broker.broker import Broker
from mq.broker.context import Environment
from mq.broker.derived_state import checkpoint_forever, checkpoint_last, open_derived, restored_metadata
from mq.broker.limits import DEFAULT, BrokerLimits
from mq.broker.security import (
    StartRefused,
    access_control,
    certificate,
    check_credentials,
    namesrv_tls,
    read_credentials,
)
from mq.broker.setting_fields import Address
from mq.broker.settings import RESTORING_DIRECTORY, BrokerSettings
from mq.broker.state.format_level import announced_level
from mq.certificate import Certificate
from mq.compiled import ALL_COMPILED
from mq.monitoring.families import Families, Family, Histogram
from mq.monitoring.http import Monitoring, open_metrics_listeners
from mq.monitoring.process import VERSION, certificate_families, process_families
from mq.store.checkpoint import Checkpointer
from mq.store.dispatch import check_entry
from mq.store.opening import refuse_newer_formats
from mq.store.queue_floors import forget_gap, has_gap
from mq.store.queue_store import QueueStore
from raftlog import (
    CoreConfig,
    EntryUnusable,
    Hosted,
    ListenRefused,
    Machine,
    NodeId,
    NodeLimits,
    NodeRun,
    NodeSettings,
    Reactor,
    Replica,
    ReplicationTls,
    SecretMissing,
    SecretUnusable,
    SegmentError,
    Workers,
    format_address,
    group_segment_bytes,
    parse_address,
    serve_node,
    stored_segment_bytes,
    this_machine,
)
from raftlog.net.machine import Listening
from raftlog.segment import (
    SNAPSHOT_NAME,
    DirectoryLocked,
    DirectoryUnusable,
    FormatTooNew,
    StorageFailed,
)

_READERS = 4
"""Threads that load old messages into memory."""
_BULK_READERS = 2
"""Threads that read the log for bulk reads, so that no other read waits behind megabytes."""
_ANNOUNCE_SECONDS = 0.03
"""The pause before a commit index is announced. With 50 messages a second, no replica is woken up for it."""
READY_SECONDS_MAX = 1.0
"""A replica that needs longer to confirm that it has applied everything committed is not ready."""
_DRAIN_SECONDS_MAX = 1.0
_DRAIN_POLL_SECONDS = 0.005
_ALL_ADDRESSES = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared, not bound


async def serve(
    settings: BrokerSettings,
    limits: BrokerLimits = DEFAULT,
    *,
    log: Log | None = None,
    on_broker: Callable[[Broker], None] = lambda broker: None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until cancelled; then transfer leadership if it leads, write a checkpoint and close the log.

    ``limits`` are smaller in tests. ``log`` is the log of operators, by default structlog's. ``on_broker`` gets the
    broker of each run of the node, when it serves clients.

    Raises:
        StartRefused: the directory or a port does not allow it. If it is a port, no directory was created or opened.
        raftlog.SegmentError: the disk failed. The process must exit; a restart verifies the files.
    """
    machine = this_machine()
    _check_ports(settings, machine)
    if (restore_directory := settings.data_dir / RESTORING_DIRECTORY).exists():
        raise StartRefused(f"{restore_directory}: `raftmq restore` did not finish in this directory; run it again")
    if machine.owns_process:
        tune_process()
    log = (log or structlog.get_logger("broker")).bind(group=settings.group, node_id=settings.node_id)
    if settings.members and len(settings.members) % 2 == 0:
        log.warning(
            "even_group",
            replicas=len(settings.members),
            reason="with one replica less it would tolerate as many failures",
        )
    host = _BrokerHost(settings, limits, await _store_ip(settings), log, on_broker)
    failure: StartRefused | SegmentError | None = None
    async with trio.open_nursery() as nursery:
        listeners = await _metrics_listeners(settings, log)
        if listeners:
            monitor = Monitoring(host.collect, host.ready, giving_way=host.giving_way)
            nursery.start_soon(monitor.serve, listeners)
        try:
            await _serve(settings, host, log, task_status)
        except (StartRefused, SegmentError) as error:
            failure = error  # raised later, since the nursery would wrap it in a group
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _serve(settings: BrokerSettings, host: _BrokerHost, log: Log, task_status: trio.TaskStatus[None]) -> None:
    try:
        refuse_newer_formats(str(settings.data_dir), str(settings.log_dir / SNAPSHOT_NAME))
    except FormatTooNew as error:
        raise StartRefused(str(error)) from error
    if not settings.has_segment_bytes:
        settings, task_status = await _with_segment_bytes(
            settings, host.certificate, host.limits.node, log, task_status
        )
        host.settings = settings
    node_scope = trio.CancelScope(shield=True)
    failures: list[StartRefused | ListenRefused | SecretUnusable | SegmentError] = []
    end_event = trio.Event()

    async def run_node() -> None:  # noqa: ASYNC910 - serving is a checkpoint, also when it is cancelled
        try:
            with node_scope:
                node_settings = _node_settings(settings, host.certificate, host.limits.node)
                await serve_node(node_settings, host.open, log=log, task_status=task_status)
        except (StartRefused, ListenRefused, SecretUnusable, SegmentError) as error:
            failures.append(error)
        end_event.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_node)
        try:
            await end_event.wait()
        finally:
            if not end_event.is_set():
                with trio.CancelScope(shield=True):
                    await host.drain()
            node_scope.cancel()
    for failure in failures:
        if isinstance(failure, StartRefused):
            raise failure
        if isinstance(failure, SegmentError) and host.started and not isinstance(failure, FormatTooNew):
            log.error("entry_unusable" if isinstance(failure, EntryUnusable) else "disk_failed", error=str(failure))
            raise failure
        raise _start_refusal(failure) from failure


async def _metrics_listeners(settings: BrokerSettings, log: Log) -> list[trio.SocketListener]:
    """Listen for scrapes of metrics. Raises StartRefused if a configured address, not the default, is in use."""
    address = settings.metrics_address
    try:
        return await open_metrics_listeners(address, log, is_required=settings.metrics_listen is not None)
    except OSError as error:
        assert address is not None
        raise _not_bound("metrics", address, error) from error


async def _with_segment_bytes(
    settings: BrokerSettings,
    certificate: Certificate | None,
    limits: NodeLimits,
    log: Log,
    task_status: trio.TaskStatus[None],
) -> tuple[BrokerSettings, trio.TaskStatus[None]]:
    """Add to the settings the log file size of the directory or, for a joining broker, of its group.

    Also returns the task status to report the start to: an ignored one if the broker waited for its group and has
    reported. Raises StartRefused; nothing was written then.
    """
    await trio.lowlevel.checkpoint()
    try:
        segment_bytes = stored_segment_bytes(str(settings.log_dir))
        if segment_bytes is None and settings.joins_group:
            segment_bytes = await group_segment_bytes(
                _node_settings(settings, certificate, limits), log=log, task_status=task_status
            )
            task_status = trio.TASK_STATUS_IGNORED
        return settings if segment_bytes is None else settings.with_segment_bytes(segment_bytes), task_status
    except (ListenRefused, SecretUnusable, SegmentError) as error:
        raise _start_refusal(error) from error
    except ValueError as error:
        raise StartRefused(str(error)) from error


class _BrokerHost:
    """Builds a new broker for each run of its node. ``started`` is set once the first is complete.

    Raises StartRefused if the accounts file is invalid.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        limits: BrokerLimits,
        store_ip: str,
        log: Log,
        on_broker: Callable[[Broker], None],
    ) -> None:
        self.settings = settings
        self._on_broker = on_broker
        self.limits = limits
        self._store_ip = store_ip
        self._log = log
        self._broker: Broker | None = None
        self._reactor: Reactor | None = None
        self.access = access_control(settings, log)
        self.certificate = certificate(settings, log)
        self.namesrv_tls = namesrv_tls(settings)
        check_credentials(settings.namesrv_credentials)
        self.started = False

    async def drain(self) -> None:
        """Transfer leadership and send clients their answers, so that they hardly notice the stop."""
        await trio.lowlevel.checkpoint()
        broker = self._broker
        if broker is None:
            return
        with trio.move_on_after(_DRAIN_SECONDS_MAX):
            while broker.wait_for_transfer() or broker.has_unsent_replies():
                self._wake()
                await trio.sleep(_DRAIN_POLL_SECONDS)

    def giving_way(self) -> AbstractContextManager[None]:
        """Within the block, the reactor lets other tasks run after each of its turns."""
        return nullcontext() if self._reactor is None else self._reactor.giving_way()

    def _wake(self) -> None:
        if self._reactor is not None:
            self._reactor.wake()

    def collect(self) -> Generator[None, None, Families]:
        """Metrics of the process, and of the broker while there is one; see `Collect`."""
        labels = {"cluster": self.settings.cluster, "group": self.settings.group, "node": self.settings.node_id}
        valid_until = None if self.certificate is None else self.certificate.valid_until
        families: list[Family | Histogram] = [*process_families(labels), *certificate_families(labels, valid_until)]
        yield
        if self._broker is not None:
            families += yield from self._broker.services.metrics.collect()
        return families

    async def ready(self) -> str | None:
        """The reason why this replica is not ready; None if it knows a leader and has caught up with it."""
        broker = self._broker
        if broker is None:
            await trio.lowlevel.checkpoint()
            return "the log is being opened, fetched or repaired"
        confirmations: list[bool] = []
        confirm_event = trio.Event()

        def on_known(is_known: bool) -> None:
            confirmations.append(is_known)
            confirm_event.set()

        broker.confirm(on_known)
        self._wake()
        with trio.move_on_after(READY_SECONDS_MAX):
            await confirm_event.wait()
        if confirmations == [True]:
            return None
        if not confirmations:
            return f"no leader confirmed within {READY_SECONDS_MAX:g} s that all committed entries are applied here"
        return "no leader has a majority"

    def open(self, run: NodeRun) -> Hosted:
        settings, log, reactor, undo = self.settings, self._log, run.reactor, run.undo
        machine = this_machine()
        store = open_derived(settings, run.segment_log, log)
        undo.callback(store.queues.close)
        readers = Workers(reactor, _READERS)
        undo.callback(readers.close)
        bulk_readers = Workers(reactor, _BULK_READERS)
        undo.callback(bulk_readers.close)
        metadata = restored_metadata(settings, store.checkpoint, self.limits)
        archive = None
        if settings.has_tiers:
            archive, archive_readers = open_archive(
                settings, metadata.archived, reactor, self.limits, lambda: run.segment_log.beginning
            )
            undo.callback(partial(archive_readers.close, waits=False))  # the store may not answer
        if self.access is not None:
            self.access.add_users(metadata.users, lambda: run.secrets.current, metadata.user_quotas)
        environment = Environment(
            store_ip=self._store_ip,
            reactor=reactor,
            rng=random.Random(int.from_bytes(os.urandom(8), "big")),
            clock=trio.current_time,
            ageing_clock=machine.ageing_clock,
            thread_clock=machine.thread_clock,
            wall_clock_ms=SteadyWallClock(machine.wall_clock_ms, machine.boot_time, log),
            process_id=os.getpid(),
            connect_failure=lambda node: run.transport.failures.get(NodeId(node), ""),
            secrets=lambda: run.secrets.current,
            random_bytes=os.urandom,
            in_background=readers.put,
            in_bulk_background=bulk_readers.put,
            on_registration_changed=lambda topics: registrar.announce(topics),
            descriptors=allow_descriptors() if machine.owns_process else descriptor_limits(),
            log=log,
            peer_software=lambda node: run.transport.software(NodeId(node)),
            set_level=run.set_level,
            sync_latency=run.sync_latency,
            access=self.access,
            certificate=self.certificate,
            namesrv_tls=self.namesrv_tls,
            archive=archive,
        )
        broker = Broker(
            settings=settings,
            environment=environment,
            metadata=metadata,
            store=store.queues,
            catch_up=store.catch_up,
            checkpointer=Checkpointer(str(settings.data_dir), store.queues),
            limits=self.limits,
        )
        registrar = Registrar(
            namesrv=settings.namesrv_addresses,
            period_seconds=settings.register_seconds,
            current=broker.registration,
            tls=self.namesrv_tls,
            credentials=partial(read_credentials, settings.namesrv_credentials),
            log=log,
        )

        return Hosted(
            application=broker,
            applied_index=store.checkpoint.applied_index,
            attach=partial(self._begin, broker, run),
            end_turn=broker.end_turn,
            snapshot=broker.snapshot,
            refill_bytes=lambda: broker.services.retention.refill_bytes(),
            archived=lambda: metadata.archived.known_at(settings.archive_url),
            encode_for_copies=lambda: broker.services.retention.encode_for_copies(),
            open_archive=partial(open_archive_to_join, settings, self.limits) if settings.archive_url else None,
            tasks=(registrar.run, partial(self._run_timers, broker, reactor, store.queues)),
            check_body=check_entry,
        )

    def _begin(self, broker: Broker, run: NodeRun, replica: Replica) -> None:
        """Serve clients. Raises StartRefused."""
        settings, log, undo = self.settings, self._log, run.undo
        try:
            broker.attach(replica)
        except OSError as error:
            text = f"{error.filename or settings.data_dir}: {error.strerror}"
            raise StartRefused(text, may_pass=True) from error
        if settings.has_tiers and has_gap(str(settings.data_dir)):
            note = run.segment_log.notes.get(QUEUES_FROM)
            replica.remember(QUEUES_FROM, note, partial(forget_gap, str(settings.data_dir)))
        listener = _bound_listener(run.reactor, settings.listen_address, broker)
        undo.callback(lambda: log.info("stopped", last_index=run.segment_log.last_index))
        undo.callback(checkpoint_last, broker, log)
        undo.callback(broker.close_connections)
        undo.callback(listener.close)
        undo.callback(self._on_close)
        run.reactor.serve_together(broker.services.sends.receive)
        self._broker, self._reactor = broker, run.reactor
        self.started = True
        self._on_broker(broker)
        if this_machine().owns_process:
            freeze_startup_objects()
        log.info(
            "started",
            listen=settings.listen,
            data_dir=str(settings.data_dir),
            durability=settings.durability,
            compiled=ALL_COMPILED,
            last_index=run.segment_log.last_index,
            applied_index=replica.applied_index,
        )

    async def _run_timers(self, broker: Broker, reactor: Reactor, queues: QueueStore) -> None:
        """Run the periodic actions of the broker until cancelled."""
        file_caches = [each for each in (self.access, self.certificate) if each is not None]
        actions = [
            *broker.periodic(),
            *(Periodic(self.limits.upkeep.refresh_files_seconds, each.refresh) for each in file_caches),
        ]
        periodic = PeriodicTask(actions, reactor.end_turn, broker.record_delay)
        async with trio.open_nursery() as nursery:
            reactor.before_waiting(periodic.refresh)
            for task in (periodic.run, *broker.tasks()):
                nursery.start_soon(task)
            nursery.start_soon(checkpoint_forever, self.settings.checkpoint_seconds, queues, broker, self._log)

    def _on_close(self) -> None:
        self._broker = self._reactor = None


async def _store_ip(settings: BrokerSettings) -> str:
    """Return the address for message ids: IPv4 if the host has it, since all clients understand that."""
    host, port = parse_address(settings.advertise or settings.listen)
    failure: Exception | None = None
    for family in (trio.socket.AF_INET, trio.socket.AF_INET6):
        try:
            addresses = await trio.socket.getaddrinfo(host, port, family, trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            failure = error
        else:
            return str(addresses[0][4][0]).partition("%")[0]
    address = format_address((host, port))
    text = f"client address {address} has neither an IPv4 nor an IPv6 address: {failure}"
    raise StartRefused(text, may_pass=True) from failure


def _replication_tls(settings: BrokerSettings, certificate: Certificate | None) -> ReplicationTls | None:
    if settings.tls_replication == "disabled" or certificate is None:
        return None
    return ReplicationTls(certificate.for_replicas, required=settings.tls_replication == "enforcing")


def _node_settings(settings: BrokerSettings, certificate: Certificate | None, limits: NodeLimits) -> NodeSettings:
    members = settings.members
    return NodeSettings(
        cluster_id=settings.identity,
        group=settings.group,
        node_id=NodeId(settings.node_id),
        directory=str(settings.log_dir),
        listen=settings.replication_address,
        secret_file=str(settings.secret_path),
        members={NodeId(name): format_address(address) for name, address in members.items()},
        segment_bytes=settings.segment_bytes,
        tls=_replication_tls(settings, certificate),
        limits=limits,
        catch_up_bytes_per_second=settings.catch_up_bytes_per_second,
        disk_full_ratio=settings.disk_full_ratio,
        disk_pause_ratio=settings.disk_pause_ratio,
        software=VERSION,
        level_newest=announced_level(settings.format_level_max),
        core=CoreConfig(
            heartbeat_seconds=settings.heartbeat_seconds,
            announce_seconds=min(_ANNOUNCE_SECONDS, settings.heartbeat_seconds),
            election_timeout_seconds_min=settings.election_timeout_seconds_min,
            election_timeout_seconds_max=settings.election_timeout_seconds_max,
            durable_commit=settings.durability == "quorum-fsync",
            priority=settings.priority,
            lease_reads=settings.lease_reads,
        ),
    )


def _check_ports(settings: BrokerSettings, machine: Machine) -> None:
    """Refuse the start before anything is written. If another process takes a port later, binding fails."""
    (host, port), (peer_host, peer_port) = settings.listen_address, settings.replication_address
    if port == peer_port != 0 and (host == peer_host or {host, peer_host} & _ALL_ADDRESSES):
        raise StartRefused(
            f"client address {format_address((host, port))} and replication address "
            f"{format_address((peer_host, port))} need two ports"
        )
    for purpose, address in (("client", settings.listen_address), ("replication", settings.replication_address)):
        try:
            machine.check_free(address)
        except (OSError, UnicodeError) as error:
            raise _not_bound(purpose, address, error) from error


def _bound_listener(reactor: Reactor, address: Address, broker: Broker) -> Listening:
    try:
        return this_machine().listen(reactor, address, broker.accept)
    except (OSError, UnicodeError) as error:
        raise _not_bound("client", address, error) from error


_MAY_PASS = SecretMissing, DirectoryLocked, DirectoryUnusable, StorageFailed
"""Causes of a failed start that may end without a change of the broker's settings."""


def _start_refusal(failure: ListenRefused | SecretUnusable | SegmentError) -> StartRefused:
    if isinstance(failure, ListenRefused):
        return _not_bound("replication", failure.address, failure.error)
    return StartRefused(str(failure), may_pass=isinstance(failure, _MAY_PASS))


def _not_bound(purpose: str, address: Address, error: Exception) -> StartRefused:
    where = format_address(address)
    in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
    why = "is in use" if in_use else f"cannot be used: {getattr(error, 'strerror', None) or error}"
    return StartRefused(f"{purpose} address {where} {why}", may_pass=True)
