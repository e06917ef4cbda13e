"""Metrics as plain values, and their rendering for Prometheus."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder


class Kind(enum.Enum):
    """Whether a value only grows while its process runs."""

    COUNTER = CounterMetricFamily
    GAUGE = GaugeMetricFamily


Sample = tuple[tuple[str, ...], float]
"""Label values, and the value."""


class Family(NamedTuple):
    """All samples of one metric. The name has no ``_total``: that is added to counters."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    samples: Sequence[Sample]


class Histogram(NamedTuple):
    """A metric with buckets. ``counts`` has one number for each of ``bounds`` and one for values above the last."""

    name: str
    help: str
    labels: tuple[str, ...]
    values: tuple[str, ...]
    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


Families = Sequence[Family | Histogram]

Collect = Callable[[], Generator[None, None, Families]]
"""Collects metrics on the event loop; yields where other work may run."""


def render(families: Families, accept: str) -> tuple[str, bytes]:
    """The content type and text for an ``Accept`` header: Prometheus' own format, or OpenMetrics.

    Takes about 10 us per sample; may run in any thread.
    """
    encode, content_type = choose_encoder(accept)
    return content_type, encode(_Once([_metric(family) for family in families]))


class _Once:
    """The part of a registry that the library needs."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _metric(family: Family | Histogram) -> Metric:
    if isinstance(family, Histogram):
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        buckets, count = [], 0
        for bound, more in zip([*map(str, family.bounds), "+Inf"], family.counts, strict=True):
            count += more
            buckets.append((bound, count))
        histogram.add_metric(family.values, buckets, family.total)
        return histogram
    metric: Metric = family.kind.value(family.name, family.help, labels=family.labels)
    for values, value in family.samples:
        metric.add_metric(values, value)  # type: ignore[attr-defined]
    return metric
