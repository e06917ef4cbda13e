"""The topic of a pipeline, on the driver: where a table begins, and how far the topic is."""

from __future__ import annotations

from typing import Any

from spark.bulk_survey import surveyor_of
from spark.kept_connections import KeptConnections
from spark.options import ReadOptions, parse_read_options
from spark.stream_progress import StreamProgress
from spark.survey import Surveyor
from spark.tables.pipeline import Pipeline


class TopicSource:
    """Implements `loop.Source` with the progress that streams of the data source have.

    Args:
        is_once: read nothing that is stored after the first question.
        deadline: how long to wait for brokers, if not as the pipeline says.
    """

    def __init__(self, pipeline: Pipeline, *, is_once: bool, deadline: str | None = None) -> None:
        options = {
            **pipeline.read_options(),
            "subscribe": pipeline.topic,
            "maxOffsetsPerTrigger": str(pipeline.messages_per_commit),
        }
        if deadline is not None:
            options["readDeadline"] = deadline
        if isinstance(pipeline.start, int):
            options["startingTimestamp"] = str(pipeline.start)
            options["startingOffsetsByTimestampStrategy"] = "latest"
        else:
            options["startingOffsets"] = pipeline.start
        parsed = parse_read_options(options, "stream")
        self._progress = StreamProgress(parsed, make_surveyor=_latest) if is_once else StreamProgress(parsed)
        self._pipeline = pipeline
        self._is_once = is_once
        self._is_capped = False

    def beginning(self) -> dict[str, Any]:
        """Where a table without commits begins. Raises PlanRefused, Unreachable, Refused."""
        self._cap()
        return self._progress.beginning()

    def earliest(self) -> dict[str, Any]:
        """The first message of each queue. Raises PlanRefused, Unreachable, Refused."""
        options = self._pipeline.read_options()
        progress = StreamProgress(
            parse_read_options({**options, "subscribe": self._pipeline.topic, "startingOffsets": "earliest"}, "stream")
        )
        try:
            return progress.beginning()
        finally:
            progress.stop()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """Where the next commit ends; ``start`` if there is nothing to read.

        Raises DataLoss, ClusterChanged, PositionRefused, Unreachable, Refused.
        """
        self._cap()
        return self._progress.latest(start, is_limited=True)

    def newest(self) -> dict[str, Any] | None:
        """The ends of all queues, as last seen."""
        return self._progress.newest()

    def close(self) -> None:
        """Close all connections."""
        self._progress.stop()

    def _cap(self) -> None:
        if self._is_once and not self._is_capped:
            self._progress.end_here()
            self._is_capped = True


def _latest(options: ReadOptions, connections: KeptConnections) -> Surveyor:
    """Sees what was acknowledged before it asks: what is sent before a run is read by it. A stream may be later."""
    return surveyor_of(options, connections, detail=False, otherwise="latest-if-possible")
