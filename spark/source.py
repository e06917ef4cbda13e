"""The data source of Spark: ``spark.read.format("raftmq")``.

Spark builds these objects in several processes: the driver plans, executors read. Nothing that one of them keeps is
seen by another one, so all that a task needs is in its partition and in the options of the reader.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark.option_table import AtTime, AtTimes, Bound, QueueName
from spark.options import OptionRefused, ReadOptions, parse_read_options
from spark.plan import (
    LogRange,
    PlanRefused,
    QueueRange,
    Splitting,
    check_same_queues,
    queue_pieces,
    replica_order,
    resolve,
    scan,
)
from spark.schema import COLUMN_TYPES, ddl
from spark.survey import LEADER_ID, Survey, Surveyor

FORMAT = "raftmq"


class RaftmqDataSource(DataSource):
    """Topics of raftmq, or of Apache RocketMQ, as tables."""

    @classmethod
    def name(cls) -> str:
        """What users write as the format."""
        return FORMAT

    def schema(self) -> str:
        """The columns that the option ``columns`` names."""
        return ddl(parse_read_options(self.options, "batch").columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader for these columns, which a user may have given as the schema."""
        return TopicReader(parse_read_options(self.options, "batch"), columns_of(schema))


@dataclass
class TopicPartition(InputPartition):
    """What one task reads."""

    part: LogRange


class TopicReader(DataSourceReader):
    """Plans a scan on the driver, and reads a part of it on an executor."""

    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of the scan; its end is fixed here. Raises PlanRefused, Unreachable."""
        options = self._options
        surveyor = Surveyor(options.namesrv, options.fetch_timeout_ms / 1000)
        found = surveyor.survey(options.subscription)
        stops = _resolved(surveyor, found, options, options.ending, "ending")
        starts = _resolved(surveyor, found, options, options.starting, "starting")
        ranges = scan(starts, stops, found.ends)
        return [TopicPartition(part) for part in plan_partitions(found, ranges, options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The messages of a partition as record batches."""
        if not isinstance(partition, TopicPartition):
            return  # an empty plan is given to one task as None
        from spark.reader import TaskOptions, TaskReader  # numpy and pyarrow are for executors

        options = self._options
        reader = TaskReader(
            partition.part,
            TaskOptions(
                namesrv=options.namesrv,
                columns=self._columns,
                tags=tags_of(options.tags),
                read_from=options.read_from,
                keep_bad_bodies=options.on_bad_body == "keep",
                on_data_loss="fail" if options.fail_on_data_loss else "skip",
                fetch_bytes=options.fetch_bytes,
                fetch_seconds=options.fetch_timeout_ms / 1000,
                deadline_seconds=options.read_deadline_ms / 1000,
                client_id=options.client_id,
            ),
        )
        yield from reader.read()
        done = reader.statistics
        if done.skipped:
            logging.getLogger(__name__).warning("%d messages of %s were deleted", done.skipped, partition.part)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The names of a schema's columns. Raises OptionRefused for one that there is not, or of another type."""
    for field in schema.fields:
        kind = COLUMN_TYPES.get(field.name)
        if kind is None:
            raise OptionRefused(f"there is no column {field.name!r}; there are {', '.join(COLUMN_TYPES)}")
        if field.dataType.simpleString() != kind:
            raise OptionRefused(f"column {field.name} is {kind}, not {field.dataType.simpleString()}")
    return tuple(schema.names)


def tags_of(expression: str) -> tuple[str, ...] | None:
    """The tags of an expression such as ``A || B``; None for all messages."""
    if expression == "*":
        return None
    return tuple(sorted({tag.strip() for tag in expression.split("||") if tag.strip()}))


def plan_partitions(found: Survey, ranges: dict[QueueName, QueueRange], options: ReadOptions) -> list[LogRange]:
    """The partitions of a scan, with the replicas that each is to ask."""
    splitting = Splitting(options.min_partitions, options.max_records_per_partition)
    total = sum(each.message_count for each in ranges.values())
    groups: dict[tuple[str, str], list[QueueRange]] = {}
    for (topic, broker_name, _), each in ranges.items():
        groups.setdefault((topic, broker_name), []).append(each)
    parts: list[LogRange] = []
    for (topic, broker_name), members in groups.items():
        addresses = found.routes[topic].addresses.get(broker_name, {})
        share = splitting
        if splitting.pieces is not None:
            mine = sum(each.message_count for each in members)
            share = splitting._replace(pieces=max(1, round(splitting.pieces * mine / total)))
        sizes = [found.ends[topic, broker_name, each.queue_id].nbytes for each in members]
        for piece in queue_pieces(members, sizes, share):
            replicas = replica_order(addresses, LEADER_ID, options.read_from, len(parts))
            if not replicas:
                raise PlanRefused(f"broker group {broker_name} has no replica that readFrom={options.read_from} allows")
            parts.append(LogRange(topic, "", broker_name, tuple(piece), replicas))
    return parts


def _resolved(surveyor: Surveyor, found: Survey, options: ReadOptions, bound: Bound, side: str) -> dict[QueueName, int]:
    by_time: dict[QueueName, int | None] = {}
    name = f"{side}Offsets"
    if isinstance(bound, AtTime | AtTimes):
        name = f"{side}Timestamp" if isinstance(bound, AtTime) else f"{side}OffsetsByTimestamp"
        if isinstance(bound, AtTimes):
            check_same_queues(bound.times, found.ends, name)
            times = dict(bound.times)
        else:
            times = dict.fromkeys(found.ends, bound.milliseconds)
        by_time = surveyor.by_time(found, times)
        if side == "ending" or options.no_message_at_time == "latest":
            by_time = {queue: found.ends[queue].end if at is None else at for queue, at in by_time.items()}
    return resolve(bound, found.ends, by_time, name)
