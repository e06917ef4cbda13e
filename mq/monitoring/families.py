"""Metrics as plain values, and their text for Prometheus."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString


class Kind(enum.Enum):
    """The kind of a metric: a counter only grows while its process runs, a gauge may fall."""

    COUNTER = CounterMetricFamily
    GAUGE = GaugeMetricFamily


Sample = tuple[tuple[str, ...], float]
"""Label values, and the value."""


class Family(NamedTuple):
    """All samples of one metric. The name lacks ``_total``, which counters get when they are rendered."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    samples: Sequence[Sample]


class Histogram(NamedTuple):
    """A metric with buckets. ``counts`` has a number for each of ``bounds``, and one for values above the last."""

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

_Texts = dict[tuple[str, ...], dict[tuple[str, ...], str]]
"""The rendered labels by their names and values."""


class LabelTexts:
    """Caches the rendered labels of the last scrape, because the next scrape has most of the series, too.

    Families with the same labels share them. Nothing is kept of series that the last scrape did not have.
    """

    def __init__(self) -> None:
        self._last: _Texts = {}

    def next_scrape(self) -> tuple[_Texts, _Texts]:
        """Begin a scrape. Returns the labels of the last one, and an empty table to fill with those of this one."""
        before, self._last = self._last, {}
        return before, self._last


def render(
    families: Families, accept: str, texts: LabelTexts | None = None
) -> Generator[None, None, tuple[str, bytes]]:
    """Return content type and text for an ``Accept`` header: Prometheus' own format, or OpenMetrics.

    Takes 1 us per sample whose labels are in ``texts``, else 2 us, and yields where other work may run. The lines of
    samples are the same bytes as from `prometheus_client`, which renders everything else but takes 10 us for each.
    """
    encode, content_type = choose_encoder(accept)
    end = encode(_Registry(()))  # a line in OpenMetrics
    before, current = (LabelTexts() if texts is None else texts).next_scrape()
    parts: list[bytes] = []
    for family in families:
        parts.append(encode(_Registry((_metric(family),))).removesuffix(end))
        if isinstance(family, Family):
            name = f"{family.name}_total" if family.kind is Kind.COUNTER else family.name
            texts_by_values = before.get(family.labels, {})
            labels = current.setdefault(family.labels, {})
            template, order = _template(family.labels)
            for at in range(0, len(family.samples), SAMPLES_IN_STEP):
                lines: list[str] = []
                for values, value in family.samples[at : at + SAMPLES_IN_STEP]:
                    if (text := labels.get(values)) is None:
                        if (text := texts_by_values.get(values)) is None:
                            text = template % (*[_escape(values[label]) for label in order],)
                        labels[values] = text
                    lines.append(f"{name}{text}{_number(value)}\n")
                # No text that a client sent may make metrics fail.
                parts.append("".join(lines).encode(errors="replace"))
                yield
        yield
    parts.append(end)
    return content_type, b"".join(parts)


def _template(labels: tuple[str, ...]) -> tuple[str, list[int]]:
    """The labels of a sample, with places for their values, and a space; and in which order the labels are in there."""
    order = sorted(range(len(labels)), key=labels.__getitem__)
    text = ",".join(f'{labels[label]}="%s"' for label in order)
    return (f"{{{text}}} " if labels else " "), order


@lru_cache(maxsize=8192)
def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


_number: Final = lru_cache(maxsize=1024)(floatToGoString)


class _Registry:
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
    for bound_text, more in zip([*map(str, family.bounds), "+Inf"], family.counts, strict=True):
        count += more
        buckets.append((bound_text, count))
    histogram.add_metric(family.values, buckets, family.total)
    return histogram
