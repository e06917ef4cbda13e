"""The metrics of a pipeline."""

from __future__ import annotations

import errno
import math
from pathlib import Path

import prometheus_client
import pytest

from spark.positions import Position
from spark.tables.commits import Commit
from spark.tables.metrics import Metrics, PortUnusable
from spark.tables.pipeline import parse_pipeline


def test_occupied_metrics_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object, **__: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(prometheus_client, "start_http_server", taken)
    text = "namesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}\nmetrics_port: 9100\n"
    with pytest.raises(PortUnusable, match="metrics_port 9100: Address already in use"):
        Metrics(parse_pipeline(text, Path("/p.yaml"))).serve()


def test_restarted_pipeline_reports_the_age_of_its_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[prometheus_client.CollectorRegistry] = []
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda _, registry: served.append(registry))
    text = "name: p\nnamesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}\nmetrics_port: 9100\n"
    metrics = Metrics(parse_pipeline(text, Path("/p.yaml")))
    metrics.serve()
    position = Position("c", {}, {}).to_json()
    metrics.opened(Commit("p/T", 4, position, position, 0, 0, 1_700_000_000_500, "run", {}, position))
    labels = {"pipeline": "p", "topic": "T"}
    lag = served[0].get_sample_value("raftmq_table_lag_messages", labels)
    assert lag is not None
    assert math.isnan(lag), "nobody has asked the topic"
    metrics.has_all()
    assert served[0].get_sample_value("raftmq_table_lag_messages", labels) == 0
    assert served[0].get_sample_value("raftmq_table_commit_timestamp_seconds", labels) == 1_700_000_000.5
