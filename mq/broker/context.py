"""What the services of a broker are built from: everything that more than one of them needs, by name."""

from __future__ import annotations

import random
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from mq.broker.access.control import AccessControl
from mq.broker.base.counters import TrafficCounters
from mq.broker.base.disk import disk_used
from mq.broker.base.process_tuning import DescriptorLimits
from mq.broker.net.clients import ClientRegistry
from mq.broker.net.connection import ClientConnection
from mq.broker.net.linearizable_reads import LinearizableReads
from mq.broker.net.slow_answers import SlowAnswers
from mq.broker.settings import ENTRY_OVERHEAD_BYTES, BrokerSettings
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.internal_messages import InternalMessages
from mq.broker.write_path.queue_offsets import QueueOffsets
from mq.protocol.hashes import UniqKeyGenerator
from mq.protocol.headers import SendReplyTemplate
from mq.protocol.records import encode_host
from mq.store.queue_store import QueueStore
from mq.tls import Certificate
from raftlog import Job, LatencyHistogram, Reactor, Replica, Software, parse_address

Log = structlog.stdlib.BoundLogger


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, for stored timestamps only."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the process that runs a broker gives it: clocks, randomness, threads; simulated ones in a simulation.

    Attributes:
        store_ip: the IPv4 address that message ids carry.
        clock: monotonic seconds.
        thread_clock: the same for worker threads; its seconds are not those of ``clock``.
        wall_clock_ms: milliseconds since the epoch; may go back.
        process_id: goes into the unique keys of messages whose sender gave none.
        connect_failure: why no connection to another replica could be opened last, empty while one stands.
        secrets: those of the group that are valid now.
        random_bytes: as many unpredictable bytes as asked for.
        in_background: carries out a job in a worker thread, and its end on the event loop.
        in_bulk_background: the same, for jobs that take longer.
        on_registration_changed: told when the name servers must learn something new: of these topics, or, for None, of
            everything.
        namesrv_tls: for connections to name servers; None for those without TLS.
        certificate: of connections that use TLS; None where none may.
        access: which requests of clients are served; None for all of them.
        peer_software: what a member of the group says of its software; None while it is not connected.
        set_level: told at which format level the group is, so that replicas which do not understand it are refused.
        sync_latency: how long writes to the log with their syncs took; None where nobody measures it.
        descriptors: how many of the process's file descriptors clients may take.
    """

    store_ip: str
    reactor: Reactor
    rng: random.Random
    clock: Callable[[], float]
    wall_clock_ms: Callable[[], int]
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
    access: AccessControl | None = None
    certificate: Certificate | None = None
    namesrv_tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext:
    """What the services of one broker share.

    Attributes:
        address, replica_address: where clients, and other replicas, reach this broker's client port.
        store_host: the same as records store it.
        metadata, store: what was applied of the log: topics, groups and offsets, and the consume queues.
        appender: takes what is to be written into the log.
        queue_offsets: the next queue offset of each queue, with what is not applied yet.
        internal_messages: makes the messages that the broker itself writes.
        reads: linearizable reads, that go on over a change of leader.
        slow_answers: makes answers that take long, a little in each turn of the event loop.
        traffic: counts what was put and got.
        applied_index: up to which entry the log was applied.
        floor_pos: physical offset from which on the log is still needed.
        counters: numbers of the whole broker, by name.
    """

    settings: BrokerSettings
    environment: Environment
    address: str
    replica_address: str
    store_host: bytes
    replica: Replica
    metadata: Metadata
    store: QueueStore
    clients: ClientRegistry[ClientConnection]
    appender: Appender
    queue_offsets: QueueOffsets
    unique_keys: UniqKeyGenerator
    internal_messages: InternalMessages
    reads: LinearizableReads
    slow_answers: SlowAnswers
    traffic: TrafficCounters
    applied_index: Callable[[], int]
    floor_pos: Callable[[], int]
    counters: Callable[[], dict[str, int]]

    @property
    def reactor(self) -> Reactor:
        """The event loop."""
        return self.environment.reactor

    @property
    def rng(self) -> random.Random:
        """Randomness."""
        return self.environment.rng

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        return self.environment.clock

    @property
    def wall_clock_ms(self) -> Callable[[], int]:
        """Milliseconds since the epoch; may go back."""
        return self.environment.wall_clock_ms

    @property
    def log(self) -> Log:
        """For operators; the replicated log is ``replica.log``."""
        return self.environment.log

    def client_id(self, connection: ClientConnection, group: str) -> str | None:
        """Who the client behind a connection is in a consumer group; None where that is not known.

        A replica that hands a request on says who its client is.
        """
        return connection.client_id or self.clients.client_id(connection, group)

    def disk_used(self) -> float:
        """Which part of the disk is in use, 0 to 1."""
        return disk_used(self.settings.data_dir)

    def members(self) -> Collection[str]:
        """Names of all replicas of the group, whether they vote or not."""
        conf = self.replica.core.conf
        return {*conf.voters, *conf.outgoing, *conf.learners}

    def leader_address(self) -> str | None:
        """Where another replica that leads serves clients, if that is known."""
        core = self.replica.core
        return None if core.leader_id in (None, core.node_id) else self.metadata.replicas.get(core.leader_id)

    def other_replicas(self) -> list[str]:
        """Where the other members of the group serve clients, as far as they have said so."""
        others = {*self.members()} - {self.replica.core.node_id}
        return [address for node_id, address in self.metadata.replicas.items() if node_id in others]


def broker_context(
    settings: BrokerSettings,
    environment: Environment,
    *,
    replica: Replica,
    metadata: Metadata,
    store: QueueStore,
    clients: ClientRegistry[ClientConnection],
    reads: LinearizableReads,
    traffic: TrafficCounters,
    applied_index: Callable[[], int],
    floor_pos: Callable[[], int],
    counters: Callable[[], dict[str, int]],
) -> BrokerContext:
    """The context of a broker, with the write path built."""
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
        pending_bytes_max=settings.pending_bytes_max,
    )
    unique_keys = UniqKeyGenerator(
        ip=environment.store_ip,
        pid=environment.process_id,
        salt=environment.rng.getrandbits(32),
        wall_clock_ms=environment.wall_clock_ms,
    )
    return BrokerContext(
        settings=settings,
        environment=environment,
        address=address,
        replica_address=f"{environment.store_ip}:{client_port}",
        store_host=store_host,
        replica=replica,
        metadata=metadata,
        store=store,
        clients=clients,
        appender=appender,
        queue_offsets=QueueOffsets(metadata, store.max_offset),
        unique_keys=unique_keys,
        internal_messages=InternalMessages(
            appender=appender,
            unique_keys=unique_keys,
            cluster=settings.cluster,
            body_bytes_max=settings.message_bytes_max,
        ),
        reads=reads,
        slow_answers=SlowAnswers(wake=environment.reactor.wake, clock=environment.clock),
        traffic=traffic,
        applied_index=applied_index,
        floor_pos=floor_pos,
        counters=counters,
    )
