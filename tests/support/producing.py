"""Producers of the SDK on a fake cluster."""

from __future__ import annotations

from typing import Any

from mq.client import Producer
from tests.unit.client.fake_cluster import FakeCluster

SEND = 310
SEND_BATCH = 320
ROUTE = 105


def producer_of(cluster: FakeCluster, **options: Any) -> Producer:
    """With long timeouts, so that a machine that stalls for seconds does not fail a test; some tests want less."""
    options.setdefault("timeout", 60.0)
    options.setdefault("attempt_timeout", 60.0)
    return Producer(cluster.namesrv, **options)
