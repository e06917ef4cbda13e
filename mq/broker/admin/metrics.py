"""Metrics of a broker for Prometheus, under our names and, where RocketMQ 5 has a metric, under its name.

Only the leader exports those by RocketMQ's names, as only the master does in RocketMQ, so a sum over all replicas is
right. Messages delivered to consumers are counted by the replica that served them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from mq.broker.admin.group_offsets import pulled_and_consumed
from mq.broker.admin.runtime_info import missing_entries
from mq.broker.admin.stats import Stats
from mq.broker.context import BrokerContext
from mq.monitoring.families import Families, Family, Histogram, Kind, Sample
from mq.protocol.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from mq.protocol.numbers import FIRST_OFFSET
from raftlog import Role
from raftlog.latency_histogram import BOUNDS

_SLICE: Final = 32
"""Groups or topics processed between two yields."""
_QUEUES_IN_STEP: Final = 256
"""Queues of groups processed between two yields; one topic may have a thousand."""


class _Metric(NamedTuple):
    """Defines how a counter of `Service.counters` is exported: its name, type, help text and scale."""

    name: str
    kind: Kind
    help: str
    scale: float = 1.0


_G: Final = Kind.GAUGE
_C: Final = Kind.COUNTER
BY_COUNTER: Final[Mapping[str, _Metric]] = {
    "connections": _Metric("raftmq_client_connections", _G, "Open connections of clients and of other replicas."),
    "connections_refused": _Metric(
        "raftmq_client_connections_refused",
        _C,
        "Connections closed at once: connections_max or the file descriptors were reached.",
    ),
    "connections_dropped": _Metric(
        "raftmq_client_connections_dropped", _C, "Connections closed because the client read or wrote too slowly."
    ),
    "requests_refused": _Metric(
        "raftmq_requests_refused",
        _C,
        "Requests answered with an error: wrong, not allowed, or while this replica was busy or its disk full.",
    ),
    "requests_failed": _Metric(
        "raftmq_requests_failed", _C, "Requests that failed in this replica, as when its log cannot be read."
    ),
    "tls_failures": _Metric("raftmq_tls_failures", _C, "Connections closed after a TLS error of the client."),
    "unfinished_bytes": _Metric("raftmq_requests_incomplete_bytes", _G, "Bytes of partly received requests."),
    "unfinished_waiting": _Metric(
        "raftmq_requests_incomplete_waiting", _G, "Clients whose requests wait for receive memory."
    ),
    "unread_bytes": _Metric("raftmq_replies_unread_bytes", _G, "Bytes of replies that clients have not read."),
    "unread_waiting": _Metric(
        "raftmq_replies_unread_waiting", _G, "Clients that must read replies before the broker reads their requests."
    ),
    "messages": _Metric("raftmq_messages_appended", _C, "Messages appended to the log by this replica as the leader."),
    "messages_compiled": _Metric(
        "raftmq_messages_appended_compiled", _C, "Appended messages that the compiled send path received."
    ),
    "elections": _Metric("raftmq_elections_won", _C, "Elections won by this replica."),
    "pending_bytes": _Metric(
        "raftmq_messages_unacknowledged_bytes", _G, "Bytes of pending writes: messages not acknowledged yet."
    ),
    "clock_jumps": _Metric("raftmq_clock_jumps", _C, "Jumps of the machine's clock by more than a second."),
    "clock_disbelieved_ms": _Metric(
        "raftmq_clock_disbelieved_seconds", _G, "How far the machine's clock is ahead of the time that is used.", 1e-3
    ),
    "held_pulls": _Metric("raftmq_pulls_waiting", _G, "Pulls that wait for messages."),
    "held_bytes": _Metric("raftmq_pulls_waiting_bytes", _G, "Memory of pulls and pops that wait for messages."),
    "filter_servers": _Metric("raftmq_filter_servers", _G, "Filter servers that are registered at this broker."),
    "filter_programs": _Metric("raftmq_filter_programs_kept", _G, "Filter programs of consumer groups."),
    "filter_program_bytes": _Metric("raftmq_filter_programs_kept_bytes", _G, "Size of these programs."),
    "longest_delay_ms": _Metric(
        "raftmq_event_loop_delay_max_seconds", _G, "The longest delay of the event loop in the last minute.", 1e-3
    ),
    "bulk_reads": _Metric("raftmq_bulk_reads", _C, "Bulk reads served, such as reads of Spark."),
    "bulk_reads_behind": _Metric(
        "raftmq_bulk_reads_refused_behind", _C, "Bulk reads refused: this replica was behind."
    ),
    "bulk_reads_busy": _Metric("raftmq_bulk_reads_refused_busy", _C, "Bulk reads refused: too many were running."),
    "bulk_reads_damaged": _Metric("raftmq_bulk_reads_refused_damaged", _C, "Bulk reads refused: the log was damaged."),
    "bulk_reads_waiting": _Metric("raftmq_bulk_reads_waiting", _G, "Bulk reads in the wait queue."),
    "log_leases": _Metric("raftmq_log_leases", _G, "Leases with which readers keep segment files from retention."),
    "archive_index": _Metric("raftmq_archive_index", _G, "Up to this entry the log is archived."),
    "archive_begin_pos": _Metric(
        "raftmq_archive_begin_position", _G, "Archived messages are served from this physical offset on."
    ),
    "archive_lag_bytes": _Metric("raftmq_archive_lag_bytes", _G, "Bytes of complete log files that are not archived."),
    "archive_lag_ms": _Metric(
        "raftmq_archive_lag_seconds", _G, "How long complete log files wait since something was last archived.", 1e-3
    ),
    "archive_uploaded_bytes": _Metric(
        "raftmq_archive_uploaded_bytes", _C, "Bytes of the log that this replica has archived."
    ),
    "archive_failures": _Metric("raftmq_archive_failures", _C, "Failed attempts of this replica to archive."),
    "archive_kept_seconds": _Metric(
        "raftmq_archive_kept_seconds", _G, "How long this replica is set to keep archived messages; 0 for ever."
    ),
    "archive_kept_bytes": _Metric(
        "raftmq_archive_kept_bytes", _G, "How many bytes of the archive this replica is set to keep; 0 for all."
    ),
    "archive_kept_unknown": _Metric(
        "raftmq_archive_kept_unknown",
        _G,
        "Replicas that have not told the leader how long to keep archived messages; nothing is deleted meanwhile.",
    ),
    "archive_refill_bytes_left": _Metric(
        "raftmq_archive_refill_bytes_left",
        _G,
        "Bytes of the archive whose messages the queues of this replica still lack; it reads them in the background.",
    ),
    "archive_refilled_entries": _Metric(
        "raftmq_archive_refilled_entries", _C, "Queue entries that this replica has read from the archive."
    ),
    "archive_reads_waiting": _Metric(
        "raftmq_archive_reads_waiting", _G, "Requests of clients that wait for messages from the archive."
    ),
    "archive_read_bytes": _Metric(
        "raftmq_archive_read_bytes", _C, "Bytes that were read from the archive or its cache."
    ),
    "archive_read_failures": _Metric("raftmq_archive_read_failures", _C, "Failed attempts to read the archive."),
    "archive_reads_refused": _Metric(
        "raftmq_archive_reads_refused", _C, "Reads of the archive that were put off because too many others waited."
    ),
    "archive_cache_bytes": _Metric("raftmq_archive_cache_bytes", _G, "Bytes of the archive in the cache on the disk."),
    "locked_queues": _Metric("raftmq_queues_locked", _G, "Queues locked by a member of a consumer group."),
    "fenced_commits": _Metric(
        "raftmq_offset_commits_fenced", _C, "Offset commits refused: the client had lost the lock of the queue."
    ),
    "held_pops": _Metric("raftmq_pops_waiting", _G, "Pops that wait for messages."),
    "pop_checkpoints": _Metric("raftmq_pops_open", _G, "Pops with unacknowledged messages."),
    "pop_revived": _Metric(
        "raftmq_pop_messages_redelivered",
        _C,
        "Popped messages redelivered: not acknowledged within their invisible time.",
    ),
    "pop_lost": _Metric(
        "raftmq_pop_messages_expired", _C, "Popped messages not redelivered: retention had deleted them."
    ),
    "pop_given_below": _Metric(
        "raftmq_pop_messages_of_lower_priority",
        _C,
        "Popped messages of lower priorities that were due by lower_priorities_percent.",
    ),
    "held_lite_pops": _Metric("raftmq_lite_pops_waiting", _G, "Pops of lite topics that wait for messages."),
    "lite_topics": _Metric("raftmq_lite_topics", _G, "Lite topics."),
    "lite_subscriptions": _Metric("raftmq_lite_subscriptions", _G, "Subscriptions of clients to lite topics."),
    "lite_expired": _Metric("raftmq_lite_topics_expired", _C, "Lite topics that ended, since this replica leads."),
    "topic_messages_expired": _Metric(
        "raftmq_topic_messages_expired",
        _C,
        "Messages that expired by reserve.time of their topic, since this replica leads.",
    ),
    "compacted_keys": _Metric("raftmq_compacted_keys", _G, "Keys of compacted topics that the leader remembers."),
    "compacted_messages_unread": _Metric(
        "raftmq_compacted_messages_unread",
        _G,
        "Messages of compacted topics whose keys the leader does not know yet.",
    ),
    "compacted_messages_carried": _Metric(
        "raftmq_compacted_messages_carried",
        _C,
        "Newest messages of keys that were stored again, since this replica leads.",
    ),
    "compacted_messages_expired": _Metric(
        "raftmq_compacted_messages_expired",
        _C,
        "Messages of compacted topics that were deleted since this replica leads.",
    ),
    "quota_delayed": _Metric("raftmq_quota_requests_delayed", _C, "Requests that waited since a quota was used up."),
    "quota_refused": _Metric("raftmq_quota_requests_refused", _C, "Requests refused since a quota was used up."),
    "quota_held": _Metric("raftmq_quota_requests_waiting", _G, "Requests that wait since a quota is used up."),
    "quota_throttled": _Metric("raftmq_quota_throttled", _G, "Users and topics throttled within the last minute."),
    "lite_pops_forgotten": _Metric(
        "raftmq_lite_pops_forgotten", _C, "Open pops of groups without clients that were forgotten to make room."
    ),
    "repeated_sends": _Metric("raftmq_sends_deduplicated", _C, "Numbered sends that were deduplicated."),
    "replies_pushed": _Metric("raftmq_replies_pushed", _C, "Replies pushed to the requesting producer."),
    "replies_relayed": _Metric("raftmq_replies_relayed", _C, "Replies pushed through another replica."),
    "replies_not_pushed": _Metric(
        "raftmq_replies_failed", _C, "Replies not pushed: the producer was not found or did not confirm."
    ),
    "replies_under_way_bytes": _Metric("raftmq_replies_waiting_bytes", _G, "Bytes of replies in flight."),
    "log_scrubs": _Metric(
        "raftmq_log_scrubs", _C, "Passes in which the whole log was read from the disk and verified."
    ),
    "log_scrubbed_bytes": _Metric("raftmq_log_scrubbed_bytes", _C, "Bytes of the log that were intact in such passes."),
    "queue_blocks_restored": _Metric(
        "raftmq_queue_blocks_restored", _C, "Damaged consume queue blocks restored from the log."
    ),
    "forwarded_taken": _Metric(
        "raftmq_forwarded_requests_served", _C, "Forwarded requests that this replica served as the leader."
    ),
    "forwarded_sends": _Metric("raftmq_forwarded_sends", _C, "Sends forwarded to the leader."),
    "forwarded_offsets": _Metric("raftmq_forwarded_offset_commits", _C, "Offset commits forwarded to the leader."),
    "forwarded_others": _Metric("raftmq_forwarded_other_requests", _C, "Other requests forwarded to the leader."),
    "forwarded_bytes": _Metric("raftmq_forwarded_bytes", _C, "Bytes of requests forwarded to the leader."),
    "forwarded_waiting": _Metric("raftmq_forwarded_waiting", _G, "Forwarded requests without an answer yet."),
    "forwarded_refused": _Metric(
        "raftmq_forwarded_refused", _C, "Forwarded requests refused: no leader accepted them in time."
    ),
    "forwarded_retried": _Metric("raftmq_forwarded_retried", _C, "Forwarded requests that were retried."),
    "forwarded_unknown": _Metric("raftmq_forwarded_unknown", _C, "Forwarded requests with an unknown outcome."),
    "delayed_pending": _Metric("raftmq_delayed_messages", _G, "Pending messages of delay levels."),
    "delayed_unreadable": _Metric("raftmq_delayed_messages_unreadable", _G, "Due messages that the disk cannot read."),
    "delayed_delivered": _Metric("raftmq_delayed_messages_delivered", _C, "Delayed messages delivered."),
    "delayed_dropped": _Metric("raftmq_delayed_messages_dropped", _C, "Delayed messages dropped: topic deleted."),
    "delayed_expired": _Metric("raftmq_delayed_messages_expired", _C, "Delayed messages lost to a full disk."),
    "timers_pending": _Metric("raftmq_timers", _G, "Pending timed messages."),
    "timers_delivered": _Metric("raftmq_timers_delivered", _C, "Timed messages delivered."),
    "timers_unreadable": _Metric("raftmq_timers_unreadable", _G, "Due timed messages that the disk cannot read."),
    "timers_late_ms": _Metric("raftmq_timers_late_seconds", _G, "Delay of the last delivered timed message.", 1e-3),
    "timers_rolled": _Metric("raftmq_timers_rolled", _C, "Timed messages stored again for another day."),
    "timers_recalled": _Metric("raftmq_timers_recalled", _C, "Timed messages recalled."),
    "timers_dropped": _Metric("raftmq_timers_dropped", _C, "Timed messages dropped: topic deleted."),
    "timers_expired": _Metric("raftmq_timers_expired", _C, "Timed messages lost to a full disk."),
    "schedules": _Metric("raftmq_schedules", _G, "Schedules, also paused ones."),
    "schedules_unusable": _Metric("raftmq_schedules_unusable", _G, "Schedules whose rule the leader cannot read."),
    "schedule_ticks_sent": _Metric("raftmq_schedule_ticks", _C, "Messages sent by schedules."),
    "schedule_ticks_skipped": _Metric("raftmq_schedule_ticks_skipped", _C, "Ticks of schedules that were not sent."),
    "schedule_ticks_late_ms": _Metric("raftmq_schedule_ticks_late_seconds", _G, "Delay of the last tick.", 1e-3),
    "transactions_open": _Metric("raftmq_transactions_open", _G, "Half messages neither committed nor rolled back."),
    "transactions_put_off": _Metric("raftmq_transactions_check_postponed", _G, "Half messages with a postponed check."),
    "transactions_committed": _Metric("raftmq_transactions_committed", _C, "Transactions committed."),
    "transactions_rolled_back": _Metric("raftmq_transactions_rolled_back", _C, "Transactions rolled back."),
    "transactions_ended_again": _Metric(
        "raftmq_transactions_ended_again", _C, "Transactions ended again, without effect."
    ),
    "transaction_sets_staged": _Metric(
        "raftmq_transaction_sets_staged", _C, "Transactions of several messages stored as half messages."
    ),
    "transactions_given_up": _Metric("raftmq_transactions_given_up", _C, "Transactions given up after the last check."),
    "transactions_expired": _Metric("raftmq_transactions_expired", _C, "Half messages deleted by retention."),
    "transactions_resumed": _Metric("raftmq_transactions_resumed", _C, "Given-up transactions resumed by an operator."),
    "transaction_checks": _Metric("raftmq_transaction_checks", _C, "Check-back requests sent to producers."),
    "transaction_checks_unanswerable": _Metric(
        "raftmq_transaction_checks_unanswerable", _C, "Check-backs for which no producer of the group was connected."
    ),
}
"""Our own metrics by counter. Every counter has a row, except those of `_BY_PREFIX`."""

_BY_PREFIX: Final = {
    "bulk_rows_as_": (
        "raftmq_bulk_rows",
        "as",
        "Messages sent to bulk readers, by role of this replica and by client.",
    ),
    "bulk_bytes_as_": (
        "raftmq_bulk_bytes",
        "as",
        "Bytes sent to bulk readers, by role of this replica and by client.",
    ),
    "popped_level_": (
        "raftmq_priority_messages_popped",
        "level",
        "Messages that pops took by their priority, by level; 10+ is level 10 and all above.",
    ),
}
"""Families of counters whose names have these prefixes: name, label and help. The rest is the value of the label."""


_NAMES: Final = [metric.name for metric in BY_COUNTER.values()] + [name for name, _, _ in _BY_PREFIX.values()]
assert len({*_NAMES}) == len(_NAMES), f"{len(_NAMES)} counters have {len({*_NAMES})} names of metrics"


class BrokerMetrics:
    """Collects the metrics of one broker.

    Args:
        disk_usage: free and total bytes of the log's disk.
    """

    def __init__(self, context: BrokerContext, *, stats: Stats, disk_usage: Callable[[], tuple[int, int]]) -> None:
        self._context = context
        self._settings = context.settings
        self._stats = stats
        self._disk_usage = disk_usage
        settings = context.settings
        self.labels: Mapping[str, str] = {
            "cluster": settings.cluster,
            "group": settings.group,
            "node": settings.node_id,
        }
        self._rocketmq = {"cluster": settings.cluster, "node_type": "broker", "node_id": settings.group}
        self._common = (*self._rocketmq.values(),)

    def collect(self) -> Generator[None, None, Families]:
        """Build all metrics in steps of less than a millisecond. Raises OSError from the disk."""
        families: list[Family | Histogram] = []
        for some in (self._raft, self._counters, self._log):
            families += some()
            yield
        room = self._settings.metrics_series_max
        excess_count = 0
        if self._context.appender.is_open:
            excess_count = 2 * max(0, len(self._context.metadata.consumer_offsets) - room)  # see `_lag`
            for gather in (self._topics, self._lag, self._connections):
                more = yield from gather()
                cut_families, excess = _within(more, room)
                families += cut_families
                excess_count += excess
                room -= sum(len(family.samples) for family in cut_families)
        more = yield from self._consumption()
        cut_families, excess = _within(more, room)
        families += cut_families
        families.append(
            self._own("raftmq_metrics_series_dropped", Kind.GAUGE, "Series left out: metrics_series_max was reached.")(
                excess_count + excess
            )
        )
        return families

    # -- metrics of the replica ----------------------------------------------------------------------------------------

    def _own(self, name: str, kind: Kind, text: str) -> Callable[[float], Family]:
        return lambda value: Family(name, kind, text, (*self.labels,), [((*self.labels.values(),), value)])

    def _raft(self) -> Iterator[Family | Histogram]:
        replica = self._context.replica
        core = replica.core
        status = core.status()
        own, labels, values = self._own, (*self.labels,), (*self.labels.values(),)
        yield own("raftmq_raft_term", _G, "Current term.")(core.term)
        roles = [((*values, role.name.lower()), float(core.role is role)) for role in Role]
        yield Family("raftmq_raft_role", _G, "1 for the current role of this replica.", (*labels, "role"), roles)
        yield own("raftmq_raft_has_leader", _G, "1 if this replica knows a leader, else 0.")(core.leader_id is not None)
        yield own("raftmq_raft_last_index", _G, "Index of the last entry.")(core.last_index)
        yield own("raftmq_raft_commit_index", _G, "Index of the last committed entry.")(replica.commit_index)
        yield own("raftmq_raft_applied_index", _G, "Index of the last applied entry.")(replica.applied_index)
        yield own("raftmq_raft_durable_index", _G, "Index of the last entry synced here.")(core.durable)
        yield own("raftmq_raft_voters", _G, "Replicas that vote.")(len(status.conf.voters))
        yield own("raftmq_raft_abstaining", _G, "1 if this replica abstains from votes, else 0.")(status.abstaining)
        peers = status.peers
        behind: list[Sample] = [((*values, peer.peer), max(0, core.last_index - peer.match)) for peer in peers]
        yield Family(
            "raftmq_raft_follower_lag_entries", _G, "Lag of a follower in entries.", (*labels, "follower"), behind
        )
        active: list[Sample] = [((*values, peer.peer), float(peer.active)) for peer in peers]
        yield Family(
            "raftmq_raft_follower_active",
            _G,
            "1 if a follower has answered recently, else 0.",
            (*labels, "follower"),
            active,
        )
        latency = self._context.environment.sync_latency
        if latency is not None:
            text = "Latency of a log write with its sync."
            yield Histogram(
                "raftmq_log_sync_seconds", text, labels, values, BOUNDS, tuple(latency.counts), latency.total
            )

    def _log(self) -> Iterator[Family]:
        log = self._context.replica.log
        free, total = self._disk_usage()
        own = self._own
        yield own("raftmq_log_bytes", _G, "Bytes of the log.")(log.end_pos - log.base_pos)
        yield own("raftmq_log_first_index", _G, "Index of the first entry in the log.")(log.first_index)
        text = "Entries that this replica deleted early, on a full disk, and that another replica still has."
        yield own("raftmq_log_missing_entries", _G, text)(missing_entries(self._context.replica))
        yield own("raftmq_disk_free_bytes", _G, "Free bytes of the disk with the log.")(free)
        yield own("raftmq_disk_bytes", _G, "Size of the disk with the log.")(total)
        yield own("raftmq_topics", _G, "Topics, including system topics.")(len(self._context.metadata.topics))
        yield own("raftmq_consumer_groups", _G, "Configured consumer groups.")(len(self._context.metadata.groups))
        yield Family(
            "raftmq_durability",
            _G,
            "1 for the configured durability.",
            (*self.labels, "durability"),
            [((*self.labels.values(), self._settings.durability), 1.0)],
        )

    def _counters(self) -> Iterator[Family]:
        families: dict[str, list[Sample]] = {prefix: [] for prefix in _BY_PREFIX}
        for name, value in self._context.counters().items():
            counter = BY_COUNTER.get(name)
            if counter is not None:
                yield self._own(counter.name, counter.kind, counter.help)(value * counter.scale)
                continue
            for prefix, samples in families.items():
                if name.startswith(prefix):
                    rest = name.removeprefix(prefix)
                    samples.append(((*self.labels.values(), rest[0].upper() + rest[1:]), value))
        for prefix, (name, label, text) in _BY_PREFIX.items():
            yield Family(name, Kind.COUNTER, text, (*self.labels, label), families[prefix])

    # -- metrics by RocketMQ's names -----------------------------------------------------------------------------------

    def _family(self, name: str, kind: Kind, text: str, labels: tuple[str, ...], samples: list[Sample]) -> Family:
        """Make a family; ``samples`` have the values of the common labels before the values of ``labels``."""
        return Family(f"rocketmq_{name}", kind, text, (*self._rocketmq, *labels), samples)

    def _topics(self) -> Generator[None, None, list[Family]]:
        put: list[Sample] = []
        put_bytes: list[Sample] = []
        dead: list[Sample] = []
        for number, (topic, series) in enumerate(list(self._stats.figures.by_topic.items())):
            if number % _SLICE == 0:
                yield
            if topic.startswith(DEAD_LETTER_PREFIX):
                dead.append(((*self._common, topic.removeprefix(DEAD_LETTER_PREFIX)), series.nums))
            assert series.nums >= 0, f"{series.nums} messages of the topic {topic} were put"
            values = (*self._common, topic, _bool(is_system_topic(topic)))
            put.append((values, series.nums))
            put_bytes.append((values, series.nbytes))
        labels = ("topic", "is_system")
        log = self._context.replica.log
        return [
            self._family("storage_size", _G, "Bytes of the log.", (), [(self._common, log.end_pos - log.base_pos)]),
            self._family("messages_in", _C, "Messages stored.", labels, put),
            self._family("throughput_in", _C, "Bytes of messages stored.", labels, put_bytes),
            self._family(
                "send_to_dlq_messages", _C, "Messages moved to the dead letter topic.", ("consumer_group",), dead
            ),
        ]

    def _consumption(self) -> Generator[None, None, list[Family]]:
        samples: list[Sample] = []
        got_bytes: list[Sample] = []
        for number, ((topic, group), series) in enumerate(list(self._stats.figures.by_group.items())):
            if number % _SLICE == 0:
                yield
            values = self._of_group(topic, group)
            assert series.nums >= 0, f"{group} got {series.nums} messages of the topic {topic}"
            samples.append((values, series.nums))
            got_bytes.append((values, series.nbytes))
        labels = ("topic", "consumer_group", "is_retry", "is_system")
        return [
            self._family("messages_out", _C, "Messages sent to consumers.", labels, samples),
            self._family("throughput_out", _C, "Bytes of messages sent to consumers.", labels, got_bytes),
        ]

    def _lag(self) -> Generator[None, None, list[Family]]:
        """Compute the lag of each group in messages, as `mqadmin consumerProgress` does, and offsets beyond the end."""
        metadata, store = self._context.metadata, self._context.store
        pops = metadata.pops.queues
        # Skip what would exceed the limit anyway: a thousand groups may consume a thousand topics each.
        pairs = islice(metadata.consumer_offsets.items(), self._settings.metrics_series_max)
        lag: list[Sample] = []
        in_flight: list[Sample] = []
        beyond_end: list[Sample] = []
        queues = 0
        for (group, topic), offsets in list(pairs):
            if queues >= _QUEUES_IN_STEP:
                yield
                queues = 0
            queues += 1
            config = metadata.topics.get(topic)
            if config is None:
                continue
            queues += config.read_queues
            behind = in_flight_count = beyond = 0
            for queue_id in range(config.read_queues):
                pulled = consumed = offsets.get(queue_id, FIRST_OFFSET)
                if (open_of := pops.get((group, topic, queue_id))) is not None:
                    pulled, consumed = pulled_and_consumed(pulled, open_of)
                    in_flight_count += pulled - consumed
                distance = store.max_offset(topic, queue_id) - consumed
                if distance >= 0:
                    behind += distance
                else:
                    beyond -= distance
            assert min(behind, in_flight_count, beyond) >= 0, (
                f"{group} lags {behind}, {in_flight_count} popped, {beyond} beyond the end"
            )
            values = self._of_group(topic, group)
            lag.append((values, behind))
            in_flight.append((values, in_flight_count))
            if beyond:
                beyond_end.append((values, beyond))
        labels = ("topic", "consumer_group", "is_retry", "is_system")
        return [
            self._family("consumer_lag_messages", _G, "Consumer lag in messages.", labels, lag),
            self._family("consumer_inflight_messages", _G, "Messages popped and not acknowledged.", labels, in_flight),
            self._family(
                "consumer_beyond_end_messages", _G, "How far offsets are beyond the end of queues.", labels, beyond_end
            ),
        ]

    def _connections(self) -> Generator[None, None, list[Family]]:
        """Count this replica's connected clients by group, from heartbeats."""
        clients = self._context.clients
        producers: list[Sample] = []
        counts: dict[str, int] = {}
        for number, (name, members) in enumerate(list(clients.producer_groups())):
            if number % _SLICE == 0:
                yield
            producers.append(((*self._common, name), len(members)))
        for number, group in enumerate(list(clients.consumer_groups())):
            if number % _SLICE == 0:
                yield
            counts[group.name] = len(group.members)
        for name, count in clients.proxied_clients.counts():
            counts[name] = counts.get(name, 0) + count
        consumers: list[Sample] = [((*self._common, name), count) for name, count in counts.items()]
        return [
            self._family("producer_connections", _G, "Producers by group.", ("producer_group",), producers),
            self._family("consumer_connections", _G, "Consumers by group.", ("consumer_group",), consumers),
        ]

    def _of_group(self, topic: str, group: str) -> tuple[str, ...]:
        is_retry, is_system = _bool(topic.startswith(RETRY_PREFIX)), _bool(is_system_topic(topic))
        return *self._common, topic, group, is_retry, is_system


def _within(families: list[Family], room: int) -> tuple[list[Family], int]:
    """Cut the families to ``room`` samples in total. Returns them and the number of samples left out."""
    room_before = room
    cut_families: list[Family] = []
    excess = 0
    for family in families:
        samples = family.samples[: max(0, room)]
        room -= len(samples)
        excess += len(family.samples) - len(samples)
        cut_families.append(family._replace(samples=samples))
    assert room >= min(room_before, 0), f"{room_before - room} samples are kept; maximum: {room_before}"
    return cut_families, excess


def _bool(value: bool) -> str:
    return "true" if value else "false"
