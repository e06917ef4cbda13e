"""Writes the rows of one Spark partition: each one is stored once, however often its task runs.

Rows become batches of messages with sequence numbers (see `spark.numbering`), which are in flight many at once.
Whatever happens to a connection or a leader, a batch with an unknown outcome is resent unchanged, to another replica:
brokers store only messages that they do not have.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.send_fields import send_header
from spark.client import BrokerResponse, Connection, NameServers, ServerError, TopicRoute, Unreachable
from spark.errors import RowInvalid, WriteFailed
from spark.numbering import ROWS_MAX, Destination, WriteId, first_number, group_of_producer, producer_id
from spark.outgoing import OVERHEAD_BYTES, Codec, Message, SinkColumns, encode_messages, messages_of

_LATER: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
"""Responses after which the same is sent again: numbers make that harmless whatever the outcome."""
ALREADY_STORED: Final = "alreadyStored"

_UNDER_WAY_MAX: Final = 64
"""Requests in flight per task. Brokers remember far more sends of each producer."""
_PAUSE_SECONDS: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 2.0
_LEADER_ID: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """The limits of a task's buffers; `TEST_MIN` has the smallest values with which rows are still buffered."""

    batch_bytes: int = 256 << 10
    batch_rows: int = 2048
    gathered_bytes_max: int = 4 << 20
    """Bytes of rows that wait until enough rows have the same destination."""
    destinations_max: int = 1000
    """Per task: brokers remember 10,000 producers, and each is one."""


TEST_MIN: Final = WriterLimits(batch_bytes=2000, batch_rows=10, gathered_bytes_max=5000)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """The options of a task. Plain values only, so that they can be pickled; times are seconds."""

    namesrv: tuple[str, ...]
    columns: SinkColumns
    codec: Codec
    in_flight_bytes_max: int
    request_seconds: float
    deadline_seconds: float
    client_id: str
    limits: WriterLimits = WriterLimits()


@dataclass(slots=True)
class WrittenRows:
    """The rows that a task has written. ``already_stored`` are rows stored by an earlier attempt."""

    rows: int = 0
    already_stored: int = 0
    nbytes: int = 0
    requests: int = 0
    sent_again: int = 0


@dataclass(slots=True, eq=False)
class _DestinationRows:
    """The rows of the task for one destination."""

    destination: Destination
    id: str
    rows: int = 0
    """Rows put into batches."""
    batches: int = 0
    messages: list[Message] | None = None
    nbytes: int = 0


class _BatchRequest(NamedTuple):
    """One request, resent as often as needed."""

    producer: _DestinationRows
    first_row: int
    row_count: int
    group: str
    ext: dict[str, str]
    body: bytes

    @property
    def rows(self) -> str:
        """The rows of a batch, as named in errors."""
        last = self.first_row + self.row_count - 1
        return f"rows {self.first_row} to {last} of the task for {self.producer.destination}"


class TaskWriter:
    """Writes the rows of one task.

    Args:
        job: the job that writes.
        partition: the number of the Spark partition.
        connect: creates a connection to an address with a timeout in seconds.
        clock: monotonic seconds.
        wall_clock: seconds since the epoch, for the born time of messages.
    """

    def __init__(
        self,
        options: WriterOptions,
        job: WriteId,
        partition: int,
        *,
        connect: Callable[[str, float], Connection] = Connection,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the edge of the task's process
        wall_clock: Callable[[], float] = time.time,  # noqa: TID251
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limits = options.limits
        self._options = options
        self._job = job
        self._partition = partition
        self._names = NameServers(options.namesrv, options.request_seconds, connect)
        self._connect = connect
        self._clock = clock
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._routes: dict[str, TopicRoute] = {}
        self._producers: dict[Destination, _DestinationRows] = {}
        self._gathered_bytes = 0
        self._lines: dict[str, _GroupSender] = {}
        self._in_flight_bytes = 0
        self._progress_at = 0.0
        self._pause = _PAUSE_SECONDS
        self._totals = WrittenRows()

    def write(self, batches: Iterable[pa.RecordBatch]) -> WrittenRows:
        """Write all rows; when this returns they are stored, each on a majority of its group's disks.

        Raises:
            RowInvalid: a row cannot be a message; ``row`` is its number in the task.
            WriteFailed: a broker permanently refused rows, or none has accepted any for too long.
        """
        try:
            for batch in batches:
                self._progress_at = self._clock()  # Spark may have taken long for it
                for message in self._messages(batch):
                    self._gather(message)
            self._send_gathered()
            for line in self._lines.values():
                while line.under_way:
                    self._receive_one(line)
        finally:
            for line in self._lines.values():
                line.close()
        return self._totals

    # -- rows --------------------------------------------------------------------------------------------------------

    def _messages(self, batch: pa.RecordBatch) -> Iterator[Message]:
        try:
            yield from messages_of(batch, self._options.columns)
        except RowInvalid as error:
            raise RowInvalid(self._totals.rows + error.row, error.reason) from None
        self._totals.rows += batch.num_rows

    def _gather(self, message: Message) -> None:
        producer = self._producers.get(message.destination) or self._new_producer(message.destination)
        nbytes = OVERHEAD_BYTES + len(message.body) + len(message.properties)
        if producer.messages and producer.nbytes + nbytes > self._limits.batch_bytes:
            self._send(producer)
        if producer.messages is None:
            producer.messages = []
        producer.messages.append(message)
        producer.nbytes += nbytes
        self._gathered_bytes += nbytes
        if len(producer.messages) >= self._limits.batch_rows:
            self._send(producer)
        elif self._gathered_bytes > self._limits.gathered_bytes_max:
            self._send_gathered()

    def _new_producer(self, destination: Destination) -> _DestinationRows:
        if len(self._producers) >= self._limits.destinations_max:
            raise WriteFailed(
                f"Spark partition {self._partition} has rows for more than {self._limits.destinations_max} topics and "
                f"queues, the last one {destination}; repartition by topic and queue, so that each task writes to few"
            )
        producer = _DestinationRows(destination, producer_id(self._job, self._partition, destination))
        self._producers[destination] = producer
        return producer

    def _send_gathered(self) -> None:
        for producer in self._producers.values():
            if producer.messages:
                self._send(producer)

    def _send(self, producer: _DestinationRows) -> None:
        """Send the gathered rows of a producer, as soon as there is room for another request in flight."""
        messages, producer.messages = producer.messages or [], None
        self._gathered_bytes -= producer.nbytes
        producer.nbytes = 0
        batch = self._batch(producer, messages)
        line = self._lines.get(batch.group)
        if line is None:
            line = self._lines[batch.group] = _GroupSender(batch.group)
        self._make_room(len(batch.body))
        self._in_flight_bytes += len(batch.body)
        self._totals.nbytes += len(batch.body)
        self._post(line, batch)
        # Until a first response has confirmed that brokers support sequence numbers, only one request is sent.
        while line.under_way and (not line.is_trusted or line.connection is None or line.has_input):
            self._receive_one(line)

    def _batch(self, producer: _DestinationRows, messages: list[Message]) -> _BatchRequest:
        destination = producer.destination
        group, queue_id = self._choose_queue(producer)
        flag, body = encode_messages(messages, self._options.codec)
        first, producer.rows = producer.rows, producer.rows + len(messages)
        if producer.rows > ROWS_MAX:
            raise WriteFailed(f"one task has more than {ROWS_MAX} rows for {destination}; make more Spark partitions")
        producer.batches += 1
        numbers = {props.PRODUCER_ID: producer.id, props.SEQUENCE: str(first_number(self._job, first))}
        ext = send_header(
            producer_group=self._options.client_id,
            topic=destination.topic,
            default_topic=AUTO_CREATE_TEMPLATE,
            default_topic_queue_nums="4",
            queue_id=str(queue_id),
            sys_flag=str(flag),
            born_timestamp_ms=str(int(self._wall_clock() * 1000)),
            properties=props.encode(numbers),
            batch="true",
            broker_name=group,
        )
        return _BatchRequest(producer, first, len(messages), group, ext, body)

    # -- places ------------------------------------------------------------------------------------------------------

    def _choose_queue(self, producer: _DestinationRows) -> tuple[str, int]:
        """Choose the broker group and queue of a producer's next batch. Successive batches use different queues."""
        topic, broker_name, queue_id = producer.destination
        queues = self._route(topic).write_queues
        if broker_name is not None:
            if broker_name not in queues:
                raise WriteFailed(f"topic {topic!r} has no queues to write to in broker group {broker_name}")
            group = broker_name
        elif queue_id is not None and len(queues) > 1:
            raise WriteFailed(
                f"topic {topic!r} has queues in the broker groups {', '.join(sorted(queues))}: with a column queue_id "
                "the sink also needs a column broker_name"
            )
        else:
            group = group_of_producer(producer.id, queues)
        count = queues[group]
        if queue_id is None:
            return group, (self._partition + producer.batches) % count
        if queue_id >= count:
            raise WriteFailed(f"a row has queue_id {queue_id}; topic {topic!r} has {count} queues in {group}")
        return group, queue_id

    def _route(self, topic: str) -> TopicRoute:
        while (cached_route := self._routes.get(topic)) is None:
            try:
                route = self._names.route(topic)
            except ServerError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise WriteFailed(f"no route of topic {topic!r}: {error}") from error
                raise WriteFailed(f"the topic {topic!r} does not exist; create it first") from error
            except Unreachable as error:
                self._wait(f"topic {topic!r} is not found", str(error))
                continue
            if not route.write_queues:
                raise WriteFailed(f"the topic {topic!r} has no queue that may be written to")
            self._routes[topic] = route
        return cached_route

    # -- sending -----------------------------------------------------------------------------------------------------

    def _make_room(self, nbytes: int) -> None:
        """Wait until a request of this size may be sent: a single one may exceed the limit."""
        while self._in_flight_bytes and self._in_flight_bytes + nbytes > self._options.in_flight_bytes_max:
            # Of several groups the one with the most in flight.
            self._receive_one(max(self._lines.values(), key=lambda line: len(line.under_way)))

    def _post(self, line: _GroupSender, batch: _BatchRequest) -> None:
        while len(line.under_way) >= _UNDER_WAY_MAX:
            self._receive_one(line)
        line.under_way.append(request := _BatchInFlight(batch))
        if line.connection is not None:
            try:
                request.opaque = line.connection.send(RequestCode.SEND_BATCH_MESSAGE, batch.ext, batch.body)
            except Unreachable as error:
                line.lose(error)

    def _receive_one(self, line: _GroupSender) -> None:
        """Wait for the response to the first request in flight; or take a step towards getting one."""
        try:
            if line.connection is None:
                self._connect_again(line)
            response = line.receive()
        except Unreachable as error:
            line.lose(error)
            if line.has_tried_all:
                self._wait(f"{line.under_way[0].batch.rows} are not stored", line.failures)
            return
        batch = line.under_way.popleft().batch
        if response.code == ResponseCode.SUCCESS:
            self._on_stored(line, batch, response)
        elif response.code in _LATER:
            reason = f"broker group {line.group} answered {response.remark} (code {response.code})"
            self._wait(f"{batch.rows} are not stored", reason)
            self._totals.sent_again += 1
            self._post(line, batch)
        else:
            raise WriteFailed(
                f"{batch.rows} were refused: broker group {ServerError(line.group, response.code, response.remark)}"
            )

    def _on_stored(self, line: _GroupSender, batch: _BatchRequest, response: BrokerResponse) -> None:
        already = response.ext.get(ALREADY_STORED)
        if already is None:
            raise WriteFailed(
                f"broker group {line.group} stored {batch.rows} without sequence numbers, so that a "
                "repetition would store them twice: the sink needs brokers of raftmq that number batches"
            )
        line.is_trusted = True
        self._in_flight_bytes -= len(batch.body)
        self._totals.requests += 1
        self._totals.already_stored += int(already)
        self._progress_at = self._clock()
        self._pause = _PAUSE_SECONDS

    def _connect_again(self, line: _GroupSender) -> None:
        """Connect to the next replica and resend the batches in flight, in order. Raises Unreachable."""
        if not line.addresses:
            topic = line.under_way[0].batch.producer.destination.topic
            try:
                route = self._names.route(topic)
            except ServerError as error:
                raise Unreachable(line.group, str(error)) from error
            brokers = route.addresses.get(line.group, {})
            line.start_round([brokers[number] for number in sorted(brokers, key=lambda n: (n != _LEADER_ID, n))])
        line.connection = connection = self._connect(line.next_address(), self._options.request_seconds)
        for request in line.under_way:
            if request.opaque is not None:
                self._totals.sent_again += 1
            request.opaque = connection.send(RequestCode.SEND_BATCH_MESSAGE, request.batch.ext, request.batch.body)

    def _wait(self, what: str, why: str) -> None:
        seconds = self._clock() - self._progress_at
        if seconds >= self._options.deadline_seconds:
            raise WriteFailed(
                f"{what}, and no request succeeded for {seconds:.0f} s: {why}; "
                "raise option writeDeadline to wait longer"
            )
        self._sleep(self._pause)
        self._pause = min(2 * self._pause, _PAUSE_SECONDS_MAX)


@dataclass(slots=True, eq=False)
class _BatchInFlight:
    """A batch in flight; ``opaque`` is the request's number on its connection, None until it was sent."""

    batch: _BatchRequest
    opaque: int | None = None


class _GroupSender:
    """The traffic to one broker group, over one connection at a time.

    Attributes:
        under_way: in the order in which they were sent.
        is_trusted: whether a response has confirmed that the brokers support numbered batches.
        addresses: of replicas not yet tried since the last route lookup.
    """

    def __init__(self, group: str) -> None:
        self.group = group
        self.connection: Connection | None = None
        self.under_way: deque[_BatchInFlight] = deque()
        self.is_trusted = False
        self.addresses: deque[str] = deque()
        self._failures: list[str] = []

    @property
    def has_input(self) -> bool:
        """Whether a response can be read without waiting, or the connection is lost."""
        return self.connection is not None and self.connection.has_input

    @property
    def has_tried_all(self) -> bool:
        """Whether every replica was tried."""
        return not self.addresses

    @property
    def failures(self) -> str:
        """The last response of each replica, for errors."""
        return "; ".join(self._failures)

    def start_round(self, addresses: list[str]) -> None:
        """Take the replicas to try one after another. Raises Unreachable if there are none."""
        self._failures.clear()
        if not addresses:
            raise Unreachable(self.group, "the name servers know no broker of this group")
        self.addresses.extend(addresses)

    def next_address(self) -> str:
        """Take the next replica to try."""
        return self.addresses.popleft()

    def receive(self) -> BrokerResponse:
        """Wait for the response to the first request in flight. Raises Unreachable."""
        assert self.connection is not None
        opaque = self.under_way[0].opaque
        assert opaque is not None, "what is under way is sent when a connection is made"
        return self.connection.receive(opaque)

    def lose(self, error: Unreachable) -> None:
        """Note that the connection has failed, and close it."""
        self._failures.append(str(error))
        self.close()

    def close(self) -> None:
        """Close the connection; batches in flight have an unknown outcome."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None
