"""Publishes metrics of a running pipeline for Prometheus."""

from __future__ import annotations

import math
from typing import Any

from spark.tables.commits import Commit, messages_between
from spark.tables.pipeline import Pipeline


class PortUnusable(Exception):
    """The ``metrics_port`` of a pipeline cannot be served, usually because it is in use. Nothing was written."""


class Metrics:
    """Counts commits, and serves the metrics over HTTP if the pipeline has a ``metrics_port``."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._port = pipeline.metrics_port
        if self._port is None:
            return
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = CollectorRegistry()
        names = ("pipeline", "topic")
        values = (pipeline.name, pipeline.topic)

        def create(kind: Any, name: str, meaning: str, **more: Any) -> Any:
            return kind(name, meaning, names, registry=self._registry, **more).labels(*values)

        self._commits = create(Counter, "raftmq_table_commits", "Commits to the table by this process.")
        self._messages = create(Counter, "raftmq_table_messages", "Messages committed by this process.")
        self._dead = create(Counter, "raftmq_table_dead_letters", "Messages that did not decode.")
        self._lag = create(Gauge, "raftmq_table_lag_messages", "Messages of the topic that are not in the table.")
        self._at = create(Gauge, "raftmq_table_commit_timestamp_seconds", "When the last commit was made.")
        buckets = (0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)
        self._seconds = create(Histogram, "raftmq_table_commit_seconds", "How long a commit takes.", buckets=buckets)

    def serve(self) -> None:
        """Serve the metrics on all addresses. Raises PortUnusable."""
        if self._port is not None:
            from prometheus_client import start_http_server

            try:
                start_http_server(self._port, registry=self._registry)
            except OSError as error:
                raise PortUnusable(
                    f"metrics_port {self._port}: {error.strerror}. Nothing was written; set another port, or end what "
                    f"uses this one"
                ) from error

    def on_open(self, last: Commit) -> None:
        """Publish the last commit of a table that was opened; another process may have made it. The lag is unknown."""
        if self._port is not None:
            self._at.set(last.at_ms / 1000)
            self._lag.set(math.nan)

    def on_caught_up(self) -> None:
        """Publish that the table has all messages of the topic."""
        if self._port is not None:
            self._lag.set(0)

    def on_commit(self, commit: Commit, seconds: float, newest: dict[str, Any] | None) -> None:
        """Publish a new commit."""
        if self._port is None:
            return
        self._commits.inc()
        self._messages.inc(commit.messages)
        self._dead.inc(commit.dead)
        self._at.set(commit.at_ms / 1000)
        self._seconds.observe(seconds)
        if newest is not None:
            self._lag.set(sum(high - low for low, high in messages_between(commit.end, newest).values()))
