"""The workload "dedup": producers that number their messages, and resend many of them.

What must hold: each number of a producer is stored at most once, and exactly once if one of its sends was acknowledged;
all its acknowledgements report the same place; a delayed one is delivered once, and its delivery is not taken for a
duplicate. Some producers send batches, and resend them split in another way: each number is still stored once, and the
stored part of a batch is in one entry, up to the count in its first record.

Once the group is at the format level for it, there are also short-lived producers with generated ids. Brokers forget
those, but never one of the producers above.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, NamedTuple

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.log_oracle import CommittedRecord, SentMessage
from chaos.broker_sim.workload import Workload
from chaos.violation import Violation
from checkers import Checker
from checkers.numbered import check_answers
from mq.broker.state.commands import AdvanceDelay
from mq.broker.state.format_level import LEVEL_OF_GENERATED_PRODUCERS, RaiseLevel
from mq.broker.write_path.pending import NO_PLACE
from mq.protocol import properties as props
from mq.protocol.codes import ResponseCode
from mq.protocol.messages.sequencing import GENERATED_MARK, stored_range
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.requests.send import SENT_ALREADY_STORED

_PRODUCERS = 3
_BATCH_MAX = 4
"""Messages of a batch: the small message limit of simulated brokers has no room for more."""
_BATCH_BODY_BYTES_MAX = 20
_SHORT_LIVED = 0.2
"""The share of operations that are the first send of a new process."""
_FORGOTTEN_KINDS = "plain", "short-lived"
"""Messages that may be stored as often as they are sent."""


class _EntryPart(NamedTuple):
    """The messages of a batch that must follow in the same entry."""

    producer: str
    next: int
    last: int


class Dedup(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = (check_answers,)
    name = "dedup"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._numbers: Counter[int] = Counter()
        self._first: dict[int, CommittedRecord] = {}
        self._delayed_count = 0
        self._level = 1
        self._batches: dict[str, list[SentMessage]] = {f"b{producer}": [] for producer in range(_PRODUCERS)}
        """The messages that each producer of batches has sent, by number."""
        self._part: _EntryPart | None = None
        self._placeless_values: set[int] = set()
        """Values that were acknowledged without a place."""

    def run_operation(self) -> None:
        if self.rng.random() < 0.1:
            self.send(self.new("plain", {}))
            return
        if self._level >= LEVEL_OF_GENERATED_PRODUCERS and self.rng.random() < _SHORT_LIVED:
            self.counts["short-lived producers"] += 1
            producer_id = f"{GENERATED_MARK}{self.counts['short-lived producers']}"
            self.send(self.new("short-lived", {props.PRODUCER_ID: producer_id, props.SEQUENCE: "0"}))
            return
        if self.rng.random() < 0.3:
            self._act_in_batches(self.rng.choice(list(self._batches)))
            return
        producer = self.rng.randrange(_PRODUCERS)
        self._numbers[producer] += self.rng.choice((1, 1, 1, 3))
        properties = {props.PRODUCER_ID: f"p{producer}", props.SEQUENCE: str(self._numbers[producer])}
        if self.rng.random() < 0.2:
            properties[props.DELAY] = "1"
        message = self.new("numbered", properties)
        self.send(message)
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            later = self.rng.choice((0.0, self.rng.uniform(0.0, 0.1), self.rng.uniform(0.0, 5.0)))
            self.cluster.at(self.cluster.now + later, self._repeat, message)

    def _repeat(self, message: SentMessage) -> None:
        if not self.stopped:
            self.counts["repeats"] += 1
            self.send(message)

    # -- batches -------------------------------------------------------------------------------------------------------

    def _act_in_batches(self, producer: str) -> None:
        """Send a new batch and, often, send some of the latest or of older messages again in other batches."""
        messages = self._batches[producer]
        low = len(messages)
        for number in range(low, low + self.rng.randint(1, _BATCH_MAX)):
            nbytes = self.rng.randint(8, _BATCH_BODY_BYTES_MAX)
            message = self.ledger.new(
                "batched", self.topic, nbytes, {}, self.cluster.now, producer=producer, number=number
            )
            messages.append(message)
        self._send_batch(producer, low, len(messages))
        again = self.rng.random()
        if again < 0.5:
            low = self.rng.choice((0, max(len(messages) - 6, 0), self.rng.randrange(len(messages))))
            high = min(low + self.rng.randint(1, 16), len(messages))
            while low < high:
                end = min(low + self.rng.randint(1, _BATCH_MAX), high)
                later = self.rng.choice((0.0, self.rng.uniform(0.0, 0.1), self.rng.uniform(0.0, 5.0)))
                self.cluster.at(self.cluster.now + later, self._repeat_batch, producer, low, end)
                low = end

    def _repeat_batch(self, producer: str, low: int, high: int) -> None:
        if not self.stopped:
            self.counts["repeats of batches"] += 1
            self._send_batch(producer, low, high)

    def _send_batch(self, producer: str, low: int, high: int, attempt: int = 1) -> None:
        batch = self._batches[producer][low:high]

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self._batch_stored(batch, response)
            elif attempt < 3 and self.rng.random() < 0.7 and not self.stopped:
                self._send_batch(producer, low, high, attempt + 1)

        self.send_batch(batch, lambda message: {}, {props.PRODUCER_ID: producer, props.SEQUENCE: str(low)}, on_response)

    def _batch_stored(self, batch: list[SentMessage], response: ClientResponse) -> None:
        positions = [int(each[16:32], 16) for each in response.ext["msgId"].split(",")]
        offset = int(response.ext["queueOffset"])
        already = int(response.ext[SENT_ALREADY_STORED])
        self.counts[f"batches {'new' if not already else 'known' if already == len(batch) else 'partly known'}"] += 1
        for number, (message, position) in enumerate(zip(batch, positions, strict=True)):
            self.counts["acknowledged"] += 1
            if offset < 0:
                assert position == NO_PLACE, response
                self._placeless_values.add(message.value)
            else:
                self.check_acknowledgement(message, offset + number, position)

    def _check_part(self, commit: CommittedRecord) -> None:
        """Check that a record of a batch continues the range of its first record, in the same entry."""
        part, range_ = self._part, stored_range(commit.record.properties)
        if range_ is not None:
            if part is not None:
                raise Violation(f"half a batch: {part} should follow, but {commit.place} follows")
            part = _EntryPart(range_.producer, range_.first, range_.last)
        message = self.ledger.messages[commit.value]
        if part is None or (part.producer, part.next) != (message.details["producer"], message.details["number"]):
            raise Violation(f"half a batch: {part} should follow, but {commit.place} is {message}")
        self._part = None if part.next == part.last else part._replace(next=part.next + 1)

    def on_entry_end(self) -> None:
        """Check that the entry does not end within a batch."""
        if self._part is not None:
            raise Violation(f"half a batch: {self._part} should follow, but the entry ends")

    # -- results -------------------------------------------------------------------------------------------------------

    def check_acknowledgement(self, message: SentMessage, offset: int, position: int) -> None:
        """Compare a response with the log. Of a message that was dropped, the response has only the position."""
        if offset < 0 and position < self.cluster.dropped_pos:
            self.counts["acknowledged, and dropped by then"] += 1
            offset = self.ledger.at_position[position].record.queue_offset
        super().check_acknowledgement(message, offset, position)

    def operation(self, message: SentMessage) -> str | None:
        return "send" if message.kind in _FORGOTTEN_KINDS else "attempt"

    def copies_topic(self, message: SentMessage) -> str | None:
        """Return None for producers that brokers remember: a response may only say that a number is known."""
        return message.topic if message.kind in _FORGOTTEN_KINDS else None

    def on_commit(self, commit: CommittedRecord) -> None:
        topic = commit.record.topic
        if topic == SCHEDULE_TOPIC:
            self._delayed_count += 1
        if topic not in (SCHEDULE_TOPIC, self.topic) or self.ledger.messages[commit.value].kind in _FORGOTTEN_KINDS:
            return
        if self.ledger.messages[commit.value].kind == "batched":
            self._check_part(commit)
        first = self._first.setdefault(commit.value, commit)
        copies = self.ledger.copies[topic][commit.value]
        if copies > 1 or (first is not commit and first.record.topic != SCHEDULE_TOPIC):
            raise Violation(
                f"duplicate: {self.ledger.messages[commit.value]} is stored at {commit.place} and at {first.place}"
            )

    def on_command(self, command: Any) -> None:
        if isinstance(command, AdvanceDelay):
            self._delayed_count = len(self.ledger.queues[SCHEDULE_TOPIC, 0]) - command.offset
        if isinstance(command, RaiseLevel):
            self._level = max(self._level, command.level)

    def needed_from(self) -> int:
        queue = self.ledger.queues[SCHEDULE_TOPIC, 0]
        return queue[-self._delayed_count].record.physical_offset if self._delayed_count else 1 << 62

    def pending_count(self) -> int:
        return self._delayed_count

    def check_end(self) -> None:
        super().check_end()
        for message in self.ledger.messages.values():
            if message.kind in _FORGOTTEN_KINDS:
                continue
            is_stored = message.value in self._first
            visible = self.ledger.copies[self.topic][message.value]
            is_known = message.value in self._placeless_values
            if (message.acked or is_known) and not is_stored:
                raise Violation(f"lost: {message} was acknowledged, but is not stored")
            if is_stored and not message.copies_max and not is_known:
                raise Violation(
                    f"duplicate: {message} was refused, but it is stored at {self._first[message.value].place}"
                )
            if visible != is_stored:
                raise Violation(f"lost: {message} is visible {visible} times")
