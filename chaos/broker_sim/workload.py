"""The base of all workloads: the actions of clients on simulated brokers, and the promises to them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Protocol

import msgspec

from chaos.broker_sim.clients import (
    Client,
    ClientResponse,
    Connection,
    LostResponse,
    OnResponse,
    ResponseOrLoss,
    pull_fields,
)
from chaos.broker_sim.log_oracle import OWN, CommittedRecord, Ledger, SentMessage
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.schedule import BrokerScenario
from chaos.broker_sim.sockets import SocketWorld
from chaos.log_sim.node import Node
from chaos.log_sim.schedule import Scenario
from chaos.violation import Violation
from checkers import Checker
from checkers.append_log import check_log
from checkers.assignment import check_assigned
from checkers.delays import CLOCK
from checkers.events import Event
from checkers.history import gather
from checkers.recording import Recording, Worker
from checkers.send_order import check_order
from mq.broker.context import ArchiveAccess
from mq.broker.limits import BrokerLimits
from mq.broker.state.commands import decode_command
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.frames import BINARY, JSON
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.messages.records import StoredMessage, decode_records
from mq.protocol.names import AUTO_CREATE_TEMPLATE
from mq.protocol.numbers import FIRST_OFFSET
from mq.protocol.requests.send import SendExt
from mq.store.dispatch import META_TOPIC, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from mq.store.errors import QueueFileDamaged
from raftlog.consensus.types import NodeId
from raftlog.segment.meta import Base

_BINARY_CODES_MAX = 32_767
_ATTEMPTS_MAX = 3
_LATENESS_MS = (10, 30, 100, 300, 1000, 3000, 10_000)
_CLIENTS = 4


class Ends(Protocol):
    """Called when a client knows how its send ended; ``location``: queue offset and position, if it got them."""

    def __call__(self, response: ResponseOrLoss, location: tuple[int, int] | None = None) -> None: ...


def queue_name(topic: str, queue_id: int | str) -> str:
    """Return the name of a queue in the history."""
    return f"{topic}/{queue_id}"


class SimulatedBrokers(SocketWorld, Protocol):
    """The parts of the simulation that clients need; see `BrokerCluster`."""

    scenario: Scenario
    plan: BrokerScenario
    limits: BrokerLimits
    nodes: dict[NodeId, Node]
    dropped_pos: int

    def some_node(self, rng: random.Random) -> Node:
        """Choose the node that gets a client's request: mostly the leader, if there is one."""

    def brokers(self) -> list[BrokerProcess]:
        """Return the broker processes that run."""

    def true_ms(self) -> int:
        """Return the true time, in milliseconds since 1970."""

    def trace_line(self, line: str) -> None:
        """Write a log line of a broker or client to the trace."""


class Workload:
    """Clients of one kind.

    Attributes:
        ledger: the committed messages.
        counts: figures for the report.
        history: the actions and observations of clients.
        recording: writes the history.
    """

    checkers: ClassVar[tuple[Checker, ...]] = (check_log, check_order, check_assigned)
    """The checkers that judge the history in the end."""
    name: ClassVar[str]
    drawn_as: ClassVar[str] = ""
    """The name that the workload had when its seeds were noted: draws depend on it."""
    topic: ClassVar[str] = "T"
    queues: ClassVar[int] = 3

    @classmethod
    def adapt(cls, scenario: BrokerScenario) -> BrokerScenario:
        """Change the drawn scenario of a run for this workload."""
        return scenario

    def __init__(self, cluster: SimulatedBrokers) -> None:
        self.cluster = cluster
        self.rng = random.Random(f"{cluster.scenario.seed} {self.drawn_as or self.name}")
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self.history: list[Event] = []
        self.recording = Recording(self._observe, lambda: round(cluster.now * 1e9))
        self.clients = [Client(cluster, number, self.on_broker_request) for number in range(_CLIENTS)]
        self.stopped = False
        self._body_bytes_max = self.rng.choice((20, 100, 300))
        self._read_to: Counter[int] = Counter()
        self._readers = [Worker(self.recording) for _ in range(self.queues)]

    # -- for workloads -------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return the broker settings that differ from the defaults of the simulation."""
        return {}

    def limits(self, base_limits: BrokerLimits) -> BrokerLimits:
        """Change the drawn limits of the brokers for this workload."""
        return base_limits

    def changed_limits(self) -> AbstractContextManager[None]:
        """Return a context manager that changes production code while this workload runs."""
        return nullcontext()

    def run_operation(self) -> None:
        """Begin the next operation of a client."""
        raise AssertionError("the workload has no operations")

    def on_commit(self, commit: CommittedRecord) -> None:
        """Check a committed record, the next one in the log."""

    def on_command(self, command: Any) -> None:
        """Check a committed metadata command."""

    def on_entry_end(self) -> None:
        """Check an entry, after all its records and commands were checked."""

    def on_broker_request(self, connection: Connection, request: Any, body: bytes) -> None:
        """Handle a request that a broker sends to a client."""

    def on_log_line(self, node: Node, event: str, values: Mapping[str, object]) -> None:
        """Handle a log line of a broker."""

    def archive_access(self, process: BrokerProcess) -> ArchiveAccess | None:
        """Return a new process's access to the archive; None if it has none."""
        return None

    def read_archived(
        self, process: BrokerProcess, archive_end: Base, pos: int, nbytes: int, on_read: Callable[[bytes | None], None]
    ) -> bool:
        return False

    def on_broker_start(self, process: BrokerProcess) -> None:
        """Handle the start of a broker's process."""

    def on_broker_exit(self, process: BrokerProcess) -> None:
        """Handle the end of a broker's process, for whatever reason it ended."""

    def needed_from(self) -> int:
        """Return the physical offset from which on the log must be kept."""
        return 1 << 62

    def pending_count(self) -> int:
        """Return the number of pending things, which must fall to 0 after clients have stopped."""
        return 0

    def is_done(self) -> bool:
        """Return whether nothing is pending. It is asked once clients have stopped and replicas have equal logs."""
        return not self.pending_count()

    def check_end(self) -> None:
        """Check that clients saw no broken promise, and that nothing is stored more often than it was sent."""
        for message in self.ledger.messages.values():
            if (topic := self.copies_topic(message)) is not None:
                self.ledger.check_copies(topic, message)
        self.recording.note("base", n="all", v=self.cluster.dropped_pos)
        history = gather(self.history)
        for check in self.checkers:
            for anomaly, examples in check(history).examples.items():
                raise Violation(f"{anomaly}: {examples[0]}")

    # -- running -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the clients."""
        queues = [queue_name(self.topic, queue_id) for queue_id in range(self.queues)]
        self.recording.note("begin", v={"workload": self.name, "nodes": [], "queues": queues, "nemeses": [CLOCK]})
        self.recording.fault_begins(CLOCK, "clocks of brokers differ", (), majority=True)
        self.cluster.at(0.0, self._run_next)
        for queue_id in range(self.queues):
            self._seek(queue_id, 0)
            self.cluster.at(self.rng.uniform(0.0, 1.0), self._read_next, queue_id)

    def stop(self) -> None:
        """Start no new operations."""
        self.stopped = True

    def _run_next(self) -> None:
        if not self.stopped:
            self.run_operation()
            if self.rng.random() < 0.005:
                self.counts["resets by clients"] += 1
                self.rng.choice(self.clients).reset()
            self.cluster.at(
                self.cluster.now + self.rng.expovariate(1 / self.cluster.scenario.proposal_seconds), self._run_next
            )

    def on_entry(self, index: int, body: bytes) -> None:
        """Pass the records and commands of a committed entry to the checks."""
        for record in decode_records(body):
            if record.topic == META_TOPIC:
                self.on_command(decode_command(record.body))
            else:
                self.on_commit(self.ledger.add_committed(self.cluster.now, record))
        self.on_entry_end()

    def _observe(self, event: Event) -> None:
        self.history.append(event)
        self.cluster.trace_line(f"client {event.p} {event.type} {event.f} {event.k} {event.v} {event.o} {event.err}")

    def history_lines(self) -> bytes:
        """Return the history as lines of JSON, one per event."""
        return msgspec.json.Encoder().encode_lines(self.history)

    # -- sending -------------------------------------------------------------------------------------------------------

    def encoding(self, code: int) -> int:
        """Draw an encoding for a request."""
        return BINARY if code <= _BINARY_CODES_MAX and self.rng.random() < 0.5 else JSON

    def new(self, kind: str, properties: dict[str, str], **details: Any) -> SentMessage:
        """Create a message to send."""
        nbytes = self.rng.randint(8, self._body_bytes_max)
        number = len(self.ledger.messages)
        own = {OWN: "abcdefgh"[number % 8] * (1 + number % 30)}
        return self.ledger.new(kind, self.topic, nbytes, own | properties, self.cluster.now, **details)

    def operation(self, message: SentMessage) -> str | None:
        """Return the name of a send in the history; None for a message that no consumer reads."""
        return "send" if message.topic == self.topic else None

    def copies_topic(self, message: SentMessage) -> str | None:
        """Return the topic with at most one copy of a message per send; None if sends do not limit the copies."""
        return message.topic

    def begin_send(self, message: SentMessage, **fields: Any) -> Ends:
        """Record that a client begins to send a message. Call the returned function with the outcome."""
        name, worker, value = self.operation(message), Worker(self.recording), str(message.value)
        if name is None:
            return lambda response, location=None: None
        worker.invoke(name, v=value, **fields)

        def ends(response: ResponseOrLoss, location: tuple[int, int] | None = None) -> None:
            again = message.unknown > (location is None)
            is_stored = isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS
            if location is not None and isinstance(response, ClientResponse):
                queue_id = response.ext["queueId"]
                if int(response.ext["queueOffset"]) < 0:  # of what the log dropped only the position is known
                    record = self.ledger.at_position[location[1]].record
                    queue_id = record.properties.get(props.REAL_QUEUE_ID, str(record.queue_id))
                queue = queue_name(message.topic, queue_id)
                worker.ok(name, k=queue, v=value, o=location[0], pos=location[1], again=again)
            elif message.unknown or is_stored:
                worker.info(name, str(response), v=value, again=again)
            else:
                worker.fail(name, str(response), v=value)

        return ends

    def send(self, message: SentMessage, attempt: int = 1, ends: Ends | None = None) -> None:
        """Send a message to any replica, mostly the leader. After a failure, it is at times sent again."""
        code = RequestCode.SEND_MESSAGE_V2
        own = {props.UNIQUE_KEY: f"U{message.value}", **message.properties}
        ext = self.send_fields(message.topic, own, sys_flag=self.send_flags(message))
        self.rng.randrange(1 << 30)  # so that the noted seeds still find the planted bugs
        ends = ends or self.begin_send(message)
        message.unknown += 1

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                message.unknown -= 1
                position = int(response.ext["msgId"].split(",")[0][16:32], 16)
                offset = int(response.ext["queueOffset"])
                self.counts["acknowledged"] += 1
                self.check_acknowledgement(message, offset, position)
                ends(response, message.acked[-1])
                self.on_acknowledged(message, response)
                return
            if response is LostResponse.UNKNOWN:
                self.counts["outcome unknown"] += 1
            else:
                message.unknown -= 1
                message.refusals += 1
                self.counts["refused" if isinstance(response, ClientResponse) else "unreachable"] += 1
            if attempt < _ATTEMPTS_MAX and self.rng.random() < 0.5 and not self.stopped:
                self.counts["sent again"] += 1
                self.send(message, attempt + 1, ends)
            else:
                ends(response)

        self.request(code, ext, message.body, on_response)

    def send_batch(
        self,
        batch: Sequence[SentMessage],
        own: Callable[[SentMessage], dict[str, str]],
        properties: dict[str, str],
        on_batch: Callable[[ResponseOrLoss], None],
    ) -> None:
        """Send messages as one request. ``own`` gives each one's properties, ``properties`` are of the request."""
        code = self.rng.choice((RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2))
        ext = self.send_fields(self.topic, properties, batch=True)
        body = encode_batch(
            BatchedMessage(each.body, props.encode({props.UNIQUE_KEY: f"U{each.value}", **own(each)})) for each in batch
        )
        ends = [self.begin_send(each) for each in batch]
        for message in batch:
            message.unknown += 1

        def on_response(response: ResponseOrLoss) -> None:
            self.counts[
                f"batches: {response.name if isinstance(response, LostResponse) else ResponseCode(response.code).name}"
            ] += 1
            if response is not LostResponse.UNKNOWN:
                for message in batch:
                    message.unknown -= 1
            ack_counts = [len(each.acked) for each in batch]
            on_batch(response)
            for message, before, end in zip(batch, ack_counts, ends, strict=True):
                end(response, message.acked[-1] if len(message.acked) > before else None)

        self.request(code, ext, body, on_response)

    def request(self, code: int, ext: dict[str, Any] | None, body: bytes, on_response: OnResponse | None) -> None:
        """Send a request from some client to some replica."""
        self.rng.choice(self.clients).request(
            self.cluster.some_node(self.rng), code, ext, body, on_response, serialization=self.encoding(code)
        )

    def send_fields(self, topic: str, properties: dict[str, str], **other: Any) -> dict[str, str]:
        """Return the header of a plain send to a random queue; ``other`` replaces fields of `SendExt`."""
        fields: dict[str, Any] = {
            "default_topic": AUTO_CREATE_TEMPLATE,
            "default_topic_queue_nums": self.queues,
            "queue_id": self.rng.randrange(self.queues),
            "sys_flag": 0,
            "born_timestamp_ms": self.cluster.true_ms(),
            "flag": 0,
        }
        ext = SendExt(producer_group="P", topic=topic, properties=props.encode(properties), **(fields | other))
        return ext.fields()

    def topic_fields(self, **other: Any) -> dict[str, Any]:
        """Return the header of a request that creates the topic; ``other`` adds fields by their names on the wire."""
        queues = {"readQueueNums": self.queues, "writeQueueNums": self.queues}
        return {"topic": self.topic, "defaultTopic": AUTO_CREATE_TEMPLATE, **queues, "perm": 6, **other}

    def create_topic(self, on_response: OnResponse, **other: Any) -> None:
        """Ask some replica to create the topic with these fields."""
        ext, code = self.topic_fields(**other), RequestCode.UPDATE_AND_CREATE_TOPIC
        self.clients[0].request(self.cluster.some_node(self.rng), code, ext, b"", on_response)

    def send_flags(self, message: SentMessage) -> int:
        """Return the sys_flag of a message."""
        return 0

    def check_acknowledgement(self, message: SentMessage, offset: int, position: int) -> None:
        """Compare the response of a send with the committed record."""
        self.ledger.check_acknowledgement(message, offset, position)

    def on_acknowledged(self, message: SentMessage, response: ClientResponse) -> None:
        """Act on an acknowledged message."""

    def count_delay(self, what: str, seconds: float) -> None:
        """Count an event by how many seconds it happened after its due time."""
        self.counts[what] += 1
        bucket = next((limit for limit in _LATENESS_MS if seconds * 1000 <= limit), None)
        self.counts[f"{what}, within {bucket} ms" if bucket else f"{what}, later"] += 1

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read_next(self, queue_id: int) -> None:
        """Pull the next messages for a consumer, from any replica."""
        offset = self._read_to[queue_id]
        ext = pull_fields("G", self.topic, queue_id, offset, 32)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse):
                self._check_records(queue_id, offset, response)
            self.cluster.at(self.cluster.now + self.rng.uniform(0.05, 0.4), self._read_next, queue_id)

        code = RequestCode.PULL_MESSAGE
        self.clients[0].request(
            self.cluster.some_node(self.rng), code, ext, b"", on_response, serialization=self.encoding(code)
        )

    def _check_records(self, queue_id: int, offset: int, response: ClientResponse) -> None:
        if response.code == ResponseCode.SUCCESS:
            rows: list[tuple[int, str]] = []
            for record in decode_records(response.body):
                self.check_next(self.topic, queue_id, offset, record)
                rows.append((offset, str(self.ledger.at_position[record.physical_offset].value)))
                offset += 1
                self.counts["read"] += 1
            self._read_to[queue_id] = offset
            self._readers[queue_id].ok("poll", k=queue_name(self.topic, queue_id), v=rows)
        elif response.code == ResponseCode.PULL_OFFSET_MOVED:
            low = int(response.ext["nextBeginOffset"])
            if low < offset:
                raise Violation(f"pull: {self.topic}/{queue_id} moved back from {offset} to {low}: {response}")
            self.counts["read on behind what the log dropped"] += low - offset
            self._seek(queue_id, low)

    def _seek(self, queue_id: int, offset: int) -> None:
        """Move the reader of a queue to an offset."""
        self._read_to[queue_id] = offset
        queue, reader = queue_name(self.topic, queue_id), self._readers[queue_id]
        reader.invoke("seek", k=queue, o=offset)
        reader.ok("seek", k=queue, o=offset)

    def check_next(self, topic: str, queue_id: int, offset: int, record: StoredMessage) -> None:
        """Check that a reader got the committed record at the offset where it continues."""
        if record.queue_offset != offset:
            raise Violation(f"poll-skip: {record.queue_offset} was read where {offset} was requested")
        self.ledger.read(topic, queue_id, record)

    @property
    def has_read_all(self) -> bool:
        """Whether consumers have read everything."""
        return all(self._read_to[queue_id] == self.ledger.end(self.topic, queue_id) for queue_id in range(self.queues))

    # -- the end -------------------------------------------------------------------------------------------------------

    def has_whole_queues(self, process: BrokerProcess) -> bool:
        """Return whether all consume queue files are intact. A broker restores a file after damage is read."""
        process.queues.forget_blocks()
        whole = True
        for topic, queue_id in self.ledger.queues:
            queue = process.queues.get(topic, queue_id)
            low = FIRST_OFFSET if queue is None else queue.min_offset
            while queue is not None and low < queue.max_offset:
                count = min(queue.entries_per_block - low % queue.entries_per_block, queue.max_offset - low)
                try:
                    queue.read(low, count)
                except QueueFileDamaged:
                    whole = False
                low += count
        return whole

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        """Check that the derived state of all replicas is the same, and matches the log."""
        states: dict[bytes, str] = {}
        for process in processes:
            for (topic, queue_id), records in self.ledger.queues.items():
                self._check_queue(process, topic, queue_id, records)
            state = process.metadata.capture()()
            states.setdefault(state, process.node_id)
        if len(states) > 1:
            raise Violation(f"state: replicas {sorted(states.values())} have different metadata")

    def _check_queue(self, process: BrokerProcess, topic: str, queue_id: int, records: list[CommittedRecord]) -> None:
        queue = process.queues.get(topic, queue_id)
        if queue is None or queue.max_offset != len(records):
            end = None if queue is None else queue.max_offset
            raise Violation(
                f"queue: {topic}/{queue_id} of {process.node_id} ends at {end}, but {len(records)} are committed"
            )
        low = queue.min_offset
        if low < (begin := self.ledger.begins.get((topic, queue_id), 0)):
            raise Violation(
                f"queue: {topic}/{queue_id} of {process.node_id} begins at {low}, but a deleted one ended at {begin}"
            )
        entries = queue.read(low, queue.max_offset - low)
        if len(entries) != (len(records) - low) * QUEUE_ENTRY_BYTES:
            raise Violation(f"queue: {topic}/{queue_id} of {process.node_id} gives {len(entries)} bytes from {low}")
        for offset, (position, size, _) in enumerate(QUEUE_ENTRY.iter_unpack(entries), low):
            record: StoredMessage = records[offset].record
            if (position, size) != (record.physical_offset, record.size):
                raise Violation(
                    f"queue: {topic}/{queue_id}/{offset} of {process.node_id} is at {position}; expected: "
                    f"{records[offset]}"
                )
