"""Metrics as plain values, and their rendering for Prometheus."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString


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


SAMPLES_IN_STEP: Final = 64
"""Samples rendered between two yields."""


def render(families: Families, accept: str) -> Generator[None, None, tuple[str, bytes]]:
    """The content type and text for an ``Accept`` header: Prometheus' own format, or OpenMetrics.

    Takes 2 us per sample, and yields where other work may run. The lines of samples are the same bytes as those of
    `prometheus_client`, which renders everything else but takes 10 us for each.
    """
    encode, content_type = choose_encoder(accept)
    end = encode(_Once(()))  # a line in OpenMetrics
    parts: list[bytes] = []
    for family in families:
        parts.append(encode(_Once((_metric(family),))).removesuffix(end))
        if isinstance(family, Family):
            template, order = _template(family)
            for at in range(0, len(family.samples), SAMPLES_IN_STEP):
                lines = [
                    template % (*[_escaped(values[label]) for label in order], _number(value))
                    for values, value in family.samples[at : at + SAMPLES_IN_STEP]
                ]
                # No text that a client sent may make metrics fail.
                parts.append("".join(lines).encode(errors="replace"))
                yield
        yield
    parts.append(end)
    return content_type, b"".join(parts)


def _template(family: Family) -> tuple[str, list[int]]:
    """The line of a sample, with places for label values and the value; and in which order the labels are in there."""
    order = sorted(range(len(family.labels)), key=family.labels.__getitem__)
    name = f"{family.name}_total" if family.kind is Kind.COUNTER else family.name
    labels = ",".join(f'{family.labels[label]}="%s"' for label in order)
    return (f"{name}{{{labels}}} %s\n" if labels else f"{name} %s\n"), order


@lru_cache(maxsize=8192)
def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


_number: Final = lru_cache(maxsize=1024)(floatToGoString)


class _Once:
    """The part of a registry that the library needs."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _metric(family: Family | Histogram) -> Metric:
    """A metric for the library; without its samples, unless it is a histogram."""
    if isinstance(family, Family):
        metric: Metric = family.kind.value(family.name, family.help, labels=family.labels)
        return metric
    histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    buckets, count = [], 0
    for bound, more in zip([*map(str, family.bounds), "+Inf"], family.counts, strict=True):
        count += more
        buckets.append((bound, count))
    histogram.add_metric(family.values, buckets, family.total)
    return histogram
