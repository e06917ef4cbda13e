"""Builds all features of a broker from the `BrokerContext`, and routes requests and events to them.

To add a feature, write a class that derives from `mq.broker.net.service.Service` in the package of its layer, and add
it here: to the method that builds its package, and to the returned list. No other code has to change.
"""

from __future__ import annotations

import os
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from mq.broker.admin.broker_config import BrokerConfig
from mq.broker.admin.cleanup import Cleanup
from mq.broker.admin.client_group_members import GroupMembers
from mq.broker.admin.consumer_groups import ConsumerGroups
from mq.broker.admin.deleted_topics import DeletedTopics
from mq.broker.admin.format_level import LevelRaises
from mq.broker.admin.group_offsets import GroupOffsets
from mq.broker.admin.many_group_members import MembersOfManyGroups
from mq.broker.admin.metrics import BrokerMetrics
from mq.broker.admin.pending import PendingQueries
from mq.broker.admin.raft_group_members import RaftMembers
from mq.broker.admin.removed_members import RemovedMembers
from mq.broker.admin.replica_status import ReplicaStatus
from mq.broker.admin.runtime_info import RuntimeInfo
from mq.broker.admin.skipping import Skips
from mq.broker.admin.stats import Stats
from mq.broker.admin.topic_compaction import TopicCompaction
from mq.broker.admin.topic_expiry import TopicExpiry
from mq.broker.admin.topic_queries import TopicQueries
from mq.broker.admin.topics import Topics
from mq.broker.admin.users import UserAdministration
from mq.broker.archive.access import ArchiveWatch
from mq.broker.archive.archiving import Archiving
from mq.broker.archive.queue_refill import QueueRefill
from mq.broker.base.clock_corrections import BootClock
from mq.broker.base.disk import disk_usage
from mq.broker.base.retention import Retention
from mq.broker.bulk.bulk_read import BulkReads
from mq.broker.bulk.log_lease import LogLeases
from mq.broker.bulk.topic_ends import TopicEndQueries
from mq.broker.bulk.topic_plan import TopicPlans
from mq.broker.consume.cold_reads import ColdReads
from mq.broker.consume.follower_reads import FollowerReads
from mq.broker.consume.heartbeat import Heartbeats
from mq.broker.consume.offset_corrections import OffsetCorrections
from mq.broker.consume.offsets import Offsets
from mq.broker.consume.pull import Pulls
from mq.broker.consume.queue_locks import QueueLockService
from mq.broker.consume.queue_repair import QueueRepair
from mq.broker.consume.rebalance import Rebalance
from mq.broker.consume.routes import Queues, Routes
from mq.broker.consume.subscription_refresh import SubscriptionRefresh
from mq.broker.consume.subscriptions import Subscriptions
from mq.broker.context import BrokerContext
from mq.broker.filtering.filter_servers import FilterServers
from mq.broker.filtering.programs import FilterRequests
from mq.broker.lite.abandoned_pops import AbandonedPops
from mq.broker.lite.control import LiteControl
from mq.broker.lite.expiry import LiteExpiry
from mq.broker.lite.pop import SILENT_SECONDS, LitePops
from mq.broker.lite.queries import LiteQueries
from mq.broker.net.connection import ClientConnection
from mq.broker.net.request_table import RequestTable
from mq.broker.net.service import Service
from mq.broker.pop.pop import Pops
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.placement import Placement
from mq.broker.produce.request_reply import Replies
from mq.broker.produce.retry import Retries
from mq.broker.produce.send import Sends
from mq.broker.query.by_key import KeyQueries
from mq.broker.query.by_offset_and_time import OffsetAndTimeQueries
from mq.broker.query.many_queues import ManyQueues
from mq.broker.query.topic_use import TopicUseQueries
from mq.broker.quota.gate import QuotaGate
from mq.broker.quota.requests import QuotaRequests
from mq.broker.recurring.requests import ScheduleRequests
from mq.broker.recurring.ticks import Ticks
from mq.broker.replication.forwarded_requests import ForwardedRequests
from mq.broker.replication.forwarder import Forwarder
from mq.broker.replication.peer_addresses import PeerAddresses
from mq.broker.replication.peer_authentication import PeerAuthentication
from mq.broker.replication.peer_calls import PeerCalls
from mq.broker.retention_floor import KeptMessages, RetentionFloor
from mq.broker.schedule.level_delivery import LevelDelivery
from mq.broker.schedule.recall import Recalls
from mq.broker.schedule.timers import Timers
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.settings import INDEX_DIRECTORY, BrokerSettings
from mq.broker.state.format_level import LEVEL_OF_BOUND_PROOFS
from mq.broker.transaction.check_back import CheckBacks
from mq.broker.transaction.half_messages import HalfMessages
from mq.broker.transaction.resume_check import ResumeCheck
from mq.broker.transaction.staged_sets import StagedSets
from mq.broker.transaction.transactions import Transactions
from mq.monitoring.cpu_time import cpu_seconds
from mq.monitoring.event_counts import LOGGED
from mq.monitoring.resident_memory import resident_bytes
from mq.protocol.codes import PERM_READ
from mq.protocol.numbers import PhysicalOffset
from mq.protocol.wire.queue_tables import QueueRef
from mq.store.key_index.index import KeyIndex
from mq.store.log_records import LogRecords
from raftlog import ConfState, RoleChange
from raftlog.log_numbers import LogIndex

T = TypeVar("T")


class Services:
    """Holds the services of one broker, and routes requests and events to them.

    Attributes:
        requests: the current request table.
        periodic, tasks: of all services, see `Service`.
        end_turns: `Service.end_turn` of the services that override it.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self.requests = RequestTable()
        self._records = LogRecords(context.replica.log, context.applied_index, context.tiered_log)
        self.authentication = PeerAuthentication(
            identity=context.settings.identity,
            node_id=context.settings.node_id,
            address=context.replica_address,
            secrets=context.environment.secrets,
            members=context.members,
            random_bytes=context.environment.random_bytes,
            tls=self._peer_tls,
            binds=lambda: context.metadata.format_level.level >= LEVEL_OF_BOUND_PROOFS,
        )
        self.calls = PeerCalls(context.reactor, self.authentication, context.clock, context.limits.net)
        # `lead` is called in this order, `resign` in the reverse order.
        self._services: tuple[Service, ...] = (
            context.queue_tails,
            *self._consumption(context),
            *self._waiting_messages(context),
            *self._production(context),
            *self._queries(context),
            *self._bulk(context),
            *self._pops(context),
            *self._administration(context),
            *self._replication(context),
        )
        kinds = {*map(type, self._services)}
        assert len(kinds) == len(self._services), f"{len(self._services)} services are of {len(kinds)} kinds"
        for service in self._services:
            self.requests.add(service.routes())
        self.requests.sends = self.sends
        # Bound once: these are called in every turn, or for every entry.
        self.end_turns = self._that_define(Service.end_turn)
        self._message_watchers = self._that_define(Service.on_new_messages)
        self._have_unsent_replies = self._that_define(Service.has_unsent_replies)
        self._topics_changed = self._that_define(Service.topic_changed)
        self._groups_changed = self._that_define(Service.consumer_group_changed)
        self.periodic = [action for service in self._services for action in service.periodic()]
        self.tasks = [task for service in self._services for task in service.tasks()]
        self.serve_as_follower()

    def _that_define(self, hook: Callable[..., T]) -> list[Callable[..., T]]:
        """Return the implementations of a method by the services that define it."""
        name = hook.__name__
        return [getattr(service, name) for service in self._services if getattr(type(service), name) is not hook]

    # -- services by package -------------------------------------------------------------------------------------------

    def _consumption(self, context: BrokerContext) -> tuple[Service, ...]:
        self.locks = QueueLockService(context)
        follower_reads = FollowerReads(context)
        self.offsets = Offsets(context, fencing=self.locks.fencing, in_memory=follower_reads.in_memory)
        self.groups = Heartbeats(context)
        limits = context.limits.consume
        refresh = SubscriptionRefresh(
            clients=context.clients, clock=context.clock, pause_seconds=limits.refresh_pause_seconds
        )
        self.subscriptions = Subscriptions(context, ensure_group=self.groups.ensure_group, refresh=refresh.ask)
        self.cold_reads = ColdReads(
            log=context.replica.log,
            in_background=context.environment.in_background,
            archive=context.archived_reads,
            limits=limits,
        )
        self.pulls = Pulls(
            context,
            subscriptions=self.subscriptions,
            follower_reads=follower_reads,
            cold_reads=self.cold_reads,
            offsets=self.offsets,
        )
        self.routes = Routes(
            namesrv=context.settings.namesrv_addresses,
            own=self._own_queues,
            wake=context.reactor.wake,
            clock=context.clock,
            tls=context.environment.namesrv_tls,
            log=context.log,
        )
        rebalance = Rebalance(context, routes=self.routes, ensure_group=self.groups.ensure_group)
        corrections = OffsetCorrections(context, offsets=self.offsets)
        self._filter_servers = FilterServers(context)
        filters = (
            self._filter_servers,
            FilterRequests(
                context,
                charge=lambda user, messages, nbytes: self.quota_gate.charge_elsewhere(user, messages, nbytes),
            ),
        )
        return self.locks, self.offsets, corrections, self.groups, self.subscriptions, self.pulls, rebalance, *filters

    def _waiting_messages(self, context: BrokerContext) -> tuple[Service, ...]:
        """Build the services for delayed messages, timers, schedules and transactions."""
        self.delays = LevelDelivery(context)
        self.timers = Timers(context)
        recalls = Recalls(context, timers=self.timers)
        ticks = Ticks(context)
        schedules = ScheduleRequests(context, ticks=ticks)
        self.waiting_queues = WaitingQueues(context)
        halves = HalfMessages(context, cold_reads=self.cold_reads)
        sets = StagedSets(context, places=self.waiting_queues, offsets=self.offsets)
        self.transactions = Transactions(context, halves=halves, places=self.waiting_queues, sets=sets)
        check_backs = CheckBacks(context, halves=halves, transactions=self.transactions)
        resume_check = ResumeCheck(context, records=self._records)
        of_transactions = sets, self.transactions, check_backs, resume_check
        return self.delays, self.timers, recalls, ticks, schedules, *of_transactions

    def _production(self, context: BrokerContext) -> tuple[Service, ...]:
        self.dedup = Dedup(context)
        self.retries = retries = Retries(context, places=self.waiting_queues, fencing=self.locks.fencing)
        placement = Placement(context, places=self.waiting_queues, dedup=self.dedup, transactions=self.transactions)
        self.sends = Sends(context, placement=placement, dedup=self.dedup, retries=retries)
        self.replies = Replies(context, sends=self.sends, calls=self.calls, admit=self.authentication.admit)
        return self.dedup, retries, self.sends, self.replies

    def _queries(self, context: BrokerContext) -> tuple[Service, ...]:
        self.lookup = OffsetAndTimeQueries(context, records=self._records)
        directory = str(context.settings.data_dir / INDEX_DIRECTORY)
        tier, index = context.tier, partial(KeyIndex, directory, context.replica.log, context.applied_index)
        if context.tiered_log is not None:  # until the group serves archived messages, nothing is removed
            index = partial(index, kept_from=lambda: tier.begin_pos or 0)
        self.keys = KeyQueries(context, index=index())
        self.queue_repair = QueueRepair(context)
        use = TopicUseQueries(context, records=self._records)
        return self.lookup, ManyQueues(context, lookup=self.lookup), use, self.keys, self.queue_repair

    def _bulk(self, context: BrokerContext) -> tuple[Service, ...]:
        self.leases = LogLeases(
            settings=context.settings,
            base_pos=lambda: PhysicalOffset(context.records.begin_pos),
            clock=context.clock,
        )
        return self.leases, BulkReads(context), TopicPlans(context), TopicEndQueries(context)

    def _pops(self, context: BrokerContext) -> tuple[Service, ...]:
        self.pops = Pops(
            context,
            subscriptions=self.subscriptions,
            cold_reads=self.cold_reads,
            pulls_waiting=self.pulls.polling.queue_keys,
            is_young=self.offsets.is_young,
        )
        self.retries.wake_pops = self.pops.wake
        self.lite_expiry = LiteExpiry(context, has_pops=self.pops.queues.has_work)
        self.lite_pops = LitePops(
            context, pops=self.pops, cold_reads=self.cold_reads, is_ending=self.lite_expiry.is_ending
        )
        self.lite_expiry.on_keep = self.lite_pops.on_keep
        control = LiteControl(context, pops=self.lite_pops, offset_by_time=self.lookup.offset_by_time)
        queries = LiteQueries(context, pops=self.lite_pops, store_time=self.lookup.store_time)
        self.abandoned_pops = AbandonedPops(context, pops=self.lite_pops, silent_seconds=SILENT_SECONDS)
        return self.pops, self.lite_pops, control, queries, self.lite_expiry, self.abandoned_pops

    def _administration(self, context: BrokerContext) -> tuple[Service, ...]:
        stats = Stats(context)
        usage = partial(disk_usage, context.settings.data_dir)
        self.metrics = BrokerMetrics(context, stats=stats, disk_usage=usage)
        self.group_admin = RaftMembers(context)
        self.kept_messages = KeptMessages(context.metadata, context.store)
        self._floor = RetentionFloor(context.metadata, context.store, context.wall_clock_ms)
        self.quota_gate = QuotaGate(context, requests=self.requests)
        self.retention = Retention(
            settings=context.settings,
            replica=context.replica,
            store=context.store,
            floor_pos=context.floor_pos,
            waiting_pos=self._floor.first_pos,
            kept_pos=self.kept_messages.first_pos,
            leased_pos=self.leases.first_pos,
            tier=context.tier,
            disk_usage=usage,
            free_index=self.keys.free_disk,
            wall_clock_ms=context.wall_clock_ms,
            clock=context.clock,
            boot_clock=BootClock(context.replica.log.boot_id, lambda: context.environment.wall_clock_ms.offset_ms),
            log=context.log,
            limits=context.limits.upkeep,
        )
        self.retention.plausible_ms()  # before this replica stamps messages
        group_offsets = GroupOffsets(context, offsets=self.offsets, lookup=self.lookup)
        return (
            stats,
            self.group_admin,
            Topics(context),
            DeletedTopics(context, store_time=self.lookup.store_time),
            TopicQueries(context, store_time=self.lookup.store_time),
            ConsumerGroups(context),
            group_offsets,
            Skips(context, retries=self.retries, group_offsets=group_offsets, offsets=self.offsets),
            GroupMembers(context, record_at=self.lookup.record_at),
            MembersOfManyGroups(context),
            RemovedMembers(
                context,
                notify=self.groups.notify,
                send_notice=self.groups.send_notice,
                end_waiting=(
                    self.pulls.member_removed,
                    self.pops.member_removed,
                    self.lite_pops.member_removed,
                    self.locks.member_removed,
                ),
            ),
            BrokerConfig(context, is_allowed=self.group_admin.is_allowed, on_changed=self.settings_changed),
            ReplicaStatus(
                context,
                runtime=RuntimeInfo(context, stats=stats, disk_usage=usage),
                cpu_seconds=partial(cpu_seconds, os.getpid()),
                resident_bytes=resident_bytes,
                errors_logged=LOGGED.errors,
            ),
            UserAdministration(context),
            self.quota_gate,
            QuotaRequests(context, gate=self.quota_gate),
            PendingQueries(context),
            Cleanup(context, retention=self.retention),
            TopicCompaction(
                context,
                sends=self.sends.compacted_topics,
                leased_pos=self.leases.first_pos,
                now_ms=self.retention.plausible_ms,
                wished_pos=lambda: self.retention.wished_pos,
            ),
            TopicExpiry(context, leased_pos=self.leases.first_pos, now_ms=self.retention.plausible_ms),
            LevelRaises(context),
        )

    def _replication(self, context: BrokerContext) -> tuple[Service, ...]:
        self.forwarder = Forwarder(
            context,
            authentication=self.authentication,
            repeatable=self.requests.repeatable,
            serve_locally=self.serve_as_leader,
        )
        self.forwarded_requests = ForwardedRequests(
            leader_handlers=self.requests.leader_handlers,
            leads=lambda: context.appender.is_open,
            is_elected=lambda: context.replica.is_leader,
            held_bytes_max=context.settings.forwarded_bytes_max,
            admit=self.authentication.admit,
            forward=self.forwarder.handle,
            limit_users=self.quota_gate.begin,
            log=context.log,
        )
        addresses = PeerAddresses(context, calls=self.calls, admit=self.authentication.admit)
        self.archiving = Archiving(
            context,
            calls=self.calls,
            admit=self.authentication.admit,
            now_ms=self.retention.plausible_ms,
            needed_pos=lambda: min(self._floor.first_pos(), self.kept_messages.first_pos(), self.leases.first_pos()),
        )
        archive = self.archiving, ArchiveWatch(context), QueueRefill(context)
        return self.authentication, addresses, *archive, self.forwarded_requests, self.forwarder

    # -- calls from the broker -----------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Tell all services that this replica leads, and has applied everything that earlier leaders committed."""
        for service in self._services:
            service.lead()

    def resign(self) -> None:
        """Tell all services to discard the leader's state, since this replica stops leading.

        The forwarder comes first: it then forwards the requests that other services hand back to the new leader.
        """
        for service in reversed(self._services):
            service.resign()

    def connection_closed(self, connection: ClientConnection) -> None:
        """Tell all services that a client connection was closed."""
        for service in self._services:
            service.connection_closed(connection)

    def role_changed(self, change: RoleChange) -> None:
        """Tell all services that this replica's role, term or leader changed; after `resign` if it stopped leading."""
        for service in self._services:
            service.role_changed(change)

    def members_changed(self, index: LogIndex, conf: ConfState, connections: Iterable[ClientConnection]) -> None:
        """Tell all services that entry ``index``, which changes the members of the group, was applied."""
        for service in self._services:
            service.members_changed(index, conf, connections)

    def replicas_changed(self) -> None:
        """Tell all services that the client address of a replica changed."""
        for service in self._services:
            service.replicas_changed()

    def topic_changed(self, topic: str) -> None:
        """Tell services that a topic was created, changed or deleted."""
        for topic_changed in self._topics_changed:
            topic_changed(topic)

    def consumer_group_changed(self, group: str) -> None:
        """Tell services that a consumer group was created, changed or deleted."""
        for consumer_group_changed in self._groups_changed:
            consumer_group_changed(group)

    def topic_deleted(self, topic: str) -> None:
        """Tell all services that a topic was deleted by the log entry being applied, as on every replica."""
        for service in self._services:
            service.topic_deleted(topic)

    def on_new_messages(self, queues: Iterable[tuple[str, int, bytearray]]) -> None:
        """Tell services which queues got messages: topic, queue id and new queue entries of each."""
        for topic, queue_id, entries in queues:
            for handle in self._message_watchers:
                handle(topic, queue_id, entries)

    def settings_changed(self, settings: BrokerSettings) -> None:
        """Tell services that an operator changed settings."""
        for service in self._services:
            service.settings_changed(settings)

    def filter_servers(self) -> list[str]:
        """Return the addresses of this broker's filter servers, for its route."""
        return self._filter_servers.addresses()

    def has_unsent_replies(self) -> bool:
        """Return whether requests of clients wait in a service for their responses."""
        return any(has_unsent_replies() for has_unsent_replies in self._have_unsent_replies)

    def check_invariants(self) -> None:
        """Assert the invariants of each service between two turns, for tests: slow."""
        for service in self._services:
            service.check_invariants()

    def on_stop(self) -> None:
        """Tell all services that the broker stops. Call it after the connections of clients were closed."""
        for service in self._services:
            service.on_stop()

    def counters(self) -> dict[str, int]:
        """Return the counters of all services by name, with those of the same name added up."""
        sums: Counter[str] = Counter()
        for service in self._services:
            sums.update(service.counters())
        return dict(sums)

    def serve_as_leader(self) -> None:
        """Serve all requests on this replica from now on."""
        self.requests.serve_as_leader()

    def serve_as_follower(self) -> None:
        """Forward requests that need the leader from now on."""
        self.requests.serve_as_follower(self.forwarder.handle)

    def _peer_tls(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to other replicas; None if they need no TLS."""
        certificate, settings = self._context.environment.certificate, self._context.settings
        is_enforced = settings.tls_mode == "enforcing" or settings.tls_replication == "enforcing"
        uses_tls = settings.tls_mode != "disabled" and is_enforced
        return certificate.peer_context() if certificate is not None and uses_tls else None

    def _own_queues(self, topic: str) -> Queues | None:
        """Return the readable queues of a topic in this broker group."""
        config = self._context.metadata.topics.get(topic)
        if config is None:
            return None
        count = config.read_queues if config.perm & PERM_READ else 0
        return tuple(QueueRef(topic, self._context.settings.group, number) for number in range(count))
