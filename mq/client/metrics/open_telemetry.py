"""Metrics of clients by OpenTelemetry's API.

If `OTEL_SEMCONV_STABILITY_OPT_IN` has `messaging`, metrics for which the conventions for messaging have a name have
that one, and with `messaging/dup` both; see `mq.client.semantic_names`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mq.client.metrics.families import ALL, BUCKETS, COMMON, Family
from mq.client.metrics.recorder import Add, ClientMetrics, LabelBook
from mq.client.semantic_names import OPT_IN, choice

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_OPERATIONS = {"producer": "send", "push_consumer": "process", "pull_consumer": "poll", "pop_consumer": "pop"}
_GOOD = ("stored", "done", "oneway")

_made_with: weakref.WeakKeyDictionary[Any, _Instruments] = weakref.WeakKeyDictionary()


class OpenTelemetryMetrics(ClientMetrics):
    """Records the metrics of clients with an OpenTelemetry meter, by default of the global provider.

        producer = Producer("127.0.0.1:9876", metrics=OpenTelemetryMetrics())

    One object serves any number of clients; several objects for one meter are the same. Up to `topics_max` topics of
    the clients that are open have attributes of their own, the others are "other". Raises ImportError without
    OpenTelemetry.
    """

    def __init__(self, meter: Meter | None = None, *, topics_max: int = 100) -> None:
        try:
            from opentelemetry import metrics
        except ImportError as error:
            raise ImportError("OpenTelemetryMetrics needs OpenTelemetry: pip install 'raftmq[otel]'") from error
        if meter is None:
            from importlib.metadata import version

            meter = metrics.get_meter("raftmq", version("raftmq"))
        instruments = _made_with.get(meter)
        if instruments is None or instruments.book.topics_max != topics_max:
            instruments = _made_with[meter] = _Instruments(meter, topics_max)
        self._instruments = instruments
        self.book = instruments.book

    def adder(self, family: Family, values: tuple[str, ...]) -> Add:
        targets = [
            (add, _semantic(family, values) if is_semantic else _labels(family, values))
            for add, is_semantic in self._instruments.adders[family]
        ]

        def record(amount: float) -> None:
            for add, attributes in targets:
                add(amount, attributes)

        return record

    def gauge(self, family: Family, values: tuple[str, ...], read: Callable[[], float]) -> None:
        self._instruments.reads[family, values] = read

    def remove(self, family: Family, values: tuple[str, ...]) -> None:
        self._instruments.reads.pop((family, values), None)


class _Instruments:
    """The instruments that were made with one meter."""

    def __init__(self, meter: Meter, topics_max: int) -> None:
        self.book = LabelBook(topics_max)
        self.reads: dict[tuple[Family, tuple[str, ...]], Callable[[], float]] = {}
        self.adders: dict[Family, list[tuple[Callable[..., object], bool]]] = {}
        """For each counter and histogram what adds to it, and whether under the name of the conventions."""
        is_old, is_new = choice(os.environ.get(OPT_IN))
        for family in ALL:
            if family.kind == "gauge":
                meter.create_observable_gauge(
                    f"raftmq.client.{family.name}", [self._reader(family)], family.unit, family.text
                )
                continue
            adders = self.adders[family] = []
            if is_old or not family.semantic:
                adders.append((_adder(meter, family, f"raftmq.client.{family.name}"), False))
            if is_new and family.semantic:
                adders.append((_adder(meter, family, family.semantic), True))

    def _reader(self, family: Family) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            from opentelemetry.metrics import Observation

            for (read_family, values), read in list(self.reads.items()):
                if read_family is family:
                    yield Observation(read(), _labels(family, values))

        return observe


def _adder(meter: Meter, family: Family, name: str) -> Callable[..., object]:
    if family.kind == "counter":
        return meter.create_counter(name, family.unit, family.text).add
    histogram = meter.create_histogram(name, family.unit, family.text, explicit_bucket_boundaries_advisory=BUCKETS)
    return histogram.record


def _labels(family: Family, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(COMMON + family.labels, values, strict=True))


def _semantic(family: Family, values: tuple[str, ...]) -> dict[str, str]:
    labels = _labels(family, values)
    kind, outcome = labels["kind"], labels.get("outcome", "done")
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": _OPERATIONS[kind],
        "messaging.destination.name": labels["topic"],
    }
    if kind != "producer":
        attributes["messaging.consumer.group.name"] = labels["client_group"]
    if outcome not in _GOOD:
        attributes["error.type"] = outcome
    return attributes
