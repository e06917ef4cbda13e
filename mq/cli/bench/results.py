"""Formats the results of a benchmark as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hdrh.histogram import HdrHistogram

PERCENTILES = (50.0, 90.0, 99.0, 99.9, 100.0)
_LATENCY_US_MAX = 120_000_000
_DIGITS = 3


class Latencies:
    """A histogram of latencies from 1 us to 2 min, exact to three digits."""

    def __init__(self) -> None:
        self.histogram = HdrHistogram(1, _LATENCY_US_MAX, _DIGITS)

    def add(self, seconds: float, count: int = 1) -> None:
        """Add a latency that ``count`` messages had."""
        self.histogram.record_value(min(max(1, round(seconds * 1e6)), _LATENCY_US_MAX), count)

    @property
    def count(self) -> int:
        """The number of messages whose latency was added."""
        return int(self.histogram.get_total_count())

    def as_milliseconds(self) -> dict[str, float]:
        """Return the percentiles ``p50`` to ``p99_9`` and ``max``, in milliseconds."""
        names = [f"p{percentile:g}".replace(".", "_") if percentile < 100 else "max" for percentile in PERCENTILES]
        values = [self.histogram.get_value_at_percentile(percentile) / 1000 for percentile in PERCENTILES]
        return dict(zip(names, values, strict=True))


@dataclass(slots=True)
class DirectionCounts:
    """Counts the messages of one direction. ``by_second`` counts them per second, from the first message on."""

    messages: int = 0
    body_bytes: int = 0
    by_second: dict[int, int] = field(default_factory=dict)
    first_at: float | None = None

    def add(self, messages: int, body_bytes: int, now: float) -> None:
        """Count messages at the time ``now``, in seconds of a clock of the caller's choice."""
        self.messages += messages
        self.body_bytes += body_bytes
        if self.first_at is None:
            self.first_at = now
        second = int(now - self.first_at)
        self.by_second[second] = self.by_second.get(second, 0) + messages

    def as_json(self, seconds: float) -> dict[str, float]:
        """Return the totals, and the rates over `seconds`."""
        return {
            "messages": self.messages,
            "messages_per_second": round(self.messages / seconds, 1),
            "mb_per_second": round(self.body_bytes / seconds / 1e6, 3),
        }


@dataclass(slots=True)
class Result:
    """The measurements of ``seconds``, without the warm-up.

    Attributes:
        failed: counts of unacknowledged messages by reason: not stored, outcome unknown, or due but never sent.
        missing: how many acknowledged messages were not delivered; None without a consumer.
        cpu_us: CPU time of each process per message, in microseconds; "client" is this one.
        resident_mib: resident memory of each process at the end, in MiB.
    """

    seconds: float = 0.0
    produced: DirectionCounts | None = None
    consumed: DirectionCounts | None = None
    acknowledged: Latencies | None = None
    delivered: Latencies | None = None
    failed: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    missing: int | None = None
    cpu_us: Mapping[str, float] = field(default_factory=dict)
    resident_mib: Mapping[str, float] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The number of messages by which CPU time is divided: of the direction that has more."""
        return max((each.messages for each in (self.produced, self.consumed) if each is not None), default=0)

    def as_json(self) -> dict[str, object]:
        """Return the results for JSON. Latencies are in milliseconds."""
        table: dict[str, object] = {"seconds": round(self.seconds, 3)}
        for name, counts in (("produced", self.produced), ("consumed", self.consumed)):
            if counts is not None:
                table[name] = counts.as_json(self.seconds)
        for name, latencies in (("acknowledged_ms", self.acknowledged), ("delivered_ms", self.delivered)):
            if latencies is not None and latencies.count:
                table[name] = latencies.as_milliseconds()
        table["failed"] = self.failed
        if self.missing is not None:
            table["missing"] = self.missing
        table["cpu_us_per_message"] = {name: round(us, 1) for name, us in self.cpu_us.items()}
        table["resident_mib"] = {name: round(mib, 1) for name, mib in self.resident_mib.items()}
        return table

    def lines(self) -> list[str]:
        """Format the results as lines of text."""
        lines = []
        for name, counts in (("produced", self.produced), ("consumed", self.consumed)):
            if counts is not None:
                row = counts.as_json(self.seconds)
                lines.append(
                    f"{name:13s} {counts.messages:,} messages in {self.seconds:.1f} s: "
                    f"{row['messages_per_second']:,.0f} messages/s, {row['mb_per_second']:,.2f} MB/s"
                )
        for name, latencies in (("acknowledged", self.acknowledged), ("delivered", self.delivered)):
            if latencies is not None and latencies.count:
                text = ", ".join(
                    f"{key.replace('_', '.')} {value:,.2f} ms" for key, value in latencies.as_milliseconds().items()
                )
                lines.append(f"{name:13s} after {text}")
        if self.cpu_us:
            text = ", ".join(f"{name} {us:.1f} us" for name, us in self.cpu_us.items())
            lines.append(f"{'CPU':13s} per message: {text}")
        if self.resident_mib:
            text = ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in self.resident_mib.items())
            lines.append(f"{'memory':13s} at the end: {text}")
        lines += [f"{what:13s} {count:,} messages" for what, count in self.failed.items()]
        if self.missing:
            lines.append(f"{'missing':13s} {self.missing:,} acknowledged messages were not delivered")
        return lines
