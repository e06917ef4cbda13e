"""The topic of a pipeline, on the driver: where a table begins, and how far the topic is."""

from __future__ import annotations

from typing import Any, Final

from spark.bulk_offset_survey import surveyor_of
from spark.errors import DataLoss
from spark.kept_connections import KeptConnections
from spark.micro_batches import REMEDIES, ClusterChanged, LossKind
from spark.offset_survey import Surveyor
from spark.options import ReadOptions, parse_read_options
from spark.stream_progress import StreamProgress
from spark.tables.loop import Stopped
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
        read_options = parse_read_options(options, "stream")
        self._progress = (
            StreamProgress(read_options, make_surveyor=_latest) if is_once else StreamProgress(read_options)
        )
        self._pipeline = pipeline
        self._is_once = is_once
        self._is_capped = False

    def beginning(self) -> dict[str, Any]:
        """The position at which a table without commits begins. Raises PlanInvalid, Unreachable, ServerError."""
        self._cap()
        return self._progress.beginning()

    def earliest(self) -> dict[str, Any]:
        """The first message of each queue. Raises PlanInvalid, Unreachable, ServerError."""
        options = self._pipeline.read_options()
        progress = StreamProgress(
            parse_read_options({**options, "subscribe": self._pipeline.topic, "startingOffsets": "earliest"}, "stream")
        )
        try:
            return progress.beginning()
        finally:
            progress.stop()

    def latest(self, start: dict[str, Any]) -> dict[str, Any]:
        """The position at which the next commit ends; ``start`` if there is nothing to read.

        Raises:
            Stopped: messages can never be read again, or the topic is another one.
            PositionInvalid, Unreachable, ServerError: from the data source.
        """
        self._cap()
        try:
            return self._progress.latest(start, is_limited=True)
        except DataLoss as error:
            raise Stopped(_for_tables(str(error))) from error
        except ClusterChanged as error:
            raise Stopped(
                f"the table {self._pipeline.table.where} was written from another cluster than the one that namesrv "
                f"{self._pipeline.namesrv} leads to. Nothing was committed; set namesrv back, or write to a new table"
            ) from error

    def newest(self) -> dict[str, Any] | None:
        """The ends of all queues, as last seen."""
        return self._progress.newest()

    def close(self) -> None:
        """Close the connections of the queries."""
        self._progress.stop()

    def _cap(self) -> None:
        if self._is_once and not self._is_capped:
            self._progress.end_here()
            self._is_capped = True


def _latest(options: ReadOptions, connections: KeptConnections) -> Surveyor:
    """Make a surveyor of the ends after every message acknowledged before: a run reads all messages sent before it."""
    return surveyor_of(options, connections, detail=False, otherwise="latest-if-possible")


def _for_tables(text: str) -> str:
    """Describe lost messages, with remedies for a table instead of a query with a checkpoint."""
    for kind, remedy in REMEDIES.items():
        text = text.replace(remedy, _REMEDIES[kind])
    return f"{text} Nothing was skipped or committed"


_NEW_TABLE: Final = "To go on without them, write to a new table."
_REMEDIES: Final[dict[LossKind, str]] = {
    "deleted": f"Keep messages longer (fileReservedTime), or run more often. {_NEW_TABLE}",
    "cut": f"The name servers lead to another cluster, or a broker group has lost its log: set namesrv. {_NEW_TABLE}",
    "gone": f"If the broker group or the topic comes back, run again. {_NEW_TABLE}",
    "recreated": "Write to a new table; if the topic was not created again, the name servers lead to another cluster.",
}
