"""The workload "pop": consumers that pop messages, acknowledge many, postpone some, and drop the rest.

What must hold: a popped message is delivered to no other consumer until it is acknowledged or postponed, or its time is
over by the leader's clock; then the same entry puts it in the retry topic. A message whose acknowledgement was
confirmed is never redelivered. A client that does not learn whether it has postponed a message asks again with the
receipt that it has, and is not refused while the message is hidden for it. In the end consumers acknowledge everything
they get, and get everything: nothing is lost, and nothing is invisible for ever.

In half of the runs the messages have priorities (`chaos.broker_sim.priorities`), and consumers pop less than is sent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import msgspec

from chaos.broker_sim.clients import Client, ClientResponse, LostResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.log_oracle import CommittedRecord
from chaos.broker_sim.priorities import LEVELS, Priorities
from chaos.broker_sim.workload import Workload, queue_name
from chaos.values import value_of
from chaos.violation import Violation
from checkers import Checker
from checkers.pops import check_pops
from checkers.recording import Worker
from mq.broker.limits import BrokerLimits, PopLimits
from mq.broker.state.pop_checkpoints import AckMessages, DeferMessage, PopMessages, offsets_of
from mq.protocol import properties as props
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import RecordError, StoredMessage, decode_records
from mq.protocol.names import pop_retry_topic
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.receipts import Receipt, encode_bits, mark_of

_GROUP = "PG"
_CONSUMERS = 3
_ATTEMPTS_MAX = 5
_WITH_PRIORITIES = 0.5


class MessageAt(NamedTuple):
    """A message's place: the queue and the offset in it."""

    topic: str
    queue_id: int
    offset: QueueOffset

    @property
    def queue(self) -> tuple[str, int]:
        return self.topic, self.queue_id


_Name = tuple[int, int]
"""Start and pop time of a checkpoint."""


class _PopCheckpoint(NamedTuple):
    """The checkpoint of the pop that a message is in."""

    start: QueueOffset
    pop_time_ms: int
    invisible_ms: int
    suspended: bool = False
    """Whether the attempt that ends with it is not counted."""

    @property
    def due_ms(self) -> int:
        return self.pop_time_ms + self.invisible_ms


def decode_pop(response: ClientResponse) -> list[tuple[StoredMessage, Receipt]]:
    """Return the messages of a pop with their receipts, paired as other clients do.

    None for a response with a record that is damaged on that replica's disk: its messages are redelivered after their
    time.
    """
    rows = [row.split(" ") for row in response.ext["startOffsetInfo"].split(";")]
    starts = {(mark, int(queue_id)): QueueOffset(start) for mark, queue_id, start in rows}
    pairs = []
    try:
        messages = decode_records(response.body)
    except RecordError:
        return []
    for message in messages:
        text = message.properties.get(props.POP_CK)
        mark = mark_of(message.topic)
        receipt = (
            Receipt.decode(text)
            if text
            else Receipt(
                starts[mark, message.queue_id],
                int(response.ext["popTime"]),
                int(response.ext["invisibleTime"]),
                int(response.ext["reviveQid"]),
                mark,
                "broker-a",
                message.queue_id,
                message.queue_offset,
            )
        )
        pairs.append((message, receipt))
    return pairs


_NOWHERE = _PopCheckpoint(QueueOffset(-1), -1, -1)


class Pop(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = (check_pops, *Workload.checkers)
    name = "pop"

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._retry_topic = pop_retry_topic(_GROUP, self.topic)
        self._consumers = [Client(cluster, 100 + number) for number in range(_CONSUMERS)]
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._open: dict[MessageAt, _PopCheckpoint] = {}
        self._pops: dict[MessageAt, set[tuple[int, int]]] = {}
        self._successors: dict[tuple[MessageAt, _Name], _Name] = {}
        """The next checkpoint after each one that a message has left by being postponed."""
        self._outcomes: dict[MessageAt, str] = {}
        self._handed_out: Counter[MessageAt] = Counter()
        self._acks: dict[MessageAt, set[_Name]] = {}
        """The receipts with which messages may have been acknowledged."""
        self._ends: list[tuple[MessageAt, _PopCheckpoint]] = []
        self._copies: dict[str, list[CommittedRecord]] = {}
        self._priorities: Priorities | None = None
        self._is_created = True
        if random.Random(f"{cluster.scenario.seed} priorities").random() < _WITH_PRIORITIES:
            self._priorities = Priorities(self.topic, self._retry_topic, self.ledger, self.counts)
            self._is_created = False

    def limits(self, base_limits: BrokerLimits) -> BrokerLimits:
        """Allow many open pops: at the limit a queue appears empty, and less urgent messages would come first."""
        if self._priorities is None:
            return base_limits
        checkpoints_max = PopLimits().checkpoints_per_queue_max
        return replace(base_limits, pop=replace(base_limits.pop, checkpoints_per_queue_max=checkpoints_max))

    # -- what clients do -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        for consumer in self._consumers:
            self.cluster.at(self.rng.uniform(0.5, 1.0), self._pop_next, consumer)

    def run_operation(self) -> None:
        if self._priorities is None:
            self.send(self.new("plain", {}))
        elif not self._is_created:
            self._create_topic()
        else:
            for _ in range(self.rng.choice((1, 1, 6))):
                self.send(self.new("plain", self._priorities.properties(self.rng)))

    def _create_topic(self) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            self._is_created |= isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS

        queues = {"readQueueNums": LEVELS, "writeQueueNums": LEVELS}
        self.create_topic(on_response, **queues, topicFilterType="SINGLE_TAG", attributes="+message.type=PRIORITY")

    def _pop_next(self, consumer: Client) -> None:
        ext = {
            "consumerGroup": _GROUP,
            "topic": self.topic,
            "queueId": self.rng.choice((-1, -1, self.rng.randrange(self.queues))),
            "maxMsgNums": self.rng.choice((1, 4, 32)),
            "invisibleTime": self.rng.choice((200, 1000, 3000)),
            "pollTime": self.rng.choice((0, 1000)),
            "bornTime": self.cluster.true_ms(),
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": False,
        }

        if self._priorities is not None:
            ext["queueId"] = -1
            ext["maxMsgNums"] = 32 if self.stopped else self.rng.choice((1, 4))

        worker = Worker(self.recording)
        worker.invoke("pop", o=ext["invisibleTime"])

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                messages = decode_pop(response)
                values = [(self._place_of(receipt), str(value_of(message.body))) for message, receipt in messages]
                worker.ok("pop", v=[(queue_name(*place.queue), place.offset, value) for place, value in values])
                self._check_received(consumer, messages)
            else:
                self.counts[f"pops: {response.code if isinstance(response, ClientResponse) else response.name}"] += 1
                (worker.info if response is LostResponse.UNKNOWN else worker.fail)("pop", str(response))
            self.cluster.at(self.cluster.now + self.rng.uniform(0.0, 0.3), self._pop_next, consumer)

        self.counts["pops"] += 1
        consumer.request(self.cluster.some_node(self.rng), RequestCode.POP_MESSAGE, ext, b"", on_response)

    def _check_received(self, consumer: Client, pairs: list[tuple[StoredMessage, Receipt]]) -> None:
        new_messages: list[tuple[MessageAt, Receipt]] = []
        for message, receipt in pairs:
            place = self._place_of(receipt)
            queue = self.ledger.queues[place.queue]
            if place.offset >= len(queue) or queue[place.offset].record.body != message.body:
                raise Violation(f"pop: {place} was handed out as {message}, which is not committed there")
            if (receipt.start, receipt.pop_time_ms) not in self._pops.get(place, ()):
                raise Violation(f"pop: {place} was handed out with {receipt}, but that pop is not committed")
            self._handed_out[place] += 1
            if self._handed_out[place] > 1:
                raise Violation(f"pop: {place} was handed out {self._handed_out[place]} times")
            self.counts["handed out"] += 1
            new_messages.append((place, receipt))
        to_ack = new_messages if self.stopped else [each for each in new_messages if self.rng.random() < 0.7]
        later = self.rng.choice((0.0, self.rng.uniform(0.0, 1.5)))
        if self.rng.random() < 0.5:
            self.cluster.at(self.cluster.now + later, self._ack_together, consumer, to_ack)
            return
        for place, receipt in to_ack:
            step = self._change_invisible if not self.stopped and self.rng.random() < 0.15 else self._ack
            self.cluster.at(self.cluster.now + later, step, consumer, place, receipt)

    def _place_of(self, receipt: Receipt) -> MessageAt:
        topic = self.topic if receipt.mark == mark_of(self.topic) else self._retry_topic
        return MessageAt(topic, receipt.queue_id, receipt.offset)

    def _request_fields(self, place: MessageAt, receipt: Receipt) -> dict[str, Any]:
        return {
            "consumerGroup": _GROUP,
            "topic": place.topic,
            "queueId": place.queue_id,
            "extraInfo": receipt.encode(),
            "offset": place.offset,
        }

    def _begin_ack(self, place: MessageAt, receipt: Receipt) -> Callable[[ResponseOrLoss], None]:
        """Record that a client begins to acknowledge a message. Call the returned function with the response."""
        self._acks.setdefault(place, set()).add((receipt.start, receipt.pop_time_ms))
        worker, value = Worker(self.recording), str(self.ledger.queues[place.queue][place.offset].value)
        worker.invoke("ack", v=value, o=place.offset)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                worker.ok("ack", k=queue_name(*place.queue), v=value)
                self._check_acked(place)
            else:  # a request that was handed on may be refused since it has taken effect
                worker.info("ack", str(response), k=queue_name(*place.queue), v=value)
                self.counts["too late to acknowledge"] += response is not LostResponse.UNKNOWN

        return on_response

    def _ack(self, consumer: Client, place: MessageAt, receipt: Receipt) -> None:
        on_response = self._begin_ack(place, receipt)
        ext = self._request_fields(place, receipt)
        consumer.request(self.cluster.some_node(self.rng), RequestCode.ACK_MESSAGE, ext, b"", on_response)

    def _ack_together(self, consumer: Client, messages: list[tuple[MessageAt, Receipt]]) -> None:
        bits_of: dict[tuple[int, int, str, int], int] = {}
        ends: list[Callable[[ResponseOrLoss], None]] = []
        for place, receipt in messages:
            ends.append(self._begin_ack(place, receipt))
            key = receipt.start, receipt.pop_time_ms, receipt.mark, receipt.queue_id
            bits_of[key] = bits_of.get(key, 0) | 1 << (receipt.offset - receipt.start)
        rows = [
            {"c": _GROUP, "t": self.topic, "r": mark, "so": start, "q": queue_id, "pt": at, "b": encode_bits(bits)}
            for (start, at, mark, queue_id), bits in bits_of.items()
        ]

        def on_response(response: ResponseOrLoss) -> None:
            for ack_ends in ends:
                ack_ends(response)

        if rows:
            body = msgspec.json.encode({"brokerName": "broker-a", "acks": rows})
            consumer.request(self.cluster.some_node(self.rng), RequestCode.BATCH_ACK_MESSAGE, None, body, on_response)

    def _check_acked(self, place: MessageAt) -> None:
        self.counts["told acknowledged"] += 1
        if (how := self._outcomes.get(place)) != "acknowledged":
            raise Violation(f"pop: {place} was acknowledged to its client, but is {how}")

    def _change_invisible(
        self, consumer: Client, place: MessageAt, receipt: Receipt, invisible_ms: int | None = None, attempt: int = 1
    ) -> None:
        """Postpone a message. If the outcome is unknown, ask again at times, with the same receipt."""
        if invisible_ms is None:
            invisible_ms = self.rng.choice((0, 300, 2000))
        known_to = self._known_to(place, receipt)

        def on_response(response: ResponseOrLoss) -> None:
            if response is LostResponse.UNKNOWN:
                later = self.cluster.now + self.rng.uniform(0.0, 0.3)
                if self.rng.random() < 0.3:
                    self.cluster.at(later, self._ack, consumer, place, receipt)
                elif attempt < _ATTEMPTS_MAX:
                    self.cluster.at(later, self._change_invisible, consumer, place, receipt, invisible_ms, attempt + 1)
                return
            is_refused = isinstance(response, ClientResponse) and response.code == ResponseCode.NO_MESSAGE
            if is_refused and known_to and known_to == self._known_to(place, receipt):
                raise Violation(f"denied: {place} is hidden for {receipt}, but cannot be put off again with it")
            if not isinstance(response, ClientResponse) or response.code != ResponseCode.SUCCESS:
                return
            self.counts["put off"] += 1
            self.counts["put off again"] += attempt > 1 and bool(known_to)
            pop_time_ms = int(response.ext["popTime"])
            fresh = receipt._replace(
                start=receipt.offset, pop_time_ms=pop_time_ms, invisible_ms=int(response.ext["invisibleTime"])
            )
            if (fresh.start, pop_time_ms) not in self._pops[place]:
                raise Violation(f"pop: {place} was put off with {fresh}, but that is not committed")
            if self.rng.random() < 0.7:
                later = self.rng.uniform(0.0, 2.0)
                self.cluster.at(self.cluster.now + later, self._ack, consumer, place, fresh)

        ext = self._request_fields(place, receipt) | {"invisibleTime": invisible_ms, "suspend": self.rng.random() < 0.5}
        node = self.cluster.some_node(self.rng)
        consumer.request(node, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext, b"", on_response)

    def _known_to(self, place: MessageAt, receipt: Receipt) -> list[int]:
        """Return the ids of all running brokers if each knows that the message was postponed and is open, else none.

        A broker that was restored from a snapshot may not know it.
        """
        name = receipt.start, receipt.pop_time_ms
        if self._open.get(place, _NOWHERE)[:2] != self._current_name(place, name) or name not in self._pops[place]:
            return []
        brokers = list(self.cluster.brokers())
        keys = _GROUP, place.topic, place.queue_id
        if all((*name, place.offset) in broker.metadata.pops.get(keys).moves for broker in brokers):
            return [id(broker) for broker in brokers]
        return []

    def _current_name(self, place: MessageAt, name: _Name) -> _Name:
        """Return the checkpoint of a message after all changes of its invisible time."""
        while (successor := self._successors.get((place, name))) is not None:
            name = successor
        return name

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_commit(self, commit: CommittedRecord) -> None:
        if self._priorities is not None:
            self._priorities.on_commit(commit)
        if commit.record.topic == self._retry_topic:
            self._copies.setdefault(_origin(commit.record), []).append(commit)

    def on_command(self, command: Any) -> None:
        match command:
            case PopMessages():
                if self._priorities is not None:
                    self._priorities.check_pop(command, self.cluster.now)
                self._on_pop(command)
            case AckMessages(rows=rows):
                for _, topic, queue_id, start, pop_time_ms, bits in rows:
                    for offset in offsets_of(start, bits):
                        self._end(MessageAt(topic, queue_id, offset), start, pop_time_ms)
            case DeferMessage():
                place = MessageAt(command.topic, command.queue_id, command.offset)
                if self._is_open(place, command.start, command.pop_time_ms):
                    name = command.start, command.pop_time_ms
                    self._successors[place, name] = command.offset, command.new_pop_time_ms
                    until = _PopCheckpoint(
                        command.offset, command.new_pop_time_ms, command.invisible_ms, command.suspended
                    )
                    self._open_pop(place, until)
            case _:
                pass

    def _on_pop(self, command: PopMessages) -> None:
        key = (command.topic, command.queue_id)
        position = self._next_offsets.get(key, 0)
        offsets = list(offsets_of(command.start, command.taken)) if command.taken else []
        # Without a filter a pop takes every message, in the order of the queue.
        if offsets != list(range(position, command.next_offset)):
            raise Violation(f"pop: {command} takes {offsets}, but {position} to {command.next_offset} are next")
        if command.next_offset > (there := len(self.ledger.queues[MessageAt(*key, FIRST_OFFSET).queue])):
            raise Violation(f"pop: {command} takes messages that are not in the log; the queue has {there}")
        self._next_offsets[key] = command.next_offset
        for offset in offsets:
            self._open_pop(
                MessageAt(*key, offset), _PopCheckpoint(command.start, command.pop_time_ms, command.invisible_ms)
            )

    def _open_pop(self, place: MessageAt, pop: _PopCheckpoint) -> None:
        self._open[place] = pop
        self._pops.setdefault(place, set()).add(pop[:2])

    def _is_open(self, place: MessageAt, start: int, pop_time_ms: int) -> bool:
        pop = self._open.get(place)
        return pop is not None and pop[:2] == (start, pop_time_ms)

    def _end(self, place: MessageAt, start: int, pop_time_ms: int) -> None:
        if self._is_open(place, start, pop_time_ms):
            self._ends.append((place, self._open.pop(place)))

    def on_entry_end(self) -> None:
        """Check that each message whose pop ends is acknowledged, or put in the retry topic by the same entry."""
        for place, pop in self._ends:
            original = self.ledger.queues[place.queue][place.offset]
            if copies := self._copies.get(_origin(original.record)):
                copy = copies.pop(0)
                if copy.value != original.value:
                    raise Violation(f"changed: {place} was {original.value}, but is redelivered as {copy.value}")
                times = copy.record.reconsume_times - original.record.reconsume_times
                if times != (0 if pop.suspended else 1):
                    raise Violation(f"counted: {place} is redelivered with {times} more attempts; it was {pop}")
                self.counts["given back, not counted"] += pop.suspended
                self._outcomes[place] = "given back"
                self.counts["given back"] += 1
                # A clock that was set back may restart the time, but not shorten it.
                early_ms = pop.due_ms - copy.record.store_timestamp_ms
                if early_ms > 2 * self.cluster.plan.wall_skew_ms:
                    raise Violation(f"early: {place} is redelivered {early_ms} ms too early")
            elif any(self._current_name(place, name) == pop[:2] for name in self._acks.get(place, ())):
                self._outcomes[place] = "acknowledged"
                self.counts["acknowledged by consumers"] += 1
            else:
                raise Violation(f"lost: {place} is done, but was neither acknowledged nor redelivered")
        if copies_left := [copy for copies in self._copies.values() for copy in copies]:
            raise Violation(f"duplicate: {copies_left} were redelivered, but no checkpoint ended")
        self._ends.clear()
        self._copies.clear()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _open_messages(self) -> list[CommittedRecord]:
        return [
            commit
            for (topic, queue_id), queue in self.ledger.queues.items()
            if topic in (self.topic, self._retry_topic)
            for offset, commit in enumerate(queue)
            if (topic, queue_id, offset) not in self._outcomes
        ]

    def needed_from(self) -> int:
        return min((commit.record.physical_offset for commit in self._open_messages()), default=1 << 62)

    def pending_count(self) -> int:
        """Return the number of messages that are neither acknowledged nor in the retry topic."""
        return len(self._open_messages())

    def check_end(self) -> None:
        super().check_end()
        if self._priorities is not None:
            self._priorities.check_end()


def _origin(record: StoredMessage) -> str:
    """The id of the message that a record is, or is a copy of: a value may be stored twice, since clients resend it."""
    return record.properties.get(props.ORIGIN_MESSAGE_ID, record.offset_message_id)
