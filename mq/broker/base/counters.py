"""Counts messages stored and delivered over the last minute, hour and day, by sampling counters.

Counting only increments a counter. Every ten seconds its value is sampled; a figure over a period is the difference to
the sample at its beginning.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from mq.broker.limits import DEFAULT

SAMPLE_SECONDS: Final = 10

_FIELDS: Final = 3
_HOUR_SAMPLES: Final = 60
_DAY_SAMPLES: Final = 360
_MINUTE_KEPT: Final = 7
_HOUR_KEPT: Final = 7
_DAY_KEPT: Final = 25


class RateOverTime(NamedTuple):
    """The messages or requests (``nums``) and their bytes that were counted within ``seconds``."""

    nums: int
    nbytes: int
    seconds: float

    @property
    def per_second(self) -> float:
        """The messages or requests per second."""
        return self.nums / self.seconds

    @property
    def bytes_per_second(self) -> float:
        """The bytes per second."""
        return self.nbytes / self.seconds


class CounterSeries:
    """Counts messages, bytes and calls, and keeps samples of the counts. Callers increment the fields directly.

    Samples are triples of time in milliseconds, ``nums`` and ``nbytes``, oldest first.
    """

    __slots__ = ("_day", "_hour", "_minute", "nbytes", "nums", "times")

    def __init__(self, now_ms: int) -> None:
        self.nums = 0
        self.nbytes = 0
        self.times = 0
        first = (now_ms, 0, 0)
        self._minute = array("q", first)
        self._hour = array("q", first)
        self._day = array("q", first)

    def sample(self, now_ms: int, number: int) -> None:
        """Record the counts as sample number ``number``."""
        now = (now_ms, self.nums, self.nbytes)
        _append_sample(self._minute, now, _MINUTE_KEPT)
        if number % _HOUR_SAMPLES == 0:
            _append_sample(self._hour, now, _HOUR_KEPT)
        if number % _DAY_SAMPLES == 0:
            _append_sample(self._day, now, _DAY_KEPT)

    @property
    def is_idle(self) -> bool:
        """Whether the counts have not changed for a day."""
        return len(self._day) == _DAY_KEPT * _FIELDS and self._day[1] == self.nums

    def over_minute(self, now_ms: int) -> RateOverTime:
        """Return the counts over the last minute, or since the start if that is later."""
        return self._since(self._minute, 0, now_ms)

    def over_hour(self, now_ms: int) -> RateOverTime:
        """Return the counts over the last hour."""
        return self._since(self._hour, 0, now_ms)

    def over_day(self, now_ms: int) -> RateOverTime:
        """Return the counts over the last day."""
        return self._since(self._day, 0, now_ms)

    def rates(self, now_ms: int) -> str:
        """Return rates per second over about ten seconds, a minute and ten minutes, as text in RocketMQ's format."""
        spans = ((self._minute, max(len(self._minute) - 2 * _FIELDS, 0)), (self._minute, 0))
        ten_minutes = (self._hour, max(len(self._hour) - 2 * _FIELDS, 0))
        return " ".join(str(self._since(ring, at, now_ms).per_second) for ring, at in (*spans, ten_minutes))

    def _since(self, ring: array[int], at: int, now_ms: int) -> RateOverTime:
        then_ms, nums, nbytes = ring[at : at + _FIELDS]
        assert then_ms <= now_ms, f"a count at {then_ms} ms is compared with one at {now_ms} ms"
        assert nums <= self.nums, f"there were {nums} messages, and {self.nums} later"
        # A series younger than one sample interval counts as if it had lasted that long.
        seconds = max((now_ms - then_ms) / 1000, float(SAMPLE_SECONDS))
        return RateOverTime(self.nums - nums, self.nbytes - nbytes, seconds)


class TrafficCounters:
    """Holds all traffic counters of a broker. ``now_ms`` is monotonic.

    Attributes:
        puts, gets: all messages stored, and all delivered to consumers.
        hits, misses: pulls answered with messages, and without.
        (``gets`` and ``hits`` are as of the last `add_up`.)
        by_topic, by_group, sent_back: messages stored per topic; delivered, and sent back, per topic and group.
    """

    def __init__(self, now_ms: int, day: int, series_max: int = DEFAULT.upkeep.traffic_series_max) -> None:
        self._series_max = series_max
        self.puts = CounterSeries(now_ms)
        self.gets = CounterSeries(now_ms)
        self.hits = CounterSeries(now_ms)
        self.misses = CounterSeries(now_ms)
        self.by_topic: dict[str, CounterSeries] = {}
        self.by_group: dict[tuple[str, str], CounterSeries] = {}
        self.sent_back: dict[tuple[str, str], CounterSeries] = {}
        self._others = CounterSeries(now_ms)
        """Deliveries to groups without their own counter."""
        self._now_ms = now_ms
        self._samples = 0
        self._day = day
        self.puts_by_midnight = self.gets_by_midnight = (0, 0)
        """Totals at the beginning of yesterday and of today."""

    def count_put(self, topic: str, nums: int, nbytes: int) -> None:
        """Count stored messages."""
        self.puts.nums += nums
        self.puts.nbytes += nbytes
        series = self.by_topic.get(topic)
        if series is None:
            if self._is_full():
                return
            series = self.by_topic[topic] = CounterSeries(self._now_ms)
        series.nums += nums
        series.nbytes += nbytes

    def count_got(self, topic: str, group: str, nums: int, nbytes: int) -> None:
        """Count the messages delivered in one response."""
        # Called for every reply, so it updates no total; `add_up` computes that.
        series = self.by_group.get((topic, group))
        if series is None:
            series = (
                self._others
                if self._is_full()
                else self.by_group.setdefault((topic, group), CounterSeries(self._now_ms))
            )
        series.nums += nums
        series.nbytes += nbytes
        series.times += 1

    def count_sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer has sent back."""
        series = self.sent_back.get((topic, group))
        if series is None:
            if self._is_full():
                return
            series = self.sent_back[topic, group] = CounterSeries(self._now_ms)
        series.nums += 1

    def add_up(self) -> None:
        """Update ``gets`` and ``hits`` from the counters of groups."""
        others, gets = self._others, self.gets
        nums, nbytes, times = others.nums, others.nbytes, others.times
        for series in self.by_group.values():
            nums += series.nums
            nbytes += series.nbytes
            times += series.times
        gets.nums, gets.nbytes, self.hits.nums = nums, nbytes, times

    def sample(self, now_ms: int, day: int) -> None:
        """Sample all counters; call it every `SAMPLE_SECONDS`. ``day`` is a number that changes at midnight."""
        self._now_ms = now_ms
        self._samples += 1
        self.add_up()
        for series in (self.puts, self.gets, self.hits, self.misses):
            series.sample(now_ms, self._samples)
        for table in (self.by_topic, self.by_group, self.sent_back):
            for series in table.values():
                series.sample(now_ms, self._samples)
        if self._samples % _DAY_SAMPLES == 0:
            self._drop_idle()
        count = len(self.by_topic) + len(self.by_group) + len(self.sent_back)
        assert count <= self._series_max, f"{count} topics and groups are counted; maximum: {self._series_max}"
        if day != self._day:
            self._day = day
            self.puts_by_midnight = (self.puts_by_midnight[1], self.puts.nums)
            self.gets_by_midnight = (self.gets_by_midnight[1], self.gets.nums)

    def _drop_idle(self) -> None:
        for (topic, group), series in list(self.by_group.items()):
            if series.is_idle:
                del self.by_group[topic, group]
                self._others.nums += series.nums
                self._others.nbytes += series.nbytes
                self._others.times += series.times
        self.by_topic = {topic: series for topic, series in self.by_topic.items() if not series.is_idle}
        self.sent_back = {key: series for key, series in self.sent_back.items() if not series.is_idle}

    def _is_full(self) -> bool:
        return len(self.by_topic) + len(self.by_group) + len(self.sent_back) >= self._series_max


def _append_sample(ring: array[int], now: tuple[int, int, int], count: int) -> None:
    ring.extend(now)
    if len(ring) > count * _FIELDS:
        del ring[:_FIELDS]
    assert len(ring) <= count * _FIELDS, f"{len(ring)} fields are kept of {count} samples with {_FIELDS} fields"
