"""Token buckets for the quotas of users and topics, with time as an argument. Pure.

A bucket fills at its rate, up to what the rate gives in `BURST_SECONDS`. A request may pass while the bucket owes
nothing, and takes all that it costs, however much: so a batch that is larger than the burst passes like a small
message, and those after it wait for what it took. A bucket of a new leader is full, so an election throttles no client.

What waits has taken its part already. Requests for the same buckets therefore pass in the order in which they came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from mq.protocol.requests.quota_attributes import Quota

BURST_SECONDS: Final = 1.0
WAITING_SECONDS: Final = 1.0
"""No send waits longer than this until it passes."""
RECENT_SECONDS: Final = 60.0
"""A user or topic counts as throttled for this long after its last request that waited or was refused."""
USER, TOPIC = "user", "topic"
PRODUCE, CONSUME, CONNECTIONS, STORED = "produce", "consume", "connections", "stored"


class LimitKey(NamedTuple):
    """Names a limit: USER or TOPIC, its name, and PRODUCE, CONSUME, CONNECTIONS or STORED."""

    kind: str
    name: str
    direction: str


OnConsume = Callable[[Any, int, int], None]


class Bucket:
    """A token bucket of one rate. Times are monotonic seconds; a time before the last one counts as the last one."""

    __slots__ = ("_at", "level", "rate")

    def __init__(self, rate: int, now: float) -> None:
        assert rate > 0, f"a bucket fills with {rate} per second"
        self.rate = rate
        self.level = rate * BURST_SECONDS
        self._at = now

    def fill(self, now: float) -> None:
        """Add the tokens for the time since the last call."""
        if now > self._at:
            self.level = min(self.rate * BURST_SECONDS, self.level + (now - self._at) * self.rate)
            self._at = now

    def change(self, rate: int, now: float) -> None:
        """Change the rate. A debt is paid off no later than before, and earlier at a higher rate, but new requests do
        not overtake waiting ones.
        """
        assert rate > 0, f"a bucket of {self.rate} per second is to fill with {rate}"
        if rate != self.rate:
            self.fill(now)
            seconds = self.level / self.rate
            self.level = rate * max(seconds, min(self.level / rate, -WAITING_SECONDS))
            self.rate = rate

    def wait(self, now: float) -> float:
        """Return the seconds until the next request may pass."""
        self.fill(now)
        return max(0.0, -self.level / self.rate)

    def charge(self, cost: int) -> None:
        """Subtract the cost of a request."""
        assert cost >= 0, f"a request costs {cost}"
        self.level -= cost


class Throttling:
    """Counts delayed and refused requests of one limit, and keeps the time of the last one."""

    __slots__ = ("at", "delayed_count", "refused_count")

    def __init__(self) -> None:
        self.delayed_count = self.refused_count = 0
        self.at = float("-inf")


class QuotaBuckets:
    """Holds the buckets of one replica, by user or topic. A bucket exists as long as its quota.

    Attributes:
        throttles: the requests delayed and refused by each limit.
        on_consume: counts what a request of a consumer was answered with: the call, messages and bytes. None while
            there are no quotas.
    """

    def __init__(self) -> None:
        self._buckets: dict[LimitKey, list[Bucket | None]] = {}
        self.throttles: dict[LimitKey, Throttling] = {}
        self.on_consume: OnConsume | None = None

    def wait(self, limits: Iterable[tuple[LimitKey, Quota]], now: float) -> tuple[float, LimitKey | None]:
        """Return the seconds until a request under these limits may pass, and the limit that it waits for longest."""
        longest: tuple[float, LimitKey | None] = (0.0, None)
        for subject, bucket in self._each_bucket(limits, now):
            seconds = bucket.wait(now)
            if seconds > longest[0]:
                longest = seconds, subject
        return longest

    def charge(self, limits: Iterable[tuple[LimitKey, Quota]], messages: int, nbytes: int, now: float) -> None:
        """Charge each limit with the messages and bytes of a request that passes now."""
        assert messages >= 0, f"a request has {messages} messages"
        for subject, quota in limits:
            for bucket, cost in zip(self._pair(subject, quota, now), (messages, nbytes), strict=True):
                if bucket is not None:
                    bucket.fill(now)
                    bucket.charge(cost)

    def count_throttled(self, subject: LimitKey, now: float, *, refused: bool) -> bool:
        """Count a delayed or refused request. Returns whether it is the first for `RECENT_SECONDS`."""
        counts = self.throttles.setdefault(subject, Throttling())
        is_first = now - counts.at > RECENT_SECONDS
        counts.at = max(counts.at, now)
        if refused:
            counts.refused_count += 1
        else:
            counts.delayed_count += 1
        return is_first

    def recent(self, now: float) -> Iterator[tuple[LimitKey, Throttling]]:
        """Yield the limits that delayed or refused a request within `RECENT_SECONDS`."""
        return ((each, how) for each, how in sorted(self.throttles.items()) if now - how.at <= RECENT_SECONDS)

    def keep(self, is_limited: Callable[[LimitKey], bool]) -> None:
        """Drop the buckets for which ``is_limited`` is false: their limits no longer exist."""
        self._buckets = {each: pair for each, pair in self._buckets.items() if is_limited(each)}
        self.throttles = {each: how for each, how in self.throttles.items() if is_limited(each)}

    def _each_bucket(self, limits: Iterable[tuple[LimitKey, Quota]], now: float) -> Iterator[tuple[LimitKey, Bucket]]:
        for subject, quota in limits:
            for bucket in self._pair(subject, quota, now):
                if bucket is not None:
                    yield subject, bucket

    def _pair(self, subject: LimitKey, quota: Quota, now: float) -> list[Bucket | None]:
        """Return the buckets for messages and for bytes, at the current rates of the quota."""
        assert subject.direction in (PRODUCE, CONSUME), f"{subject} has no rate"
        rates = (
            (quota.produce_messages, quota.produce_bytes)
            if subject.direction == PRODUCE
            else (quota.consume_messages, quota.consume_bytes)
        )
        pair = self._buckets.get(subject)
        if pair is None:
            pair = self._buckets[subject] = [None, None]
        for at, rate in enumerate(rates):
            bucket = pair[at]
            if not rate:
                pair[at] = None
            elif bucket is None:
                pair[at] = Bucket(rate, now)
            else:
                bucket.change(rate, now)
        return pair
