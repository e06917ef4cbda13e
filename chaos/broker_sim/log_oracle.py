"""The content of a group's log for consumers, as committed: every queue, and what clients were told about it.

The rules of queues are: offsets are contiguous, one offset holds one message for ever, each message was sent and is
unchanged, no refused message is there, and an acknowledged message is at the reported place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from chaos.values import body_of, value_of
from chaos.violation import Violation
from mq.protocol import properties as props
from mq.protocol.messages.records import StoredMessage

OWN = "own"
"""A property that only clients set; it must be the same in all copies of a message."""


class CommittedRecord(NamedTuple):
    """A committed record. ``at`` is the simulated time in seconds at which the first replica applied it."""

    at: float
    value: int
    record: StoredMessage

    @property
    def place(self) -> str:
        """Topic, queue id, queue offset and physical offset of the record, as text."""
        record = self.record
        return f"{record.topic}/{record.queue_id}/{record.queue_offset} at {record.physical_offset}"


OF_DELETED_TOPIC: Final = CommittedRecord(0.0, 0, cast("StoredMessage", None))
"""Stands for a record that was deleted with its topic."""


@dataclass(slots=True)
class SentMessage:
    """A message of a client, and the outcomes of its sends: open or unknown, refused, acknowledged."""

    value: int
    kind: str
    topic: str
    body: bytes
    properties: dict[str, str]
    since: float
    details: Mapping[str, Any] = field(default_factory=dict)
    """Details that the workload needs later."""
    unknown: int = 0
    refusals: int = 0
    acked: list[tuple[int, int]] = field(default_factory=list)
    """Queue offset and physical offset, as reported."""

    @property
    def copies_max(self) -> int:
        """The highest number of copies that may be stored."""
        return self.unknown + len(self.acked)


class Ledger:
    """The committed queues, and the sends of clients. A method raises `Violation` if its arguments contradict them."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], list[CommittedRecord]] = defaultdict(list)
        self.begins: dict[tuple[str, int], int] = {}
        """The offsets at which queues begin because the queue of a deleted topic ended there."""
        self.messages: dict[int, SentMessage] = {}
        self.at_position: dict[int, CommittedRecord] = {}
        self.copies: dict[str, Counter[int]] = defaultdict(Counter)
        """The number of stored copies of each value, by topic."""

    def new(
        self, kind: str, topic: str, nbytes: int, properties: dict[str, str], since: float, **details: Any
    ) -> SentMessage:
        """Register a message that a client is about to send."""
        value = len(self.messages) + 1
        body = body_of(value, nbytes)
        self.messages[value] = SentMessage(value, kind, topic, body, properties, since, details)
        return self.messages[value]

    def add_committed(self, at: float, record: StoredMessage) -> CommittedRecord:
        """Add a committed record, the next one in the log."""
        place = record.topic, record.queue_id
        if place not in self.queues:
            self.queues[place] = [OF_DELETED_TOPIC] * self.begins.get(place, 0)
        queue = self.queues[place]
        if record.queue_offset != len(queue):
            raise Violation(
                f"offsets: {record.topic}/{record.queue_id} continues with {record.queue_offset}; expected: "
                f"{len(queue)}"
            )
        is_message = record.topic[:1] == "T" or record.body[:1] == b"\0"
        is_message &= props.TRANSACTION_SET not in record.properties  # which has several
        value = value_of(record.body) if is_message else 0
        commit = CommittedRecord(at, value, record)
        queue.append(commit)
        self.at_position[record.physical_offset] = commit
        if value:
            message = self.messages.get(value)
            if message is None:
                raise Violation(f"phantom: {value} is stored at {commit.place}, but was never sent")
            if record.body != message.body:
                raise Violation(f"phantom: {value} has {len(record.body)} bytes, but {len(message.body)} were sent")
            if (own := record.properties.get(OWN)) != message.properties.get(OWN):
                raise Violation(f"altered: {value} has the property {own!r} at {commit.place}, but {message} was sent")
            if (key := record.properties.get(props.UNIQUE_KEY, "")) != f"U{value}":
                raise Violation(f"altered: {value} has the unique key {key!r} in {commit.place}")
            self.copies[record.topic][value] += 1
        return commit

    def delete_topic(self, topic: str, *, continued: bool) -> None:
        """Remove a deleted topic. ``continued`` is that of `mq.broker.state.commands.DeleteTopic`."""
        if not continued:
            self.begins = {key: begin for key, begin in self.begins.items() if key[0] != topic}
        for key in [key for key in self.queues if key[0] == topic]:
            end = len(self.queues.pop(key))
            if continued and end:
                self.begins[key] = end

    def queues_of(self, topic: str) -> dict[int, list[CommittedRecord]]:
        """Return the queues of a topic, by queue id."""
        return {queue_id: queue for (name, queue_id), queue in self.queues.items() if name == topic}

    def begins_of(self, topic: str) -> dict[int, int]:
        """Map the queues of a topic that do not begin at 0 to their first offsets."""
        return {queue_id: begin for (name, queue_id), begin in self.begins.items() if name == topic}

    def restore_topic(self, topic: str, queues: Mapping[int, list[CommittedRecord]], begins: Mapping[int, int]) -> None:
        """Add a restored topic with these queues, which begin at ``begins``."""
        self.begins = {key: begin for key, begin in self.begins.items() if key[0] != topic}
        self.begins |= {(topic, queue_id): begin for queue_id, begin in begins.items()}
        for queue_id, queue in queues.items():
            self.queues[topic, queue_id] = queue

    def end(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message of a queue."""
        queue = self.queues.get((topic, queue_id))
        return self.begins.get((topic, queue_id), 0) if queue is None else len(queue)

    def check_acknowledgement(self, message: SentMessage, queue_offset: int, position: int) -> None:
        """Check that a message is at the queue offset and position that its client was told."""
        record = self.at_position.get(position)
        if record is None:
            raise Violation(f"ack: {message.value} was acknowledged at {position}, but that is not committed")
        if record.value != message.value or record.record.queue_offset != queue_offset:
            raise Violation(f"ack: {message.value} was acknowledged at {queue_offset}, {position}: there is {record}")
        message.acked.append((queue_offset, position))

    def check_copies(self, topic: str, message: SentMessage) -> None:
        """Check that a topic has a message at most as often as its client sent it; histories do not count sends."""
        copies = self.copies[topic][message.value]
        if copies > message.copies_max:
            why = "more often than sent" if message.copies_max else "it was refused"
            raise Violation(f"duplicate: {message} is {copies} times in {topic}, {why}")

    def read(self, topic: str, queue_id: int, record: StoredMessage) -> None:
        """Check that a record that a consumer got is the committed one."""
        queue = self.queues[topic, queue_id]
        offset = record.queue_offset
        if offset >= len(queue):
            raise Violation(
                f"uncommitted read: {topic}/{queue_id}/{offset} was read, but only {len(queue)} are committed"
            )
        if queue[offset].record != record:
            raise Violation(f"read: {topic}/{queue_id}/{offset} is {queue[offset].record}, but {record} was read")

    def missing_sends(self) -> int:
        """Return how many sends may still be stored in their topics. Some of unknown outcome never are."""
        copies = self.copies
        # A run asks for this hundreds of times, of thousands of sends.
        return sum(
            [
                count
                for each in self.messages.values()
                if (count := each.unknown + len(each.acked) - copies[each.topic][each.value]) > 0
            ]
        )
