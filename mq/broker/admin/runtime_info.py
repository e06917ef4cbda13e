"""The figures in the response to request code 28 (GET_BROKER_RUNTIME_INFO) that RocketMQ's tools look for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.broker.admin.stats import Stats
from mq.broker.base.counters import CounterSeries
from mq.broker.base.disk import used_part
from mq.broker.context import BrokerContext
from mq.protocol.messages.delay import LEVEL_MAX
from mq.protocol.messages.records import RecordError, decode_record
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.requests.broker_figures import StockFigures
from raftlog import EntryKind, Replica, SegmentError
from raftlog.log_numbers import LogIndex, index_range
from raftlog.segment import HEADER_BYTES

_LOOK_AHEAD_ENTRIES: Final = 64


class RuntimeInfo:
    """Computes the figures of a RocketMQ broker that apply to this one.

    Args:
        disk_usage: free and total bytes of the log's disk.
    """

    def __init__(self, context: BrokerContext, *, stats: Stats, disk_usage: Callable[[], tuple[int, int]]) -> None:
        self._settings = context.settings
        self._replica = context.replica
        self._metadata = context.metadata
        self._store = context.store
        self._appender = context.appender
        self._stats = stats
        self._disk_usage = disk_usage
        self._wall_clock_ms = context.wall_clock_ms
        self._boot_ms = context.wall_clock_ms()
        self._tier = context.tier
        self._earliest: tuple[int, int] | None = None

    def figures(self) -> StockFigures:
        """Return all figures except the progress of delay levels. Raises OSError if the disk usage cannot be read."""
        free, total = self._disk_usage()
        ratio = f"{used_part(free, total):.4f}"
        stats = self._stats
        stats.refresh()
        figures, now_ms = stats.figures, stats.now_ms
        puts, gets = figures.puts, figures.gets
        get_rates = gets.rates(now_ms)
        replica = self._replica
        log = replica.log
        committed, applied = self._position(replica.commit_index), self._position(replica.applied_index)
        assert log.base_pos <= log.end_pos, f"the log begins at {log.base_pos} and ends at {log.end_pos}"
        assert applied <= committed <= log.end_pos, f"applied up to {applied}, committed {committed} of {log.end_pos}"
        return StockFigures(
            boot_timestamp=self._boot_ms,
            runtime=_duration((self._wall_clock_ms() - self._boot_ms) // 1000),
            put_tps=puts.rates(now_ms),
            get_total_tps=_both(figures.hits, figures.misses, now_ms),
            get_found_tps=figures.hits.rates(now_ms),
            get_miss_tps=figures.misses.rates(now_ms),
            get_transfered_tps=get_rates,
            get_transferred_tps=get_rates,
            msg_put_total_yesterday_morning=figures.puts_by_midnight[0],
            msg_put_total_today_morning=figures.puts_by_midnight[1],
            msg_put_total_today_now=puts.nums,
            msg_get_total_yesterday_morning=figures.gets_by_midnight[0],
            msg_get_total_today_morning=figures.gets_by_midnight[1],
            msg_get_total_today_now=gets.nums,
            put_message_times_total=puts.nums,
            put_message_size_total=puts.nbytes,
            put_message_average_size=round(puts.nbytes / puts.nums, 3) if puts.nums else 0.0,
            send_thread_pool_queue_size=self._appender.waiting_requests,
            send_thread_pool_queue_capacity=self._settings.uncommitted_bytes_max,
            pull_thread_pool_queue_capacity=self._settings.long_polls_max,
            earliest_message_time_stamp=self._earliest_ms(),
            commit_log_min_offset=self._tier.visible_pos,
            commit_log_max_offset=committed,
            dispatch_behind_bytes=committed - applied,
            remain_how_many_data_to_flush=_bytes(log.end_pos - self._position(replica.core.durable)),
            commit_log_disk_ratio=ratio,
            consume_queue_disk_ratio=ratio,
            commit_log_dir_capacity=f"Total : {_bytes(total)}, Free : {_bytes(free)}.",
        )

    def delays(self) -> dict[int, tuple[int, int]]:
        """Map each used delay level to the numbers of its delivered and of its stored messages."""
        levels: dict[int, tuple[int, int]] = {}
        for level in range(1, LEVEL_MAX + 1):
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            next_offset = self._metadata.delay_offsets.get(level, 0)
            if end or next_offset:
                levels[level] = next_offset, end
        return levels

    def _position(self, index: LogIndex) -> int:
        """Return the physical offset of the end of an entry."""
        log = self._replica.log
        if index >= log.last_index:
            return log.end_pos
        pos = log.locate(max(index + 1, log.first_index)).pos
        assert log.base_pos <= pos < log.end_pos, (
            f"entry {index} ends at {pos} of a log {log.base_pos} to {log.end_pos}"
        )
        return pos

    def _earliest_ms(self) -> int:
        """Store time of the first message in the local log; -1 if there is none near its beginning. To find the time of
        the first archived message, all indexes of the archive would be read.
        """
        log = self._replica.log
        if self._earliest is None or self._earliest[0] != log.base_pos:
            try:
                stored_ms = self._read_earliest()
            except (SegmentError, RecordError):
                stored_ms = -1  # damage of the log is reported elsewhere
            if stored_ms < 0:
                return stored_ms
            self._earliest = (log.base_pos, stored_ms)
        return self._earliest[1]

    def _read_earliest(self) -> int:
        log = self._replica.log
        last = min(self._replica.commit_index, log.first_index + _LOOK_AHEAD_ENTRIES)
        for index in index_range(log.first_index, last + 1):
            [ref, *_], data = log.read_entries(index, 1)
            if ref.kind == EntryKind.NORMAL:
                return decode_record(memoryview(data)[HEADER_BYTES:], verify=False).store_timestamp_ms
        return -1


def missing_entries(replica: Replica) -> int:
    """Return how many entries that this replica deleted early, on a full disk, are still on another replica."""
    core = replica.core
    if not core.began_early or core.oldest_base is None:
        return 0
    return max(0, replica.log.base[0] - core.oldest_base)


def _both(hits: CounterSeries, misses: CounterSeries, now_ms: int) -> str:
    pairs = zip(hits.rates(now_ms).split(), misses.rates(now_ms).split(), strict=True)
    return " ".join(str(float(one) + float(other)) for one, other in pairs)


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
