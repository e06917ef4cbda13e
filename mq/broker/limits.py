"""Limits of a broker on memory, responses and waiting times, which no operator has to set.

`BrokerLimits` is a value: the broker gets it when it is built, and each service reads its part then. Production uses
the defaults. `TEST_MIN` has the smallest values with which a broker still serves everybody, so that a simulation meets
each limit in every run. What an operator may want to change is in `mq.broker.settings` instead, and what belongs to a
format or protocol, or is never changed in a test, is a constant in the module of its code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mq.protocol.bulk import RANGES_MAX
from mq.protocol.topic_ends import ENDS_QUEUES_MAX
from raftlog.node_limits import NodeLimits

CHECKS_MAX: Final = 100
"""Maximum number of check-backs per half message; the replicated state counts no further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetLimits:
    """Limits of connections and requests."""

    reads_waiting_max: int = 100_000
    """Linearizable reads that wait for the leader; further ones fail at once."""
    client_requests_max: int = 4096
    """Requests of the broker to clients in flight, on all connections together; further ones are not sent."""
    peer_waiting_bytes_max: int = 64 * 1024 * 1024
    """A replica with this many unsent bytes is sent nothing more: requests time out, but queued frames stay."""
    slice_seconds: float = 0.005
    """Maximum time of one step of a long answer, before other work gets its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """Limits of requests that a quota of their user or topic delays."""

    delay_seconds_max: float = 1.0
    """A send waits this long at most, then it is refused. Stock clients wait for 3 s, with all attempts together."""
    held_max: int = 10_000
    held_bytes_max: int = 32 * 1024 * 1024
    """Waiting requests, and the bytes of waiting sends; further sends are refused at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeLimits:
    """Limits of pulls, offsets, queue locks and members of groups."""

    unread_bytes_max: int = 4 * 1024 * 1024
    """A client with this many bytes of unsent replies gets no further messages before it has read some; also of
    pops.
    """
    old_text_bytes_max: int = 64 * 1024
    """A pull or pop with longer texts does not wait for loading, so that all waiting ones take at most 64 MiB each."""
    old_scan_entries_max: int = 128
    old_scan_bytes_max: int = 1024 * 1024
    """Limits for an SQL92 expression on old messages, in messages and bytes: all are loaded into memory, matching or
    not.
    """
    sql_work_max: int = 100_000
    """Length of an SQL92 expression times messages, evaluated in one step: 5 ms, in which all others wait."""
    scan_entries_max: int = 800
    """Messages that one filtered request examines."""
    expire_seconds: float = 0.02
    """Interval at which pulls are answered whose time is over."""
    expire_seconds_max: float = 0.005
    """The time per call for which expired pulls are answered; the rest is answered next time."""
    repair_seconds: float = 0.25
    """A pull waits this long for a damaged queue file; then its client is told to retry, or to use another replica."""
    repair_look_seconds: float = 0.2
    """Interval at which damaged queue files are looked for."""
    cold_chunks_seen_max: int = 1024
    """Number of recently read chunks that are remembered: 256 MiB of the log."""
    cold_reads_waiting_max: int = 1024
    """Reads that wait for loading; further ones read from the disk at once."""
    commits_pending_max: int = 100_000
    """Queues with a batched commit; further one-way commits are ignored until these are replicated."""
    locks_max: int = 100_000
    """Locked queues of all groups; above it no further ones are granted, and to one host at most half of them."""
    lock_seconds: float = 60.0
    """A lock expires when its holder was not heard for this long."""
    expire_some_seconds: float = 0.1
    """Interval at which some clients and locks are checked; a hundred calls check all of them."""
    notices_at_once_max: int = 50
    """Members of a group that are notified in the turn in which it changes; in larger groups, a timer does it."""
    refresh_pause_seconds: float = 5.0
    """A client is asked for its subscriptions again after this time at the earliest, or after its next heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopLimits:
    """Limits of POP consumption."""

    checkpoints_max: int = 200_000
    """Open checkpoints of all groups; a group gets no messages while it has the number that is left for all of them."""
    checkpoints_per_queue_max: int = 10_000
    """With this many open checkpoints, a queue appears empty to its group."""
    read_bytes_max: int = 64 * 1024 * 1024
    """Bytes of messages whose pops are not committed yet; above it, clients must retry."""
    revive_seconds: float = 0.02
    """Interval at which messages are redelivered whose invisible time is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteLimits:
    """Limits of lite topics."""

    topics_max: int = 1_000_000
    """Lite topics of all topics; a message that would begin one more is refused."""
    subscriptions_max: int = 100_000
    """Subscriptions of all clients, as in RocketMQ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLimits:
    """Limits of delayed and timed messages, and of transactions."""

    deliver_seconds: float = 0.02
    """A message is late by at most this, plus the time to commit it."""
    unreadable_skipped_max: int = 1000
    """Unreadable messages of one delay level that others overtake. With more of them the disk is unusable, and another
    replica should lead.
    """
    recall_bytes_max: int = 2 * 1024 * 1024
    recall_entries_max: int = 16_384
    """The records and queue entries that the search for a recalled message reads in one step."""
    check_seconds: float = 0.1
    """Interval at which open transactions are looked at."""
    postponed_checks_max: int = 1000
    """Half messages whose check-back is postponed; at most 1000, more than that the replicated state does not take."""
    discarded_remembered_max: int = 500_000
    """Number of half messages before the first open one for which is known whether they were discarded, at least; takes
    at most 250 KB.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLimits:
    """Limits of bulk reads."""

    waiting_factor: int = 8
    """Maximum number of reads that wait for a worker, per concurrent read; the same number may wait for messages."""
    unread_bytes_max: int = 8 * 1024 * 1024
    """A client with this many bytes of unread answers gets no further ones."""
    plan_offsets_max: int = 16 * 1024
    """Maximum number of offsets in one answer to planning (128 KiB): the more queues, the fewer positions."""
    plan_queues_max: int = RANGES_MAX
    """Queues in one answer to planning; the client asks for the others again."""
    ends_queues_max: int = ENDS_QUEUES_MAX
    """Queues in one answer with the ends of queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLimits:
    """Limits of the replicated state. They must be the same on all replicas, which apply them to the same commands."""

    topics_max: int = 50_000
    groups_max: int = 10_000
    offset_tables_max: int = 200_000
    """Topics, groups, and pairs of both with consumer offsets: all of them are in memory and in every checkpoint, and
    all topics are sent to the name servers in one frame.
    """
    ranges_per_producer_max: int = 1024
    """Ranges of sequence numbers that are remembered of one producer."""
    producers_max: int = 10_000
    """Producers of numbered messages that are remembered."""
    ranges_when_crowded: int = 100
    """Ranges that a producer keeps at most, once all producers together have this many for each of `producers_max`: 20
    bytes each, in memory and in a snapshot.
    """
    generated_producers_max: int = 10_000
    generated_ranges_when_crowded: int = 50
    """The same for a producer with a generated id, which is not used again after a restart."""
    deleted_topics_max: int = 50_000
    """Deleted topics that are remembered. Above it the one that was deleted first is forgotten: a later topic of its
    name begins at offset 0.
    """
    deleted_rows_max: int = 400_000
    """The same for their queues and groups, all counted together."""
    restorable_topics_max: int = 1000
    """Deleted topics that can be restored. Above it the topic that was deleted first can no longer be restored."""
    restorable_rows_max: int = 200_000
    """The same for their queues and consumer offsets, all counted together."""
    schedules_max: int = 10_000
    schedule_bytes_max: int = 16 * 1024 * 1024
    """Schedules, and their bytes together: all of them are in memory and in every checkpoint."""
    filters_max: int = 1_000
    filter_bytes_max: int = 32 * 1024 * 1024
    """Filter programs of consumer groups, and their bytes together: as for schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepLimits:
    """Limits of statistics, retention, files and announcements."""

    traffic_series_max: int = 10_000
    """Series of traffic counters; above it, new ones count in the totals only. A series takes about a kilobyte."""
    early_checks: int = 6
    """Number of checks in a row at which the disk must be too full before files are deleted early, so that a few
    seconds delete nothing; and at which it must have room before deleted files are fetched again.
    """
    handover_checks: int = 6
    """Number of further checks during which a leader tries to hand over first."""
    announce_again_seconds: float = 10.0
    """Interval at which announcements are repeated that failed on a full disk."""
    flush_queues_seconds: float = 0.2
    """Interval at which a part of the queues is written, while the event loop waits: about 5 ms."""
    refresh_files_seconds: float = 1.0
    """Interval at which certificates and accounts are read again."""
    offset_tables_shown_max: int = 50_000
    """Pairs of group and topic in one answer with all offsets; more would exceed the size of a frame."""
    statistics_seconds_min: float = 1.0
    """Minimum time between two measurements of the queues for statistics."""
    raise_level_seconds: float = 1.0
    """Interval at which the leader looks whether the format level of the group may rise."""
    forget_topics_seconds: float = 10.0
    """Interval at which the leader looks for deleted topics without anything left to restore."""
    reseal_seconds: float = 5.0
    """Interval at which the leader looks for passwords that are sealed with an old secret."""
    summed_entries_max: int = 64 * 1024
    """Entries of queues that are read for the bytes of one topic; of longer queues, some parts count for all."""
    relay_seconds: float = 10.0
    """The time that an operator's request waits for the answer of the client that it is about."""
    push_seconds: float = 3.0
    """Time for a client to confirm a reply that is pushed to it. The replier waits as long; a replica that forwarded
    the reply to the leader waits up to 10 s, as for every forwarded request.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Limits of archiving."""

    look_seconds: float = 5.0
    """Interval at which a replica looks whether there is something to archive."""
    turn_seconds: float = 600.0
    """If nothing is archived for this long, it is the turn of the next replica."""
    silent_seconds: float = 300.0
    """A process that archives, and says nothing for this long, is killed: the store does not answer."""
    retry_seconds: float = 5.0
    retry_seconds_max: float = 60.0
    """Time until an upload that failed is tried again: the first time, and after many failures."""
    check_seconds: float = 600.0
    """Interval at which the manifest is read, if messages that are deleted locally are read from the archive."""
    tell_seconds: float = 60.0
    """Interval at which a replica tells the leader how long it is set to keep archived messages."""
    read_threads: int = 4
    """Requests to the store at a time, for readers of archived messages."""
    read_requests_max: int = 64
    """Requests that wait for these threads or are under way; above it, readers must try again."""
    read_memory_bytes: int = 64 * 1024 * 1024
    """Verified blocks of the archive in memory."""
    read_chunks_seen_max: int = 1024
    """Number of recently read megabytes that are remembered, to tell which readers read on in the log."""
    read_answer_seconds: float = 20.0
    """A request to the store for archived messages fails when no data comes for this time, and is repeated once."""
    read_wait_seconds: float = 5.0
    """A reader waits this long for the store; then it is told to try again."""
    expire_seconds: float = 0.1
    """Interval at which such readers are looked for."""
    read_retry_seconds: float = 1.0
    """The pause before a read that failed is tried again."""
    key_searches_max: int = 2
    """Searches of the archive by key under way, also those whose clients no longer wait: fewer than ``read_threads``,
    which consumers need.
    """
    key_search_seconds: float = 3.0
    key_search_bytes: int = 64 * 1024 * 1024
    """The memory and the bytes read of one search: some sixty messages that are far from each other."""
    index_retry_seconds: float = 60.0
    """The pause before the next part is copied, after one could not be copied or indexed."""
    refill_look_seconds: float = 0.1
    """Interval at which a replica looks whether its queues lack entries of archived messages."""
    read_blocks_max: int = 131_072
    """Places of blocks in memory, of all archived files whose indexes were read: about 20 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """All limits of a broker, grouped by feature."""

    net: NetLimits = field(default_factory=NetLimits)
    quota: QuotaLimits = field(default_factory=QuotaLimits)
    consume: ConsumeLimits = field(default_factory=ConsumeLimits)
    pop: PopLimits = field(default_factory=PopLimits)
    lite: LiteLimits = field(default_factory=LiteLimits)
    waiting: WaitingLimits = field(default_factory=WaitingLimits)
    bulk: BulkLimits = field(default_factory=BulkLimits)
    state: StateLimits = field(default_factory=StateLimits)
    upkeep: UpkeepLimits = field(default_factory=UpkeepLimits)
    archive: ArchiveLimits = field(default_factory=ArchiveLimits)
    node: NodeLimits = field(default_factory=NodeLimits)


DEFAULT: Final = BrokerLimits()

TEST_MIN: Final = BrokerLimits(
    net=NetLimits(reads_waiting_max=4, client_requests_max=2, peer_waiting_bytes_max=1024, slice_seconds=0.0),
    quota=QuotaLimits(delay_seconds_max=0.2, held_max=3, held_bytes_max=4096),
    consume=ConsumeLimits(
        unread_bytes_max=512,
        old_text_bytes_max=16,
        old_scan_entries_max=1,
        old_scan_bytes_max=1,
        sql_work_max=1,
        scan_entries_max=1,
        expire_seconds_max=0.0,
        repair_seconds=0.0,
        cold_chunks_seen_max=1,
        cold_reads_waiting_max=1,
        commits_pending_max=1,
        locks_max=24,
        lock_seconds=3.0,
        notices_at_once_max=0,
        refresh_pause_seconds=0.5,
    ),
    pop=PopLimits(checkpoints_max=8, checkpoints_per_queue_max=2, read_bytes_max=512),
    waiting=WaitingLimits(
        unreadable_skipped_max=1,
        recall_bytes_max=1,
        recall_entries_max=1,
        postponed_checks_max=1,
        discarded_remembered_max=8,
    ),
    bulk=BulkLimits(waiting_factor=1, unread_bytes_max=512, plan_offsets_max=4, plan_queues_max=2, ends_queues_max=2),
    state=StateLimits(
        topics_max=24,
        groups_max=10,
        offset_tables_max=24,
        ranges_per_producer_max=5,
        producers_max=16,
        ranges_when_crowded=3,
        generated_producers_max=3,
        generated_ranges_when_crowded=2,
        deleted_topics_max=4,
        deleted_rows_max=64,
        restorable_topics_max=3,
        restorable_rows_max=200,
        schedules_max=6,
        schedule_bytes_max=2500,
    ),
    upkeep=UpkeepLimits(traffic_series_max=1, early_checks=1, handover_checks=1),
)
"""For tests and simulations."""
