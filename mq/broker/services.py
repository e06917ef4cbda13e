"""Everything that serves a broker's clients, built and wired together.

A service is a class of its own module with the handlers of the requests it serves. Some requests only the leader can
serve; which handlers those are, is said by the services, and what a replica that does not lead does with them, here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from mq.broker.admin.administration import Administration
from mq.broker.admin.raft_members import GroupAdmin
from mq.broker.admin.stats import Stats
from mq.broker.base.disk import disk_usage, disk_used
from mq.broker.base.retention import Retention
from mq.broker.bulk.service import Bulk
from mq.broker.consume.clients import ClientRegistry
from mq.broker.consume.cold_reads import ColdReads
from mq.broker.consume.filters import Subscriptions
from mq.broker.consume.follower_reads import FollowerReads
from mq.broker.consume.heartbeat import Groups
from mq.broker.consume.long_polling import LongPolling
from mq.broker.consume.offsets import Offsets
from mq.broker.consume.pull import HeldPull, Pulls
from mq.broker.consume.queue_locks import Locks
from mq.broker.consume.rebalance import Rebalance
from mq.broker.consume.routes import Queues, Routes
from mq.broker.consume.subscription_refresh import SubscriptionRefresh
from mq.broker.net.connection import ClientConnection, Handler
from mq.broker.net.linearizable_reads import LinearizableReads
from mq.broker.net.slow_answers import SlowAnswers
from mq.broker.pop.pop import Pops
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.placement import Placement
from mq.broker.produce.request_reply import Replies
from mq.broker.produce.retry import Retries
from mq.broker.produce.send import Sends
from mq.broker.query.by_key import KeyQueries
from mq.broker.query.by_offset_and_time import Lookup
from mq.broker.query.consume_queue_repair import QueueRepair
from mq.broker.replication.forwarded_requests import ForwardedRequests, ForwardedSender
from mq.broker.replication.forwarder import Forwarder
from mq.broker.replication.peer_addresses import PeerAddresses
from mq.broker.replication.peer_authentication import PeerAuthentication
from mq.broker.replication.peer_calls import PeerCalls
from mq.broker.retention_floor import RetentionFloor
from mq.broker.schedule.delay_levels import Delays
from mq.broker.schedule.placement import WaitingQueues
from mq.broker.schedule.recall import Recalls
from mq.broker.schedule.timers import Timers
from mq.broker.settings import ENTRY_OVERHEAD_BYTES, INDEX_DIRECTORY, BrokerSettings
from mq.broker.state.metadata import Metadata
from mq.broker.transaction.check_back import CheckBacks
from mq.broker.transaction.end_transaction import Transactions
from mq.broker.transaction.half_messages import HalfMessages
from mq.broker.transaction.resume_check import ResumeCheck
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.internal_messages import InternalMessages
from mq.broker.write_path.queue_offsets import QueueOffsets
from mq.protocol.codes import PERM_READ
from mq.protocol.hashes import UniqKeyGenerator
from mq.protocol.headers import SendReplyTemplate
from mq.protocol.queue_tables import QueueRef
from mq.protocol.records import encode_host
from mq.store.key_index.index import KeyIndex
from mq.store.log_records import LogRecords
from mq.store.queue_store import QueueStore
from raftlog import Job, Reactor, Replica, parse_address

Log = structlog.stdlib.BoundLogger


def wall_clock_ms() -> int:
    """Milliseconds since the epoch, for stored timestamps only."""
    return time.time_ns() // 1_000_000


class Services:
    """The services of one broker.

    Args:
        store_ip: the IPv4 address that message ids carry.
        address: where clients reach this broker.
        reads: reads that go on over a change of leader.
        applied_index: up to which entry the log was applied.
        floor_pos: physical offset from which on the log is still needed.
        counters: figures of the broker itself.
        in_background: carries out a job in a worker thread, and its end on the event loop.
        in_bulk_background: the same, for jobs that take longer.
        connect_failure: why no connection to another replica could be opened last, empty while one stands.
        secrets: those of the group that are valid now.
        random_bytes: as many unpredictable bytes as asked for.
        wall_clock_ms: milliseconds since the epoch; may go back.
        process_id: goes into the unique keys of messages whose sender gave none.

    Attributes:
        handlers: what serves each type of request at this moment.
    """

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        store_ip: str,
        address: str,
        replica: Replica,
        reactor: Reactor,
        metadata: Metadata,
        store: QueueStore,
        clients: ClientRegistry[ClientConnection],
        polling: LongPolling[HeldPull],
        reads: LinearizableReads,
        rng: random.Random,
        clock: Callable[[], float],
        wall_clock_ms: Callable[[], int],
        process_id: int,
        applied_index: Callable[[], int],
        floor_pos: Callable[[], int],
        counters: Callable[[], dict[str, int]],
        in_background: Callable[[Job], None],
        in_bulk_background: Callable[[Job], None],
        connect_failure: Callable[[str], str],
        secrets: Callable[[], Sequence[bytes]],
        random_bytes: Callable[[int], bytes],
        log: Log,
    ) -> None:
        self._replica = replica
        self._metadata = metadata
        self._clients = clients
        self.handlers: dict[type[Any], Handler] = {}
        self._leader_handlers: dict[type[Any], Handler] = {}
        client_port = parse_address(address)[1]
        self.replica_address = f"{store_ip}:{client_port}"
        store_host = encode_host(store_ip, client_port)
        self.appender = Appender(
            log=replica,
            store_host=store_host,
            reply_template=SendReplyTemplate(store_host),
            entry_bytes_max=min(settings.entry_bytes_max, settings.segment_bytes - ENTRY_OVERHEAD_BYTES),
            rounds_in_flight=settings.rounds_in_flight,
            wall_clock_ms=wall_clock_ms,
            disk_used=partial(disk_used, settings.data_dir),
            pending_bytes_max=settings.pending_bytes_max,
        )
        self.gradually = SlowAnswers(wake=reactor.wake, clock=clock)
        self.stats = Stats(cluster=settings.cluster, store=store, clock=clock)
        self.tails = QueueOffsets(metadata, store.max_offset)
        unique_keys = UniqKeyGenerator(
            ip=store_ip, pid=process_id, salt=rng.getrandbits(32), wall_clock_ms=wall_clock_ms
        )
        made = InternalMessages(
            appender=self.appender,
            unique_keys=unique_keys,
            cluster=settings.cluster,
            body_bytes_max=settings.message_bytes_max,
        )
        places = WaitingQueues(settings=settings, tails=self.tails)
        halves = HalfMessages(metadata=metadata, store=store, read=replica.log.pread)
        self.transactions = Transactions(
            settings=settings,
            metadata=metadata,
            halves=halves,
            appender=self.appender,
            tails=self.tails,
            places=places,
            host=store_host,
            wall_clock_ms=wall_clock_ms,
        )
        self.check_backs = CheckBacks(
            settings=settings,
            metadata=metadata,
            halves=halves,
            transactions=self.transactions,
            appender=self.appender,
            clients=clients,
            clock=clock,
            wall_clock_ms=wall_clock_ms,
            log=log,
        )
        self.locks = Locks(
            metadata=metadata,
            appender=self.appender,
            client_id=self._client_id,
            read=reads.read_once,
            clock=clock,
            log=log,
        )
        retries = Retries(
            settings=settings,
            metadata=metadata,
            store=store,
            appender=self.appender,
            tails=self.tails,
            log=replica.log,
            made=made,
            places=places,
            locks=self.locks,
            figures=self.stats.figures,
            rng=rng,
            wall_clock_ms=wall_clock_ms,
        )
        self.delays = Delays(
            metadata=metadata,
            store=store,
            appender=self.appender,
            tails=self.tails,
            read=replica.log.pread,
            pending_bytes_max=settings.pending_bytes_max // 2,
            wall_clock_ms=wall_clock_ms,
            log=log,
        )
        self.repeats = Dedup(
            broker_name=settings.group,
            sequences=metadata.sequences,
            appender=self.appender,
            reply_template=SendReplyTemplate(store_host),
            log=replica.log,
            record_bytes_max=settings.segment_bytes,
        )
        self.timers = Timers(
            metadata=metadata,
            store=store,
            appender=self.appender,
            tails=self.tails,
            read=replica.log.pread,
            pending_bytes_max=settings.pending_bytes_max // 2,
            wall_clock_ms=wall_clock_ms,
            log=log,
        )
        self.sends = Sends(
            settings=settings,
            metadata=metadata,
            appender=self.appender,
            tails=self.tails,
            unique_keys=unique_keys,
            special=Placement(
                broker_name=settings.group,
                made=made,
                places=places,
                repeats=self.repeats,
                transactions=self.transactions,
                wall_clock_ms=wall_clock_ms,
            ),
            repeats=self.repeats,
            retries=retries,
            rng=rng,
            wall_clock_ms=wall_clock_ms,
        )
        self.recalls = Recalls(
            broker_name=settings.group,
            metadata=metadata,
            store=store,
            appender=self.appender,
            timers=self.timers,
            delay_max_ms=settings.timer_delay_max_seconds * 1000,
            wall_clock_ms=wall_clock_ms,
        )
        self.cold_reads = ColdReads(log=replica.log, in_background=in_background)
        self.queue_repair = QueueRepair(
            store=store,
            log=replica.log,
            segment_bytes=replica.log.files.segment_bytes,
            applied_index=applied_index,
            in_background=in_background,
            clock=clock,
            lines=log,
        )
        slow_consumers = FollowerReads(settings=settings, replica=replica, metadata=metadata, clock=clock)
        self.offsets = Offsets(
            metadata=metadata,
            store=store,
            appender=self.appender,
            read=reads.read,
            locks=self.locks,
            client_id=self._client_id,
            has_members=lambda group: clients.consumer_group(group) is not None,
            in_memory=slow_consumers.in_memory,
        )
        self.groups = Groups(
            clients=clients,
            metadata=metadata,
            appender=self.appender,
            clock=clock,
            wall_clock_ms=wall_clock_ms,
            gradually=self.gradually,
        )
        refresh = SubscriptionRefresh(clients=clients, clock=clock)
        subscriptions = Subscriptions(
            settings=settings,
            metadata=metadata,
            clients=clients,
            note_group=self.groups.note_group,
            refresh=refresh.ask,
        )
        self.pulls = Pulls(
            settings=settings,
            metadata=metadata,
            store=store,
            subscriptions=subscriptions,
            slow_consumers=slow_consumers,
            polling=polling,
            read=partial(replica.log.pread, trusts_page_cache=True),
            read_each=replica.log.pread_each,
            cold_reads=self.cold_reads,
            log_end=lambda: replica.log.end_pos,
            store_offset=self.offsets.commit,
            reset_to=self.offsets.reset_to,
            note_pull=self.offsets.note_pull,
            confirm=reads.read_once,
            figures=self.stats.figures,
            clock=clock,
        )
        self.pops = Pops(
            settings=settings,
            metadata=metadata,
            store=store,
            appender=self.appender,
            tails=self.tails,
            subscriptions=subscriptions,
            read=partial(replica.log.pread, trusts_page_cache=True),
            read_each=replica.log.pread_each,
            pulls_waiting=polling.waiting,
            is_young=self.offsets.is_young,
            figures=self.stats.figures,
            rng=rng,
            clock=clock,
            wall_clock_ms=wall_clock_ms,
            log=log,
        )
        records = LogRecords(replica.log, applied_index)
        self.resumptions = ResumeCheck(
            served=settings.transactions,
            metadata=metadata,
            store=store,
            records=records,
            appender=self.appender,
            tails=self.tails,
            log=log,
        )
        self.lookup = Lookup(
            broker_name=settings.group,
            metadata=metadata,
            store=store,
            records=records,
            clients=clients,
            read=reads.read,
            gradually=self.gradually,
            wall_clock_ms=wall_clock_ms,
        )
        self.keys = KeyQueries(
            index=KeyIndex(str(settings.data_dir / INDEX_DIRECTORY), replica.log, applied_index),
            metadata=metadata,
            read=reads.read,
            wake=reactor.wake,
            index_seconds=settings.index_seconds,
            clock=time.monotonic,
            wall_clock_ms=wall_clock_ms,
            log=log,
        )
        self.bulk = Bulk(
            settings=settings,
            replica=replica,
            metadata=metadata,
            store=store,
            read=reads.read,
            gradually=self.gradually,
            other_replicas=self._other_replicas,
            in_background=in_bulk_background,
            clock=clock,
        )
        used = partial(disk_used, settings.data_dir)
        self.retention = Retention(
            settings=settings,
            replica=replica,
            store=store,
            floor_pos=floor_pos,
            waiting_pos=RetentionFloor(metadata, store, wall_clock_ms).first_pos,
            leased_pos=self.bulk.leases.first_pos,
            disk_usage=partial(disk_usage, settings.data_dir),
            wall_clock_ms=wall_clock_ms,
            log=log,
        )
        self.group_admin = GroupAdmin(
            settings=settings,
            replica=replica,
            disk_used=used,
            connect_failure=connect_failure,
            clock=clock,
            log=log,
        )
        self.authentication = PeerAuthentication(
            identity=settings.identity,
            node_id=settings.node_id,
            address=self.replica_address,
            secrets=secrets,
            members=self._members,
            random_bytes=random_bytes,
        )
        self.forwarder = Forwarder(
            settings=settings,
            reactor=reactor,
            authentication=self.authentication,
            client_id=clients.client_id,
            leader_address=self._leader_address,
            serve_locally=self.serve_as_leader,
            clock=clock,
            log=log,
        )
        self.forwarded = ForwardedRequests(
            leader_handlers=self._leader_handlers,
            leads=lambda: self.appender.is_open,
            is_elected=lambda: replica.is_leader,
            held_bytes_max=settings.forward_bytes_max,
            admit=self.authentication.admit,
            forward=self.forwarder.handle,
            log=log,
        )
        calls = PeerCalls(reactor, self.authentication, clock)
        self.announcements = PeerAddresses(
            settings=settings,
            metadata=metadata,
            appender=self.appender,
            calls=calls,
            members=self._members,
            address=self.replica_address,
            leader_address=self._leader_address,
            admit=self.authentication.admit,
            clock=clock,
        )
        self.replies = Replies(
            settings=settings,
            clients=clients,
            sends=self.sends,
            appender=self.appender,
            calls=calls,
            other_replicas=self._other_replicas,
            admit=self.authentication.admit,
            address=self.replica_address,
            wall_clock_ms=wall_clock_ms,
        )
        self.routes = Routes(
            namesrv=settings.namesrv_addresses,
            own=partial(self._own_queues, settings.group),
            wake=reactor.wake,
            clock=clock,
            log=log,
        )
        assignments = Rebalance(
            metadata=metadata,
            appender=self.appender,
            routes=self.routes,
            read=reads.read,
            consumer_ids=clients.consumer_ids,
            note_group=self.groups.note_group,
        )
        administration = Administration(
            settings=settings,
            replica=replica,
            metadata=metadata,
            store=store,
            appender=self.appender,
            tails=self.tails,
            stats=self.stats,
            clients=clients,
            offsets=self.offsets,
            lookup=self.lookup,
            read=reads.read,
            gradually=self.gradually,
            address=address,
            counters=counters,
            disk_usage=partial(disk_usage, settings.data_dir),
            delete_expired=self.retention.run,
            is_allowed=self.group_admin.is_allowed,
            on_settings_changed=self._settings_changed,
            clock=clock,
            wall_clock_ms=wall_clock_ms,
            log=log,
        )
        services = (
            self.authentication,
            self.pulls,
            self.groups,
            self.offsets,
            self.lookup,
            self.bulk,
            self.group_admin,
            self.forwarded,
            self.replies,
        )
        for service in (*services, self.keys, subscriptions, self.announcements, assignments, administration):
            self.handlers.update(service.handlers())
        for leading_area in (
            self.sends,
            self.transactions,
            self.offsets,
            self.locks,
            retries,
            self.recalls,
            self.resumptions,
            self.replies,
            self.pops,
            assignments,
            administration,
        ):
            self._leader_handlers.update(leading_area.leader_handlers())
        self.serve_as_follower()

    def _own_queues(self, broker_name: str, topic: str) -> Queues | None:
        """What can be read of a topic in this broker group."""
        config = self._metadata.topics.get(topic)
        if config is None:
            return None
        count = config.read_queues if config.perm & PERM_READ else 0
        return tuple(QueueRef(topic, broker_name, number) for number in range(count))

    def _settings_changed(self, settings: BrokerSettings) -> None:
        self.sends.settings_changed(settings)
        self.retention.settings_changed(settings)

    def forget(self) -> None:
        """This replica does not lead any more: what services keep as the leader is void."""
        self.tails.forget()
        for service in (
            self.sends,
            self.repeats,
            self.transactions,
            self.check_backs,
            self.resumptions,
            self.offsets,
            self.locks,
            self.groups,
            self.delays,
            self.timers,
            self.recalls,
            self.replies,
            self.pops,
        ):
            service.forget()

    def serve_as_leader(self) -> None:
        """Serve everything here."""
        self.handlers.update(self._leader_handlers)

    def serve_as_follower(self) -> None:
        """Hand what needs the leader to it."""
        self.handlers.update(dict.fromkeys(self._leader_handlers, self.forwarder.handle))

    def _leader_address(self) -> str | None:
        """Where another replica that leads serves clients, if that is known."""
        core = self._replica.core
        return None if core.leader_id in (None, core.node_id) else self._metadata.replicas.get(core.leader_id)

    def _other_replicas(self) -> list[str]:
        """Where the other members of the group serve clients, as far as they have said so."""
        others = self._members() - {self._replica.core.node_id}
        return [address for node_id, address in self._metadata.replicas.items() if node_id in others]

    def _members(self) -> set[str]:
        conf = self._replica.core.conf
        return {*conf.voters, *conf.outgoing, *conf.learners}

    def _client_id(self, connection: ClientConnection | ForwardedSender, group: str) -> str | None:
        """Who a client is in a consumer group, also if it is connected to another replica."""
        if isinstance(connection, ForwardedSender):
            return connection.client_id
        return self._clients.client_id(connection, group)
