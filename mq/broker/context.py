"""The objects that more than one service of a broker needs, by name."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from mq.broker.access.control import AccessControl
from mq.broker.base.archive_tier import Tier
from mq.broker.base.archived_reads import ArchivedReads, Fetch, TieredLog
from mq.broker.base.counters import TrafficCounters
from mq.broker.base.disk import disk_used
from mq.broker.base.process_tuning import DescriptorLimits
from mq.broker.base.quota_buckets import QuotaBuckets
from mq.broker.base.rate_limited_log import Log
from mq.broker.base.steady_wall_clock import SteadyWallClock
from mq.broker.limits import BrokerLimits
from mq.broker.net.clients import ClientRegistry
from mq.broker.net.connection import ClientConnection
from mq.broker.net.linearizable_reads import LinearizableReads
from mq.broker.net.log_beginning import LogBeginning
from mq.broker.net.slow_responses import SlowResponses
from mq.broker.settings import ENTRY_OVERHEAD_BYTES, BrokerSettings
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.internal_messages import InternalMessages
from mq.broker.write_path.queue_tails import QueueTails
from mq.certificate import Certificate
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.messages.records import encode_host
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.requests.topics import DataVersion
from mq.protocol.wire.encoding import SendReplyTemplate
from mq.store.queue_store import QueueStore
from raftlog import Job, LatencyHistogram, Reactor, Replica, SegmentLog, Software, format_address, parse_address
from raftlog.log_numbers import LogIndex

MessageSource = SegmentLog | TieredLog


def wall_clock_ms() -> int:
    """Return milliseconds since the epoch, by this machine's clock."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ArchiveAccess:
    """Reads the archive: fetches blocks, runs jobs in worker threads, and counts the bytes cached on disk."""

    fetch: Fetch
    in_background: Callable[[Job], None]
    cached_bytes: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The clocks, randomness and threads that the process provides to a broker. A simulation provides simulated ones.

    Attributes:
        store_ip: the address in message ids: IPv4, or IPv6 on a host without it.
        clock: monotonic seconds.
        ageing_clock: monotonic seconds for the age of transactions, which a test kit puts ahead; None for ``clock``.
        thread_clock: the same for worker threads, with another origin.
        wall_clock_ms: milliseconds since the epoch; may jump, also back, but only to a time that has held for a while.
        process_id: part of the unique keys of messages without one.
        connect_failure: why the last connection to another replica failed; empty while one is open.
        secrets: the group secrets that are valid now.
        random_bytes: returns this many unpredictable bytes.
        in_background: runs a job in a worker thread, and its completion on the event loop.
        in_bulk_background: the same, for jobs that take longer.
        on_registration_changed: called when name servers need an update: of these topics, or, for None, of all.
        namesrv_tls: for connections to name servers; None without TLS.
        certificate: for TLS connections of clients; None without TLS.
        access: checks the requests of clients; None allows all.
        peer_software: the software of a member of the group; None while it is not connected.
        set_level: sets the format level of the group, so that replicas which do not support it are refused.
        sync_latency: duration of log writes including syncs; None if it is not measured.
        descriptors: how many of the process's file descriptors clients may use.
        archive: reads blocks of the archive, in the threads for it; None if archived messages are not served.
        receive_into: receives from a simulated socket, by its descriptor, as `mq.broker.produce.send_receiver` says;
            None for sockets of the system.
    """

    store_ip: str
    reactor: Reactor
    rng: random.Random
    clock: Callable[[], float]
    wall_clock_ms: SteadyWallClock
    thread_clock: Callable[[], float]
    process_id: int
    connect_failure: Callable[[str], str]
    secrets: Callable[[], Sequence[bytes]]
    random_bytes: Callable[[int], bytes]
    in_background: Callable[[Job], None]
    in_bulk_background: Callable[[Job], None]
    on_registration_changed: Callable[[Iterable[str] | None], None]
    descriptors: DescriptorLimits
    log: Log
    peer_software: Callable[[str], Software | None]
    set_level: Callable[[int], None]
    sync_latency: LatencyHistogram | None = None
    receive_into: Callable[[int, memoryview], int] | None = None
    access: AccessControl | None = None
    certificate: Certificate | None = None
    namesrv_tls: ssl.SSLContext | None = None
    ageing_clock: Callable[[], float] | None = None
    archive: ArchiveAccess | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """The objects that all services of one broker share.

    Attributes:
        address, replica_address: where clients, and other replicas, reach this broker's client port.
        store_host: the same in the format of records.
        metadata, store: the applied state: topics, groups and offsets, and the consume queues.
        appender: appends to the log.
        queue_tails: the next queue offset of each queue, including entries that are not applied yet.
        internal_messages: builds the messages that the broker itself writes.
        tier: which part of the log is only in the archive.
        records: the log for readers of messages that may be only in the archive; without one, the replica's log.
        archived_reads: the archived messages in memory; None if archived messages are not served.
        beginning: whether this replica may say that older messages are gone.
        reads: linearizable reads that survive a change of leader.
        slow_responses: builds long answers in steps, some in each turn of the event loop.
        traffic: counts stored and delivered messages.
        quotas: how much users and topics with quotas may send and consume now.
        applied_index: index of the last applied entry.
        floor_pos: physical offset from which on the log is still needed.
        is_filling: whether the queues lack entries of the local log.
        refilled_pos: `QueueStore.refilled_pos` in the last durable checkpoint.
        counters: counters of the whole broker, by name.
    """

    settings: BrokerSettings
    limits: BrokerLimits
    environment: Environment
    address: str
    replica_address: str
    store_host: bytes
    replica: Replica
    metadata: Metadata
    store: QueueStore
    clients: ClientRegistry[ClientConnection]
    appender: Appender
    queue_tails: QueueTails
    unique_keys: UniqKeyGenerator
    internal_messages: InternalMessages
    reads: LinearizableReads
    tier: Tier
    records: MessageSource
    archived_reads: ArchivedReads | None
    beginning: LogBeginning
    slow_responses: SlowResponses
    traffic: TrafficCounters
    quotas: QuotaBuckets
    applied_index: Callable[[], LogIndex]
    floor_pos: Callable[[], PhysicalOffset]
    is_filling: Callable[[], bool]
    refilled_pos: Callable[[], PhysicalOffset | None]
    counters: Callable[[], dict[str, int]]

    @property
    def reactor(self) -> Reactor:
        """The event loop."""
        return self.environment.reactor

    @property
    def rng(self) -> random.Random:
        """The random number generator."""
        return self.environment.rng

    @property
    def clock(self) -> Callable[[], float]:
        """The monotonic clock, in seconds."""
        return self.environment.clock

    @property
    def ageing_clock(self) -> Callable[[], float]:
        """The clock for the age of transactions. A test kit sets it ahead."""
        return self.environment.ageing_clock or self.environment.clock

    @property
    def wall_clock_ms(self) -> Callable[[], int]:
        """The wall clock, in milliseconds since the epoch. It may go back."""
        return self.environment.wall_clock_ms

    @property
    def log(self) -> Log:
        """The operators' log. The replicated log is ``replica.log``."""
        return self.environment.log

    @property
    def tiered_log(self) -> TieredLog | None:
        """``records`` if a part of the log may be only in the archive, else None."""
        return self.records if isinstance(self.records, TieredLog) else None

    def client_id(self, connection: ClientConnection, group: str) -> str | None:
        """Return the client id of a connection in a consumer group; None if it is unknown.

        For a forwarded request, the forwarding replica has supplied it.
        """
        return connection.client_id or self.clients.client_id(connection, group)

    def data_version(self) -> DataVersion:
        """Return the version of topics and groups, which name servers and tools compare."""
        return self.metadata.topics_version(self.replica.core.term)

    def disk_used(self) -> float:
        """Return the used fraction of the disk, 0 to 1."""
        return disk_used(self.settings.data_dir)

    def members(self) -> Collection[str]:
        """Return the node ids of all members of the group, voters or not."""
        conf = self.replica.core.conf
        return {*conf.voters, *conf.outgoing, *conf.learners}

    def leader_address(self) -> str | None:
        """Return the leader's client address; None if it is unknown or this replica leads."""
        core = self.replica.core
        return None if core.leader_id in (None, core.node_id) else self.metadata.replicas.get(core.leader_id)

    def other_replicas(self) -> list[str]:
        """Return the known client addresses of the other members of the group."""
        others = {*self.members()} - {self.replica.core.node_id}
        return [address for node_id, address in self.metadata.replicas.items() if node_id in others]


def broker_context(
    settings: BrokerSettings,
    environment: Environment,
    limits: BrokerLimits,
    *,
    replica: Replica,
    metadata: Metadata,
    store: QueueStore,
    clients: ClientRegistry[ClientConnection],
    reads: LinearizableReads,
    traffic: TrafficCounters,
    applied_index: Callable[[], LogIndex],
    floor_pos: Callable[[], PhysicalOffset],
    is_filling: Callable[[], bool],
    refilled_pos: Callable[[], PhysicalOffset | None],
    counters: Callable[[], dict[str, int]],
) -> BrokerContext:
    """Build the context of a broker, with its write path."""
    address = settings.advertise or settings.listen
    client_port = parse_address(address)[1]
    store_host = encode_host(environment.store_ip, client_port)
    appender = Appender(
        log=replica,
        store_host=store_host,
        reply_template=SendReplyTemplate(store_host),
        entry_bytes_max=min(settings.entry_bytes_max, settings.segment_bytes - ENTRY_OVERHEAD_BYTES),
        rounds_in_flight=settings.rounds_in_flight,
        wall_clock_ms=environment.wall_clock_ms,
        disk_used=partial(disk_used, settings.data_dir),
        uncommitted_bytes_max=settings.uncommitted_bytes_max,
        clock=environment.thread_clock,
        turn_within=environment.reactor.turn_within,
    )
    tier = Tier(url=settings.archive_url if settings.has_tiers else None, log=replica.log, state=metadata.archived)
    access, archive_reads = environment.archive, None
    if access is not None:
        archive_reads = ArchivedReads(
            fetch=access.fetch,
            end_pos=lambda: metadata.archived.end_at(settings.archive_url).pos,
            in_background=access.in_background,
            clock=environment.clock,
            log=environment.log,
            limits=limits.archive,
        )
    unique_keys = UniqKeyGenerator(
        ip=environment.store_ip,
        pid=environment.process_id,
        salt=environment.rng.getrandbits(32),
        wall_clock_ms=environment.wall_clock_ms,
    )
    return BrokerContext(
        settings=settings,
        limits=limits,
        environment=environment,
        address=address,
        replica_address=format_address((environment.store_ip, client_port)),
        store_host=store_host,
        replica=replica,
        metadata=metadata,
        store=store,
        clients=clients,
        appender=appender,
        queue_tails=QueueTails(metadata, store.max_offset, len(store_host), store.get),
        unique_keys=unique_keys,
        internal_messages=InternalMessages(
            appender=appender,
            unique_keys=unique_keys,
            cluster=settings.cluster,
            body_bytes_max=settings.message_bytes_max,
        ),
        reads=reads,
        tier=tier,
        records=replica.log
        if archive_reads is None or access is None
        else TieredLog(replica.log, tier, archive_reads, access.fetch, settings.segment_bytes),
        archived_reads=archive_reads,
        beginning=LogBeginning(replica, tier),
        slow_responses=SlowResponses(
            wake=environment.reactor.wake, clock=environment.clock, slice_seconds=limits.net.slice_seconds
        ),
        traffic=traffic,
        quotas=QuotaBuckets(),
        applied_index=applied_index,
        floor_pos=floor_pos,
        is_filling=is_filling,
        refilled_pos=refilled_pos,
        counters=counters,
    )
