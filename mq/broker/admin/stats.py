"""Request code 315 (VIEW_BROKER_STATS_DATA): rates of stored messages per topic and delivered messages per group.

Stored messages are not counted on arrival, but derived from the ends of the queues. A timer reads these in portions, so
that clients do not wait and all queues are covered within seconds; a query also reads them, unless there are too many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from mq.broker.base.counters import SAMPLE_SECONDS, CounterSeries, RateOverTime
from mq.broker.base.periodic_task import AHEAD_SECONDS, Periodic
from mq.broker.base.steady_wall_clock import local_day
from mq.broker.context import BrokerContext
from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.net.service import Route, Service
from mq.protocol.codes import ResponseCode
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.broker import BrokerStatsData, StatsOver, ViewBrokerStatsData
from mq.store.consume_queue import ConsumeQueue
from mq.store.dispatch import entry_sizes
from mq.store.errors import QueueFileDamaged
from raftlog.shared_wakeups import step_after

_QUEUES_AT_ONCE: Final = 250
"""Takes 3 ms if all of these queues have new messages."""
_SIZES_MAX: Final = 64
"""If a queue has more new messages, only this many of the newest are measured; the others count with the same average.
"""


_READ_SECONDS: Final = 0.25


class Stats(Service):
    """Returns the broker's figures over the last minute, hour and day."""

    def __init__(self, context: BrokerContext) -> None:
        self._cluster = context.settings.cluster
        self._store = context.store
        self._clock = context.clock
        self._wall_clock_ms = context.wall_clock_ms
        self._refresh_seconds_min = context.limits.upkeep.statistics_seconds_min
        self.figures = context.traffic
        self._round: deque[ConsumeQueue] = deque()
        self._ends: dict[tuple[str, int], QueueOffset] = {}
        self._latest_ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in context.store.queues()}
        self._refresh_at = step_after(self._refresh_seconds_min, context.clock())

    @property
    def now_ms(self) -> int:
        """The current time of the figures, in milliseconds."""
        return round(self._clock() * 1000)

    def routes(self) -> Iterator[Route]:
        yield Route(ViewBrokerStatsData, self.handle)

    def periodic(self) -> Iterator[Periodic]:
        yield Periodic(_READ_SECONDS, self.read_more_ends, self._due_at)
        yield Periodic(SAMPLE_SECONDS, self.sample)

    def _due_at(self) -> float:
        return float("-inf") if self._round else self._refresh_at

    def sample(self) -> None:
        """Record the current values of the counters. A timer calls this."""
        self.figures.sample(self.now_ms, local_day(self._wall_clock_ms()))

    def read_more_ends(self) -> None:
        """Read the ends of the next queues, and start over at an interval once all are read. A timer calls this."""
        if self._round or self._clock() >= self._refresh_at - AHEAD_SECONDS:
            self._read_ends()

    def _read_ends(self) -> None:
        if not self._round:
            self._refresh_at = step_after(self._refresh_seconds_min, self._clock())
            self._round.extend(self._store.queues())
            self._ends, self._latest_ends = self._latest_ends, {}
        for _ in range(min(_QUEUES_AT_ONCE, len(self._round))):
            self._read_end(self._round.popleft())

    def refresh(self) -> None:
        """Update the figures, unless they are recent or there are too many queues."""
        if len(self._store) <= _QUEUES_AT_ONCE and self._clock() >= self._refresh_at:
            self._read_ends()
        self.figures.add_up()

    def handle(self, call: Call[ViewBrokerStatsData]) -> bytes:
        """Request code 315: return the requested figure over the last minute, hour and day."""
        ext = call.request.ext
        self.refresh()
        topic, _, group = ext.stats_key.partition("@")
        figures = self.figures
        whole: Mapping[str, CounterSeries] = {self._cluster: figures.puts}
        read: Mapping[str, CounterSeries] = {self._cluster: figures.gets}
        series_by_name: dict[str, tuple[CounterSeries | None, bool]] = {
            "TOPIC_PUT_NUMS": (figures.by_topic.get(ext.stats_key), False),
            "TOPIC_PUT_SIZE": (figures.by_topic.get(ext.stats_key), True),
            "GROUP_GET_NUMS": (figures.by_group.get((topic, group)), False),
            "GROUP_GET_SIZE": (figures.by_group.get((topic, group)), True),
            "SNDBCK_PUT_NUMS": (figures.sent_back.get((topic, group)), False),
            "BROKER_PUT_NUMS": (whole.get(ext.stats_key), False),
            "BROKER_GET_NUMS": (read.get(ext.stats_key), False),
        }
        if ext.stats_name not in series_by_name:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{ext.stats_name[:80]}> not exist")
        series, sizes = series_by_name[ext.stats_name]
        if series is None:
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{ext.stats_key[:300]}> not exist")
        now_ms = self.now_ms
        data = BrokerStatsData(
            stats_minute=_stats_over(series.over_minute(now_ms), sizes),
            stats_hour=_stats_over(series.over_hour(now_ms), sizes),
            stats_day=_stats_over(series.over_day(now_ms), sizes),
        )
        return call.response(body=data.encode())

    def _read_end(self, queue: ConsumeQueue) -> None:
        key = (queue.topic, queue.queue_id)
        end = queue.max_offset
        if end < queue.min_offset:
            return  # its topic was deleted since the pass began
        self._latest_ends[key] = end
        # A queue that is new here, or was deleted and created again, began with its first entry.
        before = self._ends.get(key, queue.min_offset)
        if before > end or before < queue.min_offset:
            before = queue.min_offset
        assert queue.min_offset <= before <= end, f"{key}: {before} was seen of {queue.min_offset} to {end}"
        if end > before:
            self.figures.count_put(queue.topic, end - before, _sizes(queue, before, end))


def _sizes(queue: ConsumeQueue, begin: QueueOffset, end: QueueOffset) -> int:
    """Return the total bytes of the records of these entries."""
    count = end - begin
    assert count > 0, f"{count} messages of {queue.key} are measured"
    sampled_count = min(count, _SIZES_MAX)
    assert queue.min_offset <= begin, f"{queue.key} is measured from {begin} on, and begins at {queue.min_offset}"
    try:
        sizes = entry_sizes(queue.read(end - sampled_count, sampled_count))
    except (OSError, QueueFileDamaged):
        return 0  # damage is reported when the queue is read
    return sum(sizes) * count // sampled_count


def _stats_over(over: RateOverTime, sizes: bool) -> StatsOver:
    total, rate = (over.nbytes, over.bytes_per_second) if sizes else (over.nums, over.per_second)
    each = (over.nbytes / over.nums if sizes else 1.0) if over.nums else 0.0
    return StatsOver(sum=total, tps=round(rate, 3), avgpt=round(each, 3))
