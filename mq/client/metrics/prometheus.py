"""Metrics of clients in a registry of prometheus_client.

The registry holds ordinary counters, histograms and gauges, so prometheus_client's mode for several processes works
with them. In that mode series cannot be removed, and gauges are written every 5 s instead of read by the scrape.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mq.client.metrics.families import ALL, BUCKETS, COMMON, Family
from mq.client.metrics.recorder import Add, ClientMetrics, LabelBook

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_by_registry: weakref.WeakKeyDictionary[Any, _RegistryMetrics] = weakref.WeakKeyDictionary()


class PrometheusMetrics(ClientMetrics):
    """Records the metrics of clients in a registry of `prometheus_client`, by default its global one.

        producer = Producer("127.0.0.1:9876", metrics=PrometheusMetrics())

    One object serves any number of clients; several objects for one registry are the same. Up to `topics_max` topics of
    the clients that are open have labels, the others are "other". `buckets` are the upper bounds of histograms, in
    seconds. Raises ImportError without prometheus_client, and ValueError if the registry has these metrics with other
    options.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        topics_max: int = 100,
        buckets: Sequence[float] = BUCKETS,
    ) -> None:
        try:
            import prometheus_client
        except ImportError as error:
            raise ImportError("PrometheusMetrics needs prometheus_client: pip install 'raftmq[prometheus]'") from error
        used_registry = prometheus_client.REGISTRY if registry is None else registry
        options = topics_max, tuple(buckets)
        instruments = _by_registry.get(used_registry)
        if instruments is None:
            instruments = _by_registry[used_registry] = _RegistryMetrics(used_registry, topics_max, tuple(buckets))
        elif instruments.options != options:
            raise ValueError(
                f"the registry already has the metrics of clients with different options: {instruments.options}"
            )
        self._instruments = instruments
        self.book = instruments.book

    def adder(self, family: Family, values: tuple[str, ...]) -> Add:
        child = self._instruments.families[family].labels(*values)
        add: Add = child.observe if family.kind == "histogram" else child.inc
        return add

    def gauge(self, family: Family, values: tuple[str, ...], read: Callable[[], float]) -> None:
        child = self._instruments.families[family].labels(*values)
        if not self._instruments.is_multiprocess:
            child.set_function(read)
            return
        self._instruments.reads[family, values] = lambda: child.set(read())

    def remove(self, family: Family, values: tuple[str, ...]) -> None:
        if not self._instruments.is_multiprocess:
            self._instruments.families[family].remove(*values)
        elif self._instruments.reads.pop((family, values), None) is not None:
            self._instruments.families[family].labels(*values).set(0)

    def sample(self) -> None:
        for write in list(self._instruments.reads.values()):
            write()


class _RegistryMetrics:
    """The metrics of clients in one registry."""

    def __init__(self, registry: CollectorRegistry, topics_max: int, buckets: tuple[float, ...]) -> None:
        self.book = LabelBook(topics_max)
        self.options = topics_max, buckets
        self.is_multiprocess = not os.environ.keys().isdisjoint(
            ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
        )
        self.reads: dict[tuple[Family, tuple[str, ...]], Callable[[], object]] = {}
        """What writes the gauges, with several processes."""
        self.families: dict[Family, Any] = {family: _new_metric(family, registry, buckets) for family in ALL}


def _new_metric(family: Family, registry: CollectorRegistry, buckets: tuple[float, ...]) -> Counter | Gauge | Histogram:
    from prometheus_client import Counter, Gauge, Histogram

    name, labels = f"raftmq_client_{family.name}", COMMON + family.labels
    if family.kind == "counter":
        return Counter(name, family.text, labels, registry=registry)
    if family.kind == "gauge":
        return Gauge(name, family.text, labels, registry=registry, multiprocess_mode="livesum")
    return Histogram(name, family.text, labels, registry=registry, buckets=buckets)
