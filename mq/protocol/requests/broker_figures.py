"""The status of a broker (request code 28): figures with RocketMQ's names, and ours with the prefix ``raftmq.``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from mq.protocol.codes import MQ_VERSION
from mq.protocol.wire.fields import HeaderFields, camel_case, wire

OWN_PREFIX: Final = "raftmq."


class StockFigures(HeaderFields, kw_only=True, rename=wire(end_transaction_queue_size="EndTransactionQueueSize")):
    """The figures that stock tools expect: sizes in bytes, times in epoch milliseconds, rates as text of three numbers.

    A stock broker has queues in front of its thread pools. Here one thread serves requests at once, so these queues are
    reported as empty, except the queue of sends, which has the sends that wait for the next round.
    """

    broker_version_desc: str = "V4_9_8"
    broker_version: int = MQ_VERSION
    broker_active: bool = True
    boot_timestamp: int
    runtime: str
    """The process's uptime as text."""

    put_tps: str
    get_total_tps: str
    get_found_tps: str
    get_miss_tps: str
    get_transfered_tps: str
    get_transferred_tps: str
    msg_put_total_yesterday_morning: int
    msg_put_total_today_morning: int
    msg_put_total_today_now: int
    msg_get_total_yesterday_morning: int
    msg_get_total_today_morning: int
    msg_get_total_today_now: int
    put_message_times_total: int
    put_message_size_total: int
    put_message_average_size: float

    send_thread_pool_queue_size: int
    send_thread_pool_queue_capacity: int
    send_thread_pool_queue_head_wait_time_mills: int = 0
    pull_thread_pool_queue_size: int = 0
    pull_thread_pool_queue_capacity: int
    pull_thread_pool_queue_head_wait_time_mills: int = 0
    query_thread_pool_queue_size: int = 0
    query_thread_pool_queue_head_wait_time_mills: int = 0
    ack_thread_pool_queue_size: int = 0
    ack_thread_pool_queue_head_wait_time_mills: int = 0
    end_transaction_queue_size: int = 0
    page_cache_lock_time_mills: int = 0

    earliest_message_time_stamp: int
    commit_log_min_offset: int
    commit_log_max_offset: int
    dispatch_behind_bytes: int
    remain_how_many_data_to_flush: str
    remain_transient_store_buffer_numbs: int = 0
    start_accept_send_request_time_stamp: int = 0
    commit_log_disk_ratio: str
    consume_queue_disk_ratio: str
    commit_log_dir_capacity: str


def delay_progress(levels: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """Format the figures of the delay levels: for each, the offset of the next delivery and the end of the queue."""
    return {f"scheduleMessageOffset_{level}": f"{offset},{end}" for level, (offset, end) in levels.items()}


class OwnFigures(HeaderFields, rename=lambda name: OWN_PREFIX + camel_case(name)):
    """Our own figures of a replica. Positions are physical offsets."""

    cluster: str
    group: str
    node_id: str
    role: str
    term: int
    leader_id: str
    """Empty if unknown."""
    last_index: int
    commit_index: int
    applied_index: int
    durable_index: int
    commit_position: int
    base_index: int
    base_position: int
    end_position: int
    priority: int
    abstaining: bool
    disk_used: str
    members: str
    """JSON: the role of each member."""
    durability: str
    software_version: str
    replication_versions: str
    """``oldest-newest``."""
    format_level: int
    format_level_newest: int
    format_level_max: int
    access_control: str
    """``on`` or ``off``."""
    cpu_ms: int
    resident_bytes: int
    wall_clock_ms: int
    """The replica's clock, in milliseconds since 1970, when it answered."""
    missing_entries: int
    """Entries that it deleted early, on a full disk, and that another replica still has."""
    certificate_expires_ms: int
    """Expiry of its TLS certificate, in milliseconds since 1970; 0 without one."""
    errors_logged: str
    """JSON: how often each log event of level error or critical was logged since the start of the process."""
    peers: str
    """JSON with a `PeerFigures` for each peer, on a leader."""


class PeerFigures(msgspec.Struct, rename=wire()):
    """The progress of another replica, as the leader knows it."""

    match_index: int
    active: bool
    state: str


def counter_figures(counters: Mapping[str, int]) -> dict[str, str]:
    """Convert a broker's counters to figures. In a name, the part after a dot is a client's name and stays as it is."""
    figures: dict[str, str] = {}
    for name, value in counters.items():
        ours, dot, client = name.partition(".")
        figures[f"{OWN_PREFIX}{camel_case(ours)}{dot}{client}"] = str(value)
    return figures
