"""The workload "ordered-pop": consumers that pop messages in order, and acknowledge, postpone or drop them.

What must hold: while messages of a queue are invisible, no other consumer gets anything from it, unless the same
attempt is repeated, until all open ones are acknowledged or their time is over by the leader's clock. A pop begins at
the first unacknowledged message, and the group's offset is that one. An acknowledgement that a client was told of took
effect. A message comes with the number of earlier pops whose time was over, except pops after which it was suspended.
In the end everything is acknowledged.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec

from chaos.broker_sim.clients import Client, ClientResponse, LostResponse, OnResponse, ResponseOrLoss
from chaos.broker_sim.cluster import BrokerCluster
from chaos.broker_sim.log_oracle import CommittedRecord
from chaos.broker_sim.pop import decode_pop
from chaos.broker_sim.process import BrokerProcess
from chaos.broker_sim.workload import Workload, queue_name
from chaos.log_sim.node import Node
from chaos.values import value_of
from chaos.violation import Violation
from checkers import Checker
from checkers.pops import check_ordered_pops
from checkers.recording import Worker
from mq.broker.state.pop_checkpoints import AckMessages, DeferMessage, PopMessages, QueueOfGroup, offsets_of
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import StoredMessage
from mq.protocol.requests.receipts import Receipt, read_count_info

_GROUP = "OPG"
_CONSUMERS = 3


@dataclass(slots=True)
class _QueueMessages:
    """The messages of a queue that a consumer holds."""

    pop_time_ms: int
    invisible_ms: int
    attempt: str
    next_offset: int
    open: set[int]
    put_off: dict[int, int] = field(default_factory=dict)
    suspensions: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    """The number of earlier counted pops of each message."""

    @property
    def until_ms(self) -> int:
        return max(self.put_off.get(offset, self.pop_time_ms + self.invisible_ms) for offset in self.open)


_Place = tuple[QueueOfGroup, int, int]
"""A message by queue, offset and time of the pop."""


class From(NamedTuple):
    """The consumer that popped a message, the broker that it asked, and the queue."""

    consumer: Client
    node: Node
    queue: QueueOfGroup


class OrderedPop(Workload):
    checkers: ClassVar[tuple[Checker, ...]] = (check_ordered_pops, *Workload.checkers)
    name = "ordered-pop"
    groups: ClassVar[tuple[str, ...]] = (_GROUP,)

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster)
        self._consumers = [Client(cluster, 100 + number) for number in range(_CONSUMERS)]
        self._attempts = itertools.count(1)
        self._pops: dict[QueueOfGroup, _QueueMessages] = {}
        self._next_offsets: dict[QueueOfGroup, int] = {}
        self._handed_out: Counter[_Place] = Counter()
        """The number of responses with a message that may still reach a client."""
        self._ack_requests: set[_Place] = set()
        """Messages that clients acknowledge, or try to."""
        self._acks: set[_Place] = set()
        self._counts: dict[_Place, int] = {}
        """The number of earlier deliveries with which a message was popped."""
        self._orphans: set[_Place] = set()
        """Messages popped from a queue that has ended since."""

    # -- what clients do -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        for consumer in self._consumers:
            self.cluster.at(self.rng.uniform(0.5, 1.0), self._pop_next, consumer, "")

    def run_operation(self) -> None:
        self.send(self.new("plain", {}))

    def _pop_next(self, consumer: Client, again: str) -> None:
        attempt = again or self.rng.choice(("", f"A{next(self._attempts)}"))
        ext = {
            "consumerGroup": _GROUP,
            "topic": self.topic,
            "queueId": self.rng.choice((-1, -1, self.rng.randrange(self.queues))),
            "maxMsgNums": 32 if self.stopped else self.rng.choice((1, 4, 32)),
            "invisibleTime": 3000 if self.stopped else self.rng.choice((200, 1000, 3000)),
            "pollTime": self.rng.choice((0, 1000)),
            "bornTime": self.cluster.true_ms(),
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": True,
            "attemptId": attempt or None,
        }

        node = self.cluster.some_node(self.rng)
        worker = Worker(self.recording)
        worker.invoke("pop", o=ext["invisibleTime"])

        def on_response(response: ResponseOrLoss) -> None:
            attempt_again = ""
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                counts = read_count_info(response.ext.get("orderCountInfo", ""))
                messages = [
                    (
                        (_GROUP, self.topic, receipt.queue_id),
                        with_count(message, counts.get((receipt.mark, receipt.queue_id, receipt.offset), 0)),
                        receipt,
                    )
                    for message, receipt in decode_pop(response)
                ]
                worker.ok("pop", v=[(queue_name(*k[1:]), r.offset, str(value_of(m.body))) for k, m, r in messages])
                self._check_received(consumer, node, messages)
            else:
                (worker.info if response is LostResponse.UNKNOWN else worker.fail)("pop", str(response))
                self.counts[f"pops: {response.code if isinstance(response, ClientResponse) else response.name}"] += 1
                attempt_again = attempt if response is LostResponse.UNKNOWN else ""
            later = self.rng.uniform(0.0, 0.3)
            self.cluster.at(self.cluster.now + later, self._pop_next, consumer, attempt_again)

        self.counts["pops, the same attempt again" if again else "pops"] += 1
        consumer.request(node, RequestCode.POP_MESSAGE, ext, b"", on_response)

    def _check_received(
        self, consumer: Client, node: Node, messages: list[tuple[QueueOfGroup, StoredMessage, Receipt]]
    ) -> None:
        queues: dict[QueueOfGroup, list[Receipt]] = {}
        for key, message, receipt in messages:
            offset, queue = receipt.offset, self.ledger.queues.get(key[1:], [])
            delivery = (key, offset, receipt.pop_time_ms)
            if delivery in self._orphans:
                self.counts["handed out, and gone"] += 1
                continue
            if offset >= len(queue) or queue[offset].record.body != message.body:
                raise Violation(f"pop: {key}/{offset} was handed out as {message}, which is not committed there")
            self._handed_out[delivery] -= 1
            if self._handed_out[delivery] < 0:
                raise Violation(f"pop: {key}/{offset} was handed out with {receipt}, but that pop is not committed")
            # A pop that was taken over meanwhile no longer has counts.
            if message.reconsume_times not in (0, self._counts[delivery]):
                raise Violation(
                    f"counted: {key}/{offset} comes with {message.reconsume_times} earlier deliveries, "
                    f"{self._counts[delivery]} count"
                )
            self.counts["handed out with a count"] += message.reconsume_times > 0
            self.counts["handed out"] += 1
            queues.setdefault(key, []).append(receipt)
        for key, receipts in queues.items():
            first = receipts[0].offset
            if [each.offset for each in receipts] != list(range(first, first + len(receipts))):
                raise Violation(f"order: {receipts} were handed out together, but are not contiguous")
            self._handle(From(consumer, node, key), receipts)

    def _handle(self, source: From, receipts: list[Receipt]) -> None:
        """Handle messages one at a time. At times a consumer stops, or skips a message."""
        at = self.cluster.now
        pace = 0.0 if self.stopped else self.rng.choice((0.0, 0.02, 0.2))
        for receipt in receipts:
            at += self.rng.uniform(0.0, pace)
            choice = 1.0 if self.stopped else self.rng.random()
            if choice < 0.05:
                return
            if choice < 0.1:
                self.counts["left out"] += 1
            elif choice < 0.2:
                self.cluster.at(at, self._change_invisible, source, receipt)
            else:
                self.cluster.at(at, self._acknowledge, source, receipt)

    def _request_fields(self, source: From, receipt: Receipt) -> dict[str, Any]:
        return {
            "consumerGroup": _GROUP,
            "topic": self.topic,
            "queueId": receipt.queue_id,
            "extraInfo": receipt.encode(),
            "offset": receipt.offset,
        }

    def _acknowledge(self, source: From, receipt: Receipt) -> None:
        delivery = source.queue, receipt.offset, receipt.pop_time_ms
        worker, queue = Worker(self.recording), queue_name(*source.queue[1:])

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                worker.ok("ack", k=queue, v=value)
                self.counts["told acknowledged"] += 1
                if delivery not in self._acks:
                    raise Violation(
                        f"pop: {receipt} was acknowledged to its client, but the queue is {self._state(source.queue)}"
                    )
                return
            worker.info("ack", str(response), k=queue, v=value)
            self.counts["not acknowledged"] += 1

        value = self._value_at(source.queue, receipt.offset)
        worker.invoke("ack", k=queue, v=value, o=receipt.offset)
        self._ack_requests.add(delivery)
        self._ask(source, RequestCode.ACK_MESSAGE, self._request_fields(source, receipt), on_response)

    def _change_invisible(self, source: From, receipt: Receipt) -> None:
        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
                self.counts["put off"] += 1
                if self.rng.random() < 0.7:
                    pop_time_ms, invisible_ms = int(response.ext["popTime"]), int(response.ext["invisibleTime"])
                    fresh = receipt._replace(start=receipt.offset, pop_time_ms=pop_time_ms, invisible_ms=invisible_ms)
                    self.cluster.at(self.cluster.now + self.rng.uniform(0.0, 2.0), self._acknowledge, source, fresh)

        suspends = self.rng.random() < 0.5
        ext = self._request_fields(source, receipt) | {
            "invisibleTime": self.rng.choice((0, 300, 2000)),
            "suspend": suspends,
        }
        self._ask(source, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext, on_response)

    def _ask(self, source: From, code: RequestCode, ext: dict[str, Any], on_response: OnResponse) -> None:
        """Send a request, mostly to the message's broker: after a missing acknowledgement, later ones come again."""
        elsewhere = not self.stopped and self.rng.random() < 0.05
        node = self.cluster.some_node(self.rng) if elsewhere else source.node
        source.consumer.request(node, code, ext, b"", on_response)

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_command(self, command: Any) -> None:
        match command:
            case PopMessages(group=group) if group in self.groups:
                self._on_pop(command)
            case AckMessages(rows=rows):
                for group, topic, queue_id, start, pop_time_ms, bits in rows:
                    if group in self.groups:
                        self._end((group, topic, queue_id), pop_time_ms, offsets_of(start, bits))
            case DeferMessage(group=group, topic=topic, queue_id=queue_id, offset=offset) if group in self.groups:
                pop = self._pops.get((group, topic, queue_id))
                if pop is not None and pop.pop_time_ms == command.pop_time_ms:
                    pop.put_off[offset] = command.new_pop_time_ms + command.invisible_ms
                    (pop.suspensions.add if command.suspended else pop.suspensions.discard)(offset)
                    self.counts["suspended"] += command.suspended
            case _:
                pass

    def _on_pop(self, command: PopMessages) -> None:
        key, at_ms = (command.group, command.topic, command.queue_id), command.pop_time_ms
        offsets_out = list(offsets_of(command.start, command.taken))
        if not offsets_out or offsets_out != list(range(self._next_offset(key), command.next_offset)):
            raise Violation(f"order: {command} takes {offsets_out}, but the queue is {self._state(key)}")
        pop = self._pops.get(key)
        counts: dict[int, int] = dict.fromkeys(offsets_out, 0)
        if pop is not None:
            is_repeated = bool(command.attempt) and command.attempt == pop.attempt
            for offset in offsets_out:
                is_counted = not is_repeated and offset in pop.open and offset not in pop.suspensions
                counts[offset] = pop.counts.get(offset, 0) + is_counted
            if command.attempt and command.attempt == pop.attempt:
                self.counts["had again by the same attempt"] += 1
            # The clocks of old and new leaders may differ.
            elif pop.until_ms - at_ms > 2 * self.cluster.plan.wall_skew_ms:
                raise Violation(f"early: {command} takes {pop.until_ms - at_ms} ms too early the messages of {pop}")
            else:
                self.counts["had again after their time"] += 1
        self._pops[key] = _QueueMessages(
            at_ms, command.invisible_ms, command.attempt or "", command.next_offset, set(offsets_out), counts=counts
        )
        for offset in offsets_out:
            self._handed_out[key, offset, at_ms] += 1
            self._counts[key, offset, at_ms] = counts[offset]

    def _end(self, key: QueueOfGroup, pop_time_ms: int, offsets: Any) -> None:
        pop = self._pops.get(key)
        if pop is None or pop.pop_time_ms != pop_time_ms:
            return
        for offset in pop.open.intersection(offsets):
            place = key, offset, pop_time_ms
            if place not in self._ack_requests:
                raise Violation(f"lost: {place} is done, but was not acknowledged")
            self._acks.add(place)
            self.counts["acknowledged by consumers"] += 1
            pop.open.remove(offset)
        self._next_offsets[key] = min(pop.open, default=pop.next_offset)
        if not pop.open:
            del self._pops[key]

    def _value_at(self, key: QueueOfGroup, offset: int) -> str:
        """Return the value of a message; 0 if its queue has ended."""
        queue = self.ledger.queues.get(key[1:], [])
        return str(queue[offset].value) if offset < len(queue) else "0"

    def _next_offset(self, key: QueueOfGroup) -> int:
        """Return the first offset of a queue that is not acknowledged."""
        return self._next_offsets.get(key, self.ledger.begins.get(key[1:], 0))

    def _state(self, key: QueueOfGroup) -> str:
        return f"at {self._next_offset(key)}, {self._pops.get(key)}"

    # -- the end -------------------------------------------------------------------------------------------------------

    def _keys(self) -> list[QueueOfGroup]:
        """Return the queues whose messages must all be acknowledged in the end."""
        return [(_GROUP, self.topic, queue_id) for queue_id in range(self.queues)]

    def _unread(self) -> Iterator[tuple[QueueOfGroup, CommittedRecord]]:
        """Yield the first message of each queue that is not acknowledged."""
        for key in self._keys():
            for commit in self.ledger.queues[key[1:]][self._next_offset(key) :][:1]:
                yield key, commit

    def needed_from(self) -> int:
        """Return the position of the first message that is not acknowledged."""
        return min((commit.record.physical_offset for _, commit in self._unread()), default=1 << 62)

    def pending_count(self) -> int:
        """Return the number of messages that are not acknowledged."""
        return sum(max(0, len(self.ledger.queues[key[1:]]) - self._next_offset(key)) for key in self._keys())

    def check_replicas(self, processes: list[BrokerProcess]) -> None:
        super().check_replicas(processes)
        for process in processes:
            for key, position in self._next_offsets.items():
                offset = process.metadata.consumer_offset(*key)
                if offset != position:
                    raise Violation(f"offset: {key} is at {offset} at {process.node_id}, not {position}")


def with_count(message: StoredMessage, count: int) -> StoredMessage:
    """Return a message as a client sees it after ``count`` earlier deliveries."""
    return msgspec.structs.replace(message, reconsume_times=count)
