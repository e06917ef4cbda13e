"""Reads the goals of `make bench-peers-consuming` from its raw results. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.suites.figures import Figure

OWN = "raftmq"
NATS = ("nats", "nats-2.12", "nats-always")
DURABLE = ("rocketmq-single", "nats-always", "rabbitmq", "kafka-flush")
"""The systems that sync a message before they acknowledge it."""
P50_MS_MAX, NATS_TIMES_MAX = 1.5, 1.5
BACKLOG_TIMES_MIN = 3.0
DRAINS = (
    ("drain-1", "drain-1", "one consumer"),
    ("drain-1-many", "drain-1", "one consumer, pulls of up to 256"),
    ("drain-8", "drain-8", "8 consumers"),
    ("drain-8-many", "drain-8", "8 consumers, pulls of up to 256"),
    ("drain-8-each", "drain-8-each", "8 consumers, POP, an ACK for each message"),
    ("drain-8-joined", "drain-8-each", "8 consumers, POP, ACKs in one request"),
)
"""Our case, the others' case, and the name of both."""
GROUPS, GROUPS_TIMES_MAX = 16, 3.0

Samples = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""The samples by system and case."""


def median(samples: Samples, system: str, case: str, figure: str) -> float | None:
    """Return the median of a figure over all rounds; None if it was not measured."""
    values = [float(sample[figure]) for sample in samples.get(system, {}).get(case, ())]
    return statistics.median(values) if values else None


def samples_of(raw: Mapping[str, Any]) -> Samples:
    """Read the samples from the raw results of a run."""
    return {name: peer["samples"] for name, peer in raw["measured"].items()}


def goals(samples: Samples) -> list[Figure]:
    """Return each figure that has a goal and was measured."""
    figures = list[Figure]()
    p50 = median(samples, OWN, "pace-1", "p50_ms")
    if p50 is not None:
        figures.append(Figure("500 msgs/s", "p50 from due to received", p50, "ms", P50_MS_MAX))
        others = [each for name in NATS if (each := median(samples, name, "pace-1", "p50_ms"))]
        if others:
            limit = NATS_TIMES_MAX * min(others)
            figures.append(Figure("500 msgs/s", f"p50, at most {NATS_TIMES_MAX:g} times NATS's", p50, "ms", limit))
    for own_case, case, about in DRAINS:
        own = median(samples, OWN, own_case, "servers_us")
        durable = [each for name in DURABLE if (each := median(samples, name, case, "servers_us"))]
        if own and durable:
            name = (
                f"messages per CPU second of the servers, at least {BACKLOG_TIMES_MIN:g} times the best durable system"
            )
            goal = BACKLOG_TIMES_MIN * 1e6 / min(durable)
            figures.append(Figure(f"backlog, {about}", name, 1e6 / own, "", goal, is_limit=False))
    one, many = (median(samples, OWN, case, "servers_us") for case in ("pace-1", f"pace-{GROUPS}"))
    if one and many:
        name = f"CPU of the servers for a message to {GROUPS} groups, as a multiple of one group"
        figures.append(Figure("fan-out", name, GROUPS * many / one, "", GROUPS_TIMES_MAX))
    return figures


def load_of(samples: Samples) -> float:
    """Return the median load average before the measurements."""
    loads = [
        float(each["load_average"])
        for cases in samples.values()
        for samples_of_case in cases.values()
        for each in samples_of_case
    ]
    return statistics.median(loads) if loads else 0.0
