"""Metrics of a proxy for Prometheus."""

from __future__ import annotations

import datetime as dt
from collections.abc import Generator

from mq.monitoring.families import Families, Family, Histogram, Kind
from mq.monitoring.process import certificate_families, process_families
from mq.proxy.grpc import GrpcCounters
from mq.proxy.service_table import ServiceTable


def collect(
    services: ServiceTable, counters: GrpcCounters, valid_until: dt.datetime | None
) -> Generator[None, None, Families]:
    """Yield all metrics of a proxy; see `mq.monitoring.families.Collect`. ``valid_until`` is its certificate's end."""
    families: list[Family | Histogram] = [*process_families({}), *certificate_families({}, valid_until)]
    yield
    for name, text, value in (
        ("connections", "Open connections of clients.", counters.connections),
        ("calls_open", "Calls that are being served.", counters.streams),
        ("clients", "Clients with an open telemetry stream.", services.clients.stream_count),
        ("kept_hidden", "Messages that the proxy keeps hidden while clients handle them.", services.renewals.count),
    ):
        families.append(Family(f"raftmq_proxy_{name}", Kind.GAUGE, text, (), [((), value)]))
    for name, text, value in (
        ("received_bytes", "Bytes from clients, without TLS.", counters.received_bytes),
        ("sent_bytes", "Bytes to clients, without TLS.", counters.sent_bytes),
    ):
        families.append(Family(f"raftmq_proxy_{name}", Kind.COUNTER, text, (), [((), value)]))
    families.append(
        Family(
            "raftmq_proxy_calls",
            Kind.COUNTER,
            "Ended calls by method and gRPC status.",
            ("method", "status"),
            [
                ((path.rpartition("/")[2], status.name), count)
                for (path, status), count in sorted(counters.calls.items())
            ],
        )
    )
    families.append(
        Family(
            "raftmq_proxy_connections_closed",
            Kind.COUNTER,
            "Connections that the proxy closed, by reason.",
            ("reason",),
            [((reason,), count) for reason, count in sorted(counters.close_counts.items())],
        )
    )
    return families
