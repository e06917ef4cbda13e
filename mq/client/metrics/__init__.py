"""Metrics of clients, for Prometheus and OpenTelemetry: `Producer(..., metrics=PrometheusMetrics())`.

`families` lists the metrics, `recorder` measures them in one client, and the other modules hand it on. A client
without metrics has no recorder, and tests for that in places that it passes anyway. The libraries are imported when an
object of theirs is made, and `open_telemetry` and `prometheus` by programs that use them.
"""
