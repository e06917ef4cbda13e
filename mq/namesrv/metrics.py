"""Collects the metrics of a name server for Prometheus."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Generator, Mapping

from mq.monitoring.families import Families, Family, Histogram, Kind
from mq.monitoring.process import certificate_families, process_families
from mq.namesrv.route_table import RouteTable


def collect(
    table: RouteTable, counters: Callable[[], Mapping[str, tuple[Kind, str, int]]], valid_until: dt.datetime | None
) -> Generator[None, None, Families]:
    """Collect all metrics of a name server; see `mq.monitoring.families.Collect`. ``counters`` concern its connections;
    ``valid_until`` is the end of its certificate's validity.
    """
    sizes = table.sizes()
    families: list[Family | Histogram] = [*process_families({}), *certificate_families({}, valid_until)]
    yield
    for name, text, value in (
        ("broker_groups", "Registered broker groups.", sizes.groups),
        ("brokers", "Registered brokers with recent heartbeats.", sizes.brokers),
        ("topics", "Distinct topics of all broker groups.", sizes.topics),
        ("routes", "Pairs of broker group and topic.", sizes.routes),
    ):
        families.append(Family(f"raftmq_namesrv_{name}", Kind.GAUGE, text, (), [((), value)]))
    for name, (kind, text, value) in counters().items():
        families.append(Family(f"raftmq_namesrv_{name}", kind, text, (), [((), value)]))
    return families
