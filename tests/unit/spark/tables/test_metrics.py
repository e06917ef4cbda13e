"""The metrics of a pipeline."""

from __future__ import annotations

import errno
from pathlib import Path

import prometheus_client
import pytest

from spark.tables.metrics import Metrics, PortUnusable
from spark.tables.pipeline import parse_pipeline


def test_a_metrics_port_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object, **__: object) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(prometheus_client, "start_http_server", taken)
    text = "namesrv: h:1\ntopic: T\ntable: {format: parquet, location: /t}\nmetrics_port: 9100\n"
    with pytest.raises(PortUnusable, match="metrics_port 9100: Address already in use"):
        Metrics(parse_pipeline(text, Path("/p.yaml"))).serve()
