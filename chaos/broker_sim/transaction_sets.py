"""Transactions of several messages, for the workload "transactions": some of them consume messages and transform them.

Workers of one group ask for the group's offset in a queue, take the next messages of it, and stage one output for each
with the offset behind them; then they commit, perhaps much later, while others do the same with the same messages. What
must hold: the messages of a set are visible in one entry, with its end and its offsets, or never; an offset moves only
with such an entry, from where the set began to consume, so each input has one output; and a set is refused because
others have consumed its messages only if they have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from chaos.broker_sim.clients import Client, ClientResponse, ResponseOrLoss
from chaos.broker_sim.log_oracle import CommittedRecord, Ledger, SentMessage
from chaos.log_sim.node import Node
from chaos.violation import Violation
from mq.broker.state.commands import CommitOffsets
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import COMMITTED
from mq.protocol.messages.transaction_sets import ConsumedRange, SetMessage, TransactionSet
from mq.protocol.names import HALF_TOPIC
from mq.protocol.numbers import QueueOffset

KIND = "output"
"""The kind of the messages of sets."""
_WORKERS = "XG"
_INPUT_QUEUE = 0
_TAKEN_MAX = 4
_OFFSET_ANSWERS = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class Time(Protocol):
    """The parts of the simulation that sets of transactions need."""

    now: float

    def at(self, when: float, action: Callable[..., None], *args: Any) -> None:
        """Call ``action`` at the time ``when``, in simulated seconds."""

    def some_node(self, rng: random.Random) -> Node:
        """Choose the node that gets a client's request."""

    def true_ms(self) -> int:
        """Return the true time, in milliseconds since 1970."""


class TransactionWorld(Protocol):
    """The parts of the workload that sets of transactions need."""

    rng: random.Random
    ledger: Ledger
    clients: list[Client]
    counts: Counter[str]
    topic: ClassVar[str]
    queues: ClassVar[int]

    def new(self, kind: str, properties: dict[str, str], **details: Any) -> SentMessage:
        """Create a message to send."""

    def begin_send(self, message: SentMessage) -> object:
        """Record that a client begins to send a message."""


class SetTransactions:
    """Workers that send several messages in one transaction, together with the offsets that they consumed.

    Args:
        decide: called when a half message is stored: its offset, its position, and what to call if its commit is
            refused because others have consumed the messages.
    """

    def __init__(
        self,
        cluster: Time,
        workload: TransactionWorld,
        decide: Callable[[int, int, Callable[[], None]], None],
        group: str,
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._decide = decide
        self._group = group
        self._number = 0
        self._consumed_to = 0
        self._rows: list[tuple[str, str, int, int]] = []
        self._visible: set[int] = set()
        self._outputs: Counter[int] = Counter()
        """The number of visible outputs, by offset of the input."""

    # -- what clients do -----------------------------------------------------------------------------------------------

    def run_operation(self) -> None:
        """Begin a transaction of several messages."""
        if self._workload.rng.random() < 0.4:
            self._stage(0, [self._output(None) for _ in range(self._workload.rng.randint(1, 4))], [])
        else:
            self._transform()

    def _output(self, offset: int | None) -> SetMessage:
        workload = self._workload
        message = workload.new(KIND, {}, input=offset)
        workload.begin_send(message)
        properties = props.encode({props.UNIQUE_KEY: f"U{message.value}", **message.properties})
        # Never to the queue that is consumed, or the workers would transform their own outputs for ever.
        queue_id = workload.rng.randrange(_INPUT_QUEUE + 1, workload.queues)
        return SetMessage(workload.topic, queue_id, message.body, properties)

    def _transform(self) -> None:
        """Let a worker take the next messages of the queue."""
        rng, topic = self._workload.rng, self._workload.topic

        def on_response(response: ResponseOrLoss) -> None:
            if not isinstance(response, ClientResponse) or response.code not in _OFFSET_ANSWERS:
                return
            first = int(response.ext["offset"]) if response.code == ResponseCode.SUCCESS else 0
            if first > self._consumed_to:
                raise Violation(f"offset: the workers got the offset {first}, but consumed up to {self._consumed_to}")
            end = min(first + rng.randint(1, _TAKEN_MAX), self._workload.ledger.end(topic, _INPUT_QUEUE))
            if end > first:
                self._cluster.at(self._cluster.now + rng.choice((0.0, rng.uniform(0.0, 2.0))), stage, first, end)

        def stage(first: int, end: int) -> None:
            range_ = ConsumedRange(_WORKERS, topic, _INPUT_QUEUE, QueueOffset(first), QueueOffset(end))
            outputs = [self._output(offset) for offset in range(first, end)] if rng.random() < 0.95 else []
            self._stage(first, outputs, [range_])

        ext = {"consumerGroup": _WORKERS, "topic": topic, "queueId": _INPUT_QUEUE, "setZeroIfNotFound": False}
        node = self._cluster.some_node(rng)
        rng.choice(self._workload.clients).request(node, RequestCode.QUERY_CONSUMER_OFFSET, ext, b"", on_response)

    def _stage(self, first: int, messages: list[SetMessage], ranges: list[ConsumedRange]) -> None:
        self._number += 1
        name = f"S{self._number}"
        counts = self._workload.counts

        def on_response(response: ResponseOrLoss) -> None:
            if not isinstance(response, ClientResponse):
                counts["sets unknown"] += 1
            elif response.code == ResponseCode.SUCCESS:
                counts["sets staged"] += 1
                offset, position = int(response.ext["halfQueueOffset"]), int(response.ext["halfPhysicalOffset"])
                half = self._workload.ledger.at_position.get(position)
                if half is None or half.record.queue_offset != offset or half.record.topic != HALF_TOPIC:
                    raise Violation(
                        f"ack: {name} was answered as half message {offset} at {position}, but {half} is there"
                    )
                self._decide(offset, position, lambda: self._check_fenced(name, first))
            else:
                counts["sets refused"] += 1
                if response.code == ResponseCode.PULL_OFFSET_MOVED:
                    self._check_fenced(name, first)

        ext = {"producerGroup": self._group, "transactionId": name, "bornTimestampMs": self._cluster.true_ms()}
        body = TransactionSet(messages, ranges).encode()
        rng = self._workload.rng
        node = self._cluster.some_node(rng)
        rng.choice(self._workload.clients).request(node, RequestCode.STAGE_TRANSACTION, ext, body, on_response)

    def _check_fenced(self, name: str, first: int) -> None:
        self._workload.counts["sets fenced"] += 1
        if self._consumed_to <= first:
            raise Violation(f"fence: {name} consumed from {first}, but the group is only at {self._consumed_to}")

    # -- what is committed ---------------------------------------------------------------------------------------------

    def add_offsets(self, command: CommitOffsets) -> None:
        """Record the offsets that this entry commits."""
        self._rows += command.offsets

    @staticmethod
    def is_told_by_offsets(half: CommittedRecord) -> bool:
        """Return whether a set has no messages, so that only its offsets show that it was committed."""
        return not TransactionSet.decode(half.record.body)[0]

    def take_outcome(self, half: CommittedRecord, visible: dict[int, list[CommittedRecord]]) -> int | None:
        """Remove a set's copies from ``visible``. Return `COMMITTED` if this entry committed the set, else None."""
        messages, ranges = TransactionSet.decode(half.record.body)
        keys = {props.find(message.properties, props.UNIQUE_KEY) for message in messages}
        copies_of_set = [
            copy
            for copies in visible.values()
            for copy in copies
            if copy.record.prepared_offset == half.record.physical_offset
        ]
        for copy in copies_of_set:
            visible[copy.value].remove(copy)
        rows = [(each.group, each.topic, each.queue_id, each.end) for each in ranges]
        moved_rows = [row for row in rows if row in self._rows]
        # A set without its messages was rolled back, and another set from the same place moved the offsets; if no set
        # moved them, `on_entry_end` raises.
        if not copies_of_set and (keys or not moved_rows):
            return None
        if (
            len(copies_of_set) != len(keys)
            or {copy.record.properties.get(props.UNIQUE_KEY) for copy in copies_of_set} != keys
        ):
            raise Violation(
                f"set: of {sorted(map(str, keys))} only {[copy.place for copy in copies_of_set]} are visible"
            )
        if moved_rows != rows:
            raise Violation(
                f"set: messages of half {half.record.queue_offset} are visible, but its offsets are not: {rows}"
            )
        for each in ranges:
            if each.first != self._consumed_to:
                raise Violation(f"transform: {each} is consumed, but the group was at {self._consumed_to}")
            self._consumed_to = each.end
            self._rows.remove((each.group, each.topic, each.queue_id, each.end))
        for copy in copies_of_set:
            self._visible.add(copy.value)
            if (offset := self._workload.ledger.messages[copy.value].details["input"]) is not None:
                self._outputs[offset] += 1
        self._workload.counts["sets committed"] += 1
        self._workload.counts["inputs transformed"] += sum(each.end - each.first for each in ranges)
        return COMMITTED

    def on_entry_end(self) -> None:
        """Check that each offset that moved in this entry belongs to a transaction."""
        if self._rows:
            raise Violation(f"offsets: {self._rows} moved without a transaction that consumed up to there")

    # -- the end -------------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Raise `Violation` unless each input has one output at most, and every visible message was committed."""
        if twice := {offset: count for offset, count in self._outputs.items() if count > 1}:
            raise Violation(f"transform: inputs with more than one output: {twice}")
        copies = self._workload.ledger.copies[self._workload.topic]
        for message in self._workload.ledger.messages.values():
            if message.kind == KIND and copies[message.value] != (message.value in self._visible):
                raise Violation(f"set: {message} is visible {copies[message.value]} times")

    def check_offset(self, node_id: str, offsets: Any) -> None:
        """Check that a replica has the offsets that transactions committed, by group, topic and queue."""
        offset = offsets.get((_WORKERS, self._workload.topic), {}).get(_INPUT_QUEUE, 0)
        if offset != self._consumed_to:
            raise Violation(
                f"offset: {node_id} has offset {offset} of the workers, but they consumed up to {self._consumed_to}"
            )


def is_set(half: CommittedRecord) -> bool:
    """Return whether a half message contains several messages."""
    return props.TRANSACTION_SET in half.record.properties
