"""The figures of GET_BROKER_RUNTIME_INFO (request code 28) that stock tools look for, by RocketMQ's names.

What a stock broker queues for its threads is served here by one thread at once: those queues are empty, but for the
sends that wait for the next round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mq.broker.admin.stats import Stats
from mq.broker.base.counters import CounterSeries
from mq.broker.context import BrokerContext
from mq.protocol.delay import LEVEL_MAX
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.records import RecordError, decode_record
from raftlog import EntryKind, SegmentError
from raftlog.segment import HEADER_BYTES

_LOOK_AHEAD_ENTRIES: Final = 64


class RuntimeInfo:
    """What a stock broker says of itself, as this one knows it.

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
        self._earliest: tuple[int, int] | None = None

    def table(self) -> dict[str, str]:
        """Everything as name and text. Raises OSError when the disk cannot be asked."""
        free, total = self._disk_usage()
        ratio = f"{1 - free / total:.4f}" if total else "0"
        return {
            "bootTimestamp": str(self._boot_ms),
            "runtime": _duration((self._wall_clock_ms() - self._boot_ms) // 1000),
            **self._traffic(),
            **self._waiting(),
            **self._log(),
            **self._delays(),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_bytes(total)}, Free : {_bytes(free)}.",
            "brokerActive": "true",
        }

    def _traffic(self) -> dict[str, str]:
        stats = self._stats
        stats.look()
        figures, now_ms = stats.figures, stats.now_ms
        puts, gets = figures.puts, figures.gets
        transferred = gets.rates(now_ms)
        return {
            "putTps": puts.rates(now_ms),
            "getTotalTps": _both(figures.found, figures.missed, now_ms),
            "getFoundTps": figures.found.rates(now_ms),
            "getMissTps": figures.missed.rates(now_ms),
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "msgPutTotalYesterdayMorning": str(figures.puts_by_midnight[0]),
            "msgPutTotalTodayMorning": str(figures.puts_by_midnight[1]),
            "msgPutTotalTodayNow": str(puts.nums),
            "msgGetTotalYesterdayMorning": str(figures.gets_by_midnight[0]),
            "msgGetTotalTodayMorning": str(figures.gets_by_midnight[1]),
            "msgGetTotalTodayNow": str(gets.nums),
            "putMessageTimesTotal": str(puts.nums),
            "putMessageSizeTotal": str(puts.nbytes),
            "putMessageAverageSize": str(round(puts.nbytes / puts.nums, 3) if puts.nums else 0.0),
        }

    def _waiting(self) -> dict[str, str]:
        waiting = {"send": len(self._appender.pending), "pull": 0, "query": 0, "ack": 0}
        table = {"pageCacheLockTimeMills": "0", "EndTransactionQueueSize": "0"}
        for kind, count in waiting.items():
            table[f"{kind}ThreadPoolQueueSize"] = str(count)
            table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table["sendThreadPoolQueueCapacity"] = str(self._settings.pending_bytes_max)
        table["pullThreadPoolQueueCapacity"] = str(self._settings.held_pulls_max)
        return table

    def _log(self) -> dict[str, str]:
        replica = self._replica
        log = replica.log
        committed = self._position(replica.commit_index)
        return {
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "commitLogMinOffset": str(log.base_pos),
            "commitLogMaxOffset": str(committed),
            "dispatchBehindBytes": str(committed - self._position(replica.applied_index)),
            "remainHowManyDataToFlush": _bytes(log.end_pos - self._position(replica.core.durable)),
            "remainTransientStoreBufferNumbs": "0",
            "startAcceptSendRequestTimeStamp": "0",
        }

    def _position(self, index: int) -> int:
        """Where the entry behind this one begins."""
        log = self._replica.log
        return log.end_pos if index >= log.last_index else log.locate(max(index + 1, log.first_index)).pos

    def _earliest_ms(self) -> int:
        """When the first message of the log was stored; -1 if there is none near its beginning."""
        log = self._replica.log
        if self._earliest is None or self._earliest[0] != log.base_pos:
            try:
                found = self._read_earliest()
            except (SegmentError, RecordError):
                found = -1  # a damaged log says so itself
            if found < 0:
                return found
            self._earliest = (log.base_pos, found)
        return self._earliest[1]

    def _read_earliest(self) -> int:
        log = self._replica.log
        last = min(self._replica.commit_index, log.first_index + _LOOK_AHEAD_ENTRIES)
        for index in range(log.first_index, last + 1):
            [ref, *_], data = log.read_entries(index, 1)
            if ref.kind == EntryKind.NORMAL:
                return decode_record(memoryview(data)[HEADER_BYTES:], verify=False).store_timestamp_ms
        return -1

    def _delays(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for level in range(1, LEVEL_MAX + 1):
            end = self._store.max_offset(SCHEDULE_TOPIC, level - 1)
            delivered = self._metadata.delay_offsets.get(level, 0)
            if end or delivered:
                table[f"scheduleMessageOffset_{level}"] = f"{delivered},{end}"
        return table


def _both(found: CounterSeries, missed: CounterSeries, now_ms: int) -> str:
    pairs = zip(found.rates(now_ms).split(), missed.rates(now_ms).split(), strict=True)
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
