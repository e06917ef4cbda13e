"""A task's reader: reads its part of the log from one replica after another, until it has everything.

Any failure of a replica (it is down, slow, behind, or sends damaged bytes) makes the reader continue at the next one,
from the current position, where Spark would rerun the whole task. A response is accepted once it has arrived completely
and its records continue where the previous one ended, so every row is yielded exactly once, in the order of its queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mq.protocol.codes import RequestCode, ResponseCode
from spark.client import BrokerResponse, Connection, NameServers, ServerError, Unreachable
from spark.columns import Source, decode_batches
from spark.errors import AnswerDamaged, DataLoss, ReadFailed
from spark.options import ReadOptions
from spark.plan import LogRange, QueueRange, ReadFrom, replica_order

LEADER_ID: Final = 0
PULL_MESSAGES: Final = 4096
"""Requested per pull; brokers send fewer if their own limit is lower."""

PAUSE_SECONDS_MIN: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
_SUBSCRIPTION: Final = 4
_SIZE_AND_OFFSET: Final = Struct(">i16xq")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options that a task needs. Times are seconds, sizes bytes; plain values, so that it can be pickled.

    ``tags`` are the wanted tags, None for all messages. With ``from_earliest`` a range begins at the first available
    message: messages deleted before are not a loss.
    """

    namesrv: tuple[str, ...]
    columns: tuple[str, ...]
    tags: tuple[str, ...] | None
    read_from: ReadFrom
    keep_bad_bodies: bool
    on_data_loss: Literal["fail", "skip"]
    fetch_bytes: int
    fetch_seconds: float
    deadline_seconds: float
    client_id: str
    read_mode: Literal["bulk", "archive", "pull"] = "pull"
    on_archive_failure: Literal["fail", "brokers"] = "fail"
    from_earliest: bool = False


def task_options(options: ReadOptions, columns: tuple[str, ...], *, from_earliest: bool = False) -> TaskOptions:
    """The options that a task needs of a query that reads these columns."""
    return TaskOptions(
        namesrv=options.namesrv,
        columns=columns,
        tags=tags_of(options.tags),
        read_from=options.read_from,
        keep_bad_bodies=options.on_bad_body == "keep",
        on_data_loss="fail" if options.fail_on_data_loss else "skip",
        fetch_bytes=options.fetch_bytes,
        fetch_seconds=options.fetch_timeout_ms / 1000,
        deadline_seconds=options.read_deadline_ms / 1000,
        client_id=options.client_id,
        read_mode=options.read_mode,
        on_archive_failure=options.on_archive_failure,
        from_earliest=from_earliest,
    )


def tags_of(expression: str) -> tuple[str, ...] | None:
    """The tags of an expression such as ``A || B``; None for all messages."""
    if expression == "*":
        return None
    return tuple(sorted({tag.strip() for tag in expression.split("||") if tag.strip()}))


class ReplicaBehind(Exception):
    """The replica does not have the messages yet; another one may."""


class Chunk(NamedTuple):
    """Records of one queue, back to back, and the next offset. ``skip_count`` messages before them are deleted."""

    data: memoryview
    sizes: Sequence[int]
    next_offset: int
    skip_count: int = 0


class TaskStatistics:
    """The statistics of a task, for one line in the executor's log."""

    def __init__(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self.switches = 0
        self.skip_count = 0
        self.replicas: dict[str, int] = {}
        """Bytes from each."""


class TaskReader:
    """Reads one partition with requests that every RocketMQ broker supports.

    Args:
        connect: creates a connection to an address with a timeout in seconds.
        clock, sleep: monotonic seconds.
    """

    def __init__(
        self,
        part: LogRange,
        options: TaskOptions,
        *,
        connect: Callable[[str, float], Connection] = Connection,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the edge of the task's process
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._part = part
        self._options = options
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._source = Source(part.topic, part.broker_name)
        self._replicas = list(part.replicas)
        self._turn = 0
        self._connection: Connection | None = None
        self._failures: dict[str, str] = {}
        self._denying_replicas: set[str] = set()
        self._progress_at = clock()
        self._pause = PAUSE_SECONDS_MIN
        self.statistics = TaskStatistics()

    def read(self) -> Iterator[Any]:
        """Read all messages of the partition as record batches, queue by queue.

        Raises:
            DataLoss: messages are deleted, and the query must not continue without them.
            ReadFailed: no replica has sent anything within the deadline.
            BodyUnreadable: a compressed body cannot be decompressed.
        """
        self._progress_at = self._clock()
        try:
            for each in self._part.ranges:
                yield from self._read_queue(each)
        finally:
            self._disconnect()

    def _read_queue(self, queue_range: QueueRange) -> Iterator[Any]:
        offset = queue_range.start
        request: int | None = None
        while offset < queue_range.end:
            try:
                connection = self._open_connection()
                if request is None:
                    request = self._ask(connection, queue_range, offset)
                chunk = self._records_in(connection.receive(request), queue_range, offset)
                request = None
            except (Unreachable, ServerError, ReplicaBehind, AnswerDamaged) as error:
                request = None
                self._next_replica(error)
                continue
            self._on_progress(connection, chunk)
            offset = chunk.next_offset
            if offset < queue_range.end:
                # The broker works on the next response while this one is decoded.
                try:
                    request = self._ask(connection, queue_range, offset)
                except Unreachable as error:
                    self._next_replica(error)
            yield from self._batches(chunk)

    def _batches(self, chunk: Chunk, *, without_bodies: bool = False) -> Iterator[Any]:
        options = self._options
        columns = options.columns
        if options.tags is not None and "tags" not in columns:
            columns = (*columns, "tags")
        for batch in decode_batches(
            chunk.data,
            chunk.sizes,
            columns,
            self._source,
            keep_bad_bodies=options.keep_bad_bodies,
            without_bodies=without_bodies,
        ):
            rows = batch
            if options.tags is not None:
                # Brokers compare the hashes of tags only.
                rows = batch.filter(pc.is_in(batch.column("tags"), pa.array(options.tags)))
                rows = rows.select(list(options.columns))
            self.statistics.rows += rows.num_rows
            if rows.num_rows:
                yield rows

    # -- requests --------------------------------------------------------------------------------------------------

    def _ask(self, connection: Connection, queue_range: QueueRange, offset: int) -> int:
        options = self._options
        expression = "*" if options.tags is None else " || ".join(options.tags)
        return connection.send(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": options.client_id,
                "topic": self._part.topic,
                "queueId": str(queue_range.queue_id),
                "queueOffset": str(offset),
                "maxMsgNums": str(min(PULL_MESSAGES, queue_range.end - offset)),
                "sysFlag": str(_SUBSCRIPTION),
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": expression,
                "subVersion": "0",
                "expressionType": "TAG",
                "maxMsgBytes": str(options.fetch_bytes),
            },
        )

    def _records_in(self, response: BrokerResponse, queue_range: QueueRange, offset: int) -> Chunk:
        """The records in a response. Raises ReplicaBehind, ServerError, AnswerDamaged, DataLoss."""
        address = self._replicas[self._turn]
        if response.code not in (
            ResponseCode.SUCCESS,
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            raise ServerError(address, response.code, response.remark)
        try:
            next_offset = int(response.ext["nextBeginOffset"])
            first, end = int(response.ext["minOffset"]), int(response.ext["maxOffset"])
        except (KeyError, ValueError) as error:
            raise AnswerDamaged(f"{address} answered a pull without its offsets: {response.ext}") from error
        if response.code == ResponseCode.SUCCESS:
            return self._records(response.body, queue_range, offset, next_offset)
        if end < queue_range.end:
            raise ReplicaBehind(f"{address} has queue {queue_range.queue_id} up to {end}")
        if first > offset:
            return self._skip_lost(queue_range, offset, first)
        if next_offset > offset and response.code != ResponseCode.PULL_OFFSET_MOVED:
            return Chunk(
                memoryview(b""), [], min(next_offset, queue_range.end)
            )  # no message up to there has a wanted tag
        raise ReplicaBehind(
            f"{address} sends nothing at offset {offset} of queue {queue_range.queue_id} ({first} to {end})"
        )

    def _records(self, data: memoryview, queue_range: QueueRange, offset: int, next_offset: int) -> Chunk:
        sizes: list[int] = []
        at, expected, size_of = 0, offset, _SIZE_AND_OFFSET
        is_dense = self._options.tags is None
        while at < len(data):
            if at + size_of.size > len(data):
                raise AnswerDamaged(f"{len(data) - at} bytes are left after the last record")
            size, record_offset = size_of.unpack_from(data, at)
            if record_offset >= queue_range.end:
                break
            if (
                size <= 0
                or at + size > len(data)
                or record_offset < expected
                or (is_dense and record_offset != expected)
            ):
                raise AnswerDamaged(f"a record of {size} bytes has offset {record_offset}; expected: {expected}")
            sizes.append(size)
            at += size
            expected = record_offset + 1
        if is_dense:
            next_offset = expected
        if next_offset <= offset or next_offset < expected:
            raise AnswerDamaged(f"the answer for offset {offset} names the next offset {next_offset}")
        return Chunk(data[:at], sizes, min(next_offset, queue_range.end))

    def _skip_lost(self, queue_range: QueueRange, offset: int, first: int) -> Chunk:
        """Skip messages that were deleted after planning. Raises DataLoss if the query must not continue."""
        behind = min(first, queue_range.end)
        where = f"topic {self._part.topic!r}, queue {self._part.broker_name}:{queue_range.queue_id}"
        message = f"offsets {offset} to {behind - 1} ({behind - offset} messages) were deleted before they were read"
        is_begun = all(each.start != offset for each in self._part.ranges if each.queue_id == queue_range.queue_id)
        if self._options.from_earliest and not is_begun:
            return Chunk(memoryview(b""), [], behind)
        if self._options.on_data_loss == "fail":
            raise DataLoss(
                f"{where}: {message}. The queue begins at {first} now. Keep messages longer (fileReservedTime), read "
                f"sooner, or set failOnDataLoss=false to continue without them"
            )
        return Chunk(memoryview(b""), [], behind, skip_count=behind - offset)

    # -- replicas --------------------------------------------------------------------------------------------------

    def _open_connection(self) -> Connection:
        if self._connection is None:
            if not self._replicas:
                raise Unreachable(self._part.broker_name, "no replica is known")
            self._connection = self._connect(self._replicas[self._turn], self._options.fetch_seconds)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _on_progress(self, connection: Connection, chunk: Chunk) -> None:
        self._progress_at = self._clock()
        self._pause = PAUSE_SECONDS_MIN
        self._denying_replicas.clear()
        statistics = self.statistics
        statistics.nbytes += len(chunk.data)
        statistics.skip_count += chunk.skip_count
        statistics.replicas[connection.address] = statistics.replicas.get(connection.address, 0) + len(chunk.data)

    def _next_replica(self, error: Exception) -> None:
        """Continue with the next replica. Raises ReadFailed."""
        self._disconnect()
        self.statistics.switches += 1
        if self._replicas:
            self._failures[self._replicas[self._turn]] = str(error)
        if isinstance(error, ServerError) and error.code == ResponseCode.NO_PERMISSION:
            self._denying_replicas.add(self._replicas[self._turn])
            if self._denying_replicas.issuperset(self._replicas):  # waiting longer does not help
                raise ReadFailed(
                    f"topic {self._part.topic!r}, broker group {self._part.broker_name}: no replica lets this query "
                    f"read it ({error}). RAFTMQ_CREDENTIALS names the file with the keys of an account that may"
                ) from error
        if self._clock() - self._progress_at >= self._options.deadline_seconds:
            answers = "; ".join(f"{address}: {reason}" for address, reason in self._failures.items()) or str(error)
            raise ReadFailed(
                f"topic {self._part.topic!r}, broker group {self._part.broker_name}: no replica has sent messages for "
                f"{self._options.deadline_seconds:g} s, option readDeadline ({answers})"
            ) from error
        self._turn += 1
        if self._turn >= len(self._replicas):
            self._turn = 0
            self._sleep(self._pause)
            self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)
            self._refresh()

    def _refresh(self) -> None:
        """Query the current addresses of the replicas; keeps the known ones if no server responds."""
        options = self._options
        try:
            route = NameServers(options.namesrv, options.fetch_seconds, self._connect).route(self._part.topic)
        except (Unreachable, ServerError):
            return
        addresses = route.addresses.get(self._part.broker_name)
        if addresses:
            self._replicas = list(replica_order(addresses, LEADER_ID, options.read_from, 0)) or self._replicas
